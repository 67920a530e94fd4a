// Query with your own picture, or with one of the gallery's.

import { type About, Failure, type Item, known, type Query } from "./api";
import { fill, h, Latest, trouble } from "./dom";
import { capital, type View } from "./item";
import { Neighbourhood } from "./neighbourhood";
import { changeQuery, readRoute } from "./route";
import { strip } from "./strip";
import { type Context, picture } from "./tile";
import { nameOf, number, rankInWords } from "./words";

const LARGEST = 16 * 2 ** 20;
const SENT = 512; // longest side in pixels of a picture that is sent; larger ones are scaled down

export function pictureQuery(context: Context, about: About): View {
  const scale = strip(about);
  const neighbourhood = new Neighbourhood(context, about);
  neighbourhood.element.hidden = true;
  const latest = new Latest();
  const frame = h("div", { class: "frame" });
  const verdict = h("div", { class: "verdict-line", role: "status" });
  const studio = h("div", { class: "studio", hidden: true }, h("div", { class: "stage" }, frame), h("div", { class: "knobs" }, verdict, scale.element));
  const status = h("div", { role: "status" });

  const ask = async (query: Query): Promise<void> => {
    try {
      const answer = await latest.run((signal) => context.source.embed([query], signal));
      const posterior = answer?.[0];
      if (posterior === undefined) return;
      fill(verdict, [h("strong", {}, `κ ${number(posterior.kappa)}`), ` ${capital(rankInWords(posterior.kappa_rank))}.`]);
      scale.mark([{ kappa: posterior.kappa, name: "here" }]);
      neighbourhood.element.hidden = false;
      neighbourhood.ask(known(posterior, query));
    } catch (error) {
      fill(verdict, [trouble(error, () => void ask(query))]);
    }
  };
  let choice = 0; // an earlier choice that finishes loading later is ignored
  /** Shows a picture and queries with it: an item of the gallery is named in the address, a file cannot be. */
  const take = async (load: () => Promise<File>, name: string, item: string | null): Promise<void> => {
    choice += 1;
    const own = choice;
    try {
      const { url, data } = await read(await load());
      if (own !== choice) return;
      const image = h("img", { src: url, alt: name });
      image.addEventListener("load", () => image.classList.toggle("tiny", image.naturalWidth <= 64));
      fill(frame, [image]);
      fill(status, []);
      changeQuery({ item }, "replace");
      studio.hidden = false;
      void ask({ image: data });
    } catch (error) {
      fill(status, [trouble(error)]);
    }
  };
  const takeFile = (file: File | null | undefined): void => {
    if (file) void take(async () => file, "Your picture", null);
  };
  const takeItem = (item: Item, chosen = true): void => {
    const load = async (): Promise<File> => {
      const url = await context.source.picture(item, 1024);
      if (url === null) throw new Failure(`${item.id} has no picture.`, "not_found");
      return new File([await (await fetch(url)).blob()], item.id);
    };
    void take(load, nameOf(item), chosen ? item.id : null);
  };
  const input = h("input", { type: "file", accept: "image/*", id: "file", class: "hidden" });
  input.addEventListener("change", () => takeFile(input.files?.[0]));
  const drop = h(
    "div",
    { class: "drop" },
    h("label", { for: "file", class: "button" }, "Choose a picture"),
    input,
    h("span", {}, "or drop or paste one here. It is only sent to this service."),
  );
  drop.addEventListener("dragover", (event) => {
    event.preventDefault();
    drop.classList.add("over");
  });
  drop.addEventListener("dragleave", () => drop.classList.remove("over"));
  drop.addEventListener("drop", (event) => {
    event.preventDefault();
    drop.classList.remove("over");
    takeFile(event.dataTransfer?.files[0]);
  });
  const pasted = (event: ClipboardEvent): void => takeFile(event.clipboardData?.files[0]);
  document.addEventListener("paste", pasted);

  const named = readRoute().query.get("item");
  if (named !== null) {
    void context.source
      .item(named)
      .then((item) => (choice === 0 ? takeItem(item) : undefined))
      .catch((error: unknown) => fill(status, [trouble(error)]));
  }
  const examples = h("ul", { class: "grid examples" });
  void context.source
    .items("certain", null, 0, 200)
    .then((page) => {
      // some of the most certain items, of different classes
      const seen = new Set<unknown>();
      const pictures = page.items.filter((item) => item.picture !== null);
      const different = pictures.filter((item) => !seen.has(item.label) && seen.add(item.label));
      const some = (different.length >= 4 ? different : pictures).slice(0, 8);
      const [first] = some;
      if (first !== undefined && choice === 0 && named === null) takeItem(first, false); // something to see at once
      fill(
        examples,
        some.map((item) => {
          const name = `Try ${String(item.label ?? item.id)}`;
          const button = h("button", { type: "button", class: "tile", "aria-label": name }, picture(context.source, item, 56, ""));
          button.addEventListener("click", () => takeItem(item));
          return h("li", {}, button);
        }),
      );
    })
    .catch(() => undefined);

  return {
    element: h(
      "section",
      { class: "query" },
      h("h1", {}, "Query with a picture"),
      h("p", { class: "lead" }, "How certain is the encoder about it, and what in the gallery matches it?"),
      drop,
      status,
      h("div", { class: "offer" }, h("span", {}, "Or pick one from the gallery:"), examples),
      studio,
      neighbourhood.element,
    ),
    leave() {
      choice += 1;
      document.removeEventListener("paste", pasted);
      latest.stop();
      neighbourhood.stop();
    },
  };
}

/** The file as base64, scaled down if it is large, and as a data URL. */
async function read(file: File): Promise<{ url: string; data: string }> {
  if (file.size > LARGEST) throw new Failure(`${file.name} is larger than 16 MB.`, "too_large");
  let bitmap: ImageBitmap;
  try {
    bitmap = await createImageBitmap(file);
  } catch {
    throw new Failure(`${file.name || "The pasted content"} is not a picture that this browser can read.`, "invalid_input");
  }
  const longest = Math.max(bitmap.width, bitmap.height);
  let blob: Blob = file;
  if (longest > SENT) {
    const canvas = h("canvas", {
      width: Math.max(1, Math.round((bitmap.width * SENT) / longest)),
      height: Math.max(1, Math.round((bitmap.height * SENT) / longest)),
    });
    canvas.getContext("2d")?.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
    blob = await new Promise((done) => canvas.toBlob((made) => done(made ?? file), "image/png"));
  }
  const url = await new Promise<string>((done, fail) => {
    const reader = new FileReader();
    reader.onload = () => done(String(reader.result));
    reader.onerror = () => fail(new Failure(`${file.name} cannot be read.`, "invalid_input"));
    reader.readAsDataURL(blob);
  });
  return { url, data: url.slice(url.indexOf(",") + 1) };
}
