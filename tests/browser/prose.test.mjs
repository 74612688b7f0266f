/** What a model writes, as the page shows it: CommonMark's own examples, texts that grow, formulas and code, in a real Chromium. */
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { after, before, test } from "node:test";

import { chance, document as madeUp } from "./documents.mjs";
import { code, formula } from "./formulas_and_code.mjs";
import { axePath, Browser, Server } from "./harness.mjs";

const require = createRequire(new URL("../../clients/typescript/package.json", import.meta.url));
const browser = new Browser();
const server = new Server();
let page;

before(async () => {
  await browser.start();
  await server.start();
  page = await browser.page({ bypassCSP: true });
  await page.goto(server.url);
  await page.evaluate(async () => {
    const { Markdown, loadMaths, parser } = await import("/chat.js");
    await loadMaths();
    globalThis.parser = parser;
    globalThis.shown = (text, markdown = new Markdown()) => {
      markdown.update(text);
      while (markdown.busy) markdown.step();
      return markdown.element;
    };
    globalThis.Markdown = Markdown;
  });
});
after(async () => {
  await browser.dispose();
  await server.dispose();
});

/** Sections of the specification that the page leaves out on purpose: HTML stays text, and images are not loaded. */
const LEFT_OUT = ["HTML blocks", "Raw HTML", "Images"];

