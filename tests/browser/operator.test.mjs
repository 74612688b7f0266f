/** The operator's page in a real Chromium: what it shows, what it asks before it acts, on a phone, in the dark, by keyboard. */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, before, test } from "node:test";

import { Browser, Server, axePath } from "./harness.mjs";

const SHOTS = process.env.SESSILE_TEST_SHOTS;
const PRICES = 'currency = "USD"\n[[prices]]\nmodel = "*"\ninput = 0.15\noutput = 0.6\n';
let server, browser;

before(async () => {
  const { writeFileSync } = await import("node:fs");
  const { join } = await import("node:path");
  server = new Server(["--sim-tokens-per-s", "30", "--sim-answer-tokens", "5000"]);
  const prices = join(server.data, "prices.toml");
  writeFileSync(prices, PRICES);
  server.args.push("--prices", prices);
  await server.start();
  browser = await new Browser().start();
});
after(async () => {
  await browser?.dispose();
  await server?.dispose();
});

async function chat(max_tokens, background = false) {
  const body = { model: "simulated", input: "Tell me of the sea.", max_output_tokens: max_tokens, background };
  const answer = await fetch(`${server.url}v1/responses`, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
  assert.equal(answer.status, 200, await answer.clone().text());
  return answer.json();
}

async function shot(page, name) {
  if (SHOTS) await page.screenshot({ path: `${SHOTS}/${name}.png`, fullPage: true });
}

async function opened(options) {
  const page = await browser.page(options);
  await page.goto(`${server.url}operator`);
  await page.getByText("1 of 1 serving").waitFor();
  return page;
}

/** Without complaints of routes that were still on their way. */
async function closed(page) {
  await page.unrouteAll({ behavior: "ignoreErrors" });
  await page.context().close();
}

async function accessible(page) {
  await page.evaluate(readFileSync(axePath, "utf8"));
  const found = await page.evaluate(() => globalThis.axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21aa", "best-practice"] }));
  assert.deepEqual(found.violations.map((each) => `${each.id}: ${each.nodes.map((node) => node.html).slice(0, 3).join(" | ")}`), []);
}

test("replicas, sessions with an answer under way, health and usage are shown and kept up to date", async () => {
  await chat(12);
  const page = await opened();
  await page.getByRole("meter", { name: "Load of local" }).waitFor();
  await page.getByRole("rowheader", { name: /^local\/ses_/ }).first().waitFor();
  assert.match(await page.locator("#tiles").innerText(), /First token/);
  const running = await chat(400, true);
  await page.getByText(running.id).waitFor();
  assert.match(await page.locator("tr", { hasText: running.id }).innerText(), /turn/);
  await page.getByRole("combobox", { name: "State" }).selectOption("turn");
  await page.waitForFunction(() => document.querySelectorAll("#sessions tr").length === 1);
  await shot(page, "operator-turn");
  await fetch(`${server.url}v1/responses/${running.id}/cancel`, { method: "POST" });
  await page.getByText("No session is in memory that fits").waitFor();
  await page.getByRole("combobox", { name: "State" }).selectOption("");
  await page.getByRole("combobox", { name: "By", exact: true }).selectOption("model");
  await page.locator("#usage th", { hasText: "simulated" }).waitFor();
  assert.match(await page.locator("#usage").innerText(), /0\.0000\d+ USD/);
  await shot(page, "operator-wide");
  assert.deepEqual(page.troubles, []);
  await closed(page);
});

test("with one replica nothing can be drained or moved, and the page says why", async () => {
  await chat(5);
  const page = await opened();
  const drain = page.getByRole("button", { name: "Drain local" });
  await drain.waitFor();
  assert.equal(await drain.isDisabled(), true);
  assert.match(await drain.getAttribute("title"), /no other replica/);
  const move = page.getByRole("button", { name: /^Hand off local\/ses_/ }).first();
  await move.waitFor();
  assert.equal(await move.isDisabled(), true);
  await closed(page);
});

test("before a replica is drained the page asks, and Escape leaves it as it is", async () => {
  const page = await browser.page();
  const told = [];
  const two = ["north", "south"].map((replica) => ({ replica, state: "serving", load: 0.4, model: "m", address: `${replica}:1`, slots: 4 }));
  await page.route("**/v1/operator/overview", async (route) => {
    const answer = await (await route.fetch()).json();
    await route.fulfill({ json: { ...answer, replicas: two } });
  });
  await page.route("**/v1/operator/replicas/*/drain", async (route) => {
    told.push(new URL(route.request().url()).pathname);
    two[0] = { ...two[0], state: "draining" };
    await route.fulfill({ status: 202, json: { replica: "north" } });
  });
  await page.goto(`${server.url}operator`);
  const drain = page.getByRole("button", { name: "Drain north" });
  await drain.focus();
  await page.keyboard.press("Enter");
  await page.getByRole("dialog", { name: "Drain north?" }).waitFor();
  await page.keyboard.press("Escape");
  await page.getByRole("dialog").waitFor({ state: "hidden" });
  assert.deepEqual(told, []);
  await drain.click();
  await page.getByRole("button", { name: "Drain it" }).click();
  await page.getByText("north is handing its sessions off.").waitFor();
  await page.locator(".replicas .tag.draining").waitFor();
  assert.deepEqual(told, ["/v1/operator/replicas/north/drain"]);
  assert.equal(await drain.isDisabled(), true);
  await closed(page);
});

test("a session is handed to the replica that is chosen; what stays is said so", async () => {
  await chat(5);
  const page = await browser.page();
  const asked = [];
  await page.route("**/v1/operator/overview", async (route) => {
    const answer = await (await route.fetch()).json();
    const other = { ...answer.replicas[0], replica: "south" };
    await route.fulfill({ json: { ...answer, replicas: [...answer.replicas, other] } });
  });
  await page.route("**/handoff", async (route) => {
    asked.push(route.request().postDataJSON());
    if (asked.length === 1) await route.fulfill({ json: { replica: "south" } });
    else await route.fulfill({ status: 409, json: { error: { code: "session_stays", message: "It stays where it is: draining." } } });
  });
  await page.goto(`${server.url}operator`);
  const move = page.getByRole("button", { name: /^Hand off local\/ses_/ }).first();
  await move.click();
  await page.getByRole("dialog").getByRole("combobox", { name: "To" }).selectOption("south");
  await page.getByRole("button", { name: "Hand it off" }).click();
  await page.getByText(/is on south now/).waitFor();
  await move.click();
  await page.getByRole("button", { name: "Hand it off" }).click();
  await page.getByText("It stays where it is: draining.").waitFor();
  assert.deepEqual(asked, [{ replica: "local", to: "south" }, { replica: "local", to: "" }]);
  await closed(page);
});

test("a server that is away is said to be, and comes back", async () => {
  const page = await opened();
  await page.route("**/v1/operator/**", (route) => route.abort());
  await page.getByText("The server does not answer.").waitFor();
  await page.unroute("**/v1/operator/**");
  await page.getByText("1 of 1 serving").waitFor();
  await closed(page);
});

for (const [name, options] of [
  ["wide and light", { colorScheme: "light" }],
  ["a phone in the dark", { colorScheme: "dark", viewport: { width: 390, height: 844 }, hasTouch: true, isMobile: true }],
]) {
  test(`${name}: readable, in bounds, and usable with a screen reader`, async () => {
    await chat(5);
    const page = await opened(options);
    await page.locator("#sessions tr").first().waitFor();
    await page.locator("#usage tr").first().waitFor();
    const [wide, seen] = await page.evaluate(() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]);
    assert.ok(wide <= seen, `${wide} px wide on ${seen}`);
    await accessible(page);
    await shot(page, `operator-${options.isMobile ? "phone-dark" : "light"}`);
    assert.deepEqual(page.troubles, []);
    await closed(page);
  });
}
