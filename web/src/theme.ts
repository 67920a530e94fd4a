// Light or dark colours: the system setting, unless the user chooses.

import { h } from "./dom";

const NAME = "aureole-theme";

export function themeButton(): HTMLElement {
  const system = matchMedia("(prefers-color-scheme: dark)");
  let own = kept();
  const button = h("button", { type: "button", class: "theme" });
  const dress = (): void => {
    const dark = own === null ? system.matches : own === "dark";
    document.documentElement.dataset["theme"] = dark ? "dark" : "light";
    button.textContent = dark ? "Light" : "Dark";
    button.setAttribute("aria-label", dark ? "Use light colours" : "Use dark colours");
  };
  button.addEventListener("click", () => {
    own = document.documentElement.dataset["theme"] === "dark" ? "light" : "dark";
    try {
      localStorage.setItem(NAME, own);
    } catch {
      // a file opened from disk may have no storage: the choice lasts until the page is closed
    }
    dress();
  });
  system.addEventListener("change", dress);
  dress();
  return button;
}

function kept(): string | null {
  try {
    return localStorage.getItem(NAME);
  } catch {
    return null;
  }
}
