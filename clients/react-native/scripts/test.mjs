/**
 * Bundles test/*.test.ts(x) into .build/ and runs them with Node's own runner; what is JavaScript already runs as it is. Arguments
 * pick files by part of their name.
 */
import { spawnSync } from "node:child_process";
import { readdirSync } from "node:fs";
import { build } from "esbuild";
import { common, root, sdk } from "./build.mjs";

const wanted = process.argv.slice(2);
const files = readdirSync(`${root}/test`)
  .filter((name) => /\.test\.(tsx?|mjs)$/.test(name))
  .filter((name) => wanted.length === 0 || wanted.some((part) => name.includes(part)));
const sources = files.filter((name) => !name.endsWith(".mjs"));
await build({
  ...common,
  entryPoints: sources.map((name) => `test/${name}`),
  outdir: ".build",
  outExtension: { ".js": ".mjs" },
  platform: "node",
  target: "node20",
  external: ["react", "react-test-renderer", "react/jsx-runtime"],
  alias: { sessile: sdk },
  sourcemap: "inline",
});
const outputs = files.map((name) => (sources.includes(name) ? `${root}/.build/${name.replace(/\.tsx?$/, ".mjs")}` : `${root}/test/${name}`));
const run = spawnSync(process.execPath, ["--enable-source-maps", "--test", ...outputs], { cwd: root, stdio: "inherit" });
process.exit(run.status ?? 1);