/** Why an example does not apply, or nothing. */
function leftOut({ section, html, markdown }) {
  if (LEFT_OUT.includes(section)) return section;
  if (html.includes("<img")) return "an image";
  const tags = html.replace(/<\/?(?:p|h[1-6]|ul|ol|li|em|strong|code|pre|blockquote)>|<(?:hr|br) \/>|<ol start="\d+">|<code class="[^"]*">|<a href="[^"]*"(?: title="[^"]*")?>|<\/a>/g, "");
  if (/<[a-z/!?]/i.test(tags) || (/<a href=/.test(html) && /<a href=/.test(markdown)) || /<b>|<a /.test(markdown)) return "raw HTML within";
  if (/https?:\/\//.test(html.replace(/<a .*?<\/a>|<code.*?<\/code>/gs, ""))) return "an address in running text, which the page makes a link";
  return undefined;
}

test("CommonMark's own examples, of those that apply", async (context) => {
  const examples = require("commonmark-spec").tests.map((each) => ({ ...each, markdown: each.markdown.replaceAll("→", "\t"), html: each.html.replaceAll("→", "\t") }));
  const applying = examples.filter((each) => leftOut(each) === undefined);
  const wrong = await page.evaluate((all) => {
    // The page leads to http, https and mailto alone, which is not what these examples are about.
    const { validateLink } = globalThis.parser;
    globalThis.parser.validateLink = () => true;
    const inline = (node) => node.nodeType === Node.TEXT_NODE || ["A", "BR", "CODE", "EM", "STRONG"].includes(node.nodeName);
    const written = (node, within) => {
      if (node.nodeType === Node.TEXT_NODE) {
        const text = node.textContent.replace(/[&<>]/g, (sign) => `&#${sign.charCodeAt(0)};`);
        return within === "code" ? text : text.replace(/\n/g, "<br>");
      }
      const figure = node.matches("figure.code") ? node : null;
      if (figure || node.matches("pre")) {
        const block = node.querySelector("code");
        const language = figure ? figure.querySelector("figcaption").textContent.replace(/^code$/, "") : [...block.classList].join(" ").replace("language-", "");
        return `<pre ${language}>${figure ? block.textContent : block.textContent.replace(/\n$/, "")}</pre>`;
      }
      if (node.nodeName === "BR") return "<br>";
      const tag = node.nodeName.toLowerCase();
      const attributes = tag === "a" ? ` ${node.href} ${node.title}` : tag === "ol" ? ` ${node.getAttribute("start") ?? 1}` : "";
      const parts = [...node.childNodes].map((child) => ({ text: written(child, tag), inline: inline(child) }));
      const isBlank = (part) => part === undefined || !part.inline;
      const inner = parts.map((part, index) => {
        let { text } = part;
        if (!part.inline || tag === "code") return text;
        if (isBlank(parts[index - 1])) text = text.replace(/^(<br>)+/, "");
        if (isBlank(parts[index + 1])) text = text.replace(/(<br>)+$/, "");
        return text;
      });
      return `<${tag}${attributes}>${inner.join("")}</${tag}>`;
    };
    const wrong = [];
    for (const { number, section, markdown, html } of all) {
      const expected = document.createElement("div");
      const base = document.implementation.createHTMLDocument("");
      base.head.append(Object.assign(base.createElement("base"), { href: location.href }));
      base.body.innerHTML = html.replaceAll("<br />\n", "<br />");
      for (const heading of base.querySelectorAll("h1,h2,h3,h4,h5,h6")) {
        const lower = base.createElement(`h${Math.min(6, Number(heading.nodeName[1]) + 2)}`);
        lower.append(...heading.childNodes);
        heading.replaceWith(lower);
      }
      expected.append(...base.body.childNodes);
      const actual = document.createElement("div");
      try {
        actual.append(...[...globalThis.shown(markdown).children].flatMap((run) => [...run.childNodes]));
      } catch (error) {
        actual.textContent = String(error);
      }
      if (written(actual) !== written(expected)) wrong.push(`${number} ${section}: ${JSON.stringify(markdown)}\n  expected ${written(expected)}\n  shown    ${written(actual)}`);
    }
    globalThis.parser.validateLink = validateLink;
    return wrong;
  }, applying);
  const reasons = {};
  for (const why of examples.map(leftOut)) if (why !== undefined) reasons[why] = (reasons[why] ?? 0) + 1;
  context.diagnostic(`${applying.length - wrong.length} of ${applying.length} that apply, of ${examples.length}; left out: ${JSON.stringify(reasons)}`);
  for (const each of wrong) context.diagnostic(each);
  assert.ok(applying.length > 500, `${applying.length} apply`);
  assert.ok(wrong.length <= applying.length * 0.02, wrong.join("\n"));
});

test("a text that grows looks at every prefix as if it had come whole", async () => {
  const random = chance(11);
  const words = (count) => Array.from({ length: count }, () => random.pick(["tide", "**bold**", "`a`", "_em_", "x", "1.", "$x$"])).join(" ");
  const texts = [
    "para\n#foo\n\n- a\n-\n- b\n\na|b\n-|-\n1|2\nx\n===\n\n[a]\n\n[a]: https://x.example/\n'title\nmore'\n\nend\n",
    "text\n$$\na_1 + b_2\n$$\nmore\n\n$$ x\ny $$\n\n\\[ x\n\n\\[\nz\n\\]\n> $$\n> q\n> $$\n- \\(a\\) $b$ $5 and $6\n",
    "```python\ndef f(x):\n    '''doc\n    string'''\n    return f\"{x}\" # end\n```\ntail\n~~~\nx\n    ~~~\n\n    indented\n\n    code\n",
    "- ```js\n  const a = `x\n  ${b}`; /* c\n  */ let d = /e/g;\n  ```\n- next\n\n1. one\n\n   two\n3. x\r\ny\rz\n",
    ...Array.from({ length: 6 }, (_, index) => madeUp(3, index).slice(0, 400)),
    ...Array.from({ length: 8 }, () => [words(4), formula(random, words), words(2)].join("\n\n").slice(0, 350)),
    ...Array.from({ length: 14 }, () => [words(2), code(random, 8), words(1)].join("\n").slice(0, 450)),
  ];
  const differing = await page.evaluate((all) => {
    const differing = [];
    for (const text of all) {
      const growing = new globalThis.Markdown();
      const leaping = new globalThis.Markdown();
      for (let end = 1; end <= text.length; end++) {
        const prefix = text.slice(0, end);
        const whole = globalThis.shown(prefix).innerHTML;
        if (globalThis.shown(prefix, growing).innerHTML !== whole) {
          differing.push(`${JSON.stringify(prefix)}\n  grown ${growing.element.innerHTML}\n  whole ${whole}`);
          break;
        }
        if (end % 37 === 0 && globalThis.shown(prefix, leaping).innerHTML !== whole) {
          differing.push(`by leaps: ${JSON.stringify(prefix)}`);
          break;
        }
      }
    }
    return differing;
  }, texts);
  assert.deepEqual(differing, []);
});

/** What is above and below what, and which letters and signs it shows; how far apart they stand is Temml's. */
const formulas = {
  "$x$": "<mi>x</mi>",
  "$\\frac{a}{b}$": "<mfrac><mi>a</mi><mi>b</mi></mfrac>",
  "\\(x_1^2\\)": "<msubsup><mi>x</mi><mn>1</mn><mn>2</mn></msubsup>",
  "$f'(x)$": "<mrow><msup><mi>f</mi><mo>′</mo></msup><mrow><mo>(</mo><mi>x</mi><mo>)</mo></mrow></mrow>",
  "$\\sqrt[3]{2x}$": "<mroot><mrow><mn>2</mn><mi>x</mi></mrow><mn>3</mn></mroot>",
  "$$\\sum_{i=1}^{n}$$": "<mrow><munderover><mo>∑</mo><mrow><mi>i</mi><mo>=</mo><mn>1</mn></mrow><mi>n</mi></munderover></mrow>",
  "$\\mathbb{R}^n$": "<msup><mi>ℝ</mi><mi>n</mi></msup>",
  "$\\mathbf{v}=\\alpha$": "<mrow><mi>𝐯</mi><mo>=</mo><mi>α</mi></mrow>",
  "$\\text{a < b}$": "<mtext>a&nbsp;&lt;&nbsp;b</mtext>",
  "$a \\over b$": "<mfrac><mi>a</mi><mi>b</mi></mfrac>",
  "$\\hat{y} \\le 3.14$": "<mrow><mover><mi>y</mi><mo>ˆ</mo></mover><mo>≤</mo><mn>3.14</mn></mrow>",
  "$\\begin{align}a&=b\\end{align}$": "<mtable><mtr><mtd><mi>a</mi></mtd><mtd><mrow><mo>=</mo><mi>b</mi></mrow></mtd></mtr></mtable>",
  "$$a&=b\\\\&=c$$": "<mtable><mtr><mtd><mi>a</mi></mtd><mtd><mrow><mo>=</mo><mi>b</mi></mrow></mtd></mtr><mtr><mtd><mrow></mrow></mtd><mtd><mrow><mo>=</mo><mi>c</mi></mrow></mtd></mtr></mtable>",
};
/** Words with a dollar that are no formula, and formulas that are faulty: they stay as they are. */
const words = ["It costs $5 and $10.", "$HOME/bin:$PATH", "US$5/US$6", "a $ b $ c", "from $1,000 to $2,000", "$5 (or $6)", "\\$x\\$", "`$x$`", "$\\unknown{x}$", "$\\frac{a}$", "$x^2^3$", "$\\left( x$", "$\\sqrt{}}$", "\\(\\)", "the $100 bill and the $50 bill"];

test("formulas are MathML; what is none, or is faulty, stays as it was written", async () => {
  const seen = await page.evaluate((sources) => sources.map((source) => globalThis.shown(source).querySelector("math")?.innerHTML.replace(/<(\w+) [^>]*>/g, "<$1>")), Object.keys(formulas));
  assert.deepEqual(seen, Object.values(formulas));
  const blocks = await page.evaluate(() =>
    ["$$\nx\n$$", "\\[\nx\n\\]", "$$ x $$", "\\[ x\n+ y \\]", "so $$x$$ is"].map((source) => globalThis.shown(source).querySelectorAll(".maths > math[display=block]").length),
  );
  assert.deepEqual(blocks, [1, 1, 1, 1, 1]);
  const kept = await page.evaluate((sources) => sources.map((source) => [globalThis.shown(source).textContent, globalThis.shown(source).querySelectorAll("math").length]), words);
  assert.deepEqual(kept, words.map((source) => [source.replace(/^`|`$/g, "").replace(/\\\$/g, "$").replace("\\(\\)", "()"), 0]));
});

test("a formula of any kind is bounded, and makes nothing but MathML", async () => {
  const deep = ["\\hspace{-1000em}x", "\\llap{xxx}", "\\tag{1} x", "\\label{messages} x", "\\ref{x}", "\\def\\a{\\a\\a}\\a", "\\let\\a=b", "\\href{javascript:intrude()}{x}", "\\operatorname{a}".repeat(90), "\\dfrac12".repeat(200), "{".repeat(3000), "\\frac{".repeat(500), "\\left(".repeat(400), "x^{".repeat(700), "\\begin{matrix}".repeat(200), "\\sqrt".repeat(500), "x_".repeat(1400), "\\hat".repeat(700), "1".repeat(2900), "&".repeat(2900), "\\text{".repeat(400)];
  const result = await page.evaluate((sources) => {
    const wrong = [];
    const made = (source) => globalThis.shown(`$$\n${source}\n$$`);
    for (const source of sources) {
      const formula = made(source).querySelector("math");
      for (const element of formula?.querySelectorAll("*") ?? []) {
        if (element.namespaceURI !== "http://www.w3.org/1998/Math/MathML" || element.id || element.hasAttribute("href")) wrong.push(element.outerHTML);
      }
    }
    return { wrong, tooLong: made("x".repeat(3001)).querySelector("math") };
  }, deep);
  assert.deepEqual(result.wrong, []);
  assert.equal(result.tooLong, null);
});

const SAMPLES = {
  javascript: 'const a = `x ${y}`; // note\nfunction f() { return /re\\/x/g; }', typescript: "interface A { readonly b: string }", python: "def f(x):\n    '''doc'''\n    return 1  # one",
  java: "public class A { int b = 1; }", c: "#include <x.h>\nint main(void) { return 0; }", cpp: "template <class T> auto f() { return \"s\"; }", csharp: "namespace A { public sealed class B {} }",
  go: "func main() { x := \"s\" }", rust: "fn main() -> u32 { let x = 1; x }", bash: "if [ -n \"$A\" ]; then echo 'x'; fi # end", sql: "SELECT a, count(*) FROM t WHERE b = 'x' -- c",
  json: '{"a": [1, true, "b"]}', html: '<p class="a">x</p>', xml: "<a b='c'/>", css: ".a { color: #fff; /* c */ }", yaml: "a: 'b' # c", toml: "[a]\nb = \"c\"", diff: "+ a\n- b", kotlin: "fun main() { val x = \"s\" }",
};

test("code is coloured in nineteen languages, its text unchanged, and left plain where it is too much or unknown", async () => {
  const seen = await page.evaluate((samples) => {
    const one = (language, text) => {
      const block = globalThis.shown(`\`\`\`${language}\n${text}\n\`\`\``);
      return { same: block.querySelector("code").textContent === text, kinds: [...new Set([...block.querySelectorAll("code span[class^=of-]")].map((each) => each.className))] };
    };
    return {
      samples: Object.entries(samples).map(([language, text]) => ({ language, ...one(language, text) })),
      plain: [one("klingon", "if x"), one("constructor", "if x"), one("", "if x"), one("js", `if (${"(".repeat(600)}`), one("js", "\0x".repeat(3).replaceAll("\0", "\uFFFD"))],
      long: one("js", "const a = 1;\n".repeat(20000).trimEnd()),
      late: globalThis.shown(`\`\`\`js\n${"const a = 1;\n".repeat(20000)}\`\`\``).querySelectorAll("span[class^=of-]").length,
    };
  }, SAMPLES);
  for (const { language, same, kinds } of seen.samples) {
    assert.ok(same, `${language}: its text`);
    assert.ok(kinds.length >= 2, `${language}: ${kinds}`);
  }
  assert.deepEqual(seen.plain.map(({ same, kinds }) => [same, kinds.length]), Array(5).fill([true, 0]));
  assert.equal(seen.long.same, true);
  assert.ok(seen.late < 20_000, `${seen.late} pieces`);
});

test("a growing block of code stays where it is: its button and what is beside it are the same elements", async () => {
  const same = await page.evaluate(() => {
    const growing = new globalThis.Markdown();
    globalThis.shown("text\n\n```js\nlet a = 1;\nlet b", growing);
    const before = [growing.element.querySelector("pre"), growing.element.querySelector("button"), growing.element.firstElementChild];
    globalThis.shown("text\n\n```js\nlet a = 1;\nlet b = 2;\n```\nend", growing);
    const now = [growing.element.querySelector("pre"), growing.element.querySelector("button"), growing.element.firstElementChild];
    return before.every((element, index) => element === now[index]);
  });
  assert.equal(same, true);
});

test("the last line of code is indented and spaced as the lines above it", async () => {
  const [tops, lefts] = await page.evaluate(() => {
    const element = globalThis.shown("```python\nif a:\n    return b\n    return c\n```");
    document.querySelector("#messages, main, body").append(element);
    const block = element.querySelector("code");
    const words = document.createTreeWalker(block, NodeFilter.SHOW_TEXT);
    const places = [];
    for (let node = words.nextNode(); node; node = words.nextNode()) {
      for (let at = node.data.search(/[ibrc]\w/); at >= 0 && node.data.slice(at).match(/^(if|return)/); at = -1) {
        const range = document.createRange();
        range.setStart(node, at);
        range.setEnd(node, at + 1);
        places.push(range.getBoundingClientRect());
      }
    }
    element.remove();
    return [places.map(({ top }) => top), places.map(({ left }) => left)];
  });
  assert.equal(tops.length, 3);
  assert.ok(lefts[1] > lefts[0] && lefts[2] === lefts[1], `from the left: ${lefts}`);
  assert.ok(Math.abs(tops[2] - tops[1] - (tops[1] - tops[0])) < 0.5, `from the top: ${tops}`);
});

test("many texts at once go in steps that they share, the last one first", async () => {
  const { atOnce, order } = await page.evaluate(async (text) => {
    const place = document.createElement("div");
    const order = [];
    place.addEventListener("grown", (event) => order.push([...place.children].indexOf(event.target)));
    const all = Array.from({ length: 200 }, () => new globalThis.Markdown());
    for (const each of all) {
      place.append(each.element);
      each.update(text);
    }
    const atOnce = all.filter((each) => !each.busy).length;
    while (all.some((each) => each.busy)) await new Promise((resolve) => place.addEventListener("grown", resolve, { once: true }));
    return { atOnce, order };
  }, "a $x$ **b** `c`\n\n- one\n- two\n\n```js\nlet a = 1;\n```\n".repeat(20));
  assert.ok(atOnce < 100, `${atOnce} were rendered before the browser had its thread back`);
  assert.equal(order[0], 199);
});

for (const colorScheme of ["light", "dark"]) {
  test(`code, formulas and tables are accessible ${colorScheme}, by axe`, async () => {
    await page.emulateMedia({ colorScheme, reducedMotion: "reduce" });
    await page.addScriptTag({ path: axePath });
    const text = `${Object.entries(SAMPLES).map(([language, sample]) => `\`\`\`${language}\n${sample}\n\`\`\``).join("\n\n")}\n\n$$\n\\sum_{i=1}^n x_i = ${"x + ".repeat(80)}1\n$$\n\nand $x^2$, $\\unknown$\n\n|a|b|\n|-|-|\n|$x$|y|\n`;
    const violations = await page.evaluate(async (source) => {
      document.querySelector("#welcome").hidden = true;
      const place = document.createElement("li");
      place.append(globalThis.shown(source));
      document.querySelector("#thread").append(place);
      const { violations } = await globalThis.axe.run(place, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"] });
      place.remove();
      return violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html).join("; ")}`);
    }, text);
    assert.deepEqual(violations, []);
  });
}

