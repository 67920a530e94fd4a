// The prompt for the API key.

import { h } from "./dom";

export function askKey(refused: boolean): Promise<string> {
  return new Promise((done) => {
    const input = h("input", { type: "password", id: "key", autocomplete: "off", required: true });
    const form = h(
      "form",
      { method: "dialog" },
      h("h2", {}, "API key required"),
      h("p", {}, refused ? "The service rejected this key." : "Ask the operator of this service for the key. It is stored until you close this tab."),
      h("label", { for: "key" }, "API key"),
      input,
      h("button", { type: "submit", class: "button" }, "Continue"),
    );
    const dialog = h("dialog", { "aria-label": "API key" }, form);
    dialog.addEventListener("cancel", (event) => event.preventDefault());
    form.addEventListener("submit", () => {
      dialog.remove();
      done(input.value);
    });
    document.body.append(dialog);
    dialog.showModal();
    input.focus();
  });
}
