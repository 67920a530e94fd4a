// Query with your own picture; sliders crop and blur it, and the page says what that changes.

import { type About, Failure, type Item, known, type Posterior, type Query } from "./api";
import { debounced, fill, h, Latest, svg, trouble } from "./dom";
import { capital, type View } from "./item";
import { Neighbourhood } from "./neighbourhood";
import { changeQuery, readRoute } from "./route";
import { strip } from "./strip";
import { type Context, picture } from "./tile";
import { change, count, nameOf, number, rankInWords, things } from "./words";

const CROPS = [1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2];
const LARGEST = 16 * 2 ** 20;
const SENT = 512; // longest side in pixels of a picture that is sent; larger ones are scaled down
const FRAME = 256;
const GRAIN = 32; // side in pixels of the picture that blur refers to

export function pictureQuery(context: Context, about: About): View {
  let query: Query | null = null;
  let pasted = (_: ClipboardEvent): void => undefined;
  const scale = strip(about);
  const compareSoon = debounced(250, () => void compare());
  const neighbourhood = new Neighbourhood(context, about, compareSoon);
  neighbourhood.element.hidden = true;
  const latest = new Latest();
  const comparing = new Latest();
  const compared = h("p", { class: "compared", role: "status" });
  let whole: Posterior | null = null; // of the picture before it is cropped or blurred
  let now: Posterior | null = null;
  const charting = new Latest();
  const frame = h("div", { class: "frame" });
  const verdict = h("div", { class: "verdict-line", role: "status" });
  const chart = cropChart();
  const crop = slider("crop", "Crop: fraction of each side kept", 20, 100, 5, 100, (v) => `${v} %`);
  const blur = slider("blur", "Blur: sigma in pixels, at 32 pixels width", 0, 4, 0.25, 0, (v) => `${v}`);

  const preview = (): void => {
    const image = frame.querySelector("img");
    if (image === null) return;
    image.style.transform = `scale(${1 / (crop.value() / 100)})`;
    image.style.filter = blur.value() > 0 ? `blur(${((blur.value() * FRAME) / GRAIN) * (crop.value() / 100)}px)` : "none";
  };
  const view = (): { crop: number; blur: number } => ({ crop: crop.value() / 100, blur: blur.value() });
  /** Writes what was measured for the picture as it is now and as it was. */
  const compare = async (): Promise<void> => {
    const { crop: kept, blur: sigma } = view();
    const [before, after] = [whole, now];
    if (before === null || after === null || query === null || (kept === 1 && sigma === 0)) {
      fill(compared, []);
      return;
    }
    const asked = [known(before, query), known(after, { ...query, view: view() })];
    const options = { ...neighbourhood.cap, limit: 1, prior: null, explain: false };
    try {
      const sets = await comparing.run((signal) => Promise.all(asked.map((each) => context.source.search(each, options, signal))));
      if (sets === null) return;
      const [from, to] = sets.map((set) => `${set.count_exact === false ? "more than " : ""}${count(set.count)}`);
      const done = [kept < 1 && `cropped to ${Math.round(100 * kept)} %`, sigma > 0 && `blurred by ${sigma}`].filter(Boolean).join(" and ");
      fill(compared, [
        `${capital(done)}, κ `,
        h("strong", {}, change(before.kappa, after.kappa)),
        from === to ? ", and the set still contains " : ", and the set changes from ",
        from !== to && h("strong", {}, from ?? ""),
        from !== to && " to ",
        h("strong", {}, to ?? ""),
        ` ${things(about, about.rows)}.`,
      ]);
    } catch {
      fill(compared, []); // the neighbourhood shows the error
    }
  };
  const ask = async (): Promise<void> => {
    if (query === null) return;
    const asked: Query = { ...query, view: view() };
    try {
      const answer = await latest.run((signal) => context.source.embed([asked], signal));
      const posterior = answer?.[0];
      if (posterior === undefined) return;
      fill(verdict, [h("strong", {}, `κ ${number(posterior.kappa)}`), ` ${capital(rankInWords(posterior.kappa_rank))}.`]);
      scale.mark([{ kappa: posterior.kappa, name: "here" }]);
      chart.here(view().crop, posterior.kappa);
      now = posterior;
      compareSoon();
      neighbourhood.element.hidden = false;
      neighbourhood.ask(known(posterior, asked));
    } catch (error) {
      fill(verdict, [trouble(error, () => void ask())]);
    }
  };
  const plot = async (): Promise<void> => {
    const base = query;
    if (base === null) return;
    try {
      const looks = CROPS.map((each) => ({ ...base, view: { crop: each, blur: blur.value() } }));
      const answer = await charting.run((signal) => context.source.embed(looks, signal));
      if (answer === null) return;
      chart.curve(CROPS, answer, blur.value());
    } catch {
      chart.curve([], [], 0); // the verdict shows the error
    }
  };
  const askSoon = debounced(150, () => void ask());
  const plotSoon = debounced(150, () => void plot());
  const keepView = (): void => {
    const { crop: kept, blur: sigma } = view();
    changeQuery({ crop: kept === 1 ? null : String(Math.round(100 * kept)), blur: sigma === 0 ? null : String(sigma) }, "replace");
  };
  crop.input.addEventListener("input", () => {
    preview();
    keepView();
    askSoon();
  });
  blur.input.addEventListener("input", () => {
    preview();
    keepView();
    askSoon();
    plotSoon();
  });

  /** Shows a picture: an item of the gallery is named in the address, a file cannot be. */
  const show = (image: HTMLImageElement, given: Query, item: string | null, start = { crop: 100, blur: 0 }): void => {
    query = given;
    [whole, now] = [null, null];
    fill(compared, []);
    changeQuery({ item }, "replace");
    image.addEventListener("load", () => image.classList.toggle("tiny", image.naturalWidth <= 64));
    fill(frame, [image]);
    studio.hidden = false;
    crop.set(start.crop);
    blur.set(start.blur);
    keepView();
    chart.reset();
    preview();
    void ask();
    void plot();
    void context.source
      .embed([{ ...given, view: { crop: 1, blur: 0 } }])
      .then(([posterior]) => {
        if (query !== given) return;
        whole = posterior ?? null;
        compareSoon();
      })
      .catch(() => undefined); // the verdict shows the error
  };
  let choice = 0; // an earlier choice that finishes loading later is ignored
  const take = async (file: File | null | undefined): Promise<void> => {
    if (file === null || file === undefined) return;
    choice += 1;
    const own = choice;
    try {
      const { url, data } = await read(file);
      if (own !== choice) return;
      fill(status, []);
      show(h("img", { src: url, alt: "Your picture" }), { image: data }, null);
    } catch (error) {
      fill(status, [trouble(error)]);
    }
  };
  const takeItem = async (item: Item, name: string, start?: { crop: number; blur: number }, chosen = true): Promise<void> => {
    choice += 1;
    const own = choice;
    try {
      const url = await context.source.picture(item, 1024);
      if (url === null) throw new Failure(`${item.id} has no picture.`, "not_found");
      const blob = await (await fetch(url)).blob();
      const found = await read(new File([blob], item.id));
      if (own === choice) show(h("img", { src: found.url, alt: name }), { image: found.data }, chosen ? item.id : null, start);
    } catch (error) {
      fill(status, [trouble(error)]);
    }
  };
  const status = h("div", { role: "status" });
  const input = h("input", { type: "file", accept: "image/*", id: "file", class: "hidden" });
  input.addEventListener("change", () => void take(input.files?.[0]));
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
    void take(event.dataTransfer?.files[0]);
  });
  pasted = (event) => void take(event.clipboardData?.files[0]);
  document.addEventListener("paste", pasted);

  const address = readRoute().query;
  const within = (value: string | null, low: number, high: number, otherwise: number): number => {
    const given = value === null ? NaN : Number(value);
    return given >= low && given <= high ? given : otherwise;
  };
  const start = { crop: within(address.get("crop"), 20, 100, 100), blur: within(address.get("blur"), 0, 4, 0) };
  const named = address.get("item");
  if (named !== null) {
    void context.source
      .item(named)
      .then((item) => (choice === 0 ? takeItem(item, nameOf(item), start) : undefined))
      .catch((error: unknown) => fill(status, [trouble(error)]));
  }
  const examples = h("ul", { class: "grid examples" });
  void context.source
    .items("certain", null, 0, 200)
    .then((page) => {
      // some of the most certain items, of different classes
      const seen = new Set<unknown>();
      const different = page.items.filter((item) => item.picture !== null && !seen.has(item.label) && seen.add(item.label));
      const some = (different.length >= 4 ? different : page.items.filter((item) => item.picture !== null)).slice(0, 8);
      const [first] = some;
      if (first !== undefined && choice === 0 && named === null) void takeItem(first, nameOf(first), start, false); // something to see at once
      fill(
        examples,
        some.map((item) => {
          const name = `Try ${String(item.label ?? item.id)}`;
          const button = h("button", { type: "button", class: "tile", "aria-label": name }, picture(context.source, item, 56, ""));
          button.addEventListener("click", () => void takeItem(item, name));
          return h("li", {}, button);
        }),
      );
    })
    .catch(() => undefined);

  const studio = h(
    "div",
    { class: "studio", hidden: true },
    h("div", { class: "stage" }, frame),
    h("div", { class: "knobs" }, verdict, crop.element, blur.element, compared, scale.element),
    h("div", { class: "stage" }, chart.element),
  );
  return {
    element: h(
      "section",
      { class: "query" },
      h("h1", {}, "Query with a picture"),
      h("p", { class: "lead" }, "Crop or blur the picture, and compare its κ and its set with those of the whole picture."),
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
      charting.stop();
      comparing.stop();
      neighbourhood.stop();
    },
  };
}

