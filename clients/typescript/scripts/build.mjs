/**
 * Builds dist/ (what npm publishes) and what the server's pages load, in ../../transport/web: sessile.js, the SDK,
 * markdown-it.js, the Markdown parser, uplot.js and uplot.css, the charts; with the argument `dist`, only that.
 * `pageBundles()` is also what the check compares the page's copies with, so the two cannot drift apart.
 */
import { execFileSync } from "node:child_process";
import { readFileSync, rmSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

export const root = fileURLToPath(new URL("..", import.meta.url));
const web = (name) => fileURLToPath(new URL(`../../../transport/web/${name}`, import.meta.url));

const common = { absWorkingDir: root, bundle: true, format: "esm", target: "es2022", platform: "neutral", write: false };

/** The whole SDK as one minified ES module. */
export async function bundle() {
  const banner = { js: "/* Built from clients/typescript (npm run build). Do not edit. */" };
  const result = await build({ ...common, entryPoints: ["src/index.ts"], minify: true, banner });
  return result.outputFiles[0].text;
}

/** The line of its licence that a bundle of a package begins with. */
function licence(name) {
  const { version, license } = JSON.parse(readFileSync(`${root}/node_modules/${name}/package.json`, "utf8"));
  return `/* ${name} ${version}, ${license} licence, (c) its authors. Built by clients/typescript (npm run build). */`;
}

/** A package that a page loads, as one minified ES module with its default export. */
async function library(name) {
  const stdin = { contents: `export { default } from "${name}"`, resolveDir: root };
  const result = await build({ ...common, stdin, mainFields: ["module", "main"], minify: true, banner: { js: licence(name) } });
  return result.outputFiles[0].text;
}

/** A package's style sheet. */
async function styles(name, path) {
  const result = await build({ ...common, entryPoints: [`node_modules/${name}/${path}`], minify: true, banner: { css: licence(name) } });
  return result.outputFiles[0].text;
}

/** What the page loads of this build: file beside the page -> text. */
export async function pageBundles() {
  return new Map([
    [web("sessile.js"), await bundle()],
    [web("markdown-it.js"), await library("markdown-it")],
    [web("uplot.js"), await library("uplot")],
    [web("uplot.css"), await styles("uplot", "dist/uPlot.min.css")],
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
