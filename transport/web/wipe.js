/**
 * Takes what belongs to a person out of this browser: what this tab keeps, the copies for reading without the server (copies.js),
 * presets, the names of folders, and first words.
 */
import { prefer } from "./preferences.js";

export const PRESETS = "sessile-presets";
export const FIRST_WORDS = "sessile-first-words";
export const COPIES = "sessile-conversations";

/** Once the page is being left for good nothing is kept any more. */
export const leaving = { is: false };

/** @param {boolean} isLeaving the page is loaded anew next */
export async function wipe(isLeaving) {
  leaving.is = isLeaving;
  try {
    for (const key of Object.keys(sessionStorage)) if (/^sessile[:-]/.test(key)) sessionStorage.removeItem(key);
    for (const name of [PRESETS, FIRST_WORDS]) localStorage.removeItem(name);
    prefer({ folded: [] });
    await globalThis.caches?.delete(COPIES);
    const registration = await navigator.serviceWorker?.getRegistration();
    await (await registration?.pushManager?.getSubscription())?.unsubscribe(); // what comes is not for the next person
  } catch {
    // nothing is kept where the browser forbids it
  }
}
