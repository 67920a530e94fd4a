// The neighbourhood of a posterior: the map with its cap, the mass slider, and the items inside the cap.

import type { About, Asked, Calibration, Cap, Found, Hit, Kind, Matches, Query } from "./api";
import { coverage } from "./calibration";
import { choice, debounced, fill, h, Latest, trouble } from "./dom";
import { angleMap } from "./map";
import { changeQuery, readRoute } from "./route";
import { type Context, dot, tile } from "./tile";
import { angleOf, capAngle, count, degrees, labelOf, percent, probability, things } from "./words";

const POINTS = 240;
const MEMBERS = 48;
const EXPLAINED = 12; // explanations are expensive
const WIDEST = 0.99;
/** What each cap answers. */
const KINDS: Record<Kind, string> = { predictive: "What matches this?", credible: "What could this be?" };
const PLACES: Record<Kind, string> = { predictive: "Where its matches may lie", credible: "Where it may lie itself" };
const HOLDS: Record<Kind, string> = { predictive: "the direction of a match", credible: "its own latent" };
const [MASS, LEAST, MOST] = [95, 50, 99]; // percent

export class Neighbourhood {
  readonly element: HTMLElement;
  private asked: Query | null = null;
  /** The match probabilities of the current query: they do not depend on the mass. */
  private matching: Promise<Matches | Error> | null = null;
  private caps: Cap[] = [];
  /** The angle of the last search. */
  private searched: number | null = null;
  private mass: number;
  private kind: Kind;
  private explain = false;
  /** Whether the cap of the matches is that of the conformal calibration. */
  private guaranteed: boolean;
  private readonly guarantee: HTMLElement | null;
  private calibration: Calibration | null = null;
  private readonly map;
  private readonly prior: number | null;
  private readonly slider = h("input", { type: "range", min: LEAST, max: MOST, step: 1, id: "mass" });
  private readonly shown = h("output", { for: "mass" });
  private readonly kinds: HTMLElement | null;
  private readonly title = h("h2", {});
  private readonly where = h("h2", {});
  private readonly holds = h("p", { class: "holds" });
  private readonly summary = h("p", { class: "summary", role: "status" });
  private readonly mix = h("div", { class: "mix" });
  private readonly members = h("ul", { class: "grid members" });
  private readonly problem = h("div");
  private readonly mapping = new Latest();
  private readonly searching = new Latest();
  private readonly searchSoon = debounced(120, () => void this.search());

  constructor(
    private readonly context: Context,
    private readonly about: About,
  ) {
    const predicts = about.kappa_pos !== null;
    const { query } = readRoute();
    const percents = Math.round(Number(query.get("mass") ?? MASS));
    this.mass = (percents >= LEAST && percents <= MOST ? percents : MASS) / 100;
    this.kind = predicts && query.get("kind") !== "credible" ? "predictive" : "credible";
    this.guaranteed = query.get("guarantee") === "conformal";
    this.slider.value = String(Math.round(100 * this.mass));
    this.map = angleMap(context);
    this.prior = about.kappa_pos === null ? null : about.prior;
    if (about.text_column !== null && !about.pictures) this.members.classList.add("cards");
    this.slider.addEventListener("input", () => {
      this.mass = Number(this.slider.value) / 100;
      this.turn();
      this.keep();
      this.searchSoon();
    });
    const explain = h("input", {
      type: "checkbox",
      onchange: () => {
        this.explain = explain.checked;
        void this.search();
      },
    });
    this.kinds = predicts ? choice("Question", KINDS, (kind) => this.choose(kind), this.kind) : null;
    const conformal = h("input", {
      type: "checkbox",
      checked: this.guaranteed,
      onchange: () => {
        this.guaranteed = conformal.checked;
        this.keep();
        this.turn();
        void this.search();
      },
    });
    const offered = context.source.live && predicts && about.conformal === true;
    this.guarantee = offered ? h("label", { class: "check conformal" }, conformal, " Guaranteed: as many matches as claimed (conformal)") : null;
    if (this.guarantee !== null) this.guarantee.hidden = this.kind !== "predictive";
    this.element = h(
      "section",
      { class: "neighbourhood" },
      h(
        "div",
        { class: "around" },
        this.where,
        this.map.element,
      ),
      h(
        "div",
        { class: "set" },
        this.title,
        this.kinds,
        this.guarantee,
        this.holds,
        h(
          "div",
          { class: "slide" },
          h("label", { for: "mass" }, "Mass of the set"),
          this.shown,
          this.slider,
        ),
        this.summary,
        this.mix,
        this.problem,
        context.source.live && h("label", { class: "check" }, explain, " Explain why each item is in the set"),
        this.members,
        meaning(about, this.prior),
      ),
    );
    this.entitle();
    this.turn();
    if (predicts && about.conformal === true) void this.measure();
  }

