/**
 * Documents made up to hurt the page's Markdown renderer, and a run of them through it in a real Chromium.
 *
 *     node tests/browser/documents.mjs --documents 10000 --seed 1     prints one line of JSON; `--begin n` begins with another one
 *
 * A fifth each: ordinary Markdown; short runs of marks repeated (what makes a parser go back and forth); HTML and addresses that
 * would run script; formulas; code. Each is shown whole and again as it grows, as an answer does. A step is what the page does
 * before it gives the browser its thread back: parse, elements, layout. A document with one that is too long is shown twice
 * more, and each step counts as the fastest of the three (the run, where its steps were cut otherwise): a machine with other work
 * has long steps of its own.
 */
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";

import { code, formula } from "./formulas_and_code.mjs";
import { Browser, Server } from "./harness.mjs";

const CHARACTERS_MAX = 32_000;
const BATCH = 20;
export const STEP_MS_MAX = 50;

/** Chance from a seed (mulberry32). */
export function chance(seed) {
  let state = seed >>> 0;
  const next = () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let value = Math.imul(state ^ (state >>> 15), state | 1);
    value ^= value + Math.imul(value ^ (value >>> 7), value | 61);
    return ((value ^ (value >>> 14)) >>> 0) / 2 ** 32;
  };
  const below = (count) => Math.floor(next() * count);
  return { next, below, pick: (list) => list[below(list.length)] };
}

const WORDS = ["tide", "shell", "straße", "海", "שלום", "a_b_c", "x*y", "e.g.", "👩‍👩‍👧", "1.", "naïve", "`code`", "**bold**", "_em_", "~~out~~"];
const MARKS = [
  "*", "_", "**", "__", "`", "``", "~~", "[", "]", "](", "![", "[a](", "<", ">", "<!--", "-->", "<a ", "&", "&#x", "|", "|-", "#", " ", "\t", "\n", "\r",
  "\\", "- ", "* ", "1. ", "> ", "+ ", "=", "---", "***", "\n\n", "    ", "```", "~~~", ":", "http://", "https://a.b/", "mailto:", "www.", "@", "a",
  "\0", "\u200d", "\u202e", "é", "𝕏", "[a]: <", "[a]: b\n", "[^1]", "\"", "'", "(", ")", "{", "}", "$", "<?", "<![CDATA[", "</", "a*", "*a ", "[[a]", "`a",
];
const SCRIPTS = [
  "<script>intrude()</script>", "<img src=x onerror=intrude()>", "<svg onload=intrude()>", "<svg><script>intrude()</script></svg>", "<iframe srcdoc='<script>parent.intrude()</script>'></iframe>",
  "<body onload=intrude()>", "<details open ontoggle=intrude()>", "<math><mtext></form><form><mglyph><style></math><img src onerror=intrude()>", "<noscript><p title='</noscript><img src=x onerror=intrude()>'>",
  "[click](javascript:intrude())", "[click](JaVaScRiPt:intrude())", "[click](java\nscript:intrude())", "[click](&#106;avascript:intrude())", "[click](<javascript:intrude()>)", "<javascript:intrude()>",
  "[click](data:text/html,<script>opener.intrude()</script>)", "[click](vbscript:intrude())", "![x](x\" onerror=\"intrude())", "![x](javascript:intrude())", "[x](https://a.example/\" onmouseover=\"intrude())",
  "[a]\n\n[a]: javascript:intrude()", "```\"onmouseover=intrude()//\n```", "``` <img/src=x/onerror=intrude()>\nx\n```", "<a href='javascript:intrude()'>x</a>", "|<img src=x onerror=intrude()>|\n|-|\n|<script>intrude()</script>|",
  "# <script>intrude()</script>", "<style>@import 'javascript:intrude()'</style>", "<link rel=stylesheet href=data:text/css,*{}>", "<base href=//a.example>", "<meta http-equiv=refresh content=0;url=javascript:intrude()>",
  "<object data=javascript:intrude()>", "<embed src=javascript:intrude()>", "<form action=javascript:intrude()><button>", "<input autofocus onfocus=intrude()>", "<video><source onerror=intrude()></video>", "<template><script>intrude()</script></template>",
];

