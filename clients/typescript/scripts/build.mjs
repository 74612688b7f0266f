/**
 * Builds dist/ (what npm publishes) and what the server's page loads, in ../../transport/web: sessile.js, the SDK, and
 * markdown-it.js, the Markdown parser; with the argument `dist`, only that.
 * `pageBundles()` is also what the check compares the page's copies with, so the two cannot drift apart.
 */
import { execFileSync } from "node:child_process";
import { readFileSync, rmSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

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

/** The whole SDK as one minified ES module. */
export async function bundle() {
  const banner = { js: "/* Built from clients/typescript (npm run build). Do not edit. */" };
  const result = await build({ ...common, entryPoints: ["src/index.ts"], minify: true, banner });
  return result.outputFiles[0].text;
}

/** The page's Markdown parser as one minified ES module, with its licence's line. */
async function markdown() {
  const { version } = JSON.parse(readFileSync(`${root}/node_modules/markdown-it/package.json`, "utf8"));
  const banner = { js: `/* markdown-it ${version}, MIT licence, (c) its authors. Built by clients/typescript (npm run build). */` };
  const stdin = { contents: 'export { default } from "markdown-it"', resolveDir: root };
  const result = await build({ ...common, stdin, mainFields: ["module", "main"], minify: true, banner });
  return result.outputFiles[0].text;
}

/** What the page loads of this build: file beside the page -> text. */
export async function pageBundles() {
  const [uplot, uplotStyles] = await charts();
  return new Map([
    [web("uplot.js"), uplot],
    [web("uplot.css"), uplotStyles],
    [web("sessile.js"), await bundle()],
    [web("markdown-it.js"), await markdown()],
  ]);
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  rmSync(`${root}/dist`, { recursive: true, force: true });
  await build({ ...common, entryPoints: ["src/index.ts", "src/react.ts", "src/node.ts"], external: ["react"], outdir: "dist", write: true });
  execFileSync(process.execPath, ["node_modules/typescript/bin/tsc", "--noEmit", "false", "--emitDeclarationOnly", "--outDir", "dist"], {
    cwd: root,
    stdio: "inherit",
  });
  if (process.argv[2] !== "dist") for (const [file, text] of await pageBundles()) writeFileSync(file, text);
}
