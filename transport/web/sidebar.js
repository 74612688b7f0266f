/**
 * The list of conversations: pinned ones first, then folders, then by day; or what a search has found. Each row has a menu.
 *
 * It shows what it is given and calls `actions`; rows are kept by conversation, so that focus and scrolling survive an update.
 */
import { arrange, el, icon } from "./dom.js";
import { openMenu } from "./dialogs.js";
import { prefer, preferences } from "./preferences.js";
import { t } from "./texts.js";

/** @typedef {import("./sessile.js").SessionInfo} SessionInfo */
/** @typedef {{ id: string, title: string, matches: { item_id: string | null, snippet: string, start: number, end: number }[] }} Hit */
/** @typedef {{ words: string, hits: Hit[] | null }} Search `hits` null: the server has not answered yet */

const DAY_MS = 86_400_000;

/** @param {number} at @param {number} now */
function day(at, now) {
  const midnight = new Date(now).setHours(0, 0, 0, 0);
  if (at >= midnight) return t("Today");
  if (at >= midnight - DAY_MS) return t("Yesterday");
  if (at >= midnight - 6 * DAY_MS) return t("This week");
  return t("Earlier");
}

/** @param {SessionInfo} info */
export const isPinned = (info) => /** @type {any} */ (info["metadata"])?.pinned === true;
/** @param {SessionInfo} info @returns {string} "": none */
export const folderOf = (info) => String(/** @type {any} */ (info["metadata"])?.folder ?? "");

/** Code points [start, end) of a text, marked. @param {{ snippet: string, start: number, end: number }} match */
function marked({ snippet, start, end }) {
  const points = [...snippet];
  const part = (/** @type {number} */ from, /** @type {number} */ to) => points.slice(from, to).join("");
  return [part(0, start), el("mark", {}, part(start, end)), part(end, points.length)];
}

export class Sidebar {
  /**
   * @param {HTMLElement} root
   * @param {{ open: (id: string) => void, more: () => void, rename: (info: SessionInfo) => void, remove: (info: SessionInfo) => void,
   *   items: (info: SessionInfo) => import("./dialogs.js").MenuItem[], chosen: (id: string) => boolean | null, choose: (id: string) => void }} actions `chosen` null: nothing is being selected
   */
  constructor(root, actions) {
    this.root = root;
    this.actions = actions;
    /** @type {Map<string, { item: HTMLElement, link: HTMLAnchorElement, info: SessionInfo, box: HTMLInputElement }>} */
    this.rows = new Map();
    /** @type {Map<string, { list: HTMLElement, section: HTMLElement, draw: () => void }>} */
    this.groups = new Map();
    this.more = el("button", { class: "plain more", type: "button", click: () => actions.more() }, t("Show more"));
    this.none = el("p", { class: "none" });
    this.isSearching = false; // what a search finds stands in no folded folder
    /** @type {{ search: Search | null, items: HTMLElement[] }} */
    this.found = { search: null, items: [] };
  }

  /** @param {SessionInfo[]} sessions @param {string | null} current @param {boolean} hasMore @param {Search} search */
  render(sessions, current, hasMore, search) {
    const now = Date.now();
    const words = search.words.toLocaleLowerCase();
    this.isSearching = words !== "";
    const fitting = sessions.filter((info) => words === "" || String(info.title ?? "").toLocaleLowerCase().includes(words));
    /** @type {Map<string, Node[]>} */
    const groups = new Map([["pinned", []]]);
    for (const name of [...new Set(fitting.map(folderOf))].sort((a, b) => a.localeCompare(b))) if (name !== "") groups.set(`folder ${name}`, []);
    const kept = new Map();
    for (const info of fitting) {
      const row = this.row(info, current);
      kept.set(String(info.id), row);
      const folder = folderOf(info);
      const name = isPinned(info) ? "pinned" : folder !== "" ? `folder ${folder}` : day(Number(info.updated_at ?? info.created_at ?? now), now);
      groups.set(name, [...(groups.get(name) ?? []), row.item]);
    }
    this.rows = kept;
    const sections = [...groups].filter(([, rows]) => rows.length > 0).map(([name, rows]) => this.group(name, rows));
    const known = new Set(fitting.map((info) => String(info.id)));
    const hits = (search.hits ?? []).filter((hit) => !known.has(hit.id));
    if (hits.length > 0) sections.push(this.group(t("In the conversations"), this.hits(hits, search)));
    const isWaiting = words !== "" && search.hits === null;
    this.none.textContent = isWaiting ? t("Searching…") : words === "" ? t("Nothing here yet.") : t("Nothing found.");
    arrange(this.root, [...sections, ...(sections.length === 0 || isWaiting ? [this.none] : []), ...(hasMore && words === "" ? [this.more] : [])]);
  }

