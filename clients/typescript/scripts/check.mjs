/**
 * What the compiler does not look at: the size of the bundle, of the chat page and of what it renders Markdown with, that the page's
 * copies are fresh, that the library names nothing of the DOM or of Node, and a few habits of the house.
 */
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { basename } from "node:path";
import { gzipSync } from "node:zlib";
import { bundle, pageBundles, root } from "./build.mjs";

const GZIPPED_BYTES_MAX = 15 * 1024;
const PAGE_BYTES_MAX = 95 * 1000; // gzipped: all that a browser loads for the chat page
const PROSE = ["markdown-it.js", "languages.js", "markdown.js", "formulas.js", "maths.js", "code.js", "prose.css"];
const PROSE_GZIPPED_BYTES_MAX = 52 * 1000;
const LATER = ["temml.js", "temml.css"]; // what the page loads for its first formula
const LATER_GZIPPED_BYTES_MAX = 56 * 1000;
const LINE_MAX = 140;
const HABITS = [
  [/\b(document|window|localStorage|sessionStorage|navigator)\s*[.?[]/, "the DOM is not there on phones and in Node"],
  [/from "node:|\brequire\(/, "no Node modules in the library"],
  [/\bconsole\./, "a library does not print"],
  [/\bTODO\b|\bFIXME\b|@ts-ignore/, "finish it"],
  [/\bMath\.random\(\)|\bDate\.now\(\)/, "time and chance are arguments"],
];

/** A page with the scripts, modules, styles, icons and the manifest that it names, each gzipped, in bytes. */
function pageSize(name, seen = new Set()) {
  if (seen.has(name)) return 0;
  seen.add(name);
  const file = new URL(`../../../transport/web/${name}`, import.meta.url);
  const bytes = readFileSync(file);
  const parts = /\.(html|js)$/.test(name) ? [...bytes.toString().replace(/<template[^]*?<\/template>/g, "").matchAll(/(?:(?:src|href)=|^(?:import|export)\b[^"'()]*)"(?:\.\/)?([\w-]+\.\w+)"/gm)] : [];
  const size = name.endsWith(".png") ? 0 : gzipSync(bytes, { level: 9 }).length; // an icon is for whoever installs the page
  return parts.reduce((sum, [, part]) => sum + pageSize(part, seen), size);
}

const problems = [];
for (const name of readdirSync(`${root}/src`)) {
  readFileSync(`${root}/src/${name}`, "utf8").split("\n").forEach((line, index) => {
    const code = line.replace(/^\s*(\*|\/\*|\/\/).*$/, "");
    for (const [pattern, why] of HABITS) if (pattern.test(code)) problems.push(`src/${name}:${index + 1}: ${why}`);
    if (line.length > LINE_MAX) problems.push(`src/${name}:${index + 1}: longer than ${LINE_MAX}`);
  });
}

const fresh = await bundle(false);
const gzipped = gzipSync(fresh, { level: 9 }).length;
if (gzipped > GZIPPED_BYTES_MAX) problems.push(`the bundle has ${gzipped} bytes gzipped, more than ${GZIPPED_BYTES_MAX}`);
for (const [file, text] of await pageBundles()) {
  const copy = existsSync(file) ? readFileSync(file, "utf8") : "";
  if (copy !== text) problems.push(`transport/web/${basename(file)} is not what this source builds: npm run build`);
}
const packed = (/** @type {string[]} */ names) => names.reduce((sum, name) => sum + gzipSync(readFileSync(`${root}/../../transport/web/${name}`), { level: 9 }).length, 0);
const prose = packed(PROSE);
if (prose > PROSE_GZIPPED_BYTES_MAX) problems.push(`Markdown, formulas and code have ${prose} bytes gzipped, more than ${PROSE_GZIPPED_BYTES_MAX}`);
const later = packed(LATER);
if (later > LATER_GZIPPED_BYTES_MAX) problems.push(`what is loaded for formulas has ${later} bytes gzipped, more than ${LATER_GZIPPED_BYTES_MAX}`);

const page = pageSize("index.html");
if (page > PAGE_BYTES_MAX) problems.push(`the chat page has ${page} bytes gzipped, more than ${PAGE_BYTES_MAX}`);

for (const problem of problems) console.error(problem);
console.log(`chat page: ${page} bytes gzipped (at most ${PAGE_BYTES_MAX}), and ${later} for the first formula (at most ${LATER_GZIPPED_BYTES_MAX})`);
console.log(`bundle: ${fresh.length} bytes, ${gzipped} gzipped (at most ${GZIPPED_BYTES_MAX}); Markdown, formulas and code: ${prose} gzipped (at most ${PROSE_GZIPPED_BYTES_MAX})`);
process.exit(problems.length === 0 ? 0 : 1);
