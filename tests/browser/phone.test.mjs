/** The example in clients/typescript runs as it is written, against the real server. */
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { Server } from "./harness.mjs";

const CLIENT = fileURLToPath(new URL("../../clients/typescript", import.meta.url));

test("a phone goes through a tunnel and shows the answer whole", async () => {
  const run = promisify(execFile);
  await run(process.execPath, ["scripts/build.mjs", "dist"], { cwd: CLIENT });
  const server = await new Server(["--sim-tokens-per-s", "100", "--sim-answer-tokens", "100"]).start();
  try {
    const { stdout, stderr } = await run(process.execPath, ["examples/phone.mjs", server.url], { cwd: CLIENT, timeout: 60_000 });
    assert.match(stderr, /\[ready\]\[suspended\]\[connecting\]\[ready\]/);
    const [, characters] = /completed, (\d+) characters, \d+ tokens\n$/.exec(stdout) ?? [];
    const text = stdout.slice(0, stdout.lastIndexOf("\ncompleted"));
    assert.equal(text.length, Number(characters));
  } finally {
    await server.dispose();
  }
});
