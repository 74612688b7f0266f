/** Several conversations of the list at once: chosen by their boxes, moved, or deleted with a while to take that back. */
import { storage } from "./api.js";
import { el, find, icon } from "./dom.js";
import { t } from "./texts.js";

/** @typedef {import("./sessile.js").SessionInfo} SessionInfo */

const UNDO_MS = 10_000;
const LEAVING = "sessile-deleting";

export class Selection {
  /** @param {{ move: (ids: string[]) => void, remove: (ids: string[]) => void, changed: () => void }} actions */
  constructor(actions) {
    this.actions = actions;
    this.isOn = false;
    /** @type {Set<string>} */
    this.chosen = new Set();
    /** Deleted for the reader, and in a moment for good. @type {Set<string>} */
    this.leaving = new Set(JSON.parse(storage.getItem(LEAVING) ?? "[]"));
    /** @type {number | undefined} */
    this.timer = undefined;
    this.count = el("span", { role: "status" });
    this.bar = el("div", { class: "selection", role: "group", "aria-label": t("Selected conversations"), hidden: true },
      this.count,
      el("button", { class: "quiet small", type: "button", "aria-label": t("Move to a folder…"), click: () => this.with((ids) => actions.move(ids)) }, icon("folder")),
      el("button", { class: "quiet small", type: "button", "aria-label": t("Delete"), click: () => this.with((ids) => this.remove(ids)) }, icon("trash")),
      el("button", { class: "plain", type: "button", click: () => this.turn(false) }, t("Done")),
    );
    this.undo = el("div", { class: "selection", hidden: true }, el("span", { role: "status" }), el("button", { class: "plain", type: "button", click: () => this.takeBack() }, t("Undo")));
    find("list").before(this.bar, this.undo);
    if (this.leaving.size > 0) this.finish(); // the page closed before it was done
  }

  /** @param {boolean} isOn @param {string} [id] chosen at once */
  turn(isOn, id) {
    this.isOn = isOn;
    this.chosen = new Set(isOn && id !== undefined ? [id] : []);
    this.draw();
    this.actions.changed();
  }

  /** @param {string} id */
  toggle(id) {
    if (!this.chosen.delete(id)) this.chosen.add(id);
    this.draw();
    this.actions.changed();
  }

  draw() {
    this.bar.hidden = !this.isOn;
    this.count.textContent = t("{n} selected", { n: this.chosen.size });
    for (const button of this.bar.querySelectorAll("button.small")) /** @type {HTMLButtonElement} */ (button).disabled = this.chosen.size === 0;
  }

  /** @param {(ids: string[]) => void} act */
  with(act) {
    const ids = [...this.chosen];
    this.turn(false);
    act(ids);
  }

  /** @param {string[]} ids */
  remove(ids) {
    this.finish(); // one undo at a time
    this.leaving = new Set(ids);
    storage.setItem(LEAVING, JSON.stringify(ids));
    const [words, button] = /** @type {[HTMLElement, HTMLButtonElement]} */ ([...this.undo.children]);
    words.textContent = ids.length === 1 ? t("1 conversation was deleted.") : t("{n} conversations were deleted.", { n: ids.length });
    this.undo.hidden = false;
    button.focus();
    this.timer = setTimeout(() => this.finish(), UNDO_MS);
    this.actions.changed();
  }

  takeBack() {
    clearTimeout(this.timer);
    this.leaving = new Set();
    storage.removeItem(LEAVING);
    this.undo.hidden = true;
    find("search").focus();
    this.actions.changed();
  }

  /** Deletes for good what was on its way out. */
  finish() {
    clearTimeout(this.timer);
    const ids = [...this.leaving];
    this.undo.hidden = true;
    if (ids.length > 0) this.actions.remove(ids);
  }

  /** @param {string} id of one that is gone */
  gone(id) {
    this.leaving.delete(id);
    storage.setItem(LEAVING, JSON.stringify([...this.leaving]));
  }
}
