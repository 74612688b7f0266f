/**
 * Builds dist/ (what npm publishes) and what the server's page loads, in ../../transport/web: sessile.js, the SDK,
 * markdown-it.js, the Markdown parser, temml.js and its style sheet, what sets formulas, languages.js, what highlights code, and chat.js, the chat page's modules as one; with the
 * argument `dist`, only that.
 * `pageBundles()` is also what the check compares the page's copies with, so the two cannot drift apart.
 */
import { execFileSync } from "node:child_process";
import { readFileSync, rmSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { build, transform } from "esbuild";

export const root = fileURLToPath(new URL("..", import.meta.url));
const web = (name) => fileURLToPath(new URL(`../../../transport/web/${name}`, import.meta.url));

const common = { absWorkingDir: root, bundle: true, format: "esm", target: "es2022", platform: "neutral", write: false };

/** What draws the operator page's charts: as one minified ES module, and its style sheet, each with its licence's line. */
async function charts() {
  const { version } = JSON.parse(readFileSync(`${root}/node_modules/uplot/package.json`, "utf8"));
  const line = `/* uplot ${version}, MIT licence, (c) its authors. Built by clients/typescript (npm run build). */`;
  const options = { ...common, minify: true, banner: { js: line, css: line } };
  const stdin = { contents: 'export { default } from "uplot"', resolveDir: root };
  const results = [await build({ ...options, stdin, mainFields: ["module", "main"] }), await build({ ...options, entryPoints: ["node_modules/uplot/dist/uPlot.min.css"] })];
  return results.map((result) => result.outputFiles[0].text);
}

/** The SDK as one minified ES module; with what it loads when it first connects in it, or without. */
export async function bundle(isWhole = true) {
  const banner = { js: "/* Built from clients/typescript (npm run build). Do not edit. */" };
  const result = await build({ ...common, entryPoints: ["src/index.ts"], external: isWhole ? [] : ["./ways.js"], minify: true, banner });
  return result.outputFiles[0].text;
}

/** A package that the page bundles, and its version and licence for the bundle's first line. @param {string} name */
function banner(name) {
  const { version, license } = JSON.parse(readFileSync(`${root}/node_modules/${name}/package.json`, "utf8"));
  return { js: `/* ${name} ${version}, ${license} licence, (c) its authors. Built by clients/typescript (npm run build). */` };
}

/** Changes the text of a package's modules as they are read. @param {RegExp} filter @param {(text: string) => string} change */
function reading(filter, change) {
  return { name: "reading", setup: ({ onLoad }) => onLoad({ filter }, ({ path }) => ({ contents: change(readFileSync(path, "utf8")), loader: "js" })) };
}

const PARTS = ["entities", "linkify-it", "mdurl", "punycode.js", "uc.micro"]; // page/parser_parts.js stands for them
/** What makes HTML, and what sets quotes and dashes: the page uses neither. Region of markdown-it's module -> what it leaves. */
const UNUSED = {
  "src/renderer.ts": "var Renderer = class {};",
  "src/rules_core/smartquotes.ts": "function smartquotes() {}",
  "src/rules_core/replacements.ts": "function replace() {}",
  "src/rules_core/linkify.ts": "function linkify$1() {}",
  "src/rules_block/html_block.ts": "function html_block() {}",
  "src/rules_inline/html_inline.ts": "function html_inline() {}",
};

/** The page's Markdown parser as one minified ES module, with its licence's line. */
async function markdown() {
  const alias = Object.fromEntries(PARTS.map((name) => [name, `${root}/page/parser_parts.js`]));
  const lean = reading(/markdown-it\.mjs$/, (text) =>
    Object.entries(UNUSED).reduce((rest, [region, left]) => {
      const begin = rest.indexOf(`//#region ${region}\n`);
      if (begin < 0) throw new Error(`markdown-it has no ${region} any more: look what the page needs of it`);
      return `${rest.slice(0, begin)}${left}\n${rest.slice(rest.indexOf("//#endregion", begin))}`;
    }, text),
  );
  const stdin = { contents: 'export { default } from "markdown-it"', resolveDir: root };
  const result = await build({ ...common, stdin, alias, plugins: [lean], mainFields: ["module", "main"], minify: true, banner: banner("markdown-it") });
  return result.outputFiles[0].text;
}

/** Takes a part out of a text, up to and with an end. @param {string} text @param {string} begin @param {string} end */
function without(text, begin, end) {
  const from = text.indexOf(begin);
  const to = text.indexOf(end, from);
  if (from < 0 || to < 0) throw new Error(`Temml's styles have no ${JSON.stringify(begin)} any more: look what the page needs of them`);
  return text.slice(0, from) + text.slice(to + end.length);
}

/**
 * What sets formulas, as a classic script that defines `temml`, and its style sheet without its font, its breaking of lines and its numbers
 * of equations. A style set as an attribute's text is against the page's policy, so it becomes a property.
 */
async function temml() {
  const source = readFileSync(`${root}/node_modules/temml/dist/temml.js`, "utf8");
  const code = source.replace(/(\w+)\.setAttribute\("style", "([\w-]+): ?([\w-]+);?"\)/g, '$1.style["$2"] = "$3"');
  if (!code.startsWith("var temml = ") || code.includes('"style", ')) throw new Error("Temml is built otherwise now: look what the page needs of it");
  const script = await transform(code, { target: common.target, minify: true, legalComments: "none", banner: banner("temml").js });
  const parts = [["@font-face {", "}"], ["math .mathscr {", "}"], ["mo.tml-prime {", "}"], ["  mo.tml-prime {", "}"], ["math {\n  display: inline-flex;", "}"], ["math > mrow {", "}"], [".tml-eqn::before {", "}"], ["body {", "}"]];
  const contents = parts.reduce((text, [begin, end]) => without(text, begin, end), readFileSync(`${root}/node_modules/temml/dist/Temml-Local.css`, "utf8"));
  const sheet = await build({ ...common, stdin: { contents, loader: "css" }, minify: true, banner: { css: banner("temml").js } });
  return [script.code, sheet.outputFiles[0].text];
}

/** The languages that the page highlights as one minified ES module, without the modes' tables for what it does not. */
async function languages() {
  const pure = reading(/legacy-modes[\\/]mode[\\/]\w+\.js$/, (text) => text.replace(/export const shader = [^]*/, "").replace(/(= |: )(clike|mkXML|words)\(/g, "$1/* @__PURE__ */ $2("));
  const entryPoints = ["page/languages.js"];
  const name = "@codemirror/legacy-modes";
  const result = await build({ ...common, entryPoints, plugins: [pure], minify: true, legalComments: "none", banner: banner(name) });
  return result.outputFiles[0].text;
}

/** The chat page's modules as one, but for the SDK. @param {Map<string, string>} built what it takes instead of the files */
async function page(built) {
  const fresh = { name: "fresh", setup: ({ onLoad }) => onLoad({ filter: /transport[\\/]web[\\/]/ }, ({ path }) => (built.has(path) ? { contents: built.get(path), loader: "js" } : undefined)) };
  const banner = { js: "/* Built from page.js and what it imports, by clients/typescript (npm run build). Do not edit. */" };
  const result = await build({ ...common, entryPoints: [web("page.js")], external: ["./sessile.js"], plugins: [fresh], minify: true, banner });
  return result.outputFiles[0].text.replace(/(?<=[;}])import(?=[{"*])/g, "\nimport"); // the server finds one import a line
}

/** What the page loads of this build: file beside the page -> text. */
export async function pageBundles() {
  const [uplot, uplotStyles] = await charts();
  const [formulas, formulaStyles] = await temml();
  const built = new Map([
    [web("uplot.js"), uplot],
    [web("uplot.css"), uplotStyles],
    [web("sessile.js"), await bundle()],
    [web("markdown-it.js"), await markdown()],
    [web("temml.js"), formulas],
    [web("temml.css"), formulaStyles],
    [web("languages.js"), await languages()],
  ]);
  return built.set(web("chat.js"), await page(built));
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  rmSync(`${root}/dist`, { recursive: true, force: true });
  await build({ ...common, entryPoints: ["src/index.ts", "src/react.ts", "src/node.ts", "src/ways.ts"], splitting: true, external: ["react"], outdir: "dist", write: true });
  execFileSync(process.execPath, ["node_modules/typescript/bin/tsc", "--noEmit", "false", "--emitDeclarationOnly", "--outDir", "dist"], {
    cwd: root,
    stdio: "inherit",
  });
  if (process.argv[2] !== "dist") for (const [file, text] of await pageBundles()) writeFileSync(file, text);
}
