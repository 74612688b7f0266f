/**
 * Renders a model's Markdown as elements (CommonMark with tables and strikethrough, parsed by markdown-it). No HTML passes:
 * text becomes text nodes, images stay links, and links lead only to http, https and mailto.
 *
 * Made for text that grows: `Markdown.update` parses the blocks anew, and what is in them only where they changed. What is long
 * goes in steps, between which the page answers; what no person writes (INLINE_MAX, BLOCK_MAX) is shown as its source, because
 * the time to parse and lay it out has no bound otherwise.
 */
import { el, icon } from "./dom.js";
import MarkdownIt from "./markdown-it.js";

const STEP = 150; // what is rendered before the browser gets its thread back: tokens, and 50 characters of text each
const FIGURE = 8; // a block of code costs as much as these
const STEP_MS = 8; // and no step goes on for longer, but for what cannot be cut: one paragraph, the blocks of a text
const INLINE_MAX = 3000; // characters of one paragraph, heading or cell
const BLOCK_MAX = 2000; // tokens of one block, of a list with all its items too

const parser = new MarkdownIt({ html: false, linkify: true, breaks: true }).disable("image");
parser.linkify.set({ fuzzyLink: false, fuzzyEmail: false, fuzzyIP: false });
parser.validateLink = (/** @type {string} */ url) => /^(https?:|mailto:)/i.test(url) && URL.canParse(url);

/** @typedef {ReturnType<typeof parser.parse>[number]} Token */
/** @typedef {Parameters<typeof parser.parse>[1]} Env the references of the whole text */
/** @typedef {{ key: string, tokens: Token[], source: string }} Block */

/** Text as blocks: the tokens of each, with the source that they came from. @param {string} text @returns {{ env: Env, found: Block[] }} */
function blocks(text) {
  const source = text.replace(/\r\n?/g, "\n").replaceAll("\0", "\uFFFD");
  const lines = source.split("\n");
  /** @type {Env} */
  const env = {};
  /** @type {Token[]} */
  const tokens = [];
  parser.block.parse(source, parser, env, tokens);
  const references = JSON.stringify(env.references ?? {});
  /** @type {Block[]} */
  const found = [];
  let from = 0;
  tokens.forEach((token, index) => {
    if (token.level > 0 || token.nesting > 0) return;
    const [begin, end] = tokens[from]?.map ?? [0, 0];
    const own = lines.slice(begin, end).join("\n");
    found.push({ key: `${tokens[from]?.type} ${references} ${own}`, tokens: tokens.slice(from, index + 1), source: own });
    from = index + 1;
  });
  return { env, found };
}

/** Appends elements; yields after each what it cost. @param {Token[]} tokens @param {Env} env @param {Node} into @returns {Generator<number>} */
function* render(tokens, env, into) {
  const open = [into];
  for (const token of tokens) {
    const top = open[open.length - 1] ?? into;
    if (token.hidden) continue; // the paragraph of a short list item
    if (token.type === "inline") {
      /** @type {Token[]} */
      const children = [];
      yield Math.min(token.content.length, INLINE_MAX) / 50;
      if (token.content.length > INLINE_MAX) plain(token.content).forEach((piece) => top.appendChild(piece));
      else parser.inline.parse(token.content, parser, env, children);
      yield* render(children, env, top);
    } else if (token.nesting < 0) open.pop();
    else if (token.nesting === 0) top.appendChild(leaf(token));
    else {
      const element = container(token);
      top.appendChild(token.type === "table_open" ? scrolling(element) : element);
      open.push(element);
    }
    yield token.type === "fence" || token.type === "code_block" ? FIGURE : 1;
  }
}

/** Text as it came, in pieces of which the browser lays out what is seen. @param {string} text */
function plain(text) {
  return (text.match(/[^]{1,2000}/gu) ?? []).map((piece) => el("span", { class: "source" }, piece));
}

/** A block as elements, or as its source where they would be too many. @param {Block} block @param {Env} env @returns {Generator<number, Node>} */
function* whole({ tokens, source }, env) {
  const made = document.createDocumentFragment();
  let count = 0;
  for (const cost of render(tokens, env, made)) {
    if (++count > BLOCK_MAX) return el("p", {}, ...plain(source));
    yield cost;
  }
  return made;
}

/** @param {Token} token @returns {Node} */
function leaf(token) {
  if (token.type === "fence" || token.type === "code_block") return code(token.content.replace(/\n$/, ""), token.info.trim().split(/\s+/)[0] ?? "");
  if (token.type === "code_inline") return el("code", {}, token.content);
  if (token.type === "softbreak" || token.type === "hardbreak") return el("br");
  if (token.type === "hr") return el("hr");
  return document.createTextNode(token.content);
}

/** @param {Token} token @returns {HTMLElement} */
function container(token) {
  const href = token.type === "link_open" ? String(token.attrGet("href")) : "";
  if (token.type === "link_open" && !URL.canParse(href)) return el("span"); // `[words]()` has none
  if (token.type === "link_open") return el("a", { href: new URL(href).href, target: "_blank", rel: "noopener noreferrer nofollow" });
  if (token.type === "ordered_list_open") return el("ol", { start: token.attrGet("start") });
  if (token.type === "th_open") return el("th", { scope: "col" });
  // The page's own headings are h1 and h2, so an answer's begin below them.
  const tag = token.type === "heading_open" ? `h${Math.min(6, Number(token.tag.slice(1)) + 2)}` : token.tag;
  return el(/** @type {"p"} */ (tag));
}

/** @param {HTMLElement} table */
function scrolling(table) {
  return el("div", { class: "table", tabindex: 0, role: "region", "aria-label": "Table" }, table);
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

/** One growing text. Its element emits `grown` when a later step has put in more. */
export class Markdown {
  constructor() {
    this.element = el("div", { class: "prose" });
    /** @type {string[]} */
    this.keys = [];
    this.text = "";
    this.shown = "";
    /** @type {Generator<number> | null} */
    this.work = null;
    this.busy = false; // more comes in a later step
  }

  /** @param {string} text */
  update(text) {
    this.text = text;
    if (!this.busy) this.step();
  }

  step() {
    const until = performance.now() + STEP_MS;
    for (let left = STEP; left > 0 && performance.now() < until; ) {
      if (this.work === null && this.shown === this.text) {
        this.busy = false;
        return;
      }
      this.work ??= this.fill(this.text);
      const { done, value } = this.work.next();
      if (done) this.work = null;
      left -= value || 1;
    }
    this.busy = true;
    setTimeout(() => {
      this.step();
      this.element.dispatchEvent(new CustomEvent("grown", { bubbles: true }));
    });
  }

  /** @param {string} text @returns {Generator<number>} */
  *fill(text) {
    const { env, found } = blocks(text);
    yield 1; // a long text's blocks are a step of their own
    for (const [index, block] of found.entries()) {
      if (this.keys[index] === block.key) continue;
      const fresh = yield* whole(block, env);
      const there = this.element.children[index];
      if (there === undefined) this.element.append(fresh);
      else there.replaceWith(fresh);
      this.keys[index] = block.key;
    }
    while (this.element.children.length > found.length) this.element.lastElementChild?.remove();
    this.keys.length = found.length;
    this.shown = text;
  }
}
