// The prompt for the key of a service that wants one.

import { h } from "./dom";

export function askKey(refused: boolean): Promise<string> {
  return new Promise((done) => {
    const input = h("input", { type: "password", id: "key", autocomplete: "off", required: true });
    const form = h(
      "form",
      { method: "dialog" },
      h("h2", {}, "This service wants a key"),
      h("p", {}, refused ? "That key was refused." : "Whoever started it knows the key. It is kept until this tab is closed."),
      h("label", { for: "key" }, "Key"),
      input,
      h("button", { type: "submit", class: "button" }, "Go on"),
    );
    const dialog = h("dialog", { "aria-label": "Key" }, form);
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
