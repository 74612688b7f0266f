/**
 * A model's Markdown as elements: paragraphs, headings, lists, quotes, code, tables, rules; bold, italic, struck, code and
 * links inside. What it does not know it shows as the text it is. No HTML passes: text becomes text nodes, and links
 * lead only to http, https and mailto.
 *
 * Made for text that grows: `Markdown.update` keeps the elements of the blocks that did not change.
 */
import { el, icon } from "./dom.js";

const DEPTH_MAX = 6;
/** A paragraph beyond this is shown as it is: finding marks in it could cost more than it is worth. */
const MARKED_MAX = 20_000;

/** @typedef {{ kind: string, lines: string[], info?: string }} Block */

/** @param {string} text @returns {Block[]} */
export function blocks(text) {
  /** @type {Block[]} */
  const found = [];
  /** @type {Block | null} */
  let open = null;
  const lines = text.replace(/\r\n?/g, "\n").split("\n");
  for (let i = 0; i < lines.length; i++) {
    const line = lines[i] ?? "";
    const fence = /^ {0,3}(`{3,}|~{3,})\s*([^`]*)$/.exec(line);
    if (fence) {
      const mark = fence[1] ?? "```";
      /** @type {Block} */
      const code = { kind: "code", lines: [], info: (fence[2] ?? "").trim().split(/\s+/)[0] ?? "" };
      for (i++; i < lines.length; i++) {
        const inside = lines[i] ?? "";
        if (inside.trim().startsWith(mark) && inside.trim().replaceAll(mark[0] ?? "`", "") === "") break;
        code.lines.push(inside);
      }
      found.push(code);
      open = null;
      continue;
    }
    const kind = kindOf(line, lines[i + 1], open);
    if (kind === "blank") {
      // A list goes on over a blank line when its next line is indented or another item.
      const next = lines[i + 1] ?? "";
      if (isList(open) && (/^\s{2,}\S/.test(next) || isItem(next))) open?.lines.push("");
      else open = null;
    } else if (open !== null && open.kind === kind && kind !== "heading" && kind !== "rule") {
      open.lines.push(line);
    } else {
      open = { kind, lines: [line] };
      found.push(open);
      if (kind === "heading" || kind === "rule") open = null;
    }
  }
  return found;
}

/** @param {string} line */
function isItem(line) {
  return /^\s*([-*+]|\d{1,9}[.)])\s+\S/.test(line);
}

/** @param {Block | null} open */
function isList(open) {
  return open?.kind === "ul" || open?.kind === "ol";
}