/** @returns {string} the document of this number */
export function document(seed, number) {
  const random = chance(seed * 1_000_003 + number);
  const length = Math.round(100 * (CHARACTERS_MAX / 100) ** random.next());
  const words = (count) => Array.from({ length: count }, () => random.pick(WORDS)).join(" ");
  const ordinary = () =>
    random.pick([
      () => `${"#".repeat(1 + random.below(6))} ${words(4)}`,
      () => words(5 + random.below(80)),
      () => Array.from({ length: 1 + random.below(8) }, () => `${"  ".repeat(random.below(4))}${random.pick(["-", "*", "1."])} ${words(6)}`).join("\n"),
      () => `\`\`\`${random.pick(["", "js", "python"])}\n${words(40)}\n\`\`\``,
      () => ["|a|b|c|", "|-|:-:|-:|", ...Array.from({ length: 1 + random.below(12) }, () => `|${words(2)}|${words(1)}|${words(3)}|`)].join("\n"),
      () => `${"> ".repeat(1 + random.below(4))}${words(20)}`,
      () => `[${words(2)}](https://example.com/${random.below(99)} "${words(1)}") and https://example.org/${random.below(99)}`,
    ])();
  const marks = () => {
    const unit = Array.from({ length: 1 + random.below(4) }, () => random.pick(MARKS)).join("");
    return random.pick(["", words(1), "\n", "# "]) + unit.repeat(Math.max(1, Math.ceil((length * random.next()) / unit.length))) + random.pick(["", words(1), "\n"]);
  };
  const script = () => random.pick(["", "> ", "- ", "    ", `${words(3)} `, "\\", "`"]) + random.pick(SCRIPTS) + random.pick(["", "\n", ` ${random.pick(MARKS)}`]);
  const made = [];
  const make = [ordinary, marks, script, () => formula(random, words), () => code(random)][number % 5];
  for (let left = length; left > 0; left -= made.at(-1).length + 2) made.push(random.below(8) === 0 ? ordinary() : make());
  return made.join(random.pick(["\n\n", "\n\n", "\n", " "])).slice(0, length);
}