  /** Shows the neighbourhood of another posterior. */
  ask(asked: Query): void {
    this.asked = asked;
    this.matching = null;
    this.caps = []; // until the map is loaded, the cap is that of the search
    this.searched = null;
    void this.place();
    void this.search();
  }

  private choose(kind: Kind): void {
    this.kind = kind;
    this.caps = [];
    this.searched = null;
    if (this.guarantee !== null) this.guarantee.hidden = kind !== "predictive";
    this.entitle();
    this.turn();
    this.keep();
    void this.place();
    void this.search();
  }

  private entitle(): void {
    fill(this.title, ["Items in the circle"]);
    fill(this.where, [PLACES[this.kind]]);
  }

  /** Puts the mass, the kind and the guarantee into the address, unless they are the defaults. */
  private keep(): void {
    const mass = Math.round(100 * this.mass);
    const other = this.kinds !== null && this.kind === "credible";
    const guarantee = this.guarantee !== null && this.guaranteed ? "conformal" : null;
    changeQuery({ mass: mass === MASS ? null : String(mass), kind: other ? "credible" : null, guarantee }, "replace");
  }

  stop(): void {
    this.mapping.stop();
    this.searching.stop();
  }

  private calibrated(): boolean {
    return this.guaranteed && this.guarantee !== null && this.kind === "predictive";
  }

  private angle(): number | null {
    return this.calibrated() ? null : capAngle(this.caps, this.mass); // a calibrated cap comes with the search
  }

  /** Resizes the circle at once; the items are updated when the response arrives. */
  private turn(): void {
    fill(this.shown, [percent(this.mass)]);
    fill(this.holds, [this.claim()]);
    this.slider.setAttribute("aria-valuetext", percent(this.mass));
    const angle = this.angle();
    if (angle !== null) this.map.cap(angle);
  }

  /** What is known of the circle: the probability of the model, and what was measured on held-out pairs. */
  private claim(): string {
    const mass = percent(this.mass);
    if (this.calibrated()) return `For new pairs like the held-out ones, the circle contains ${HOLDS.predictive} in at least ${mass} of the cases.`;
    const model = `By the model, the circle contains ${HOLDS[this.kind]} with a probability of ${mass}`;
    const measured = this.kind === "predictive" && this.calibration !== null ? coverage(this.calibration, this.mass) : null;
    return measured === null ? `${model}.` : `${model}; of ${count(this.calibration?.pairs ?? 0)} held-out pairs, it did for about ${percent(measured)}.`;
  }

  private async measure(): Promise<void> {
    this.calibration = await this.context.source.calibration().catch(() => null);
    this.turn();
  }

  private async place(): Promise<void> {
    const asked = this.asked;
    if (asked === null) return;
    this.map.element.setAttribute("aria-busy", "true");
    try {
      const found = await this.mapping.run((signal) => this.context.source.map(asked, WIDEST, this.kind, POINTS, signal));
      if (found === null) return;
      this.caps = found.caps;
      this.map.place(found.points, found.reach);
      this.map.cap(this.angle() ?? this.searched ?? found.cap.radius);
    } catch (error) {
      fill(this.problem, [trouble(error, () => void this.place())]);
    }
    this.map.element.removeAttribute("aria-busy");
  }

  private async search(): Promise<void> {
    const asked = this.asked;
    if (asked === null) return;
    const limit = this.explain ? EXPLAINED : MEMBERS;
    this.members.setAttribute("aria-busy", "true");
    try {
      const options: Asked = { mass: this.mass, kind: this.kind, limit, prior: this.prior, explain: this.explain };
      if (this.calibrated()) options.guarantee = "conformal";
      const answer = await this.searching.run((signal) =>
        Promise.all([this.context.source.search(asked, options, signal), this.matches(asked)]),
      );
      if (answer === null) return;
      const [found, matches] = answer;
      const failed = matches instanceof Error;
      fill(this.problem, failed ? [trouble(matches, () => void this.search())] : []);
      this.draw(found, asked.id, failed ? null : matches);
    } catch (error) {
      fill(this.problem, [trouble(error, () => void this.search())]);
    }
    this.members.removeAttribute("aria-busy");
  }

  /** The match probabilities of a query, or why they are missing; null without a calibrator. */
  private async matches(asked: Query): Promise<Matches | Error | null> {
    if (!this.about.calibrator) return null;
    this.matching ??= this.context.source.match(asked).catch((error: unknown) => {
      this.matching = null;
      return error instanceof Error ? error : new Error(String(error));
    });
    return this.matching;
  }

