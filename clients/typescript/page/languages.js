/**
 * The languages that the page highlights: line by line, by the stream parsers of CodeMirror's legacy modes, and by tables for
 * them where the mode itself is large and the page needs no indentation. The build bundles this file to transport/web/languages.js.
 */
import { clike, c, cpp, csharp, java, kotlin } from "@codemirror/legacy-modes/mode/clike";
import { diff } from "@codemirror/legacy-modes/mode/diff";
import { go } from "@codemirror/legacy-modes/mode/go";
import { rust } from "@codemirror/legacy-modes/mode/rust";
import { shell } from "@codemirror/legacy-modes/mode/shell";
import { simpleMode } from "@codemirror/legacy-modes/mode/simple-mode";
import { toml } from "@codemirror/legacy-modes/mode/toml";
import { html, xml } from "@codemirror/legacy-modes/mode/xml";
import { yaml } from "@codemirror/legacy-modes/mode/yaml";
export { StringStream } from "@codemirror/streamparser";

/** @param {string} words @returns {Record<string, true>} */
const set = (words) => Object.fromEntries(words.split(" ").map((word) => [word, true]));

const STATEMENTS =
  "async await break case catch class const continue debugger default delete do else export extends finally for from function get if import in " +
  "instanceof let new of return set static super switch this throw try typeof var void while with yield";
const TYPED = " abstract as asserts declare enum implements infer interface is keyof namespace private protected public readonly satisfies type";

/** A template string, over lines; what is in `${}` is part of it. */
function template(stream, state) {
  let escaped = false;
  for (let next = stream.next(); next !== undefined; next = stream.next()) {
    if (next === "`" && !escaped) {
      state.tokenize = null;
      break;
    }
    escaped = !escaped && next === "\\";
  }
  return "string";
}

const script = (keywords, types) =>
  clike({
    keywords: set(keywords),
    defKeywords: set("class enum function interface namespace type"),
    types: set(types),
    atoms: set("true false null undefined NaN Infinity"),
    hooks: {
      "`": (stream, state) => (state.tokenize = template)(stream, state),
      "/": (stream, state) => {
        const before = state.prevToken; // a division after a value, else a regular expression
        const isValue = before !== null && !["operator", "keyword", "(", "[", "{", ",", ";", ":", "}"].includes(before);
        return !isValue && stream.match(/^(?![*/])(?:[^\\/[]|\\.|\[(?:[^\]\\]|\\.)*\])+\/[a-z]*/) ? "string" : false;
      },
      "@": (stream) => stream.match(/^\w+/) && "meta",
    },
  });