/** In the page: shows each text whole and growing. Returns the longest step of each and what is there that must not be. */
async function render({ texts, max }) {
  const { Markdown, loadMaths } = await import(new URL("chat.js", location.href).href);
  await loadMaths();
  const later = (globalThis.later ??= globalThis.setTimeout);
  const place = (globalThis.place ??= globalThis.document.querySelector("#thread").appendChild(globalThis.document.createElement("li")));
  let steps = [];
  const step = (act) => {
    const started = performance.now();
    act();
    place.getBoundingClientRect();
    steps.push(performance.now() - started);
  };
  globalThis.setTimeout = (act) => later(() => step(act));
  const shown = async (text, pieces) => {
    const markdown = new Markdown();
    place.replaceChildren(markdown.element);
    for (let piece = 1; piece <= pieces; piece++) {
      step(() => markdown.update(text.slice(0, Math.ceil((text.length * piece) / pieces))));
      while (markdown.busy) await new Promise((resolve) => later(resolve));
    }
    return markdown.element;
  };
  const rendered = [];
  for (const text of texts) {
    const wrong = [];
    let best = [Infinity];
    for (let attempt = 0; attempt < 3 && Math.max(...best) > max; attempt++) {
      steps = [];
      for (const pieces of [1, 4]) {
        for (const element of (await shown(text, pieces)).querySelectorAll("*")) {
          if (/^(script|style|iframe|object|embed|link|meta|base|form|input|img|template|video|body|details)$/i.test(element.localName)) wrong.push(element.localName);
          const isMaths = element.namespaceURI === "http://www.w3.org/1998/Math/MathML";
          if (isMaths !== /^(math|mrow|mi|mn|mo|mtext|mspace|mfrac|msqrt|mroot|msub|msup|msubsup|munder|mover|munderover|mtable|mtr|mtd|mphantom|mstyle|mpadded|menclose|mmultiscripts|mprescripts|none)$/.test(element.localName)) wrong.push(element.localName);
          // A formula's styles are properties that Temml sets: none of them loads anything or leaves the formula's box.
          for (const { name, value } of element.attributes) if (/^on|^src|^action$|^id$/.test(name) || (name === "style" && (!isMaths || /url|fixed|sticky|z-index/.test(value))) || (name === "href" && !/^(https?:|mailto:|#i-)/.test(value))) wrong.push(`${name}=${value}`);
        }
      }
      if (attempt === 0) best = steps;
      else if (steps.length === best.length) best = best.map((each, index) => Math.min(each, steps[index] ?? each));
      else if (Math.max(...steps) < Math.max(...best)) best = steps; // steps end by the clock: cut otherwise, they compare as wholes
    }
    place.replaceChildren();
    rendered.push({ slowest: Math.max(...best), wrong });
    await new Promise((resolve) => later(resolve));
  }
  globalThis.setTimeout = later;
  return rendered;
}

/** Runs documents through the page; `faults` names each that left something that could run, `slow` each with a step over STEP_MS_MAX. */
export async function run({ documents, seed, begin = 0 }) {
  const server = await new Server().start();
  const browser = await new Browser().start();
  try {
    const page = await browser.page();
    const strangers = [];
    let intrusions = 0;
    await page.exposeFunction("intrude", () => (intrusions += 1));
    await page.addInitScript(() => {
      globalThis.violations = [];
      globalThis.document.addEventListener("securitypolicyviolation", (event) => globalThis.violations.push(`${event.effectiveDirective} ${event.blockedURI}`));
    });
    page.on("request", (request) => new URL(request.url()).origin === new URL(server.url).origin || strangers.push(request.url()));
    await page.goto(server.url);
    const faults = [];
    const slow = []; // a figure for the bench, no fault: a test does not judge by the clock
    const steps = [];
    for (let first = begin; first < begin + documents; first += BATCH) {
      const numbers = Array.from({ length: Math.min(BATCH, begin + documents - first) }, (_, index) => first + index);
      const rendered = await page.evaluate(render, { texts: numbers.map((number) => document(seed, number)), max: STEP_MS_MAX });
      rendered.forEach(({ slowest, wrong }, index) => {
        steps.push(slowest);
        const name = `document ${numbers[index]} of seed ${seed}`;
        if (slowest > STEP_MS_MAX) slow.push(`${name}: a step of ${slowest.toFixed(0)} ms`);
        if (wrong.length > 0) faults.push(`${name}: ${wrong.slice(0, 3).join(", ")}`);
      });
    }
    const violations = await page.evaluate(() => globalThis.violations);
    faults.push(...violations.map((each) => `against the policy: ${each}`), ...strangers.map((url) => `requested: ${url}`));
    steps.sort((a, b) => a - b);
    const at = (share) => Number(steps[Math.min(steps.length - 1, Math.floor(steps.length * share))].toFixed(2));
    return { documents, step_ms_p50: at(0.5), step_ms_p99: at(0.99), step_ms_max: at(1), scripts_run: intrusions, violations: violations.length, slow, faults };
  } finally {
    await browser.dispose();
    await server.dispose();
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const { values } = parseArgs({ options: { documents: { type: "string", default: "10000" }, seed: { type: "string", default: "1" }, begin: { type: "string", default: "0" } } });
  console.log(JSON.stringify(await run({ documents: Number(values.documents), seed: Number(values.seed), begin: Number(values.begin) })));
}
