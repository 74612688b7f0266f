/** Bundles test/*.test.ts into .build/ and runs them with Node's own runner. Arguments pick files by part of their name. */
import { spawnSync } from "node:child_process";
import { readdirSync, rmSync } from "node:fs";
import { build } from "esbuild";
import { root } from "./build.mjs";

const wanted = process.argv.slice(2);
const files = readdirSync(`${root}/test`)
  .filter((name) => name.endsWith(".test.ts") || name.endsWith(".test.tsx"))
  .filter((name) => wanted.length === 0 || wanted.some((part) => name.includes(part)));

rmSync(`${root}/.build`, { recursive: true, force: true });
await build({
  absWorkingDir: root,
  entryPoints: files.map((name) => `test/${name}`),
  outdir: ".build",
  outExtension: { ".js": ".mjs" },
  bundle: true,
  packages: "external",
  platform: "node",
  format: "esm",
  target: "node20",
  sourcemap: "inline",
  jsx: "automatic",
});
const outputs = files.map((name) => `${root}/.build/${name.replace(/\.tsx?$/, ".mjs")}`);
const run = spawnSync(process.execPath, ["--enable-source-maps", "--test", ...outputs], { cwd: root, stdio: "inherit" });
process.exit(run.status ?? 1);