test("nothing went wrong on the page meanwhile", () => assert.deepEqual(page.troubles, []));

test("what a model thinks is shown folded, apart from its answer", async () => {
  const shown = await page.evaluate(async () => {
    const { Thread } = await import("/chat.js");
    const { View } = await import("/sessile.js");
    const view = new View();
    const root = document.createElement("ol");
    const thread = new Thread(root, { prices: () => null, cost: () => null, draft: () => undefined });
    const seen = [];
    const of = { response_id: "r", item_id: "a", output_index: 0 };
    const apply = (event) => {
      view.apply(event, 1);
      thread.render(view.thread(), [], []);
      const details = root.querySelector(".answer details");
      seen.push([details?.hidden, details?.querySelector("summary").textContent, details?.querySelector("p").textContent, root.querySelector(".answer .prose")?.textContent]);
    };
    view.apply({ type: "item.created", item: { id: "q", type: "message", role: "user", parent_id: null, status: "completed", content: [{ type: "input_text", text: "2 + 2?" }] } }, 1);
    view.apply({ type: "response.created", response_id: "r", response: { id: "r", status: "in_progress", parent_id: "q" } }, 1);
    view.apply({ type: "response.output_item.added", ...of, item: { id: "a", type: "message", role: "assistant", status: "in_progress", content: [] } }, 1);
    view.apply({ type: "response.content_part.added", ...of, content_index: 0, part: { type: "reasoning", reasoning: "" } }, 1);
    apply({ type: "response.reasoning_text.delta", ...of, content_index: 0, delta: "Hm, <b>2</b> " });
    apply({ type: "response.reasoning_text.delta", ...of, content_index: 0, delta: "and 2." });
    view.apply({ type: "response.content_part.added", ...of, content_index: 1, part: { type: "output_text", text: "" } }, 1);
    apply({ type: "response.output_text.delta", ...of, content_index: 1, delta: "Four." });
    const open = root.querySelector("details").open;
    const later = document.createElement("ol"); // a page that comes when all is over
    new Thread(later, { prices: () => null, cost: () => null, draft: () => undefined }).render(view.thread(), [], []);
    return { seen, open, later: later.querySelector("details summary").textContent };
  });
  assert.deepEqual(shown.seen.slice(0, 2), [
    [false, "Thinking…", "Hm, <b>2</b> ", ""],
    [false, "Thinking…", "Hm, <b>2</b> and 2.", ""],
  ]);
  assert.match(shown.seen[2][1], /^Thought for (a second|\d+ seconds)$/);
  assert.deepEqual([shown.seen[2][2], shown.seen[2][3].trim()], ["Hm, <b>2</b> and 2.", "Four."]);
  assert.deepEqual([shown.open, shown.later], [false, "Thoughts"]);
});

