/** The list of conversations, newest first, by day. */
import { arrange, el } from "./dom.js";

/** @typedef {import("./sessile.js").SessionInfo} SessionInfo */

const DAY_MS = 86_400_000;

/** @param {number} at @param {number} now */
function day(at, now) {
  const midnight = new Date(now).setHours(0, 0, 0, 0);
  if (at >= midnight) return "Today";
  if (at >= midnight - DAY_MS) return "Yesterday";
  if (at >= midnight - 6 * DAY_MS) return "This week";
  return "Earlier";
}

export class Sidebar {
  /**
   * @param {HTMLElement} root
   * @param {{ open: (id: string) => void, more: () => void }} actions
   */
  constructor(root, actions) {
    this.root = root;
    this.actions = actions;
    /** @type {Map<string, HTMLAnchorElement>} */
    this.rows = new Map();
    /** @type {Map<string, { head: HTMLElement, list: HTMLElement, section: HTMLElement }>} */
    this.days = new Map();
    this.more = el("button", { class: "plain more", type: "button", click: () => actions.more() }, "Show more");
    this.none = el("p", { class: "none" }, "Nothing here yet.");
  }

  /** @param {SessionInfo[]} sessions @param {string | null} current @param {boolean} hasMore */
  render(sessions, current, hasMore) {
    const now = Date.now();
    /** @type {Map<string, Node[]>} */
    const byDay = new Map();
    const kept = new Map();
    for (const info of sessions) {
      const id = String(info.id);
      const row = this.rows.get(id) ?? this.row(id);
      kept.set(id, row);
      const title = info.title || "Untitled";
      const isOpen = Boolean(Array.isArray(info["open"]) ? info["open"].length : info["open"]);
      const text = `${title}${isOpen ? " (answering)" : ""}`;
      if (row.getAttribute("data-text") !== text) {
        row.setAttribute("data-text", text);
        row.replaceChildren(el("span", { class: "row-title" }, title), isOpen ? el("span", { class: "row-busy" }, el("span", { class: "unseen" }, " answering")) : "");
      }
      if (id === current) row.setAttribute("aria-current", "page");
      else row.removeAttribute("aria-current");
      const name = day(Number(info.updated_at ?? info.created_at ?? now), now);
      byDay.set(name, [...(byDay.get(name) ?? []), /** @type {Node} */ (row.parentNode)]);
    }
    this.rows = kept;
    const sections = [...byDay].map(([name, rows]) => {
      let group = this.days.get(name);
      if (group === undefined) {
        const headId = `day-${this.days.size}`;
        const head = el("h2", { class: "day", id: headId }, name);
        const list = el("ul", { "aria-labelledby": headId });
        this.days.set(name, (group = { head, list, section: el("section", {}, head, list) }));
      }
      arrange(group.list, rows);
      return group.section;
    });
    arrange(this.root, [...(sections.length === 0 ? [this.none] : sections), ...(hasMore ? [this.more] : [])]);
  }

  /** @param {string} id */
  row(id) {
    const row = el("a", { class: "row", href: `?session=${encodeURIComponent(id)}` });
    row.addEventListener("click", (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return; // another tab or window: the browser's business
      event.preventDefault();
      this.actions.open(id);
    });
    el("li", {}, row);
    return row;
  }
}
