// Query with a pasted vector.

import { type About, known } from "./api";
import { debounced, fill, h, Latest, trouble } from "./dom";
import { capital, type View } from "./item";
import { Neighbourhood } from "./neighbourhood";
import { changeQuery, readRoute } from "./route";
import { strip } from "./strip";
import type { Context } from "./tile";
import { number, rankInWords } from "./words";

const LONGEST = 16_000; // characters of a vector that the address keeps

export function vectorQuery(context: Context, about: About): View {
  const scale = strip(about);
  const neighbourhood = new Neighbourhood(context, about);
  neighbourhood.element.hidden = true;
  const verdict = h("p", { class: "verdict-line", role: "status" }, "Numbers separated by commas or spaces.");
  const area = h("textarea", { rows: 4, id: "vector", spellcheck: "false" });
  area.value = readRoute().query.get("vector") ?? "";
  const latest = new Latest();
  const ask = async (): Promise<void> => {
    const vector = area.value.split(/[\s,;[\]]+/).filter((part) => part !== "").map(Number);
    if (vector.length === 0) return;
    try {
      const answer = await latest.run((signal) => context.source.embed([{ vector }], signal));
      const posterior = answer?.[0];
      if (posterior === undefined) return;
      fill(verdict, [h("strong", {}, `κ ${number(posterior.kappa)}`), ` ${capital(rankInWords(posterior.kappa_rank))}.`]);
      scale.mark([{ kappa: posterior.kappa, name: "here" }]);
      neighbourhood.element.hidden = false;
      neighbourhood.ask(known(posterior, { vector }));
    } catch (error) {
      fill(verdict, [trouble(error)]);
    }
  };
  const askSoon = debounced(300, () => void ask());
  area.addEventListener("input", () => {
    const numbers = area.value.trim();
    changeQuery({ vector: numbers.length > LONGEST ? null : numbers }, "replace");
    askSoon();
  });
  if (area.value !== "") void ask();
  return {
    element: h(
      "section",
      { class: "query" },
      h("h1", {}, "Query with a vector"),
      h("p", { class: "lead" }, "Paste the output of the gallery's encoder for an input."),
      h("div", { class: "sentence" }, h("label", { for: "vector" }, "Vector"), area, verdict),
      scale.element,
      neighbourhood.element,
    ),
    leave() {
      latest.stop();
      neighbourhood.stop();
    },
  };
}
