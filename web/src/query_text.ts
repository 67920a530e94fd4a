// Two sentences compared while you type: their kappa, their sets and their neighbourhoods.

import { type About, known, type Posterior, type Query } from "./api";
import { choice, debounced, fill, h, Latest, trouble } from "./dom";
import { capital, type View } from "./item";
import { Neighbourhood } from "./neighbourhood";
import { changeQuery, readRoute } from "./route";
import { strip } from "./strip";
import type { Context } from "./tile";
import { change, count, number, rankInWords, things } from "./words";

type Side = "a" | "b";
const SIDES = ["a", "b"] as const;
const NAMES: Record<Side, string> = { a: "A", b: "B" };
const START: Record<Side, string> = {
  a: "Something is happening.",
  b: "Two boys in red shirts play chess on a park bench.",
};

export function textQuery(context: Context, about: About): View {
  const { query } = readRoute();
  const scale = strip(about);
  const compareSoon = debounced(250, () => void compare());
  const neighbourhood = new Neighbourhood(context, about, compareSoon);
  const found: Partial<Record<Side, Posterior>> = {};
  const texts: Record<Side, string> = { a: query.get("a") ?? START.a, b: query.get("b") ?? START.b };
  let shown: Side = query.get("around") === "b" ? "b" : "a";
  const requests: Record<Side, Latest> = { a: new Latest(), b: new Latest() };
  const comparing = new Latest();
  const compared = h("p", { class: "compared", role: "status" });

  const asked = (side: Side): Query | null => {
    const posterior = found[side];
    return posterior === undefined ? null : known(posterior, { text: texts[side] });
  };
  /** Puts the sentences into the address, unless they are the examples. */
  const keep = (): void => {
    const own = (side: Side): string | null => (texts[side] === START[side] ? null : texts[side] || " ");
    changeQuery({ a: own("a"), b: own("b"), around: shown === "b" ? "b" : null }, "replace");
  };
  const marks = (): void => {
    scale.mark(
      SIDES.flatMap((side) => {
        const posterior = found[side];
        return posterior === undefined ? [] : [{ kappa: posterior.kappa, name: NAMES[side] }];
      }),
    );
  };
  /** Writes what was measured for the two sentences. */
  const compare = async (): Promise<void> => {
    const queries = SIDES.map(asked);
    const [a, b] = [found.a, found.b];
    if (a === undefined || b === undefined || queries.includes(null)) {
      fill(compared, []);
      return;
    }
    try {
      const options = { ...neighbourhood.cap, limit: 1, prior: null, explain: false };
      const sets = await comparing.run((signal) =>
        Promise.all(queries.map((each) => context.source.search(each as Query, options, signal))),
      );
      if (sets === null) return;
      const sizes = sets.map((set) => `${set.count_exact === false ? "more than " : ""}${count(set.count)}`);
      fill(compared, [
        "From A to B, κ ",
        h("strong", {}, change(a.kappa, b.kappa)),
        ". A's set contains ",
        h("strong", {}, sizes[0] ?? ""),
        ", B's ",
        h("strong", {}, sizes[1] ?? ""),
        ` of ${count(about.rows)} ${things(about, about.rows)}.`,
      ]);
    } catch {
      fill(compared, []); // the neighbourhood shows the error
    }
  };
  const around = (): void => {
    const query = asked(shown);
    neighbourhood.element.hidden = query === null;
    if (query !== null) neighbourhood.ask(query);
  };
  const which = choice(
    "Set of",
    { a: "Around A", b: "Around B" },
    (side) => {
      shown = side;
      keep();
      around();
    },
    shown,
  );
  const field = (side: Side): HTMLElement => {
    const verdict = h("p", { class: "verdict-line", role: "status" });
    const area = h("textarea", { rows: 2, maxlength: 2000, id: `sentence-${side}`, spellcheck: "false" });
    area.value = texts[side].trim();
    const ask = async (): Promise<void> => {
      texts[side] = area.value;
      if (area.value.trim() === "") {
        requests[side].stop();
        delete found[side];
        fill(verdict, ["Enter a sentence."]);
        marks();
        compareSoon();
        if (side === shown) around();
        return;
      }
      try {
        const answer = await requests[side].run((signal) => context.source.embed([{ text: area.value }], signal));
        const posterior = answer?.[0];
        if (posterior === undefined) return;
        found[side] = posterior;
        fill(verdict, [h("strong", {}, `κ ${number(posterior.kappa)}`), ` ${capital(rankInWords(posterior.kappa_rank))}.`]);
        marks();
        compareSoon();
        if (side === shown) around();
      } catch (error) {
        fill(verdict, [trouble(error, () => void ask())]);
      }
    };
    const askSoon = debounced(220, () => void ask());
    area.addEventListener("input", () => {
      texts[side] = area.value;
      keep();
      askSoon();
    });
    void ask();
    return h("div", { class: "sentence" }, h("label", { for: area.id }, `Sentence ${NAMES[side]}`), area, verdict);
  };
  return {
    element: h(
      "section",
      { class: "query" },
      h("h1", {}, "Query with a sentence"),
      h("p", { class: "lead" }, "Type two sentences to compare their κ and their sets, a vague and a detailed one for example."),
      h("div", { class: "pair" }, field("a"), field("b")),
      scale.element,
      compared,
      h("div", { class: "bar" }, which),
      neighbourhood.element,
    ),
    leave() {
      requests.a.stop();
      requests.b.stop();
      comparing.stop();
      neighbourhood.stop();
    },
  };
}
