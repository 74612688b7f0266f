/** Builds dist/, what npm publishes, and gives the check and the tests one bundle of the core: this package with the SDK in it. */
import { execFileSync } from "node:child_process";
import { rmSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

export const root = fileURLToPath(new URL("..", import.meta.url));
export const sdk = fileURLToPath(new URL("../../typescript/src/index.ts", import.meta.url));
export const common = { absWorkingDir: root, bundle: true, format: "esm", target: "es2022", platform: "neutral", jsx: "automatic" };

/** All that is no drawing, the SDK too but for what it loads when it first connects, as one minified ES module. */
export async function core() {
  const result = await build({ ...common, entryPoints: ["src/index.ts"], alias: { sessile: sdk }, external: ["./ways.js"], minify: true, write: false });
  return result.outputFiles[0].text;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  rmSync(`${root}/dist`, { recursive: true, force: true });
  const external = ["sessile", "react", "react/jsx-runtime"];
  await build({ ...common, entryPoints: ["src/index.ts", "src/react.tsx", "src/push.ts"], splitting: true, external, outdir: "dist", write: true });
  const types = ["--noEmit", "false", "--declaration", "--emitDeclarationOnly", "--rootDir", "..", "--outDir", ".build/types"];
  execFileSync(process.execPath, ["node_modules/typescript/bin/tsc", ...types], { cwd: root, stdio: "inherit" });
  execFileSync("cp", ["-r", ".build/types/react-native/src/.", "dist"], { cwd: root, stdio: "inherit" });
}
