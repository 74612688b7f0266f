/**
 * Copies of the conversations that were opened last, and of their list, for reading them without the server. They lie in this
 * browser's cache storage under whom they belong to: a tab reads those of its own key, or of who signed in here last.
 *
 * Invariants: no key is written, only the SHA-256 of one; at most KEPT copies; wipe.js takes all of them away.
 */
import { base, KEY, storage } from "./api.js";
import { read, write } from "./preferences.js";
import { offered } from "./sign-in.js";
import { COPIES, leaving, wipe } from "./wipe.js";

const KEPT = 20;
const USER = "sessile-user";
const SESSION = "sessile:session:";

/** Who is signed in; somebody who was before, in this browser or in this tab alone, leaves nothing here; false: this page is theirs. @param {string | undefined} user */
export async function belongTo(user) {
  const [before, inTab] = [read(USER, user), storage.getItem(USER) ?? user];
  write(USER, user ?? null);
  if (before !== user || inTab !== user) await wipe(inTab !== user);
  if (user !== undefined) storage.setItem(USER, user);
  return inTab === user;
}

async function owner() {
  const key = storage.getItem(KEY);
  if (!key) return offered ? `user-${read(USER, "")}` : "all";
  const hash = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(key));
  return `key-${[...new Uint8Array(hash)].map((byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}

/** @param {string} name */
const address = async (name) => `${base}/copies/${encodeURIComponent(await owner())}/${encodeURIComponent(name)}`;

/** @param {string} name @returns {Promise<string | null>} */
export async function copy(name) {
  try {
    return (await (await caches.match(await address(name), { cacheName: COPIES }))?.text()) ?? null;
  } catch {
    return null; // no cache storage here: reading needs the server
  }
}

/** @param {string} name @param {string | null} text null: keep it no longer */
export async function keep(name, text) {
  try {
    if (leaving.is) return;
    const [cache, url] = [await caches.open(COPIES), await address(name)];
    await cache.delete(url);
    if (text === null) return;
    const kept = await cache.keys(); // the oldest first
    for (const each of kept.slice(0, Math.max(0, kept.length - KEPT + 1))) await cache.delete(each);
    if (!leaving.is) await cache.put(url, new Response(text, { headers: { "content-type": "application/json" } }));
  } catch {
    // as above
  }
}

/** What the client keeps in this tab, with copies of whole conversations behind it. */
export const keeping = {
  /** @param {string} key */
  getItem(key) {
    const own = storage.getItem(key);
    return own === null && key.startsWith(SESSION) ? copy(key) : own;
  },
  /** @param {string} key @param {string} value */
  setItem(key, value) {
    if (key.startsWith(SESSION)) void keep(key, value);
    storage.setItem(key, value);
  },
  /** @param {string} key */
  removeItem(key) {
    if (key.startsWith(SESSION)) void keep(key, null);
    storage.removeItem(key);
  },
};
