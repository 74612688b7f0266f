/**
 * What the compiler does not look at: the size of the bundle and of what the page renders Markdown with, that the page's copies are
 * fresh, that the library names nothing of the DOM or of Node, and a few habits of the house.
 */
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { basename } from "node:path";
import { gzipSync } from "node:zlib";
import { bundle, pageBundles, root } from "./build.mjs";

const GZIPPED_BYTES_MAX = 15 * 1024;
const PROSE = ["markdown-it.js", "languages.js", "markdown.js", "formulas.js", "maths.js", "code.js", "prose.css"];
const PROSE_GZIPPED_BYTES_MAX = 58 * 1000;
const LINE_MAX = 140;
const HABITS = [
  [/\b(document|window|localStorage|sessionStorage|navigator)\s*[.?[]/, "the DOM is not there on phones and in Node"],
  [/from "node:|\brequire\(/, "no Node modules in the library"],
  [/\bconsole\./, "a library does not print"],
  [/\bTODO\b|\bFIXME\b|@ts-ignore/, "finish it"],
  [/\bMath\.random\(\)|\bDate\.now\(\)/, "time and chance are arguments"],
];

const problems = [];
for (const name of readdirSync(`${root}/src`)) {
  readFileSync(`${root}/src/${name}`, "utf8").split("\n").forEach((line, index) => {
    const code = line.replace(/^\s*(\*|\/\*|\/\/).*$/, "");
    for (const [pattern, why] of HABITS) if (pattern.test(code)) problems.push(`src/${name}:${index + 1}: ${why}`);
    if (line.length > LINE_MAX) problems.push(`src/${name}:${index + 1}: longer than ${LINE_MAX}`);
  });
}

const fresh = await bundle();
const gzipped = gzipSync(fresh, { level: 9 }).length;
if (gzipped > GZIPPED_BYTES_MAX) problems.push(`the bundle has ${gzipped} bytes gzipped, more than ${GZIPPED_BYTES_MAX}`);
for (const [file, text] of await pageBundles()) {
  const copy = existsSync(file) ? readFileSync(file, "utf8") : "";
  if (copy !== text) problems.push(`transport/web/${basename(file)} is not what this source builds: npm run build`);
}
const prose = PROSE.reduce((sum, name) => sum + gzipSync(readFileSync(`${root}/../../transport/web/${name}`), { level: 9 }).length, 0);
if (prose > PROSE_GZIPPED_BYTES_MAX) problems.push(`Markdown, formulas and code have ${prose} bytes gzipped, more than ${PROSE_GZIPPED_BYTES_MAX}`);

for (const problem of problems) console.error(problem);
console.log(`bundle: ${fresh.length} bytes, ${gzipped} gzipped (at most ${GZIPPED_BYTES_MAX}); Markdown, formulas and code: ${prose} gzipped (at most ${PROSE_GZIPPED_BYTES_MAX})`);
process.exit(problems.length === 0 ? 0 : 1);
