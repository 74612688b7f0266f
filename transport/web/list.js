/** The conversations of the list: read page by page, searched, pinned, put into folders, renamed, exported and deleted. */
import { request, sentence } from "./api.js";
import { copy, keep } from "./copies.js";
import { confirmed, line, oneOf } from "./dialogs.js";
import { find, icon, save } from "./dom.js";
import { Selection } from "./selection.js";
import { openShares, sharing } from "./share-dialog.js";
import { folderOf, isPinned, Sidebar } from "./sidebar.js";
import { StoppedError } from "./sessile.js";
import { t } from "./texts.js";

/** @typedef {import("./sessile.js").SessionInfo} SessionInfo */
/** @typedef {import("./sessile.js").SessileClient} SessileClient */

const PAGE = 40;
const SEARCH_AFTER_MS = 250;
const SEARCH_PAGES = 5; // of an answer that comes in parts
const HITS_MAX = 30;

export class ConversationList {
  /**
   * @param {SessileClient} client
   * @param {{ open: (id: string) => void, changed: () => void, loaded: () => void, deleted: (id: string) => void, failed: (text: string) => void, done: (text: string) => void,
   *   attempt: (act: () => Promise<void>) => Promise<void>, tip: (id: string) => string | null }} page
   */
  constructor(client, page) {
    this.client = client;
    this.page = page;
    this.sidebar = new Sidebar(find("list"), {
      open: (id) => page.open(id),
      more: () => void this.load(true),
      rename: (info) => void this.rename(info),
      remove: (info) => void this.remove(info),
      items: (info) => this.items(info),
      chosen: (id) => (this.selection.isOn ? this.selection.chosen.has(id) : null),
      choose: (id) => this.selection.toggle(id),
    });
    this.selection = new Selection({ move: (ids) => void this.moveAll(ids), remove: (ids) => void this.removeAll(ids), changed: () => page.changed() });
    /** @type {SessionInfo[]} */
    this.listed = [];
    this.hasMore = false;
    this.isLoading = false;
    this.isWanted = false;
    /** @type {import("./sidebar.js").Search} */
    this.search = { words: "", hits: null };
    /** @type {number | undefined} */
    this.timer = undefined;
    /** @type {HTMLInputElement} */
    const input = find("search");
    input.addEventListener("input", () => this.look(input.value.trim()));
    input.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || input.value === "") return;
      event.stopPropagation();
      input.value = "";
      this.look("");
    });
    void this.offline();
  }

  /** What was listed last, until the server says more. */
  async offline() {
    const text = await copy("list");
    if (text === null || this.listed.length > 0) return;
    this.listed = JSON.parse(text);
    this.page.changed();
  }

  /** @param {boolean} more the page after what is shown; otherwise what is shown, anew */
  async load(more) {
    if (this.isLoading) {
      this.isWanted = true;
      return;
    }
    this.isLoading = true;
    try {
      const last = this.listed[this.listed.length - 1];
      const limit = Math.min(100, Math.max(PAGE, this.listed.length));
      const { data, has_more } = await this.client.page(more && last ? { limit: PAGE, after: String(last.id) } : { limit });
      this.listed = more ? [...this.listed, ...data] : data;
      this.hasMore = has_more;
      this.page.loaded();
      void keep("list", JSON.stringify(this.listed.slice(0, 2 * PAGE)));
    } catch (error) {
      if (!(error instanceof StoppedError)) this.page.failed(t("The list of conversations could not be read: {why}", { why: sentence(error) }));
    }
    this.isLoading = false;
    this.page.changed();
    if (this.isWanted) {
      this.isWanted = false;
      void this.load(false);
    }
  }

  /** Without those that have no title and no first words that the page knows: programs keep them, over OpenAI's API. @param {(info: SessionInfo) => SessionInfo} known what the page knows better @param {string | null} current */
  draw(known, current) {
    const rows = this.listed.map(known).filter((info) => !this.selection.leaving.has(String(info.id)) && (info.title || info.id === current || info["open"]));
    this.sidebar.render(rows, current, this.hasMore, this.search);
  }

  // -- searching ------------------------------------------------------------------------------------------------

  /** @param {string} words */
  look(words) {
    this.search = { words, hits: words.length < 2 ? [] : null };
    clearTimeout(this.timer);
    if (words.length >= 2) this.timer = setTimeout(() => void this.query(words), SEARCH_AFTER_MS);
    this.page.changed();
  }

  /** @param {string} words */
  async query(words) {
    /** @type {import("./sidebar.js").Hit[]} */
    const hits = [];
    try {
      /** @type {string | null | undefined} */
      let after = null;
      for (let page = 0; page < SEARCH_PAGES && hits.length < HITS_MAX; page++) {
        const found = await this.client.search(words, after ? { after } : {}, { timeoutMs: 10_000 });
        for (const { id, title, matches } of found.data) hits.push({ id: String(id), title: title ?? "", matches });
        if (!found.has_more || this.search.words !== words) break;
        after = found.last_id;
      }
    } catch {
      // titles alone then: an older server, or none
    }
    if (this.search.words !== words) return;
    this.search = { words, hits };
    this.page.changed();
    const lower = words.toLocaleLowerCase();
    const found = new Set([...this.listed.filter((info) => String(info.title ?? "").toLocaleLowerCase().includes(lower)), ...hits].map(({ id }) => String(id))).size;
    this.page.done(found === 0 ? t("Nothing found.") : found === 1 ? t("1 conversation found.") : t("{n} conversations found.", { n: found }));
  }

  // -- what is done with one ------------------------------------------------------------------------------------------

  /** @param {SessionInfo} info @returns {import("./dialogs.js").MenuItem[]} */
  items(info) {
    const id = String(info.id);
    return [
      { label: t("Rename…"), icon: icon("edit"), act: () => void this.rename(info) },
      { label: isPinned(info) ? t("Unpin") : t("Pin"), icon: icon("pin"), act: () => void this.mark(info, { pinned: isPinned(info) ? undefined : true }) },
      { label: t("Move to a folder…"), icon: icon("folder"), act: () => void this.move(info) },
      ...(sharing.isOff ? [] : [{ label: t("Share…"), icon: icon("share"), act: () => openShares(id, this.page.tip(id)) }]),
      { label: t("Select several…"), icon: icon("check"), act: () => this.selection.turn(true, id) },
      { label: t("Export as Markdown"), icon: icon("save"), act: () => void this.export(info, "markdown") },
      { label: t("Export as JSON"), icon: icon("save"), act: () => void this.export(info, "json") },
      { label: t("Delete…"), icon: icon("trash"), danger: true, act: () => void this.remove(info) },
    ];
  }

  /** @param {SessionInfo} info */
  async rename(info) {
    const title = await line(t("Rename this conversation"), t("Title"), info.title ?? "");
    if (!title || title === info.title) return;
    await this.page.attempt(() => this.client.session(String(info.id)).update({ title }));
    void this.load(false);
  }

  /** @param {SessionInfo} info */
  async move(info) {
    const folder = await this.folder(folderOf(info));
    if (folder !== null) void this.mark(info, { folder: folder || undefined });
  }

  /** One that is there, or a new name; "" for none, null where nothing was chosen. @param {string} now */
  folder(now) {
    const names = [...new Set(this.listed.map(folderOf))].filter((name) => name !== "").sort((a, b) => a.localeCompare(b));
    return oneOf(t("Move to a folder"), t("Folder"), names, now, { none: t("No folder"), other: t("New folder…"), name: t("Name of the new folder") });
  }

  /** @param {string[]} ids */
  async moveAll(ids) {
    const folder = await this.folder("");
    if (folder === null) return;
    const moved = this.listed.filter((info) => ids.includes(String(info.id)));
    await Promise.all(moved.map((info) => this.mark(info, { folder: folder || undefined })));
  }

  /** Metadata goes whole, so it is read first. @param {SessionInfo} info @param {{ pinned?: true | undefined, folder?: string | undefined }} marks */
  mark(info, marks) {
    return this.page.attempt(async () => {
      const session = this.client.session(String(info.id));
      const { state } = /** @type {any} */ (await session.get());
      const metadata = JSON.parse(JSON.stringify({ ...state.metadata, ...marks }));
      await session.update({ metadata });
      this.listed = this.listed.map((each) => (each.id === info.id ? { ...each, metadata } : each));
      void this.load(false);
    });
  }

  /** @param {SessionInfo} info @param {"markdown" | "json"} format */
  async export(info, format) {
    await this.page.attempt(async () => {
      const answer = await request(`v1/sessions/${encodeURIComponent(String(info.id))}/export?format=${format}`);
      const name = (info.title || t("Untitled")).replace(/[^\p{L}\p{N} _-]+/gu, "").trim().slice(0, 80) || "conversation";
      save(await answer.blob(), `${name}.${format === "json" ? "json" : "md"}`);
    });
  }

  /** @param {SessionInfo} info */
  async remove(info) {
    const text = t("“{title}” and everything said in it will be gone, on all your devices.", { title: info.title || t("Untitled") });
    if (!(await confirmed(t("Delete this conversation?"), text, t("Delete"), t("Keep it")))) return;
    await this.page.attempt(() => this.drop(String(info.id)));
    this.page.done(t("The conversation was deleted."));
  }

  /** @param {string[]} ids */
  async removeAll(ids) {
    for (const id of ids) await this.page.attempt(() => this.drop(id).finally(() => this.selection.gone(id)));
  }

  /** @param {string} id */
  async drop(id) {
    await this.client.session(id).delete();
    void keep(`sessile:session:${id}`, null);
    this.listed = this.listed.filter((each) => each.id !== id);
    this.page.deleted(id);
    void this.load(false);
  }
}
