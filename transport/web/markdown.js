/**
 * Renders a model's Markdown as elements (CommonMark with tables, strikethrough and formulas, parsed by markdown-it; code in
 * colours). No HTML passes: text becomes text nodes, images stay links, and links lead only to http, https and mailto.
 *
 * Made for text that grows: `Markdown.update` parses what can still change, and renders what did. What is long goes in steps,
 * between which the page answers; what no person writes (INLINE_MAX, BLOCK_MAX) is shown as its source, because the time to parse
 * and lay it out has no bound otherwise.
 */
import { Code } from "./code.js";
import { el, icon } from "./dom.js";
import { withFormulas } from "./formulas.js";
import MarkdownIt from "./markdown-it.js";
import { hasMaths, loadMaths, maths } from "./maths.js";
import { t } from "./texts.js";

const STEP = 150; // what is rendered before the browser gets its thread back: tokens, and 50 characters of text each
const STEP_MS = 8; // and no step goes on for longer, but for what cannot be cut: one paragraph, the blocks of a text
const INLINE_MAX = 3000; // characters of one paragraph, heading or cell
const BLOCK_MAX = 2000; // tokens of one block, of a list with all its items too
const FIGURE = 8; // of them a block of code counts, and
const FORMULA = 2; // each element of a formula: laying it out takes the browser longer
const RUN = 32; // blocks in one element: as many as this are laid out or left out together
const PIECE = 8000; // characters whose blocks are looked for in one step, where they are not one block

