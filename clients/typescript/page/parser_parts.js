/**
 * What markdown-it needs of five packages, as far as a browser has it: named character references (its own table), the classes
 * of punctuation (its regular expressions), and addresses (`URL`, in the page's own renderer). The build puts this in their place.
 */
const field = document.createElement("textarea"); // its content is text, whatever is in it

/** One reference (`&copy;`) as its character, or as it stands where there is no such name. @param {string} reference */
export function decodeHTMLStrict(reference) {
  field.innerHTML = `x${reference}`; // a line end at the beginning would be dropped
  const text = (field.textContent ?? "").slice(1);
  return text.endsWith(";") && text !== ";" ? reference : text; // not by a prefix that old pages write without its semicolon
}

export const P = /\p{P}/u;
export const S = /\p{S}/u;

export const decode = (/** @type {string} */ text) => text;
decode.defaultChars = "";
export const encode = decode;
export const parse = decode;
export const format = decode;
export default { toASCII: decode, toUnicode: decode };

const ADDRESS = /^https?:\/\/[^\s<>"`|\\^{}]+/iu;
const PAIRS = [["(", ")"], ["[", "]"]];

/** Addresses in running text that begin with their scheme. The parser looks where it sees `://`. */
export class LinkifyIt {
  /** @param {string} text @returns {{ url: string } | null} the address, without what ends the sentence around it */
  matchAtStart(text) {
    let url = ADDRESS.exec(text)?.[0] ?? "";
    const surplus = new Map(PAIRS.map(([open, close]) => [close, url.split(String(close)).length - url.split(String(open)).length]));
    for (;;) {
      const last = url.at(-1) ?? "";
      const left = surplus.get(last) ?? 0;
      if (left > 0) surplus.set(last, left - 1);
      else if (!/[.,:;!?'*_~]/.test(last)) break;
      url = url.slice(0, -1);
    }
    return /\/\/[\p{L}\p{N}[]/u.test(url) ? { url } : null;
  }
}