  private draw(found: Found, own: string | undefined, matches: Matches | null): void {
    this.searched = found.threshold === null ? null : angleOf(found.threshold);
    if (this.searched !== null) this.map.cap(this.searched);
    const n = `${found.count_exact === false ? "More than " : ""}${count(found.count)}`;
    fill(this.summary, [
      h("strong", {}, n),
      ` of ${count(this.about.rows)} ${things(this.about, this.about.rows)} lie within ${degrees(found.threshold ?? 1)}`,
      h("small", {}, `cosine ≥ ${(found.threshold ?? 1).toFixed(3)}`),
      matches !== null && h("small", {}, `p-value that nothing matches: ${probability(matches.p_value)}`),
    ]);
    fill(this.mix, this.mixture(found));
    fill(
      this.members,
      found.hits.map((hit) => this.member(hit, hit.id === own, matches?.probabilities.get(hit.id) ?? null)),
    );
    this.members.classList.toggle("explained", this.explain);
    if (found.count === 0) {
      fill(this.members, [h("li", { class: "empty" }, ...this.nobody())]);
    } else if (found.count > found.hits.length) {
      const more = count(found.count - found.hits.length);
      const here = found.hits.length === 0 ? "none of them in this file" : "further away or not in this file";
      const words = this.context.source.live ? `${more} more, further away` : `${more} more, ${here}`;
      this.members.append(h("li", { class: "gap" }, words));
    }
  }

  /** The message for an empty set, with a way out. */
  private nobody(): (string | HTMLElement)[] {
    if (this.kinds === null || this.kind === "predictive") return ["No gallery item falls inside this cap. Increase the mass to enlarge it."];
    const go = h("button", { type: "button", onclick: () => this.kinds?.querySelector<HTMLInputElement>("input[value=predictive]")?.click() });
    fill(go, [KINDS.predictive]);
    return ["This query's cap is so small that no gallery item falls inside. ", go];
  }

  /** The classes of the items in the set: a coloured bar with a legend. */
  private mixture(found: Found): HTMLElement[] {
    const counts = new Map<string, number>();
    for (const { label, count: n } of found.classes ?? []) counts.set(labelOf(label), n);
    if (!found.classes) {
      for (const hit of found.hits) {
        if (hit.label !== null) counts.set(labelOf(hit.label), (counts.get(labelOf(hit.label)) ?? 0) + 1);
      }
    }
    if (counts.size === 0) return [];
    const parts = [...counts].sort((a, b) => b[1] - a[1]);
    const bar = h("div", { class: "parts", "aria-hidden": "true" });
    for (const [label, n] of parts) {
      const part = h("span", { class: `c${this.context.colour(label) ?? 9}` });
      part.style.flexGrow = String(n);
      bar.append(part);
    }
    const named = parts.slice(0, 5).map(([label, n]) => h("span", {}, dot(this.context.colour(label)), `${label} ${count(n)}`));
    const seen = found.classes ? found.count : found.hits.length;
    const all = found.count === seen && found.count_exact !== false ? "" : `of the nearest ${count(seen)}`;
    return [bar, h("p", { class: "legend" }, ...named, parts.length > 5 && "others", h("small", {}, all))];
  }

  /** An item of the set; with a calibrator, its match probability replaces the cosine and the P of the posteriors. */
  private member(hit: Hit, own: boolean, match: number | null): HTMLElement {
    const chance = match ?? (this.about.calibrator ? null : hit.positive);
    const facts = [
      h("span", { class: "kappa" }, own ? "itself" : degrees(hit.cosine)),
      (own || match === null) && h("small", {}, `cos ${hit.cosine.toFixed(3)}`),
      !own && chance !== null && h("small", {}, `P ${probability(chance)}`),
    ];
    const explanation = hit.explanation ? h("p", { class: "why" }, hit.explanation) : null;
    return h("li", {}, tile(this.context, hit, ...facts), explanation);
  }
}

/** What P means on this page. */
function meaning(about: About, prior: number | null): HTMLElement | null {
  const { calibrator } = about;
  let text = "";
  if (calibrator) {
    text = `P: the probability that the item matches the query, calibrated on ${count(calibrator.queries)} held-out queries.`;
  } else if (prior !== null) {
    text = `P: the probability that the two match, given that ${chance(prior)} of all pairs do.`;
  }
  return text === "" ? null : h("p", { class: "fine" }, text);
}

function chance(prior: number): string {
  return prior >= 0.01 ? percent(prior) : `1 in ${count(Math.round(1 / prior))}`;
}