  /** @param {string} name @param {Node[]} rows */
  group(name, rows) {
    let group = this.groups.get(name);
    if (group === undefined) {
      const id = `group-${this.groups.size}`;
      const list = el("ul", { "aria-labelledby": id });
      const folder = name.startsWith("folder ") ? name.slice(7) : null;
      const words = name === "pinned" ? [icon("pin"), t("Pinned")] : folder === null ? [name] : [icon("folder"), folder];
      const { button, draw } = folder === null ? { button: null, draw: () => undefined } : this.fold(folder, list, words);
      const head = el("h2", { class: "day", id }, ...(button === null ? words : [button]));
      this.groups.set(name, (group = { list, section: el("section", {}, head, list), draw }));
    }
    group.draw();
    arrange(group.list, rows);
    return group.section;
  }

  /** @param {string} folder @param {HTMLElement} list @param {(Node | string)[]} words */
  fold(folder, list, words) {
    const isFolded = () => !this.isSearching && (preferences.folded?.includes(folder) ?? false);
    const draw = () => {
      list.hidden = isFolded();
      button.setAttribute("aria-expanded", String(!isFolded()));
    };
    const button = el("button", {
      class: "fold", type: "button",
      click: () => {
        const others = (preferences.folded ?? []).filter((each) => each !== folder);
        prefer({ folded: isFolded() ? others : [...others, folder] });
        draw();
      },
    }, ...words);
    return { button, draw };
  }

  /** @param {SessionInfo} info @param {string | null} current */
  row(info, current) {
    const id = String(info.id);
    const row = this.rows.get(id) ?? this.made(id, info);
    row.info = info;
    const title = info.title || t("Untitled");
    const isOpen = Boolean(Array.isArray(info["open"]) ? info["open"].length : info["open"]);
    const text = `${title}${isOpen ? " (answering)" : ""}`;
    if (row.link.getAttribute("data-text") !== text) {
      row.link.setAttribute("data-text", text);
      row.link.replaceChildren(el("span", { class: "row-title", dir: "auto" }, title), isOpen ? el("span", { class: "row-busy" }, el("span", { class: "unseen" }, ` ${t("answering")}`)) : "");
      row.link.nextElementSibling?.setAttribute("aria-label", t("Actions for “{title}”", { title }));
    }
    const isChosen = this.actions.chosen(id);
    row.box.hidden = isChosen === null;
    row.box.checked = isChosen === true;
    row.box.setAttribute("aria-label", t("Select “{title}”", { title }));
    if (id === current) row.link.setAttribute("aria-current", "page");
    else row.link.removeAttribute("aria-current");
    return row;
  }

  /** @param {string} id @param {SessionInfo} info */
  made(id, info) {
    const link = this.link(id);
    /** @type {HTMLButtonElement} */
    const button = el("button", { class: "quiet row-menu", type: "button", "aria-haspopup": "menu", click: () => openMenu(button, this.actions.items(row.info)) }, icon("dots"));
    const box = el("input", { type: "checkbox", class: "row-box", hidden: true, change: () => this.actions.choose(id) });
    const row = { link, info, box, item: el("li", { class: "row-item" }, link, button, box) };
    link.addEventListener("keydown", (event) => {
      if (event.key === "F2") this.actions.rename(row.info);
      else if (event.key === "Delete") this.actions.remove(row.info);
    });
    link.addEventListener("contextmenu", (event) => {
      if (!matchMedia("(hover: none)").matches) return; // a mouse gets the browser's own
      event.preventDefault();
      openMenu(button, this.actions.items(row.info));
    });
    return row;
  }

  /** The same elements while the answer is the same. @param {Hit[]} hits @param {Search} search */
  hits(hits, search) {
    if (this.found.search !== search || this.found.items.length !== hits.length) this.found = { search, items: hits.map((hit) => this.hit(hit)) };
    return this.found.items;
  }

  /** @param {Hit} hit */
  hit(hit) {
    const link = this.link(hit.id);
    const snippets = hit.matches.filter((match) => match.item_id !== null).slice(0, 2).map((match) => el("span", { class: "snippet" }, ...marked(match)));
    link.append(el("span", { class: "row-title", dir: "auto" }, hit.title || t("Untitled")), ...snippets);
    return el("li", {}, link);
  }

  /** @param {string} id */
  link(id) {
    const link = el("a", { class: "row", href: `?session=${encodeURIComponent(id)}` });
    link.addEventListener("click", (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return; // another tab or window: the browser's business
      event.preventDefault();
      if (this.actions.chosen(id) === null) this.actions.open(id);
      else this.actions.choose(id);
    });
    return link;
  }
}
