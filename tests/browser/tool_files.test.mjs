/** Files that code of a model has written, on the page in a real Chromium: shown, saved, and missed where they are deleted. */
import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { Browser, say, Server, texts } from "./harness.mjs";

const DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg==";
const CODE = `
import base64, os
os.mkdir("out")
open("out/dot.png", "wb").write(base64.b64decode("${DOT}"))
open("rates.csv", "w").write("month,rate\\nMarch,3\\n")
`;
const browser = new Browser();
/** A provider of chat that has the model run the code, and then say something. */
const provider = createServer((request, response) => {
  let body = "";
  request.on("data", (piece) => (body += piece));
  request.on("end", () => {
    if (request.method === "GET") return response.setHeader("content-type", "application/json").end(JSON.stringify({ object: "list", data: [{ id: "made-up", object: "model" }] }));
    const { messages } = JSON.parse(body);
    const called = { index: 0, id: "call_1", type: "function", function: { name: "python", arguments: JSON.stringify({ code: CODE }) } };
    const delta = messages.at(-1).role === "tool" ? { content: "Here they are." } : { tool_calls: [called] };
    const choice = (/** @type {object} */ rest) => `data: ${JSON.stringify({ id: "c", object: "chat.completion.chunk", created: 0, model: "made-up", choices: [{ index: 0, finish_reason: null, delta: {}, ...rest }] })}\n\n`;
    response.setHeader("content-type", "text/event-stream");
    response.end(`${choice({ delta: { role: "assistant", ...delta } })}${choice({ finish_reason: delta.content ? "stop" : "tool_calls" })}data: [DONE]\n\n`);
  });
});
let server;

before(async () => {
  await browser.start();
  await new Promise((resolve) => provider.listen(0, "127.0.0.1", resolve));
  server = new Server(["--engine-url", `http://127.0.0.1:${provider.address().port}/v1`, "--model", "made-up", "--context", "8192"], "chat");
  const tools = join(server.data, "tools.toml");
  writeFileSync(tools, '[tools.python]\nkind = "code"\n\n[tenants.local]\noffer = ["python"]\n');
  server.args.push("--tools", tools);
  await server.start();
});
after(async () => {
  await browser.dispose();
  await server.dispose();
  provider.close();
});

test("files of a run are shown and saved, and a deleted one is said to be missing", async () => {
  const page = await browser.page();
  await page.goto(server.url);
  await page.waitForSelector('#link[data-phase="ready"]');
  await say(page, "Write two files.");
  await page.waitForSelector("text=Here they are.");
  assert.deepEqual(await texts(page, ".answer .file .name"), ["out/dot.png", "rates.csv"]);
  const image = await page.waitForSelector(".answer .file img");
  assert.deepEqual(await image.evaluate((element) => [element.naturalWidth, element.alt]), [1, "out/dot.png"]);
  const saved = page.waitForEvent("download");
  await page.click('[aria-label="Save rates.csv"]');
  const download = await saved;
  assert.equal(download.suggestedFilename(), "rates.csv");
  assert.equal(readFileSync(await download.path(), "utf8"), "month,rate\nMarch,3\n");
  await page.evaluate(async () => {
    const { data } = await (await fetch("/v1/files")).json();
    await Promise.all(data.map((file) => fetch(`/v1/files/${file.id}`, { method: "DELETE" })));
  });
  await page.reload();
  await page.click('[aria-label="Save rates.csv"]');
  await page.waitForSelector("text=rates.csv was not saved:");
  assert.equal(await page.$(".answer .file img"), null);
  await page.context().close();
});
