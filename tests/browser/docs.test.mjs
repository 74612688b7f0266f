/** The API's page in a real Chromium without a network: it renders, sends, and runs nothing but files with the right hash. */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, before, test } from "node:test";

import { axe } from "./axe.mjs";
import { Browser, Server } from "./harness.mjs";

const SHOTS = process.env.SESSILE_TEST_SHOTS;
let server, browser;

before(async () => {
  server = await new Server().start();
  browser = await new Browser().start();
});
after(async () => {
  await browser?.dispose();
  await server?.dispose();
});

/** A page for which no host but ours exists; what the policy stops is collected. */
async function opened(path, options) {
  const page = await browser.page(options);
  page.strangers = [];
  await page.context().route((url) => url.origin !== new URL(server.url).origin, (route) => {
    page.strangers.push(route.request().url());
    return route.abort();
  });
  await page.addInitScript(() => {
    globalThis.violations = [];
    document.addEventListener("securitypolicyviolation", (event) => globalThis.violations.push(`${event.effectiveDirective} ${event.blockedURI}`));
  });
  await page.goto(`${server.url}${path}`);
  return page;
}

async function clean(page) {
  assert.deepEqual(await page.evaluate(() => globalThis.violations), []);
  assert.deepEqual(page.strangers, []);
  assert.deepEqual(page.troubles, []);
  await page.context().close();
}

test("every operation of the document is shown, opens, and breaks no rule of the policy", async () => {
  const page = await opened("docs");
  await page.getByText(/^(\d+) of \1 operations$/).waitFor();
  const { paths } = await (await fetch(`${server.url}openapi.json`)).json();
  const there = Object.entries(paths).flatMap(([path, item]) => Object.keys(item).map((method) => `${method} ${path}`));
  const shown = await page.locator(".operation > summary").evaluateAll((all) => all.map((each) => [...each.querySelectorAll("span:first-child, code")].map((part) => part.textContent).join(" ")));
  assert.deepEqual(shown.sort(), there.sort());
  for (let opening = 0; opening < 4; opening++) await page.evaluate(() => document.querySelectorAll("details:not([open])").forEach((each) => (each.open = true)));
  await page.locator("#main dt", { hasText: "tool_choice" }).first().waitFor();
  await clean(page);
});

test("a request made by hand goes out with the key of this tab, and its answer is shown", async () => {
  const page = await opened("docs");
  await page.getByRole("textbox", { name: "Key" }).fill("sk-from-the-tab");
  await page.getByRole("searchbox", { name: "Show" }).fill("get /v1/models");
  await page.getByText(/^2 of /).waitFor();
  await page.locator("summary", { hasText: "/v1/models/{model}" }).click();
  await page.getByLabel("model", { exact: true }).fill("simulated");
  const sent = page.waitForRequest(/\/v1\/models\/simulated$/);
  await page.getByRole("button", { name: "Send" }).click();
  assert.equal(await (await sent).headerValue("authorization"), "Bearer sk-from-the-tab");
  await page.getByText("200 OK").waitFor();
  assert.match(await page.getByLabel("Answer").innerText(), /"id": "simulated"/);
  await clean(page);
});

test("a body is made from its schema, and a stream is shown as it comes", async () => {
  const page = await opened("docs");
  await page.locator("summary", { hasText: "/v1/chat/completions" }).click();
  const body = page.getByRole("textbox", { name: "Body" });
  const { model, messages } = JSON.parse(await body.inputValue());
  assert.equal(model, "");
  assert.equal(messages.length, 1);
  await body.fill(JSON.stringify({ model: "simulated", messages: [{ role: "user", content: "Hello." }], stream: true }));
  await page.getByRole("button", { name: "Send" }).click();
  await page.getByLabel("Answer").getByText(/\[DONE\]/).waitFor();
  await clean(page);
});

for (const [name, options] of [["wide", {}], ["phone, dark", { viewport: { width: 360, height: 740 }, colorScheme: "dark" }]]) {
  test(`it is accessible: ${name}`, async () => {
    const page = await opened("docs", options);
    await page.getByText(/^(\d+) of \1 operations$/).waitFor();
    await page.locator("summary", { hasText: "/v1/chat/completions" }).click();
    await page.getByRole("button", { name: "Send" }).waitFor();
    if (SHOTS) await page.screenshot({ path: `${SHOTS}/docs-${name.slice(0, 4)}.png`, fullPage: true });
    assert.equal(await page.evaluate(() => document.documentElement.scrollWidth <= document.documentElement.clientWidth), true);
    await axe(page);
    await clean(page);
  });
}

for (const [path, module] of [["", "chat.js"], ["operator", "reviews.js"], ["docs", "dom.js"], ["docs", "docs.js"]]) {
  test(`/${path} does not run with a ${module} that was changed on the way`, async () => {
    const page = await browser.page();
    const body = `${readFileSync(new URL(`../../transport/web/${module}`, import.meta.url), "utf8")}\n;globalThis.intruder = true;`;
    await page.route(`**/${module}`, (route) => route.fulfill({ body, contentType: "text/javascript" }));
    const refused = page.waitForEvent("console", (message) => /integrity/.test(message.text()));
    await page.goto(`${server.url}${path}`);
    await refused;
    await page.waitForLoadState("networkidle");
    assert.equal(await page.evaluate(() => globalThis.intruder), undefined);
    await page.context().close();
  });
}

test("the chat and the operator's page break no rule of the policy either", async () => {
  for (const path of ["", "operator"]) {
    const page = await opened(path);
    await page.getByText(path === "" ? "What shall we talk about?" : "1 of 1 serving").waitFor();
    await clean(page);
  }
});
