/** Builds the example as an app ships it: Metro's bundle for Android and iOS, then the bytecode of the compiler in the lock. */
import { execFileSync } from "node:child_process";
import { mkdirSync, statSync } from "node:fs";
import { createRequire } from "node:module";
import { compiler } from "./hermes.mjs";
import { root } from "./build.mjs";

const require = createRequire(import.meta.url);
const Metro = require("metro");
mkdirSync(`${root}/.build`, { recursive: true });
const config = await Metro.loadConfig({ config: `${root}/example/metro.config.cjs`, maxWorkers: 2 });
for (const platform of ["android", "ios"]) {
  const out = `${root}/.build/example.${platform}.js`;
  await Metro.runBuild(config, { entry: "example/index.ts", platform, dev: false, minify: false, out });
  execFileSync(compiler, ["-O", "-emit-binary", "-w", "-out", out.replace(/js$/, "hbc"), out]);
  console.log(`${platform}: ${statSync(out).size} bytes, ${statSync(out.replace(/js$/, "hbc")).size} as bytecode`);
}
