// A download of the ids of the selected items, as CSV.

import { fill, h, trouble } from "./dom";
import { type Context } from "./tile";
import { count } from "./words";

const CHUNK = 10_000; // ids of a request

/** A button that saves the ids of the selection; it is disabled while nothing is selected. */
export function exportButton(context: Context): HTMLElement {
  const button = h("button", { type: "button", class: "button", disabled: true }, "Export ids (CSV)");
  const status = h("span", { class: "by", role: "status" });
  context.selection.subscribe(({ rows }) => button.toggleAttribute("disabled", rows === null || rows.length === 0));
  button.addEventListener("click", () => {
    void save(context, (words) => fill(status, [words])).catch((error: unknown) => fill(status, [trouble(error)]));
  });
  return h("div", { class: "actions", role: "group", "aria-label": "Actions on the selection" }, button, status);
}

async function save(context: Context, report: (words: string) => void): Promise<void> {
  const { rows } = await context.selection.current();
  if (rows === null) return;
  const ids: string[] = [];
  for (let i = 0; i < rows.length; i += CHUNK) {
    report(`Reading the ids … ${count(i)} of ${count(rows.length)}`);
    ids.push(...(await context.table.ids(rows.subarray(i, i + CHUNK))));
  }
  const url = URL.createObjectURL(new Blob([csv(ids)], { type: "text/csv" }));
  h("a", { href: url, download: "selection.csv" }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
  report(`Saved ${count(ids.length)} ids as selection.csv.`);
}

/** One id per line below the header `id`; an id that a spreadsheet could read as a formula gets a leading apostrophe. */
function csv(ids: string[]): string {
  const cell = (id: string): string => {
    const safe = /^[=+\-@\t\r\n＝＋－＠']/.test(id) ? `'${id}` : id;
    return /[",\r\n]/.test(safe) ? `"${safe.replace(/"/g, '""')}"` : safe;
  };
  return `${["id", ...ids.map(cell)].join("\n")}\n`;
}
