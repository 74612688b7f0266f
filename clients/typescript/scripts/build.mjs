/**
 * Builds dist/ (what npm publishes) and ../../transport/web/sessile.js (what the server's page loads); with the argument
 * `dist`, only that.
 * `bundle()` is also what the check compares the page's copy with, so the two cannot drift apart.
 */
import { execFileSync } from "node:child_process";
import { rmSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

export const root = fileURLToPath(new URL("..", import.meta.url));
export const pageBundle = fileURLToPath(new URL("../../../transport/web/sessile.js", import.meta.url));

const common = { absWorkingDir: root, bundle: true, format: "esm", target: "es2022", platform: "neutral", write: false };

/** The whole SDK as one minified ES module. */
export async function bundle() {
  const banner = { js: "/* Built from clients/typescript (npm run build). Do not edit. */" };
  const result = await build({ ...common, entryPoints: ["src/index.ts"], minify: true, banner });
  return result.outputFiles[0].text;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  rmSync(`${root}/dist`, { recursive: true, force: true });
  await build({ ...common, entryPoints: ["src/index.ts", "src/react.ts", "src/node.ts"], external: ["react"], outdir: "dist", write: true });
  execFileSync(process.execPath, ["node_modules/typescript/bin/tsc", "--noEmit", "false", "--emitDeclarationOnly", "--outDir", "dist"], {
    cwd: root,
    stdio: "inherit",
  });
  if (process.argv[2] !== "dist") writeFileSync(pageBundle, await bundle());
}
