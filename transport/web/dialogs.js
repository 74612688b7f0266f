/** Small dialogs, built when they open and taken away when they close. Keys, focus and the way back are the browser's. */
import { el } from "./dom.js";
import { t } from "./texts.js";

let count = 0;

/**
 * @param {string} title
 * @param {(Node | string | false | null)[]} content
 * @param {Node[]} buttons
 * @param {{ id?: string, wide?: boolean }} [how]
 */
export function openDialog(title, content, buttons, { id = `dialog-${++count}`, wide = false } = {}) {
  const form = el("form", { method: "dialog" }, el("h2", { id: `${id}-title` }, title), ...content, el("div", { class: "dialog-buttons" }, ...buttons));
  const box = el("dialog", { id, class: wide ? "dialog wide" : "dialog", "aria-labelledby": `${id}-title` }, form);
  box.addEventListener("close", () => setTimeout(() => box.remove())); // after everybody who waits for the answer
  document.body.append(box);
  box.showModal();
  return box;
}

/** @param {HTMLDialogElement} box @returns {Promise<string>} the value of the button that closed it; "" for Escape */
export function closed(box) {
  return new Promise((resolve) => box.addEventListener("close", () => resolve(box.returnValue)));
}

/** @param {string} label @param {string} value @param {string} [kind] a class */
export function choice(label, value, kind = "plain") {
  return el("button", { class: kind, value }, label);
}

/** @param {string} title @param {string} text @param {string} yes @param {string} no */
export async function confirmed(title, text, yes, no) {
  const button = choice(yes, "yes", "danger");
  button.id = "confirm-yes";
  const box = openDialog(title, [el("p", { id: "confirm-text" }, text)], [choice(no, "no"), button], { id: "confirm" });
  box.setAttribute("aria-describedby", "confirm-text");
  return (await closed(box)) === "yes";
}

/** One line from the user, or null. @param {string} title @param {string} label @param {string} value */
export async function line(title, label, value) {
  const input = el("input", { id: "line-input", value, maxlength: 256, autocomplete: "off", required: true });
  const box = openDialog(title, [el("label", { for: "line-input" }, label), input], [cancel(), choice(t("Save"), "yes", "danger sea")]);
  input.focus();
  input.select();
  return (await closed(box)) === "yes" ? input.value.trim() : null;
}

/**
 * One of several names, a new one, or "" for none; null where nothing was chosen.
 * @param {string} title @param {string} label @param {string[]} names @param {string} now @param {{ none: string, other: string, name: string }} words
 */
export async function oneOf(title, label, names, now, { none, other, name }) {
  const OTHER = "\n"; // no name
  const select = el("select", { id: "among" }, el("option", { value: "" }, none), ...names.map((each) => el("option", { value: each }, each)), el("option", { value: OTHER }, other));
  const input = el("input", { id: "line-input", maxlength: 256, autocomplete: "off" });
  const fresh = el("div", { class: "field" }, el("label", { for: "line-input" }, name), input);
  const draw = () => {
    fresh.hidden = select.value !== OTHER;
    input.required = !fresh.hidden;
  };
  select.addEventListener("change", () => {
    draw();
    if (!fresh.hidden) input.focus();
  });
  select.value = names.length === 0 ? OTHER : now;
  draw();
  const box = openDialog(title, [el("div", { class: "field" }, el("label", { for: "among" }, label), select), fresh], [cancel(), choice(t("Save"), "yes", "danger sea")]);
  (fresh.hidden ? select : input).focus();
  if ((await closed(box)) !== "yes") return null;
  return fresh.hidden ? select.value : input.value.trim();
}

/** Leaves a dialog whatever its fields hold; the first button in a form is what Enter presses, and it is not this one. */
export function cancel(label = t("Cancel")) {
  /** @type {HTMLButtonElement} */
  const button = el("button", { class: "plain", type: "button", click: () => button.closest("dialog")?.close("") }, label);
  return button;
}

/** @typedef {{ label: string, icon?: Node, danger?: boolean, act: () => void }} MenuItem */

/** A menu below the button that opens it. Escape, a click elsewhere and Tab close it. @param {HTMLElement} button @param {MenuItem[]} items */
export function openMenu(button, items) {
  const menu = el("div", { class: "menu", role: "menu", popover: "auto", "aria-label": button.getAttribute("aria-label") });
  const leave = (/** @type {() => void} */ then) => {
    button.focus();
    menu.hidePopover();
    then();
  };
  for (const { label, icon, danger, act } of items) {
    menu.append(el("button", { role: "menuitem", type: "button", tabindex: -1, class: danger && "bad", click: () => leave(act) }, icon ?? null, label));
  }
  menu.addEventListener("keydown", (event) => {
    const buttons = /** @type {HTMLElement[]} */ ([...menu.children]);
    const at = buttons.indexOf(/** @type {HTMLElement} */ (document.activeElement));
    const next = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: -1 }[event.key];
    if (event.key === "Tab" || event.key === "Escape") leave(() => undefined);
    if (next !== undefined) buttons.at(next % buttons.length)?.focus();
    if (next !== undefined || event.key === "Tab" || event.key === "Escape") event.preventDefault();
    event.stopPropagation();
  });
  const place = () => {
    const { left, right, top, bottom } = button.getBoundingClientRect();
    menu.style.left = `${Math.max(8, Math.min(right - menu.offsetWidth, innerWidth - menu.offsetWidth - 8, left))}px`;
    menu.style.top = `${bottom + menu.offsetHeight + 8 > innerHeight ? Math.max(8, top - menu.offsetHeight - 4) : bottom + 4}px`;
  };
  menu.addEventListener("toggle", (event) => {
    if (/** @type {ToggleEvent} */ (event).newState !== "closed") return;
    button.setAttribute("aria-expanded", "false");
    removeEventListener("resize", place);
    menu.remove();
  });
  (button.closest("aside, main") ?? document.body).append(menu);
  menu.showPopover();
  button.setAttribute("aria-expanded", "true");
  place();
  addEventListener("resize", place);
  /** @type {HTMLElement} */ (menu.firstElementChild)?.focus();
}
