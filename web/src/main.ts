// The page: header, routes and views.

import "./style.css";
import type { About, Source } from "./api";
import { fill, h, svg, trouble } from "./dom";
import { storedData, StoredFile } from "./file";
import { galleryView, type Held } from "./gallery";
import { itemView, type View } from "./item";
import { askKey } from "./key";
import { queryView } from "./query";
import { rejectionView } from "./rejection";
import { Service } from "./service";
import { themeButton } from "./theme";
import type { Context } from "./tile";
import { colours, sorted } from "./words";

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
  let about: About;
  try {
    const described = await source.about();
    about = { ...described, classes: sorted(described.classes) };
  } catch (error) {
    fill(main, [trouble(error, () => void start())]);
    return;
  }
  const held: Held | null = stored === null ? null : { rows: about.rows, here: stored.items.length };
  new Pages(main, links, { source, colour: colours(about) }, about, held).show();
}

/** Shows the view that the URL names; the gallery keeps its state. */
class Pages {
  private gallery: HTMLElement | null = null;
  private view: View | null = null;
  private scrolled = 0;
  private first = true;

  constructor(
    private readonly main: HTMLElement,
    private readonly links: HTMLElement,
    private readonly context: Context,
    private readonly about: About,
    private readonly held: Held | null,
  ) {
    addEventListener("hashchange", () => this.show());
    addEventListener("scroll", () => {
      if (this.view === null) this.scrolled = scrollY;
    });
  }

  show(): void {
    const [, name = "", rest = ""] = /^#\/([a-z]*)\/?(.*)$/.exec(location.hash) ?? [];
    this.view?.leave?.();
    this.view = null;
    document.title = "aureole";
    for (const link of this.links.querySelectorAll("a")) {
      const here = link.getAttribute("href") === `#/${name === "item" ? "" : name}`;
      if (here) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    if (name === "item") this.view = itemView(this.context, this.about, decoded(rest));
    else if (name === "ask") this.view = queryView(this.context, this.about);
    else if (name === "threshold") this.view = rejectionView(this.context, this.about);
    if (this.view !== null) {
      fill(this.main, [this.view.element]);
      scrollTo(0, 0);
    } else {
      this.gallery ??= this.about.rows === 0 ? empty() : galleryView(this.context, this.about, this.held);
      const back = this.scrolled;
      fill(this.main, [this.gallery]);
      scrollTo(0, back);
    }
    // announce the new view to screen readers
    if (!this.first) this.main.focus({ preventScroll: true });
    this.first = false;
  }
}

function empty(): HTMLElement {
  return h("p", { class: "empty" }, h("strong", {}, "The gallery is empty."), " Add rows with `aureole index append`, then restart the service.");
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function nav(): HTMLElement {
  return h(
    "nav",
    { "aria-label": "Views" },
    h("a", { href: "#/" }, "Gallery"),
    h("a", { href: "#/ask" }, "Query"),
    h("a", { href: "#/threshold" }, "Threshold"),
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
