/** Takes every conversation out of this browser: what this tab keeps, and the copies for reading without the server (copies.js). */

export const COPIES = "sessile-conversations";

/** Once the page is being left for good nothing is kept any more. */
export const leaving = { is: false };

/** @param {boolean} isLeaving the page is loaded anew next */
export async function wipe(isLeaving) {
  leaving.is = isLeaving;
  try {
    for (const key of Object.keys(sessionStorage)) if (/^sessile[:-]/.test(key)) sessionStorage.removeItem(key);
    await globalThis.caches?.delete(COPIES);
  } catch {
    // nothing is kept where the browser forbids it
  }
}
