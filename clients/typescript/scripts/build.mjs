/**
 * Builds dist/ (what npm publishes) and what the server's page loads, in ../../transport/web: sessile.js, the SDK, and
 * markdown-it.js, the Markdown parser, and chat.js, the chat page's modules as one; with the argument `dist`, only that.
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

/** The page's Markdown parser as one minified ES module, with its licence's line. */
async function markdown() {
  const { version } = JSON.parse(readFileSync(`${root}/node_modules/markdown-it/package.json`, "utf8"));
  const banner = { js: `/* markdown-it ${version}, MIT licence, (c) its authors. Built by clients/typescript (npm run build). */` };
  const stdin = { contents: 'export { default } from "markdown-it"', resolveDir: root };
  const result = await build({ ...common, stdin, mainFields: ["module", "main"], minify: true, banner });
  return result.outputFiles[0].text;
}

/** The chat page's modules as one, but for the SDK. */
async function page() {
  const external = ["./sessile.js"];
  const banner = { js: "/* Built from page.js and what it imports, by clients/typescript (npm run build). Do not edit. */" };
  const result = await build({ ...common, entryPoints: [web("page.js")], external, minify: true, banner });
  return result.outputFiles[0].text.replace(/(?<=[;}])import(?=[{"*])/g, "\nimport"); // the server finds one import a line
}

/** What the page loads of this build: file beside the page -> text. */
export async function pageBundles() {
  return new Map([
    [web("sessile.js"), await bundle()],
    [web("markdown-it.js"), await markdown()],
    [web("chat.js"), await page()],
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
