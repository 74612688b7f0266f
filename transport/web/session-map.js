/**
 * The map on the operator's page: on each replica's card a cell for each session in its memory, by what it does and where
 * its KV is. Beside the cells stand the same numbers as words; each session is in the table below.
 */

import { el } from "./dom.js";
import { count } from "./numbers.js";

export const KINDS = /** @type {const} */ ({
  turn: "answering",
  device: "at rest, KV on the device",
  below: "at rest, KV in a tier below",
  bare: "at rest, no KV",
  moving: "coming or going",
});

/** @typedef {keyof typeof KINDS} KindOfSession */

/** @param {any} session @returns {KindOfSession} */
export function kindOf(session) {
  if (session.state === "turn") return "turn";
  if (session.state !== "idle") return "moving";
  if (session.kv_tokens === 0) return "bare";
  return session.kv_tier === "device" ? "device" : "below";
}

/** What the colours mean. */
export function mapKey() {
  return el("ul", { class: "map-key" }, ...Object.entries(KINDS).map(([kind, name]) => el("li", {}, el("span", { class: `cell ${kind}`, "aria-hidden": "true" }), name)));
}

/**
 * Draws the cells of one replica; only what differs is touched.
 * @param {HTMLElement} cells @param {HTMLElement} words @param {any[]} sessions of this replica
 * @param {number | null} total how many it has; null: it does not say
 */
export function drawMap(cells, words, sessions, total) {
  while (cells.childElementCount > sessions.length) cells.lastElementChild?.remove();
  while (cells.childElementCount < sessions.length) cells.append(el("span"));
  /** @type {Map<KindOfSession, number>} */ const counts = new Map();
  sessions.forEach((session, index) => {
    const kind = kindOf(session);
    counts.set(kind, (counts.get(kind) ?? 0) + 1);
    const cell = /** @type {HTMLElement} */ (cells.children[index]);
    const title = `${session.tenant}/${session.session}: ${KINDS[kind]}`;
    if (cell.title !== title) Object.assign(cell, { title, className: `cell ${kind}` });
  });
  const parts = /** @type {KindOfSession[]} */ (Object.keys(KINDS)).filter((kind) => counts.has(kind)).map((kind) => `${count(counts.get(kind) ?? 0)} ${KINDS[kind]}`);
  const all = total ?? sessions.length;
  const some = all > sessions.length && sessions.length > 0 ? ` Of the first ${count(sessions.length)}` : "";
  const text = `${count(all)} ${all === 1 ? "session" : "sessions"} in memory${some === "" ? "" : "."}${some}${parts.length === 0 ? "" : `: ${parts.join("; ")}`}.`;
  if (words.textContent !== text) words.textContent = text;
}