export const parser = withFormulas(new MarkdownIt({ html: false, linkify: true, breaks: true }).disable(["image", "html_block", "html_inline"]));
parser.normalizeLink = (/** @type {string} */ url) => {
  const host = /^[a-z][a-z\d+.-]*:\/\/[^/?#\\]*/i.exec(url)?.[0] ?? ""; // `URL` looks after that
  return host + url.slice(host.length).replace(/%(?![\da-f]{2})|[^\w;/?:@&=+$,\-.!~*'()#%]/giu, escaped);
};
parser.normalizeLinkText = (/** @type {string} */ url) => url;
parser.validateLink = (/** @type {string} */ url) => /^(https?:|mailto:)/i.test(url) && URL.canParse(url);

/** @typedef {ReturnType<typeof parser.parse>[number]} Token */
/** @typedef {Parameters<typeof parser.parse>[1]} Env the references of the whole text */
/** @typedef {{ key: string, tokens: Token[], source: string, line: number }} Block `line`: where it begins */

/** @param {string} character of an address */
function escaped(character) {
  return /\p{Cs}/u.test(character) ? "%EF%BF%BD" : encodeURIComponent(character);
}

/** Lines as blocks: the tokens of each, with the source that they came from. @param {string[]} lines @param {Env} env @returns {Block[]} */
function parsed(lines, env) {
  /** @type {Token[]} */
  const tokens = [];
  parser.block.parse(lines.join("\n"), parser, env, tokens);
  /** @type {Block[]} */
  const found = [];
  let from = 0;
  tokens.forEach((token, index) => {
    if (token.level > 0 || token.nesting > 0) return;
    const [begin, end] = tokens[from]?.map ?? [0, 0];
    const own = lines.slice(begin, end).join("\n");
    if (token.type !== "reference_definition") found.push({ key: `${tokens[from]?.type} ${own}`, tokens: tokens.slice(from, index + 1), source: own, line: begin });
    from = index + 1;
  });
  return found;
}

/**
 * The last block that was open two lines before the last line. Those before it stay as they are, whatever follows: the last line may
 * not be whole, and a table begins a line before it shows that it is one. A definition may go on up to an empty line.
 * @param {Block[]} found @param {string[]} lines @param {boolean} defines
 */
function openBlock(found, lines, defines) {
  return found.findLastIndex(({ line }) => line <= lines.length - 3 && (!defines || lines[line - 1] === ""));
}

/** A text's blocks, piece by piece. @param {string} source @param {Env} env gets what the text defines @returns {Generator<number, Block[]>} */
function* blocks(source, env) {
  const lines = source.split("\n");
  const defines = source.includes("]:");
  /** @type {Block[]} */
  const found = [];
  for (let from = 0, size = PIECE; ; ) {
    let to = from;
    for (let length = 0; to < lines.length && length < size; to++) length += (lines[to]?.length ?? 0) + 1;
    const piece = lines.slice(from, to);
    let own = parsed(piece, to < lines.length ? {} : env);
    yield 1;
    if (to < lines.length) {
      const open = openBlock(own, piece, defines);
      size = open > 0 ? PIECE : 4 * size; // all one block: there may be more of it
      if (open <= 0) continue;
      to = from + (own[open]?.line ?? 0);
      own = defines ? parsed(lines.slice(from, to), env) : own.slice(0, open);
    }
    for (const block of own) found.push({ ...block, line: block.line + from });
    if (to >= lines.length) return found;
    from = to;
  }
}

/**
 * Appends elements; yields after each what it cost.
 * @param {Token[]} tokens @param {Env} env @param {Node} into @param {{ left: number }} bound of tokens and elements
 * @returns {Generator<number>}
 */
function* render(tokens, env, into, bound) {
  const open = [into];
  for (const token of tokens) {
    const top = open[open.length - 1] ?? into;
    if (token.hidden) continue; // the paragraph of a short list item
    if (--bound.left < 0) return;
    if (token.type === "inline") {
      /** @type {Token[]} */
      const children = [];
      yield Math.min(token.content.length, INLINE_MAX) / 50;
      bound.left--;
      if (token.content.length > INLINE_MAX) plain(token.content).forEach((piece) => top.appendChild(piece));
      else parser.inline.parse(token.content, parser, env, children);
      yield* render(children, env, top, bound);
    } else if (token.nesting < 0) open.pop();
    else if (isCode(token)) {
      const code = new Code(language(token), (text, button) => void copyText(text, button), bound.left / 2);
      top.appendChild(code.element);
      yield* code.update(codeText(token));
      bound.left -= FIGURE + code.coloured;
    } else if (token.type.startsWith("maths")) {
      const made = formula(token);
      bound.left -= FORMULA * made.getElementsByTagName("*").length;
      top.appendChild(made);
    } else if (token.nesting === 0) top.appendChild(leaf(token));
    else {
      const element = container(token);
      top.appendChild(token.type === "table_open" ? scrolling(element) : element);
      open.push(element);
    }
    yield token.type.startsWith("maths") ? 1 + token.content.length / 10 : 1;
  }
}

/** Text as it came, in pieces of which the browser lays out what is seen. @param {string} text */
function plain(text) {
  return (text.match(/[^]{1,2000}/gu) ?? []).map((piece) => el("span", { class: "source" }, piece));
}

/** A block as elements, or as its source where they would be too many. @param {Block} block @param {Env} env @returns {Generator<number, Node>} */
function* whole({ tokens, source }, env) {
  const made = document.createDocumentFragment();
  const bound = { left: BLOCK_MAX };
  for (const cost of render(tokens, env, made, bound)) yield cost;
  return bound.left < 0 ? el("p", {}, ...plain(source)) : made;
}

/** @param {Token | undefined} token */
function isCode(token) {
  return token?.type === "fence" || token?.type === "code_block";
}

/** @param {Token} token */
function language(token) {
  return parser.utils.unescapeAll(token.info).trim().split(/\s+/)[0] ?? "";
}

/** @param {Token} token */
function codeText(token) {
  return token.content.replace(/\n$/, "");
}

let missing = 0; // formulas that were shown as their source, because what shows them was not there yet

/** @param {Token} token @returns {Element} */
function formula(token) {
  const isBlock = token.type === "maths_block";
  if (!hasMaths()) missing++;
  const made = token.meta?.["isClosed"] === false ? null : maths(token.content, token.block);
  if (made === null) return el(isBlock ? "p" : "span", { class: "formula" }, token.info);
  if (!token.block) return el("span", { class: "inline-maths" }, /** @type {any} */ (made));
  return el(isBlock ? "div" : "span", { class: "maths", tabindex: 0, role: "group", "aria-label": t("Formula") }, /** @type {any} */ (made));
}

/** @param {Token} token @returns {Node} */
function leaf(token) {
  if (token.type === "code_inline") return el("code", {}, token.content);
  if (token.type === "softbreak" || token.type === "hardbreak") return el("br");
  if (token.type === "hr") return el("hr");
  return document.createTextNode(token.content);
}

/** Blocks that are read from the side of their own first letter: Arabic and Hebrew beside English. */
const OWN_DIRECTION = /^(p|h[1-6]|ul|li|blockquote|td)$/;

/** @param {Token} token @returns {HTMLElement} */
function container(token) {
  const href = token.type === "link_open" ? String(token.attrGet("href")) : "";
  if (token.type === "link_open" && !parser.validateLink(href)) return el("span"); // `[words]()` has none
  if (token.type === "link_open") {
    return el("a", { href: new URL(href, location.href).href, title: token.attrGet("title"), target: "_blank", rel: "noopener noreferrer nofollow" });
  }
  if (token.type === "ordered_list_open") return el("ol", { dir: "auto", start: token.attrGet("start") });
  if (token.type === "th_open") return el("th", { dir: "auto", scope: "col" });
  // The page's own headings are h1 and h2, so an answer's begin below them.
  const tag = token.type === "heading_open" ? `h${Math.min(6, Number(token.tag.slice(1)) + 2)}` : token.tag;
  return el(/** @type {"p"} */ (tag), OWN_DIRECTION.test(tag) ? { dir: "auto" } : {});
}

/** @param {HTMLElement} table */
function scrolling(table) {
  return el("div", { class: "table", tabindex: 0, role: "region", "aria-label": t("Table") }, table);
}

/** @param {string} text @param {HTMLElement} button */
export async function copyText(text, button) {
  try {
    await navigator.clipboard.writeText(text);
    button.replaceChildren(icon("check"));
  } catch {
    button.title = t("The browser does not allow copying here");
    button.replaceChildren(icon("close"));
  }
  setTimeout(() => button.replaceChildren(icon("copy")), 1600);
}

/** Texts with more to do, of which the last goes first: a conversation is looked at from its end. @type {Markdown[]} */
const waiting = [];
let spent = 0; // ms of all texts since the browser last had its thread
let isDue = false;

function schedule() {
  if (!isDue) setTimeout(turn);
  isDue = true;
}

function turn() {
  isDue = false;
  spent = 0;
  const grown = [];
  for (let next = waiting.pop(); next !== undefined; next = spent < STEP_MS ? waiting.pop() : undefined) {
    next.waits = false;
    next.step();
    grown.push(next);
  }
  for (const { element } of grown) element.dispatchEvent(new CustomEvent("grown", { bubbles: true })); // the page is laid out once
  if (waiting.length > 0) schedule();
}

/** One growing text. Its element emits `grown` when a later step has put in more. */
export class Markdown {
  constructor() {
    this.element = el("div", { class: "prose" });
    /** @type {string[]} */
    this.keys = [];
    /** Blocks of code, by their place: they grow where they stand. @type {Map<number, Code>} */
    this.codes = new Map();
    /** How many blocks nothing that is appended can change, and where the others begin. */
    this.steady = { blocks: 0, at: 0 };
    this.text = "";
    this.shown = "";
    /** @type {Generator<number> | null} */
    this.work = null;
    this.busy = false; // more comes in a later step
    this.waits = false;
    this.lacks = false; // a formula is shown as its source until Temml is there
    this.stale = false; // it is there since
  }

  /** @param {string} text */
  update(text) {
    this.text = text;
    if (this.busy) return;
    if (spent < STEP_MS) this.step();
    else this.wait();
  }

  step() {
    const begun = performance.now();
    this.busy = !this.isDone();
    for (let left = STEP; this.busy && left > 0 && performance.now() < begun + STEP_MS; ) {
      this.work ??= this.fill(this.text);
      const { done, value } = this.work.next();
      if (done) this.work = null;
      left -= value || 1;
      this.busy = !this.isDone();
    }
    spent += performance.now() - begun;
    if (this.busy) this.wait();
    else schedule(); // whoever comes next in this task has what is left of it
  }

  isDone() {
    return this.work === null && this.shown === this.text && !this.stale;
  }

  wait() {
    this.busy = true;
    if (!this.waits) waiting.push(this);
    this.waits = true;
    schedule();
  }

  /** @param {string} text @returns {Generator<number>} */
  *fill(text) {
    if (this.stale) {
      this.stale = false;
      this.keys = [];
      this.steady = { blocks: 0, at: 0 };
    }
    // A reference may be defined anywhere, for all that stands before it.
    if (!text.startsWith(this.shown) || /\]:|\r/.test(text)) this.steady = { blocks: 0, at: 0 };
    const before = this.steady;
    const source = text.slice(before.at).replace(/\r\n?/g, "\n").replaceAll("\0", "\uFFFD");
    /** @type {Env} */
    const env = {};
    const found = yield* blocks(source, env);
    const references = JSON.stringify(env.references ?? {});
    for (const [offset, block] of found.entries()) {
      const index = before.blocks + offset;
      const key = `${references} ${block.key}`;
      if (this.keys[index] === key) continue;
      yield* this.put(index, block, env);
      this.keys[index] = key;
    }
    const count = before.blocks + found.length;
    this.cut(count);
    for (const index of this.codes.keys()) if (index >= count) this.codes.delete(index);
    this.keys.length = count;
    this.settle(source, found);
    this.shown = text;
  }

  /** @param {number} index @param {Block} block @param {Env} env @returns {Generator<number>} */
  *put(index, block, env) {
    const token = block.tokens.length === 1 && isCode(block.tokens[0]) ? block.tokens[0] : undefined;
    const there = this.element.children[Math.floor(index / RUN)]?.children[index % RUN];
    let code = this.codes.get(index);
    if (token === undefined || code?.language !== language(token)) {
      this.codes.delete(index);
      code = token && new Code(language(token), (text, button) => void copyText(text, button));
      const before = missing;
      const fresh = code === undefined ? yield* whole(block, env) : code.element;
      if (missing > before) this.await();
      if (there !== undefined) there.replaceWith(fresh);
      else if (index % RUN === 0) this.element.append(el("div", { class: "run" }, fresh));
      else this.element.lastElementChild?.append(fresh);
    }
    if (token === undefined || code === undefined) return;
    this.codes.set(index, code);
    yield FIGURE;
    yield* code.update(codeText(token));
  }

  /** Shows formulas once they can be. */
  await() {
    if (this.lacks) return;
    this.lacks = true;
    void loadMaths().then((isThere) => {
      if (!isThere) return;
      this.lacks = false;
      this.stale = true;
      this.wait();
    });
  }

  /** Takes away the blocks behind the first ones. @param {number} count */
  cut(count) {
    while (this.element.children.length > Math.ceil(count / RUN)) this.element.lastElementChild?.remove();
    const last = this.element.lastElementChild;
    while (last !== null && last.children.length > (count - 1) % RUN + 1) last.lastElementChild?.remove();
  }

  /** Remembers what the next longer text need not look at. @param {string} source @param {Block[]} found */
  settle(source, found) {
    const lines = source.split("\n");
    const open = openBlock(found, lines, false);
    if (open <= 0) return;
    const length = lines.slice(0, found[open]?.line).reduce((sum, line) => sum + line.length + 1, 0);
    this.steady = { blocks: this.steady.blocks + open, at: this.steady.at + length };
  }
}