interface Slider {
  element: HTMLElement;
  input: HTMLInputElement;
  value(): number;
  set(value: number): void;
}

function slider(id: string, name: string, min: number, max: number, step: number, start: number, words: (value: number) => string): Slider {
  const input = h("input", { type: "range", id, min, max, step, value: start });
  const output = h("output", { for: id });
  const update = (): void => {
    fill(output, [words(Number(input.value))]);
    input.setAttribute("aria-valuetext", words(Number(input.value)));
  };
  input.addEventListener("input", update);
  update();
  return {
    element: h("div", { class: "slide" }, h("label", { for: id }, name), output, input),
    input,
    value: () => Number(input.value),
    set(value) {
      input.value = String(value);
      update();
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

interface CropChart {
  element: HTMLElement;
  curve(crops: number[], posteriors: Posterior[], blur: number): void;
  here(crop: number, kappa: number): void;
  reset(): void;
}

/** A chart of kappa by crop, with the current setting marked. */
function cropChart(): CropChart {
  const width = 320;
  const height = 220;
  const [left, right, top, bottom] = [44, 12, 14, 42];
  let top_kappa = 1;
  let at: { crop: number; kappa: number } | null = null;
  const x = (crop: number): number => left + ((1 - crop) / 0.8) * (width - left - right);
  const y = (kappa: number): number => height - bottom - (kappa / top_kappa) * (height - top - bottom);
  const sharp = svg("path", { class: "faint" });
  const line = svg("path", { class: "curve" });
  const grid = svg("g", { class: "grid-lines" });
  const spot = svg("circle", { r: 6, class: "spot", visibility: "hidden" });
  let first: { crops: number[]; kappas: number[] } | null = null;
  let now: { crops: number[]; kappas: number[] } | null = null;
  const draw = (): void => {
    const all = [...(first?.kappas ?? []), ...(now?.kappas ?? []), at?.kappa ?? 0];
    const most = Math.max(1e-6, ...all);
    const unit = 10 ** Math.floor(Math.log10(most));
    top_kappa = Math.ceil((most * 1.05) / (unit / 2)) * (unit / 2);
    const d = (points: typeof now): string =>
      points === null ? "" : points.crops.map((crop, i) => `${i === 0 ? "M" : "L"}${x(crop).toFixed(1)},${y(points.kappas[i] ?? 0).toFixed(1)}`).join("");
    sharp.setAttribute("d", d(first));
    line.setAttribute("d", d(now));
    fill(grid, [
      ...[0, 0.5, 1].flatMap((share) => [
        svg("line", { class: "rule", x1: left, x2: width - right, y1: y(share * top_kappa), y2: y(share * top_kappa) }),
        svg("text", { x: left - 6, y: y(share * top_kappa) + 4, "text-anchor": "end" }, number(share * top_kappa).replace(/\.0+$/, "")),
      ]),
      ...[1, 0.8, 0.6, 0.4, 0.2].map((crop) =>
        svg("text", { x: x(crop), y: height - bottom + 18, "text-anchor": "middle" }, `${Math.round(100 * crop)} %`),
      ),
      svg("text", { class: "axis", x: (left + width - right) / 2, y: height - 4, "text-anchor": "middle" }, "κ by fraction of each side kept"),
    ]);
    spot.setAttribute("visibility", at === null ? "hidden" : "visible");
    if (at !== null) {
      spot.setAttribute("cx", String(x(at.crop)));
      spot.setAttribute("cy", String(y(at.kappa)));
    }
  };
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "chart crop", role: "img", "aria-label": "Kappa against the crop" }, grid, sharp, line, spot);
  const legend = h("figcaption", { class: "legend" });
  return {
    element: h("figure", {}, drawing, legend),
    curve(crops, posteriors, blur) {
      now = { crops, kappas: posteriors.map((posterior) => posterior.kappa) };
      if (blur === 0 && crops.length > 0) first = now;
      fill(legend, [blur > 0 && "dashed: without blur"]);
      const values = crops.map((crop, i) => `${Math.round(100 * crop)} %: ${number(now?.kappas[i] ?? 0)}`).join(", ");
      drawing.setAttribute("aria-label", `Kappa by fraction of each side kept. ${values}`);
      draw();
    },
    here(crop, kappa) {
      at = { crop, kappa };
      draw();
    },
    reset() {
      [first, now, at] = [null, null, null];
      draw();
    },
  };
}
