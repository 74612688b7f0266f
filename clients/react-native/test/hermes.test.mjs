/**
 * What the SDK's own tests hold, held by Hermes: every protocol case, once over the tests' sockets and once over React Native's
 * WebSocket class with a native half that speaks RFC 6455 in pieces; and the generated journeys through tunnels.
 */
import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";
import { bundle, run, testFile } from "../scripts/hermes.mjs";

const folder = new URL("../../../docs/protocol/cases/", import.meta.url);
const cases = readdirSync(folder).map((name) => JSON.parse(readFileSync(new URL(name, folder), "utf8"))).filter(({ runs }) => runs.includes("client"));
const wanted = cases.flatMap(({ name, encodings = ["json", "msgpack"] }) => encodings.map((encoding) => `${name} (${encoding})`)).sort();

async function inHermes(name, file, options) {
  const told = run(name, await bundle(testFile(file), options)).filter((line) => line.startsWith("{")).map((line) => JSON.parse(line));
  const end = told.pop();
  assert.deepEqual(end, { done: told.length }, "it did not come to its end");
  return told;
}
const named = (told) => told.map(({ name }) => name.split(":")[0]).sort();

test("every protocol case of a client holds in Hermes", async () => {
  const told = await inHermes("cases", "conformance.test.ts");
  assert.deepEqual(told.filter(({ ok }) => !ok), []);
  assert.deepEqual(named(told).filter((name) => name !== "there are cases to run"), wanted);
});

test("and over React Native's WebSocket, with bytes that come in pieces; what it does not tell (`Retry-After`) is asked for", async () => {
  const instead = { "virtual.js": "virtual-phone.ts", TurboModuleRegistry: "turbo.ts" };
  const told = await inHermes("platform", "conformance.test.ts", { instead });
  assert.deepEqual(told.filter(({ ok }) => !ok), []);
  assert.deepEqual(named(told).filter((name) => name !== "there are cases to run"), wanted);
});

test("HTTP where no WebSocket gets through, captive portals and generated journeys over HTTP hold in Hermes", async () => {
  const told = await inHermes("ways", "ways.test.ts", { env: { SESSILE_TEST_WAYS_ROUNDS: "20" } });
  assert.deepEqual(told.filter(({ ok }) => !ok), []);
  assert.equal(told.length, 17);
});

test("generated journeys through tunnels end with the log's text in Hermes", async () => {
  const told = await inHermes("tunnel", "tunnel.test.ts", { env: { SESSILE_TEST_TUNNEL_ROUNDS: "100" } });
  assert.deepEqual(told.filter(({ ok }) => !ok), []);
  assert.equal(told.length, 2);
});
