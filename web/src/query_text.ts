// Two sentences compared while you type: their kappa, their sets and their neighbourhoods.

import { type About, known, type Posterior, type Query } from "./api";
import { choice, debounced, fill, h, Latest, trouble } from "./dom";
import { capital, type View } from "./item";
import { Neighbourhood } from "./neighbourhood";
import { changeQuery, readRoute } from "./route";
import { strip } from "./strip";
import type { Context } from "./tile";
import { number, rankInWords } from "./words";

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
  const neighbourhood = new Neighbourhood(context, about);
  const found: Partial<Record<Side, Posterior>> = {};
  const texts: Record<Side, string> = { a: query.get("a") ?? START.a, b: query.get("b") ?? START.b };
  let shown: Side = query.get("around") === "b" ? "b" : "a";
  const requests: Record<Side, Latest> = { a: new Latest(), b: new Latest() };

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
      h("p", { class: "lead" }, "Type two sentences and see their κ and their sets, a vague and a detailed one for example."),
      h("div", { class: "pair" }, field("a"), field("b")),
      scale.element,
      h("div", { class: "bar" }, which),
      neighbourhood.element,
    ),
    leave() {
      requests.a.stop();
      requests.b.stop();
      neighbourhood.stop();
    },
  };
}
