// Two sentences compared while you type: their kappa and their neighbourhoods.

import { type About, known, type Posterior } from "./api";
import { choice, debounced, fill, h, Latest, trouble } from "./dom";
import { capital, type View } from "./item";
import { Neighbourhood } from "./neighbourhood";
import { strip } from "./strip";
import type { Context } from "./tile";
import { number, rankInWords } from "./words";

type Side = "a" | "b";
const NAMES: Record<Side, string> = { a: "A", b: "B" };
const START: Record<Side, string> = {
  a: "Something is happening.",
  b: "Two boys in red shirts play chess on a park bench.",
};

export function textQuery(context: Context, about: About): View {
  const scale = strip(about);
  const neighbourhood = new Neighbourhood(context, about);
  const found: Partial<Record<Side, Posterior>> = {};
  const texts: Record<Side, string> = { ...START };
  let shown: Side = "a";
  const requests: Record<Side, Latest> = { a: new Latest(), b: new Latest() };

  const marks = (): void => {
    scale.mark(
      (["a", "b"] as const).flatMap((side) => {
        const posterior = found[side];
        return posterior === undefined ? [] : [{ kappa: posterior.kappa, name: NAMES[side] }];
      }),
    );
  };
  const around = (): void => {
    const posterior = found[shown];
    neighbourhood.element.hidden = posterior === undefined;
    if (posterior !== undefined) neighbourhood.ask(known(posterior, { text: texts[shown] }));
  };
  const which = choice("Set of", { a: "Around A", b: "Around B" }, (side) => {
    shown = side;
    around();
  });
  const field = (side: Side): HTMLElement => {
    const verdict = h("p", { class: "verdict-line", role: "status" });
    const area = h("textarea", { rows: 2, maxlength: 2000, id: `sentence-${side}`, spellcheck: "false" });
    area.value = texts[side];
    const ask = async (): Promise<void> => {
      texts[side] = area.value;
      if (area.value.trim() === "") {
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
    area.addEventListener("input", debounced(220, () => void ask()));
    void ask();
    return h("div", { class: "sentence" }, h("label", { for: area.id }, `Sentence ${NAMES[side]}`), area, verdict);
  };
  return {
    element: h(
      "section",
      { class: "query" },
      h("h1", {}, "Query with a sentence"),
      h("p", { class: "lead" }, "A vague sentence can mean many things: its κ is low and its credible set is large. Add detail and watch both change."),
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