test("passages that an answer cites stand below it, folded, and no others", async () => {
  const shown = await page.evaluate(async () => {
    const { Thread } = await import("/chat.js");
    const { View } = await import("/sessile.js");
    const view = new View();
    const add = (item) => view.apply({ type: "item.created", item: { status: "completed", ...item } }, 1);
    const said = (id, parent_id, text) => add({ id, type: "message", role: "assistant", parent_id, content: [{ type: "output_text", text }] });
    const results = [1, 2].map((number) => ({ number, filename: `${number}.md`, text: `<b>passage ${number}</b>`, start: 0, end: 9 }));
    add({ id: "q", type: "message", role: "user", parent_id: null, content: [{ type: "input_text", text: "rates?" }] });
    add({ id: "c", type: "function_call", name: "file_search", call_id: "one", arguments: "{}", parent_id: "q" });
    add({ id: "o", type: "function_call_output", call_id: "one", output: JSON.stringify({ results }), parent_id: "c" });
    add({ id: "c2", type: "function_call", name: "file_search", call_id: "two", arguments: "{}", parent_id: "o" });
    add({ id: "o2", type: "function_call_output", call_id: "two", output: JSON.stringify({ results: [{ ...results[0], text: "another" }] }), parent_id: "c2" });
    said("a", "o2", "They fell [2], as [1] and [3] say.");
    add({ id: "q2", type: "message", role: "user", parent_id: "a", content: [{ type: "input_text", text: "and?" }] });
    said("b", "q2", "I do not know [1].");
    const found = { type: "input_passage", number: 1, file_id: "f", filename: "rates.md", start: 0, end: 9, score: 1 };
    const text = "[Passage of rates.md, to be cited as [1]]\nThey <b>rose</b>.\n[End of passage]\n";
    const content = [{ ...found, text }, { ...found, number: 2, text: "" }, { type: "input_text", text: "why?" }];
    add({ id: "q3", type: "message", role: "user", parent_id: "b", content });
    said("d", "q3", "They rose [1], [2].");
    const root = document.createElement("ol");
    new Thread(root, { prices: () => null, cost: () => null, draft: () => undefined }).render(view.thread(), [], []);
    const sources = [...root.querySelectorAll(".sources:not([hidden])")];
    const words = [...root.querySelectorAll(".said")].map((each) => each.textContent);
    return [words, ...sources.map((each) => [each.closest("li").dataset.id, each.open, [...each.querySelectorAll("li")].map((li) => [li.value, li.textContent])])];
  });
  assert.deepEqual(shown, [
    ["rates?", "and?", "why?"],
    ["a", false, [[2, "2.md<b>passage 2</b>"]]],
    ["d", false, [[1, "rates.mdThey <b>rose</b>."]]],
  ]);
});
