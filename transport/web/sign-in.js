/**
 * Signing in with the server's provider, where it has one: the root element says so (`data-sign-in`).
 *
 * The browser keeps who it is in cookies that no script can read; this page knows a name and a time. A session is renewed before it
 * ends, by one tab at a time, because a provider takes a refresh token once only.
 */

import { wipe } from "./wipe.js";

const RENEW_MS = 60_000;
/** What this server demands on requests with a cookie that change something; no other site's page can send it. */
export const CSRF = { "x-sessile-csrf": "1" };

/** @typedef {{ signed_in: boolean, keys: boolean, refreshable: boolean, user?: string, role?: string, expires_at?: number }} Standing */

export const offered = document.documentElement.dataset["signIn"] !== undefined;
const base = location.pathname.replace(/\/[^/]*$/, "");

/** @type {Standing | null} */
let known = null;

/** Who is signed in; a session that ends soon, or has just ended, is renewed first. @returns {Promise<Standing>} */
export async function standing() {
  if (!offered) return { signed_in: false, keys: true, refreshable: false };
  if (known === null || isEnding(known)) {
    known = await read();
    if (isEnding(known) && known.refreshable) known = await onlyOne(renewed);
  }
  return known;
}

/** Where to go to sign in, and come back to what is shown now. */
export function signIn() {
  const next = `${location.pathname}${location.search}`;
  location.assign(`${base}/auth/sign-in?${new URLSearchParams({ next })}`);
}

/** Signs out here, taking along what of conversations lies in this browser, then at the provider. */
export async function signOut() {
  const answer = await fetch(`${base}/auth/sign-out`, { method: "POST", headers: CSRF });
  if (!answer.ok) throw new Error("Signing out failed. Try again.");
  known = null;
  await wipe(true);
  location.assign(`${base}/auth/signed-out`);
}

/** The next look is a fresh one. */
export function forget() {
  known = null;
}

/** @param {Standing} state */
function isEnding(state) {
  return !state.signed_in || (state.expires_at ?? 0) - Date.now() < RENEW_MS;
}

/** @returns {Promise<Standing>} */
async function read() {
  const answer = await fetch(`${base}/auth/session`);
  if (!answer.ok) throw new Error(`The server answers ${answer.status}.`);
  return answer.json();
}

/** @returns {Promise<Standing>} */
async function renewed() {
  const now = await read(); // another tab may have done it
  if (!isEnding(now) || !now.refreshable) return now;
  const answer = await fetch(`${base}/auth/refresh`, { method: "POST", headers: CSRF });
  return answer.ok ? read() : { ...now, refreshable: false };
}

/** @param {() => Promise<Standing>} work @returns {Promise<Standing>} */
async function onlyOne(work) {
  return navigator.locks ? navigator.locks.request("sessile-sign-in", work) : work();
}
