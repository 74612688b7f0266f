/** Whose the untitled conversations of the list are: those of people are listed on all their devices, those of programs
 * are not.
 *
 * The start of its log tells it: a program's first answer, over OpenAI's API, has its `request`.
 */

import { call } from "./api.js";
import { itemText } from "./sessile.js";
import { t } from "./texts.js";

const TITLE_MAX = 60;
const NOT_NOW = [0, 429, 503]; // no connection, too many requests, not ready

/** @typedef {import("./sessile.js").SessionInfo} SessionInfo */

/** The first words of a text, as a title. @param {string} text */
export function shortTitle(text) {
  const line = text.trim().split("\n")[0] ?? "";
  if (line.length <= TITLE_MAX) return line;
  return `${line.slice(0, TITLE_MAX).replace(/\s+\S*$/, "")}…`;
}

export class UntitledConversations {
  /** The first words of those that people began. @type {Map<string, string>} */
  #words = new Map();
  /** As of which change each was looked at; Infinity: a program's. @type {Map<string, number>} */
  #lookedAt = new Map();

  /** @param {string} id */
  words(id) {
    return this.#words.get(id);
  }

  /** Looks how each of these began; `found` is called after each that a person did.
   * @param {Iterable<SessionInfo>} rows @param {() => void} found */
  async look(rows, found) {
    for (const { id: named, updated_at } of rows) {
      const [id, at] = [String(named), Number(updated_at)];
      if (this.#words.has(id) || (this.#lookedAt.get(id) ?? -1) >= at) continue;
      this.#lookedAt.set(id, at);
      const path = `v1/sessions/${encodeURIComponent(id)}/events?after=0&wait_ms=0`;
      const frames = await call(path).catch(({ status }) => (NOT_NOW.includes(status) ? null : []));
      if (frames === null) return void this.#lookedAt.delete(id); // the next reading of the list tries again
      const events = frames.map((/** @type {any} */ frame) => frame.event ?? {});
      const response = events.find((/** @type {any} */ event) => event.response)?.response;
      if (response === undefined) continue; // nobody has asked yet, or it could not be read: again once it changes
      if (response.request !== undefined) {
        this.#lookedAt.set(id, Infinity);
        continue;
      }
      const item = events.find((/** @type {any} */ event) => event.item?.role === "user")?.item;
      this.#words.set(id, shortTitle(itemText(item)) || t("Untitled"));
      found();
    }
  }
}
