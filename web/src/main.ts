// The page: header, routes and views.

import "./style.css";
import type { About, Source } from "./api";
import { calibrationBanner, calibrationView } from "./calibration";
import { fill, h, prose, svg, trouble } from "./dom";
import { storedData, StoredFile } from "./file";
import { type Gallery, galleryView, type Held } from "./gallery";
import { itemView, type View } from "./item";
import { askKey } from "./key";
import { type Overview, overviewView } from "./overview";
import { queryView } from "./query";
import { questionsView } from "./questions";
import { rejectionView } from "./rejection";
import { readRoute } from "./route";
import { Selection } from "./selection";
import { Service } from "./service";
import { Table } from "./table";
import { themeButton } from "./theme";
import type { Context } from "./tile";
import { colours, shapeOf, sorted } from "./words";

const app = document.getElementById("app") as HTMLElement;

async function start(): Promise<void> {
  const main = h("main", { id: "main", tabindex: "-1" }, h("p", { class: "status", role: "status" }, "Loading the gallery …"));
  const links = nav();
  fill(app, [
    h("a", { class: "skip", href: "#main", onclick: (event: Event) => (event.preventDefault(), main.focus()) }, "Skip to content"),
    h("header", { class: "top" }, h("a", { class: "brand", href: "#/" }, glyph(), "aureole"), links, themeButton()),
    main,
  ]);
  const stored = storedData();
  const source: Source = stored === null ? new Service(askKey) : new StoredFile(stored);
  const table = new Table(source);
  let about: About;
  try {
    const described = await source.about();
    about = { ...described, classes: sorted(described.classes) };
  } catch (error) {
    fill(main, [trouble(error, () => void start())]);
    return;
  }
  const held: Held | null = stored === null ? null : { rows: about.rows, here: stored.items.length };
  if (!source.live) {
    // the file has no encoder, and only with labels a rejection curve
    const dead = (await source.rejection()).available ? ["#/ask"] : ["#/ask", "#/threshold"];
    for (const href of dead) links.querySelector(`a[href="${href}"]`)?.remove();
  }
  const selection = new Selection(table);
  const context: Context = { source, colour: colours(about), shape: shapeOf(about), table, selection };
  new Pages(main, links, context, about, held).show();
}

/** Shows the view that the URL names; the gallery keeps its state. */
class Pages {
  private gallery: Gallery | null = null;
  private overview: Overview | null = null;
  private view: View | null = null;
  /** The view and its item. */
  private shown = "";
  private scrolled = 0;
  private scrolledMap = 0;
  private first = true;

  constructor(
    private readonly main: HTMLElement,
    private readonly links: HTMLElement,
    private readonly context: Context,
    private readonly about: About,
    private readonly held: Held | null,
  ) {
    addEventListener("hashchange", () => this.show());
    // these views keep their state while others are open
    const own = new Map(["", "map", "questions", "threshold"].map((name) => [name, links.querySelector(`a[href="#/${name}"]`)]));
    const keep = (): void => own.get(readRoute().view)?.setAttribute("href", location.hash || "#/");
    keep();
    addEventListener("hashchange", keep);
    addEventListener("querychange", keep);
    addEventListener("scroll", () => {
      if (this.overview?.element.isConnected) this.scrolledMap = scrollY;
      else if (this.view === null) this.scrolled = scrollY;
    });
  }

  show(): void {
    const { view: name, rest } = readRoute();
    const same = this.shown === `${name}/${rest}`;
    this.shown = `${name}/${rest}`;
    if (same && this.view?.follow !== undefined) return this.view.follow();
    this.view?.leave?.();
    this.view = null;
    document.title = "aureole";
    for (const link of this.links.querySelectorAll("a")) {
      const target = link.getAttribute("href")?.split("?")[0];
      const here = target === `#/${name === "item" ? "" : name}`;
      if (here) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    if (name === "map" && this.about.rows > 0) {
      const shown = this.overview?.element.isConnected === true;
      this.overview ??= overviewView(this.context, this.about);
      if (!shown) {
        fill(this.main, [this.overview.element]);
        scrollTo(0, this.scrolledMap);
      }
      this.overview.follow();
      this.announce(shown);
      return;
    }
    if (name === "item") this.view = itemView(this.context, this.about, rest);
    else if (name === "ask") this.view = queryView(this.context, this.about);
    else if (name === "questions") this.view = questionsView(this.context, this.about);
    else if (name === "threshold") this.view = rejectionView(this.context, this.about);
    else if (name === "calibration") this.view = calibrationView(this.context, this.about);
    if (this.view !== null) {
      const claims = name === "item" || name === "ask"; // views with sets of a claimed mass
      fill(this.main, [claims && calibrationBanner(this.about), this.view.element]);
      const gallery = this.links.querySelector("a")?.getAttribute("href");
      this.view.element.querySelector(".back a")?.setAttribute("href", gallery ?? "#/");
      scrollTo(0, 0);
    } else {
      const back = this.scrolled;
      this.gallery ??= this.about.rows === 0 ? empty() : galleryView(this.context, this.about, this.held);
      if (!this.gallery.element.isConnected) {
        fill(this.main, [this.gallery.element]);
        scrollTo(0, back);
      }
      this.gallery.follow();
    }
    this.announce(same);
  }

  /** Announces a new view to screen readers. */
  private announce(same: boolean): void {
    if (!this.first && !same) this.main.focus({ preventScroll: true });
    this.first = false;
  }
}

function empty(): Gallery {
  const words = prose(" Add rows with `aureole index append`, then restart the service.");
  return { element: h("p", { class: "empty" }, h("strong", {}, "The gallery is empty."), ...words), follow: () => undefined };
}

function nav(): HTMLElement {
  return h(
    "nav",
    { "aria-label": "Views" },
    h("a", { href: "#/" }, "Gallery"),
    h("a", { href: "#/map" }, "Map"),
    h("a", { href: "#/ask" }, "Query"),
    storedData() === null && h("a", { href: "#/questions" }, "Questions"),
    h("a", { href: "#/threshold" }, "Threshold"),
    h("a", { href: "#/calibration" }, "Calibration"),
  );
}

function glyph(): SVGElement {
  return svg(
    "svg",
    { viewBox: "-12 -12 24 24", "aria-hidden": "true", class: "glyph" },
    svg("circle", { r: 9 }),
    svg("circle", { r: 3 }),
  );
}

void start();