/** @param {string} line @param {string | undefined} next @param {Block | null} open */
function kindOf(line, next, open) {
  if (/^\s*$/.test(line)) return "blank";
  if (/^ {0,3}#{1,6}\s/.test(line)) return "heading";
  if (/^ {0,3}([-*_])(\s*\1){2,}\s*$/.test(line)) return "rule";
  if (/^ {0,3}>/.test(line)) return "quote";
  if (isList(open) && /^\s{2,}\S/.test(line)) return open?.kind ?? "text";
  if (isItem(line)) return /^\s*\d/.test(line) ? "ol" : "ul";
  const isRow = line.includes("|");
  if (open?.kind === "table" && isRow) return "table";
  if (isRow && next !== undefined && /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/.test(next) && next.includes("-")) return "table";
  return "text";
}

/** @param {Block} block @param {number} [depth] @returns {HTMLElement} */
function render(block, depth = 0) {
  const { kind, lines } = block;
  if (kind === "code") return code(lines.join("\n"), block.info ?? "");
  if (kind === "heading") {
    const [, marks = "#", words = ""] = /^\s*(#{1,6})\s+(.*?)\s*#*\s*$/.exec(lines[0] ?? "") ?? [];
    // The page's own headings are h1 and h2, so an answer's begin below them.
    const tag = /** @type {"h3"} */ (`h${Math.min(6, marks.length + 2)}`);
    return el(tag, {}, ...inline(words));
  }
  if (kind === "rule") return el("hr");
  if (kind === "quote") {
    const inside = lines.map((line) => line.replace(/^\s*>\s?/, "")).join("\n");
    return el("blockquote", {}, ...nested(inside, depth));
  }
  if (kind === "ul" || kind === "ol") return list(lines, depth);
  if (kind === "table") return table(lines);
  return el("p", {}, ...inline(lines.join("\n")));
}

/** @param {string} text @param {number} depth */
function nested(text, depth) {
  return depth >= DEPTH_MAX ? [document.createTextNode(text)] : blocks(text).map((block) => render(block, depth + 1));
}

/** @param {string} text @param {string} language */
function code(text, language) {
  const copy = el("button", { class: "quiet small", type: "button", "aria-label": "Copy the code", title: "Copy the code" }, icon("copy"));
  copy.addEventListener("click", () => void copyText(text, copy));
  return el(
    "figure",
    { class: "code" },
    el("figcaption", {}, el("span", {}, language || "code"), copy),
    el("pre", { tabindex: 0, "aria-label": `${language || "code"} block` }, el("code", {}, text)),
  );
}

/** @param {string[]} lines @param {number} depth */
function list(lines, depth) {
  const first = /^(\s*)([-*+]|\d{1,9}[.)])\s+/.exec(lines[0] ?? "");
  const indent = (first?.[1] ?? "").length;
  const isOrdered = /\d/.test(first?.[2] ?? "");
  /** @type {string[][]} */
  const items = [];
  for (const line of lines) {
    const head = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/.exec(line);
    if (head && (head[1] ?? "").length <= indent + 1) items.push([head[3] ?? ""]);
    else items[items.length - 1]?.push(line.replace(new RegExp(`^\\s{0,${indent + (isOrdered ? 4 : 2)}}`), ""));
  }
  const start = isOrdered ? Number.parseInt(first?.[2] ?? "1", 10) : 1;
  const children = items.map((item) => {
    const inside = blocks(item.join("\n"));
    // A short item is its words, not a paragraph.
    const [only] = inside;
    if (inside.length === 0) return el("li");
    if (only?.kind === "text") return el("li", {}, ...inline(only.lines.join("\n")), ...inside.slice(1).map((block) => deeper(block, depth)));
    return el("li", {}, ...inside.map((block) => deeper(block, depth)));
  });
  return isOrdered ? el("ol", { start: start === 1 ? null : start }, ...children) : el("ul", {}, ...children);
}

/** @param {Block} block @param {number} depth */
function deeper(block, depth) {
  return depth >= DEPTH_MAX ? el("p", {}, block.lines.join("\n")) : render(block, depth + 1);
}

/** @param {string[]} lines */
function table(lines) {
  const cells = (/** @type {string} */ line) =>
    line
      .trim()
      .replace(/^\||\|$/g, "")
      .split("|")
      .map((cell) => cell.trim());
  const [head = "", , ...rows] = lines;
  return el(
    "div",
    { class: "table", tabindex: 0, role: "region", "aria-label": "Table" },
    el(
      "table",
      {},
      el("thead", {}, el("tr", {}, ...cells(head).map((cell) => el("th", { scope: "col" }, ...inline(cell))))),
      el("tbody", {}, ...rows.map((row) => el("tr", {}, ...cells(row).map((cell) => el("td", {}, ...inline(cell)))))),
    ),
  );
}

const INLINE =
  /(`+)([^`]|[^`][\s\S]*?[^`])\1(?!`)|\*\*(?=\S)([\s\S]*?\S)\*\*|__(?=\S)([\s\S]*?\S)__(?!\w)|\*(?=[^\s*])([\s\S]*?[^\s*])\*(?!\*)|(?<!\w)_(?=[^\s_])([\s\S]*?[^\s_])_(?!\w)|~~(?=\S)([\s\S]*?\S)~~|\[([^\]\n]+)\]\(([^\s()<>]*(?:\([^\s()]*\)[^\s()]*)*)(?:\s+"[^"\n]*")?\)|(https?:\/\/[^\s<>"'`]*[^\s<>"'`.,;:!?)\]}])|\\([\\`*_{}[\]()#+\-.!~|>])/g;

/** @param {string} text @param {number} [depth] @returns {Node[]} */
export function inline(text, depth = 0) {
  /** @type {Node[]} */
  const nodes = [];
  let from = 0;
  const plain = (/** @type {string} */ words) => {
    // A line that the model ended is a line that it meant: a verse, an address.
    words.split("\n").forEach((line, index) => {
      if (index > 0) nodes.push(el("br"));
      if (line !== "") nodes.push(document.createTextNode(line));
    });
  };
  for (const match of depth > DEPTH_MAX || text.length > MARKED_MAX ? [] : text.matchAll(INLINE)) {
    plain(text.slice(from, match.index));
    from = match.index + match[0].length;
    const [whole, , codeText, bold1, bold2, em1, em2, struck, label, target, bare, escaped] = match;
    const within = (/** @type {string} */ words) => inline(words, depth + 1);
    if (codeText !== undefined) nodes.push(el("code", {}, codeText.replace(/^ (.*) $/s, "$1")));
    else if (bold1 !== undefined || bold2 !== undefined) nodes.push(el("strong", {}, ...within(bold1 ?? bold2 ?? "")));
    else if (em1 !== undefined || em2 !== undefined) nodes.push(el("em", {}, ...within(em1 ?? em2 ?? "")));
    else if (struck !== undefined) nodes.push(el("s", {}, ...within(struck)));
    else if (label !== undefined) nodes.push(link(target ?? "", within(label), whole));
    else if (bare !== undefined) nodes.push(link(bare, [document.createTextNode(bare)], whole));
    else if (escaped !== undefined) plain(escaped);
  }
  plain(text.slice(from));
  return nodes;
}

/** @param {string} target @param {Node[]} words @param {string} source @returns {Node} */
function link(target, words, source) {
  let url;
  try {
    url = new URL(target);
  } catch {
    return document.createTextNode(source); // not an address by itself: shown as it was written
  }
  if (!["http:", "https:", "mailto:"].includes(url.protocol)) return document.createTextNode(source);
  return el("a", { href: url.href, target: "_blank", rel: "noopener noreferrer nofollow" }, ...words);
}

/** @param {string} text @param {HTMLElement} button */
export async function copyText(text, button) {
  try {
    await navigator.clipboard.writeText(text);
    button.replaceChildren(icon("check"));
  } catch {
    button.title = "The browser does not allow copying here";
    button.replaceChildren(icon("close"));
  }
  setTimeout(() => button.replaceChildren(icon("copy")), 1600);
}

/** One growing text. */
export class Markdown {
  constructor() {
    this.element = el("div", { class: "prose" });
    /** @type {string[]} */
    this.sources = [];
  }

  /** @param {string} text */
  update(text) {
    const found = blocks(text);
    const sources = found.map((block) => JSON.stringify([block.kind, block.info, block.lines]));
    found.forEach((block, index) => {
      if (this.sources[index] === sources[index]) return;
      const fresh = render(block);
      const there = this.element.children[index];
      if (there === undefined) this.element.append(fresh);
      else there.replaceWith(fresh);
    });
    while (this.element.children.length > found.length) this.element.lastElementChild?.remove();
    this.sources = sources;
  }
}
