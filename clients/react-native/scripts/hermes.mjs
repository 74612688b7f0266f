/**
 * Bundles for Hermes, the way React Native's own tools do it: esbuild lays the modules together, and React Native's Babel preset turns
 * the language into what the engine has (no classes, no `async`). And the engine: the newest one that npm has for Linux is
 * 0.12.0, which knows less of the language than those of later React Natives, so what runs here runs there.
 */
import { spawnSync } from "node:child_process";
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { basename } from "node:path";
import { fileURLToPath } from "node:url";
import babel from "@babel/core";
import { build } from "esbuild";
import { common, root, sdk } from "./build.mjs";

const require = createRequire(import.meta.url);
const machine = process.platform === "darwin" ? "osx-bin" : "linux64-bin";
export const engine = `${root}/node_modules/hermes-engine-cli/${machine}/hermes`;
/** The compiler of the React Native in the lock, for bytecode as apps ship it. */
export const compiler = `${root}/node_modules/hermes-compiler/hermesc/${machine}/hermesc`;
const vm = (name) => `${root}/harness/vm/${name}`;
const tests = fileURLToPath(new URL("../../typescript/test/", import.meta.url));
const cases = fileURLToPath(new URL("../../../docs/protocol/cases/", import.meta.url));

function lowered(code, filename) {
  const preset = [require.resolve("@react-native/babel-preset"), { unstable_transformProfile: "hermes-stable", enableBabelRuntime: false }];
  const options = { filename, presets: [preset], babelrc: false, configFile: false, compact: true, comments: false, sourceType: "script" };
  return babel.transformSync(code, options).code;
}

/** React Native's own modules are Flow; esbuild reads them once the types are gone. */
const flow = {
  name: "flow",
  setup: ({ onLoad }) =>
    onLoad({ filter: /node_modules\/(react-native|@react-native)\/.*\.js$/ }, ({ path }) => {
      const preset = [require.resolve("@react-native/babel-preset"), { unstable_transformProfile: "hermes-stable", disableImportExportTransform: true, enableBabelRuntime: false }];
      const { code } = babel.transformSync(readFileSync(path, "utf8"), { filename: path, presets: [preset], babelrc: false, configFile: false });
      return { contents: code, loader: "js" };
    }),
};

/** Node's modules as tests use them: a file system of the cases, assertions, a runner that prints. */
const platform = {
  name: "platform",
  setup: ({ onResolve, onLoad }) => {
    onResolve({ filter: /^node:(assert\/strict|test)$/ }, ({ path }) => ({ path: vm(path === "node:test" ? "test.ts" : "assert.ts") }));
    onResolve({ filter: /^node:fs$/ }, () => ({ path: "cases", namespace: "cases" }));
    onLoad({ filter: /.*/, namespace: "cases" }, () => {
      const texts = Object.fromEntries(readdirSync(cases).map((name) => [name, readFileSync(cases + name, "utf8")]));
      return { contents: `const texts = ${JSON.stringify(texts)};\nexport const readdirSync = () => Object.keys(texts);\nexport const readFileSync = (url) => texts[String(url).split("/").pop()];` };
    });
  },
};

/** One script for the engine. `instead` names modules that stand for others: end of the imported path -> file. */
export async function bundle(entry, { instead = {}, env = {}, minify = false } = {}) {
  const others = {
    name: "others",
    setup: ({ onResolve }) => {
      for (const [end, file] of Object.entries(instead)) {
        const filter = new RegExp(`${end.replaceAll(".", "\\.")}$`);
        onResolve({ filter }, ({ importer }) => (importer === vm(file) ? undefined : { path: vm(file) }));
      }
    },
  };
  const result = await build({
    ...common,
    entryPoints: [entry],
    inject: [vm("globals.ts")],
    ignoreAnnotations: true, // what is injected exports nothing
    alias: { sessile: sdk },
    plugins: [others, platform, flow],
    format: "iife",
    target: "esnext",
    mainFields: ["react-native", "main"],
    resolveExtensions: [".tsx", ".ts", ".android.js", ".native.js", ".js", ".json"],
    define: { "import.meta.url": '"file:///tests/x"', "process.env": JSON.stringify(env), __DEV__: "false", "process.env.NODE_ENV": '"production"' },
    minifyWhitespace: minify,
    write: false,
  });
  return lowered(result.outputFiles[0].text, `${basename(entry)}.js`);
}

/** Runs a script in the engine to its end; what it printed, line by line. Throws where it failed. */
export function run(name, code) {
  mkdirSync(`${root}/.build`, { recursive: true });
  const file = `${root}/.build/${name}.hermes.js`;
  writeFileSync(file, code);
  const bytecode = spawnSync(compiler, ["-O", "-emit-binary", "-w", "-out", `${root}/.build/${name}.hbc`, file], { encoding: "utf8" });
  if (bytecode.status !== 0) throw new Error(`hermesc: ${bytecode.stderr}`);
  const { status, stdout, stderr } = spawnSync(engine, ["-w", "-Xmicrotask-queue", file], { encoding: "utf8", maxBuffer: 1 << 28 });
  if (status !== 0) throw new Error(`hermes ended with ${status}: ${stdout.slice(-2_000)} ${stderr.slice(-4_000)}`);
  return stdout.split("\n");
}

export const testFile = (name) => tests + name;
