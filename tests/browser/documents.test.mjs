/** Made-up documents through the page's Markdown in a real Chromium; `bench.clients.page_documents` runs ten thousand. */
import assert from "node:assert/strict";
import { test } from "node:test";

import { document, run } from "./documents.mjs";
import { Browser, Server } from "./harness.mjs";

test("no document runs anything", async () => {
  const result = await run({ documents: Number(process.env.SESSILE_TEST_DOCUMENTS ?? 300), seed: 7 });
  assert.equal(result.scripts_run, 0);
  assert.deepEqual(result.faults, []);
});

test("a document is the same each time it is made", () => {
  assert.equal(document(7, 5), document(7, 5));
  assert.notEqual(document(7, 5), document(7, 8));
});

test("a link without an address is its words", async () => {
  const server = await new Server().start();
  const browser = await new Browser().start();
  const page = await browser.page();
  await page.goto(server.url);
  const shown = await page.evaluate(async () => {
    const { Markdown } = await import(new URL("chat.js", location.href).href);
    const markdown = new Markdown();
    markdown.update("before [words]() after");
    while (markdown.busy) await new Promise((resolve) => markdown.element.addEventListener("grown", resolve, { once: true }));
    return [markdown.element.textContent, markdown.element.querySelectorAll("a").length];
  });
  await browser.dispose();
  await server.dispose();
  assert.deepEqual(shown, ["before words after", 0]);
});

test("what sets formulas is loaded for the first of them, which is its source until then", async () => {
  const server = await new Server().start();
  const browser = await new Browser().start();
  const page = await browser.page();
  const requested = [];
  page.on("request", (request) => requested.push(new URL(request.url()).pathname));
  await page.goto(server.url);
  const show = (text) =>
    page.evaluate(async (text) => {
      const { Markdown, loadMaths } = await import(new URL("chat.js", location.href).href);
      const settled = async (markdown) => {
        while (markdown.busy) await new Promise((resolve) => markdown.element.addEventListener("grown", resolve, { once: true }));
        return [markdown.element.textContent, markdown.element.querySelectorAll("math").length];
      };
      const markdown = new Markdown();
      markdown.update(text);
      const before = await settled(markdown);
      if (before[0].includes("$x$")) await loadMaths();
      return [before, await settled(markdown)];
    }, text);
  const [plain] = await show("It costs $5 and $10.");
  const early = requested.filter((path) => path.startsWith("/temml")).length;
  const [before, after] = await show("so $x$ is");
  await browser.dispose();
  await server.dispose();
  assert.deepEqual([plain, early], [["It costs $5 and $10.", 0], 0]);
  assert.deepEqual([before, after], [["so $x$ is", 0], ["so x is", 1]]);
  assert.deepEqual(requested.filter((path) => path.startsWith("/temml")).sort(), ["/temml.css", "/temml.js"]);
});
