/** What the compiler does not look at: the size of the core, and a few habits of the house. */
import { readdirSync, readFileSync } from "node:fs";
import { gzipSync } from "node:zlib";
import { core, root } from "./build.mjs";

const CORE_GZIPPED_BYTES_MAX = 16 * 1024;
const LINE_MAX = 140;
const HABITS = [
  [/from "react-native|from "@react-native|\brequire\(/, "the platform comes through ports"],
  [/\bconsole\./, "a library does not print"],
  [/\bTODO\b|\bFIXME\b|@ts-ignore/, "finish it"],
  [/\bMath\.random\(\)|\bDate\.now\(\)|\bset(Timeout|Interval)\(/, "time and chance are arguments"],
];

const problems = [];
for (const name of readdirSync(`${root}/src`)) {
  readFileSync(`${root}/src/${name}`, "utf8").split("\n").forEach((line, index) => {
    const code = line.replace(/^\s*(\*|\/\*|\/\/).*$/, "");
    for (const [pattern, why] of HABITS) if (pattern.test(code)) problems.push(`src/${name}:${index + 1}: ${why}`);
    if (line.length > LINE_MAX) problems.push(`src/${name}:${index + 1}: longer than ${LINE_MAX}`);
  });
}
const text = await core();
const gzipped = gzipSync(text, { level: 9 }).length;
if (gzipped > CORE_GZIPPED_BYTES_MAX) problems.push(`the core has ${gzipped} bytes gzipped, more than ${CORE_GZIPPED_BYTES_MAX}`);
for (const problem of problems) console.error(problem);
console.log(`core: ${text.length} bytes, ${gzipped} gzipped (at most ${CORE_GZIPPED_BYTES_MAX})`);
process.exit(problems.length === 0 ? 0 : 1);