const json = clike({
  atoms: set("true false null"),
  hooks: {
    '"': (stream) => {
      stream.match(/^(?:[^"\\]|\\.)*"?/);
      return stream.match(/^\s*:/, false) ? "propertyName" : "string";
    },
  },
});

const comment = [{ regex: /.*?\*\//, token: "comment", next: "start" }, { regex: /.*/, token: "comment" }];

const css = simpleMode({
  start: [
    { regex: /\/\*.*?\*\//, token: "comment" },
    { regex: /\/\*/, token: "comment", next: "comment" },
    { regex: /"(?:[^"\\]|\\.)*"?|'(?:[^'\\]|\\.)*'?/, token: "string" },
    { regex: /@[\w-]+|!important\b/, token: "keyword" },
    { regex: /#[\da-f]{3,8}\b|[-+]?(?:\d+\.?\d*|\.\d+)(?:%|[a-z]+)?/i, token: "number" },
    { regex: /--[\w-]+/, token: "variableName" },
    { regex: /[\w-]+(?=\s*:\s)/, token: "propertyName" },
    { regex: /::?[\w-]+/, token: "meta" },
    { regex: /[.#][\w-]+/, token: "def" },
    { regex: /[\w-]+(?=\()/, token: "builtin" },
    { regex: /[\w-]+/, token: null },
  ],
  comment,
});

const sql = simpleMode({
  start: [
    { regex: /--.*/, token: "comment" },
    { regex: /\/\*.*?\*\//, token: "comment" },
    { regex: /\/\*/, token: "comment", next: "comment" },
    { regex: /'(?:[^'\\]|\\.|'')*'?/, token: "string" },
    { regex: /"[^"]*"?|`[^`]*`?/, token: "variableName" },
    { regex: /(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?\b/i, token: "number" },
    {
      regex:
        /(?:add|all|alter|and|as|asc|begin|between|by|case|check|column|commit|conflict|constraint|create|cross|database|default|delete|desc|distinct|do|drop|else|end|except|exists|explain|foreign|from|full|function|grant|group|having|if|in|index|inner|insert|intersect|into|is|join|key|lateral|left|like|ilike|limit|natural|not|nothing|offset|on|or|order|outer|over|partition|primary|recursive|references|replace|returning|returns|revoke|right|rollback|select|set|table|then|to|transaction|trigger|truncate|union|unique|update|using|values|view|when|where|window|with)\b/i,
      token: "keyword",
    },
    { regex: /(?:bigint|blob|bool|boolean|char|date|datetime|decimal|double|float|int|integer|interval|json|jsonb|numeric|real|serial|smallint|text|time|timestamp|timestamptz|uuid|varchar)\b/i, token: "type" },
    { regex: /(?:true|false|null)\b/i, token: "atom" },
    { regex: /\w+(?=\()/, token: "builtin" },
    { regex: /\w+/, token: null },
  ],
  comment,
});

const python = simpleMode({
  start: [
    { regex: /[rbfu]{0,2}"""/i, token: "string", next: "double" },
    { regex: /[rbfu]{0,2}'''/i, token: "string", next: "single" },
    { regex: /[rbfu]{0,2}(?:"(?:[^"\\]|\\.)*"?|'(?:[^'\\]|\\.)*'?)/i, token: "string" },
    { regex: /#.*/, token: "comment" },
    { regex: /@[\w.]+/, token: "meta" },
    { regex: /0[xob][\da-f_]+|(?:\d[\d_]*\.?[\d_]*|\.\d+)(?:e[-+]?\d+)?j?/i, token: "number" },
    { regex: /(def|class)(\s+)(\w+)/, token: ["keyword", null, "def"] },
    { regex: /(?:and|as|assert|async|await|break|case|class|continue|def|del|elif|else|except|finally|for|from|global|if|import|in|is|lambda|match|nonlocal|not|or|pass|raise|return|try|while|with|yield)\b/, token: "keyword" },
    { regex: /(?:True|False|None|self|cls)\b/, token: "atom" },
    { regex: /(?:[A-Z]\w*(?:Error|Exception)|abs|all|any|bool|bytes|dict|enumerate|filter|float|frozenset|getattr|hasattr|input|int|isinstance|iter|len|list|map|max|min|next|object|open|print|property|range|repr|reversed|round|set|setattr|sorted|str|sum|super|tuple|type|zip)\b/, token: "builtin" },
    { regex: /[\p{L}_][\p{L}\d_]*/u, token: null },
  ],
  double: [{ regex: /.*?"""/, token: "string", next: "start" }, { regex: /.*/, token: "string" }],
  single: [{ regex: /.*?'''/, token: "string", next: "start" }, { regex: /.*/, token: "string" }],
});

const javascript = script(STATEMENTS, "");
const typescript = script(STATEMENTS + TYPED, "any bigint boolean never number object string symbol unknown");

/** The parser of a language by the names that people give it. */
export const languages = new Map(
  Object.entries({
    "bash sh shell zsh console": shell,
    "c h": c,
    "cpp c++ cc cxx hpp": cpp,
    "csharp cs c#": csharp,
    css,
    "diff patch": diff,
    "go golang": go,
    "html svg vue svelte": html,
    java,
    "javascript js jsx mjs cjs node": javascript,
    "json jsonc json5 jsonl": json,
    "kotlin kt": kotlin,
    "python py python3": python,
    "rust rs": rust,
    "sql postgresql postgres mysql sqlite plsql": sql,
    toml,
    "typescript ts tsx mts": typescript,
    xml,
    "yaml yml": yaml,
  }).flatMap(([names, mode]) => names.split(" ").map((name) => /** @type {const} */ ([name, mode]))),
);
