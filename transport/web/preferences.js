/** What this reader chose for every conversation: kept in this browser, applied by theme.js before the first paint. */

const NAME = "sessile-preferences";
/** @typedef {{ theme?: string, language?: string, isSideHidden?: boolean, helpKey?: boolean, folded?: string[], worthClosed?: string }} Preferences */

/** @type {Preferences} */
export const preferences = read(NAME, {});

/** @param {Preferences} changed */
export function prefer(changed) {
  write(NAME, Object.assign(preferences, changed));
}

/** @template T @param {string} name @param {T} otherwise @returns {T} */
export function read(name, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(name) ?? "null") ?? otherwise;
  } catch {
    return otherwise;
  }
}

/** @param {string} name @param {unknown} value */
export function write(name, value) {
  try {
    localStorage.setItem(name, JSON.stringify(value));
  } catch {
    // full or forbidden: it holds until the page closes
  }
}
