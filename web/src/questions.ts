// Questions people have about their data, each as a card: what it answers, how many items it found, and the first of them.

import { type AnswerEntry, type ConfusedClasses, type QuestionName, type Questions, type QuestionSummary, TITLES } from "./answers";
import type { About } from "./api";
import { fill, h, Latest, trouble } from "./dom";
import type { View } from "./item";
import { changeQuery, readRoute } from "./route";
import { linkTo } from "./selection";
import { type Context, dot, tile } from "./tile";
import { count, labelOf, percent, probability, things } from "./words";

const FIRST = 12;
const PAGE = 48;

interface Words {
  about: string;
  found(n: number, noun: string): string;
  none: string;
  /** What follows the items that were found. */
  next?(found: number, noun: string): string;
}

const WORDS: Record<QuestionName, Words> = {
  labels: {
    about: "The items that probably match this one have another label: the label may be wrong.",
    found: (n, noun) => `${count(n)} ${noun} whose matches mostly have another label, the most suspicious first`,
    none: "No label disagrees with its matches.",
  },
  ambiguous: {
    about: "Of the items that probably match this one, at least a quarter have its label and a quarter have another. The table has the mean share of each class in the caps of the other.",
    found: (n, noun) => `${count(n)} ${noun} between two classes, the most even first`,
    none: "No item lies between two classes.",
  },
  outliers: {
    about: "Items that are isolated: the angle to the 10th nearest item, and how common such an angle is in this gallery.",
    found: (n, noun) => `${count(n)} ${noun} beyond what the gallery itself shows, the farthest first`,
    none: "Every item has near neighbours.",
    next: (found, noun) => found === 0 ? `Nothing is beyond what the gallery itself shows. These are the most remote ${noun}, the farthest first.` : "The next most remote follow.",
  },
};

export function questionsView(context: Context, about: About): View {
  const place = h("div", {}, h("p", { class: "status", role: "status" }, "Loading the answers …"));
  const element = h(
    "section",
    { class: "questions" },
    h("h1", {}, "What should you look at first?"),
    h("p", { class: "lead" }, "Each answer comes from the gallery alone: the predictive cap of an item, the items inside it, and how likely they match."),
    place,
  );
  let left = false;
  let shown: Entries[] = [];
  const load = async (): Promise<void> => {
    try {
      const found = await context.source.questions();
      if (left) return;
      if (found.available) {
        shown = found.questions.flatMap((each) => (hasEntries(each) ? [new Entries(context, about, found, each)] : []));
        return fill(place, cards(found, shown));
      }
      fill(place, [h("p", { class: "empty", role: "status" }, sentence(found.reason ?? "there are no answers."))]);
    } catch (error) {
      fill(place, [trouble(error, () => void load())]);
    }
  };
  void load();
  return {
    element,
    follow() {
      for (const entries of shown) entries.follow();
    },
    leave() {
      left = true;
    },
  };
}

function hasEntries({ name, available, count: found }: QuestionSummary): boolean {
  return available && (found !== 0 || name === "ambiguous" || name === "outliers");
}

function cards(found: Questions, shown: Entries[]): HTMLElement[] {
  const stale = h("p", { class: "status", role: "status" }, "The gallery has changed since these answers were computed. Run aureole inspect again.");
  return [...(found.stale ? [stale] : []), ...found.questions.map((each) => card(each, shown.find(({ question }) => question === each)))];
}

function card(question: QuestionSummary, entries: Entries | undefined): HTMLElement {
  const words = WORDS[question.name];
  const title = h("h2", { id: `question-${question.name}` }, TITLES[question.name]);
  const none = question.available ? words.none : sentence(question.reason ?? "no answer.");
  const body = entries?.element ?? h("p", { class: "empty" }, none);
  entries?.show();
  return h("article", { class: "question panel", "aria-labelledby": title.id }, title, h("p", { class: "lead" }, words.about), body);
}

/** The items of one question, a page at a time. */
class Entries {
  readonly element = h("div", {});
  private readonly loading = new Latest();
  /** Only ambiguous items between these classes. */
  private pair: ConfusedClasses | null = null;
  private limit = FIRST;

  constructor(
    private readonly context: Context,
    private readonly about: About,
    private readonly found: Questions,
    readonly question: QuestionSummary,
  ) {
    this.pair = this.chosen();
  }

