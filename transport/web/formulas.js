/**
 * Where a text has formulas: `$$…$$` and `\[…\]` on lines of their own or within one, `\(…\)`, and `$…$` where that is plainly
 * maths and not two prices. They become tokens of the Markdown parser, so what is in them is not read as Markdown.
 */

/** @typedef {import("./markdown-it.js").default} Parser */
/** @typedef {Parameters<Parameters<InstanceType<Parser>["inline"]["ruler"]["push"]>[1]>[0]} Inline */
/** @typedef {Parameters<Parameters<InstanceType<Parser>["block"]["ruler"]["push"]>[1]>[0]} Block */

const LINES_MAX = 100; // of one formula
const BETWEEN = 1000; // characters of one between single dollars
const CLOSING = /** @type {Record<string, string>} */ ({ $$: "$$", "\\[": "\\]", "\\(": "\\)" });
const PATTERNS = /** @type {Record<string, RegExp>} */ ({
  $$: /\$\$((?:[^\\$]|\\[^])+)\$\$/y,
  $: /\$((?:[^\\$`]|\\[^])+)\$(?![\p{L}\p{N}$])/uy,
  "\\(": /\\\(((?:[^\\]|\\[^)])+)\\\)/y,
  "\\[": /\\\[((?:[^\\]|\\[^\]])+)\\\]/y,
});

/** Whether what stands between two dollars can be nothing else. @param {string} text */
function isMaths(text) {
  if (/^\s|\s$|^$/.test(text) || text.length > BETWEEN) return false;
  if (/\\[A-Za-z]|[\^_]/.test(text)) return true;
  const words = text.match(/\p{L}+/gu) ?? [];
  if (words.length === 0) return /^[-+]?[\d.,]+%?$|[=+\-*/<>]/.test(text);
  if (words.every((word) => word.length === 1)) return true;
  return words.every((word) => word.length <= 4) && (/[=+*/<>(]/.test(text) || /^[A-Z]{2,4}$/.test(text));
}

/** @param {Inline} state @param {boolean} silent @returns {boolean} */
function inline(state, silent) {
  const { src, pos } = state;
  const two = src.slice(pos, pos + 2);
  const open = two in CLOSING ? two : two[0] === "$" ? "$" : "";
  const pattern = PATTERNS[open];
  if (pattern === undefined || !src.includes(CLOSING[open] ?? "$", pos + open.length)) return false;
  if (open === "$" && /[\p{L}\p{N}$\\]/u.test(src[pos - 1] ?? "")) return false;
  pattern.lastIndex = pos;
  const content = pattern.exec(src)?.[1];
  if (content === undefined || (open === "$" ? !isMaths(content) : !/[\p{L}\p{N}]/u.test(content))) return false;
  const end = pattern.lastIndex;
  if (end > state.posMax) return false;
  if (!silent) {
    const token = state.push("maths", "math", 0);
    token.content = content;
    token.markup = open;
    token.info = src.slice(pos, end);
    token.block = open === "$$" || open === "\\[";
  }
  state.pos = end;
  return true;
}

/** @param {Block} state @param {number} start @param {number} end @param {boolean} silent @returns {boolean} */
function block(state, start, end, silent) {
  const begin = (/** @type {number} */ line) => (state.bMarks[line] ?? 0) + (state.tShift[line] ?? 0);
  if (!"$\\".includes(state.src[begin(start)] ?? " ")) return false; // it is tried at every line of a paragraph
  const text = (/** @type {number} */ line) => state.src.slice(begin(line), state.eMarks[line]).trimEnd();
  if ((state.sCount[start] ?? 0) - state.blkIndent >= 4) return false;
  const first = text(start);
  const open = first.slice(0, 2);
  const close = CLOSING[open];
  if (close === undefined || open === "\\(") return false;
  const rest = first.slice(2);
  const isOpen = rest.trim() === ""; // as a fence is: up to its end, whatever stands between
  const lines = [rest];
  let isClosed = rest.length > 2 && rest.indexOf(close) === rest.length - 2;
  let next = start + 1;
  if (!isClosed && !isOpen && (silent || rest.includes(close))) return false; // what goes on begins no formula within a paragraph
  for (; !isClosed && next < end && next - start < LINES_MAX; next++) {
    const line = text(next);
    if ((state.sCount[next] ?? 0) < state.blkIndent && line !== "") break;
    if (line === "" && !isOpen) return false;
    lines.push(line);
    isClosed = line.endsWith(close);
    if (!isOpen && !isClosed && line.includes(close)) return false;
  }
  const source = lines.join("\n");
  if (!isClosed && !isOpen) return false;
  if (isClosed && !isOpen && !/[\p{L}\p{N}]/u.test(source)) return false;
  if (silent) return true;
  const token = state.push("maths_block", "math", 0);
  token.content = isClosed ? source.slice(0, -close.length) : source;
  token.info = open + source;
  token.hidden = false;
  token.meta = { isClosed };
  token.block = true;
  token.map = [start, next];
  state.line = next;
  return true;
}

/** Teaches a parser to see formulas. @param {InstanceType<Parser>} parser */
export function withFormulas(parser) {
  parser.inline.ruler.before("escape", "maths", inline);
  parser.block.ruler.after("fence", "maths_block", block, { alt: ["paragraph", "reference", "blockquote", "list"] });
  return parser;
}
