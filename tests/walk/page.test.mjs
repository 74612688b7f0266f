/** One walk through the chat page in a real Chromium: asked, reloaded, its server killed in mid-answer, started again. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { Browser, Server } from "../browser/harness.mjs";

const shown = (page) => page.$$eval(".message .said, .message .prose", (all) => all.map((each) => each.textContent.replace(/\s+/g, "")));
const ready = (page) => page.waitForSelector('#link[data-phase="ready"]');
const written = (page, answers) =>
  page.waitForFunction((count) => document.querySelectorAll(".answer").length >= count && !document.querySelector(".writing, .pending"), answers);

async function say(page, text) {
  await page.fill("#message", text);
  await page.press("#message", "Enter");
}

test("a conversation goes on over a reload and over a kill of its server", async () => {
  const browser = await new Browser().start();
  const server = await new Server(["--sim-tokens-per-s", "60", "--sim-answer-tokens", "90"]).start();
  try {
    const page = await browser.page();
    await page.goto(server.url);
    await ready(page);
    await say(page, "What is the first thing?");
    await written(page, 1);
    const before = await shown(page);
    assert.equal(before.length, 2);
    await page.reload();
    await ready(page);
    await page.waitForSelector(".answer .prose");
    assert.deepEqual(await shown(page), before);

    await say(page, "And the second?");
    await page.waitForFunction(() => (document.querySelector(".answer.writing .prose")?.textContent ?? "").length > 40);
    await server.stop("SIGKILL");
    const cut = (await shown(page)).at(-1);
    await server.start();
    await written(page, 2);
    const after = await shown(page);
    assert.deepEqual(after.slice(0, 2), before);
    assert.ok(after.at(-1).startsWith(cut), "what was shown stays as it was");
  } finally {
    await browser.dispose();
    await server.dispose();
  }
});