  show(): void {
    void this.load();
  }

  /** Takes the pair of classes of the address. */
  follow(): void {
    const pair = this.chosen();
    if (pair === this.pair) return;
    this.pair = pair;
    this.limit = FIRST;
    void this.load();
  }

  private chosen(): ConfusedClasses | null {
    if (this.question.name !== "ambiguous") return null;
    const codes = readRoute().query.get("pair");
    return this.found.confusions.find((pair) => pair.codes.join() === codes) ?? null;
  }

  private async load(): Promise<void> {
    const { name } = this.question;
    const words = WORDS[name];
    try {
      const answer = await this.loading.run((signal) =>
        this.context.source.question(name, 0, this.limit, this.pair?.codes ?? null, signal),
      );
      if (answer === null) return;
      const more = answer.total > this.limit && this.limit < 480;
      fill(this.element, [
        name === "ambiguous" && this.pairs(),
        h("p", { class: "status", role: "status" }, this.status(words, answer.total)),
        h("ul", { class: "grid" }, ...answer.entries.map((entry) => this.entry(entry))),
        h(
          "p",
          { class: "offer" },
          more && h("button", { type: "button", onclick: () => this.more() }, "Show more"),
          answer.total > 0 && !this.found.stale && this.link(),
        ),
      ]);
    } catch (error) {
      fill(this.element, [trouble(error, () => void this.load())]);
    }
  }

  private status(words: Words, total: number): string {
    if (total === 0) return words.none;
    const found = words.next === undefined ? total : (this.question.count ?? 0);
    const between = this.pair === null ? "" : ` (${this.pair.classes.map(labelOf).join(" or ")})`;
    const first = found === 0 ? "" : `${words.found(found, things(this.about, found))}${between}.`;
    return total === found ? first : `${first} ${words.next?.(found, things(this.about, total)) ?? ""}`.trim();
  }

  private more(): void {
    this.limit += PAGE;
    void this.load();
  }

  private link(): HTMLElement {
    const filter = { question: this.question.name, ...(this.pair === null ? {} : { classes: this.pair.codes }) };
    return h("a", { href: linkTo("#/map", [filter]) }, "Select them on the map");
  }

  private pairs(): HTMLElement | false {
    const { confusions } = this.found;
    if (confusions.length === 0) return false;
    const rows = confusions.slice(0, 8).map((pair) => {
      const [one, two] = pair.classes.map(labelOf);
      const chosen = this.pair === pair;
      const choose = (): void => {
        changeQuery({ pair: chosen ? null : pair.codes.join() }, "push");
        this.follow();
      };
      return h(
        "tr",
        {},
        h("th", { scope: "row" }, h("button", { type: "button", "aria-pressed": String(chosen), onclick: choose }, `${one} or ${two}`)),
        h("td", {}, percent(pair.shares[0])),
        h("td", {}, percent(pair.shares[1])),
        h("td", {}, count(pair.count)),
      );
    });
    const table = h(
      "table",
      { class: "facts-table" },
      h("caption", { class: "hidden" }, "The classes that caps mix most"),
      h("thead", {}, h("tr", {}, ...["classes", "second in caps of first", "first in caps of second", "items"].map((text) => h("th", { scope: "col" }, text)))),
      h("tbody", {}, ...rows),
    );
    return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "The classes that caps mix most" }, table);
  }

  private entry(entry: AnswerEntry): HTMLElement {
    const { name } = this.question;
    if (name === "outliers") {
      const angle = `${(((entry.angle ?? 0) * 180) / Math.PI).toFixed(0)}°`;
      return h("li", {}, tile(this.context, entry.item, h("span", { class: "kappa" }, angle), h("small", {}, `p ${probability(entry.p_value ?? 1)}`)));
    }
    const own = `${labelOf(entry.label)} ${percent(entry.own_share ?? 0)}`;
    const other = `${labelOf(entry.other)} ${percent(entry.other_share ?? 0)}`;
    return h(
      "li",
      {},
      tile(
        this.context,
        entry.item,
        h("small", {}, dot(this.context.colour(entry.label)), own),
        h("small", {}, dot(this.context.colour(entry.other)), other),
      ),
    );
  }
}

function sentence(words: string): string {
  return words.charAt(0).toUpperCase() + words.slice(1);
}
