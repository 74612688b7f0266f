/** OpenAI's SDK in pages of other origins, in a real Chromium: a listed one may do everything, any other nothing. */
import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { after, before, test } from "node:test";

import { Browser, Server } from "./harness.mjs";

const require = createRequire(new URL("../../clients/typescript/package.json", import.meta.url));
const esbuild = require("esbuild");
const CLIENT = dirname(require.resolve("../../clients/typescript/package.json"));
let sites, server, browser;

/** A site of its own: one page, with OpenAI's SDK as `OpenAI`. */
async function site() {
  const { outputFiles } = await esbuild.build({
    stdin: { contents: 'import OpenAI from "openai"; globalThis.OpenAI = OpenAI;', resolveDir: CLIENT },
    bundle: true,
    format: "iife",
    write: false,
  });
  const listening = createServer((request, response) => {
    const script = request.url === "/sdk.js";
    response.setHeader("content-type", script ? "text/javascript" : "text/html");
    response.end(script ? outputFiles[0].text : '<!doctype html><title>site</title><script src="/sdk.js"></script>');
  }).listen(0, "127.0.0.1");
  await once(listening, "listening");
  return { listening, origin: `http://127.0.0.1:${listening.address().port}` };
}

before(async () => {
  sites = [await site(), await site()];
  server = await new Server(["--origins", sites[0].origin, "--sim-answer-tokens", "8"]).start();
  browser = await new Browser().start();
});
after(async () => {
  await browser?.dispose();
  await server?.dispose();
  for (const each of sites ?? []) each.listening.close();
});

/** What ordinary use comes to in a page of an origin. */
async function used(origin) {
  const page = await browser.page();
  await page.goto(origin);
  return page.evaluate(async (baseURL) => {
    const client = new globalThis.OpenAI({ baseURL, apiKey: "none", maxRetries: 0, timeout: 20_000, organization: "o", project: "p", dangerouslyAllowBrowser: true });
    const found = {};
    try {
      const model = (await client.models.list()).data[0].id;
      const messages = [{ role: "user", content: "hello" }];
      const { data, response } = await client.chat.completions.create({ model, messages }, { idempotencyKey: "once" }).withResponse();
      found.text = data.choices[0].message.content;
      found.headers = ["x-request-id", "x-session-id"].map((name) => response.headers.get(name) !== null);
      found.chunks = 0;
      for await (const _ of await client.chat.completions.create({ model, messages, stream: true })) found.chunks++;
      found.helper = (await client.chat.completions.stream({ model, messages }).finalMessage()).content;
      const first = await client.responses.create({ model, input: "hello" });
      found.more = (await client.responses.create({ model, input: "go on", previous_response_id: first.id })).output_text;
      await client.responses.delete(first.id);
      found.missing = await client.responses.retrieve(first.id).catch((error) => error.status);
    } catch (error) {
      found.failed = error.constructor.name;
    }
    return found;
  }, `${server.url}v1`);
}

test("a page of a listed origin uses the SDK like any program", async () => {
  const found = await used(sites[0].origin);
  assert.equal(found.failed, undefined);
  assert.ok(found.text && found.chunks > 1 && found.helper && found.more);
  assert.deepEqual(found.headers, [true, true]);
  assert.equal(found.missing, 404);
});

test("a page of any other origin gets nothing", async () => {
  const found = await used(sites[1].origin);
  assert.match(found.failed, /Connection/);
  assert.equal(found.text, undefined);
});
