/**
 * A block of code with its words coloured, line by line, so that a growing block costs its last line and a long one goes in steps.
 * What is too long, or too odd for its language's parser, is shown plain.
 */
import { el, icon } from "./dom.js";
import { languages, StringStream } from "./languages.js";
import { t } from "./texts.js";

const LINE_MAX = 500; // characters of a line that is coloured
const COLOURED_MAX = 60_000; // characters of a block that are coloured, from its begin
const PIECES_MAX = 20_000; // coloured ones of a block
const GROUP = 40; // lines of one element: what changes makes no more than these be laid out again
const TAB = 4;

/** What a parser calls a piece (its first word) -> what the style sheet calls it. */
const KINDS = new Map(
  Object.entries({
    keyword: "keyword operatorKeyword controlKeyword definitionKeyword modifier",
    string: "string character regexp inserted quote",
    comment: "comment",
    number: "number atom bool literal",
    name: "def tagName tag heading",
    type: "type typeName builtin className namespace",
    meta: "meta attributeName attribute propertyName property macroName annotation",
    deleted: "deleted",
  }).flatMap(([kind, names]) => names.split(" ").map((name) => /** @type {const} */ ([name, kind]))),
);

/** @typedef {import("./languages.js").Mode} Mode */

/** A parser's state as it is now: what it changes later is copied. @param {Mode} mode @param {any} state */
function copied(mode, state) {
  if (mode.copyState) return mode.copyState(state);
  return Object.fromEntries(Object.entries(state).map(([name, value]) => [name, Array.isArray(value) ? value.slice() : value]));
}

/** @param {Mode} mode @param {any} state goes on @param {string} line @returns {(Node | string)[]} */
function coloured(mode, state, line) {
  if (line === "") mode.blankLine?.(state, TAB);
  const stream = new StringStream(line, TAB, 2);
  /** @type {{ kind: string, text: string }[]} */
  const runs = [];
  for (let idle = 0; !stream.eol(); ) {
    stream.start = stream.pos;
    const name = mode.token(stream, state);
    if (stream.pos <= stream.start) {
      if (++idle > 9) throw new Error("no progress");
      continue;
    }
    idle = 0;
    const kind = KINDS.get(String(name ?? "").split(/[ .]/)[0] ?? "") ?? "";
    const last = runs.at(-1);
    if (last?.kind === kind) last.text += stream.current();
    else runs.push({ kind, text: stream.current() });
  }
  return runs.map(({ kind, text }) => (kind === "" ? text : el("span", { class: `of-${kind}` }, text)));
}

export class Code {
  /** @param {string} language as the text names it @param {(text: string, button: HTMLElement) => void} copy @param {number} [most] coloured pieces */
  constructor(language, copy, most = PIECES_MAX) {
    this.most = most;
    this.coloured = 0;
    this.language = language;
    this.text = "";
    const button = el("button", { class: "quiet small", type: "button", "aria-label": t("Copy the code"), title: t("Copy the code") }, icon("copy"));
    button.addEventListener("click", () => copy(this.text, button));
    this.code = el("code");
    this.element = el(
      "figure",
      { class: "code" },
      el("figcaption", {}, el("span", {}, language || t("code")), button),
      el("pre", { tabindex: 0, "aria-label": t("{language} block", { language: language || t("code") }) }, this.code),
    );
    /** The parser, while it copes. @type {Mode | undefined} */
    this.mode = undefined;
    /** @type {any} */
    this.state = {};
    this.lines = 0; // that are whole
    this.taken = 0; // characters of them
    /** @type {Element | null} */
    this.last = null; // the line that is not
    this.clear();
  }

  clear() {
    this.code.replaceChildren();
    this.mode = languages.get(this.language.toLowerCase());
    this.state = this.mode?.startState?.(2) ?? {};
    this.lines = this.taken = this.coloured = 0;
  }

  /** Shows a text; yields after each line what it cost. @param {string} text @returns {Generator<number>} */
  *update(text) {
    if (!text.startsWith(this.text.slice(0, this.taken))) this.clear();
    this.text = text;
    this.last?.remove();
    this.last = null;
    for (let end = text.indexOf("\n", this.taken); end >= 0; end = text.indexOf("\n", this.taken)) {
      const line = text.slice(this.taken, end);
      this.group().append(...this.pieces(line, this.state, true), "\n");
      this.taken = end + 1;
      this.lines++;
      yield 1 + Math.min(line.length, LINE_MAX) / 25;
    }
    // What it is made of stands in an element of its own until it is whole, so that it can be taken away again.
    const state = this.mode === undefined ? {} : copied(this.mode, this.state);
    this.last = el("span", { class: "line" }, ...this.pieces(text.slice(this.taken), state, false));
    this.group().append(this.last);
  }

  /** Where the next line goes. @returns {Element} */
  group() {
    const last = this.code.lastElementChild;
    if (last !== null && this.code.childElementCount * GROUP > this.lines) return last;
    return this.code.appendChild(el("span", { class: "lines" }));
  }

  /** @param {string} line @param {any} state goes on @param {boolean} isWhole @returns {(Node | string)[]} */
  pieces(line, state, isWhole) {
    if (this.mode === undefined || line.length > LINE_MAX || this.taken > COLOURED_MAX || this.coloured > this.most) return [line];
    try {
      const pieces = coloured(this.mode, state, line);
      this.coloured += isWhole ? pieces.length : 0;
      return pieces;
    } catch {
      if (isWhole) this.mode = undefined;
      return [line];
    }
  }
}
