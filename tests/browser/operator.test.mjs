/** The operator's page in a real Chromium: what it shows, what it asks before it acts, on a phone, in the dark, by keyboard. */
import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { axe } from "./axe.mjs";
import { Browser, Server } from "./harness.mjs";

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

test("before a replica is drained the page asks, Escape leaves it as it is, and a drain is taken back", async () => {
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
  await page.route("**/v1/operator/replicas/*/undrain", async (route) => {
    told.push(new URL(route.request().url()).pathname);
    two[0] = { ...two[0], state: "serving" };
    await route.fulfill({ json: { replica: "north" } });
  });
  await page.getByRole("button", { name: "Undrain north" }).click();
  await page.getByText("north takes sessions again.").waitFor();
  assert.deepEqual(told.slice(1), ["/v1/operator/replicas/north/undrain"]);
  await drain.waitFor();
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

/** A series as the server answers it, of an hour that ended in a burst; `hole` points have nothing. */
function made(hole = 3) {
  const points = 360;
  const end = Math.floor(Date.now() / 10_000) * 10;
  const column = (of) => Array.from({ length: points }, (_, index) => (index < hole ? null : of(index)));
  const wave = (index) => 1 + Math.sin(index / 20);
  return {
    object: "series", step_s: 10, silent: {},
    at: Array.from({ length: points }, (_, index) => end - (points - 1 - index) * 10),
    ttft_s: { p50: column((i) => (i % 7 === 0 ? null : 0.2 * wave(i))), p95: column((i) => (i % 7 === 0 ? null : 0.7 * wave(i))) },
    tokens_per_s: { decoded: column((i) => 90 * wave(i)), prefilled: column((i) => 400 * wave(i / 3)) },
    requests: { running: column((i) => Math.round(2 * wave(i))), waiting: column((i) => (i > 300 ? i - 300 : 0)), slots: column(() => 4) },
    sessions: column(() => 12),
    kv_bytes: { device: column((i) => 3e8 * wave(i)), host: column((i) => 5e8 + i * 1e6), disk: column((i) => i * 4e6) },
    events: { failovers: column((i) => (i === 200 ? 2 : 0)), handoffs: column((i) => (i % 60 === 0 ? 1 : 0)), failed: column(() => 0) },
  };
}

/** The operator's page with made-up series, so that every chart has something to draw. */
async function charted(options, answer = made) {
  const page = await browser.page(options);
  page.requested = [];
  await page.route("**/v1/operator/series*", async (route) => {
    page.requested.push(new URL(route.request().url()).search);
    await route.fulfill({ json: answer() });
  });
  await page.goto(`${server.url}operator`);
  await page.locator(".chart canvas").first().waitFor();
  return page;
}

test("charts are drawn, read by keyboard, and are tables for whoever opens them", async () => {
  const page = await charted();
  assert.equal(await page.locator(".chart canvas").count(), 5);
  const drawn = await page.locator(".chart canvas").evaluateAll((all) => all.map((each) => new Set(each.getContext("2d").getImageData(0, 0, each.width, each.height).data).size));
  assert.ok(drawn.every((colours) => colours > 8), `${drawn}`);
  const plot = page.getByRole("slider", { name: "Answers and queue over time" });
  assert.match(await plot.getAttribute("aria-valuetext"), /: being written \d+, waiting 59, slots 4$/);
  await plot.focus();
  await page.keyboard.press("ArrowLeft");
  assert.match(await plot.getAttribute("aria-valuetext"), /waiting 58/);
  await page.keyboard.press("Home");
  assert.match(await plot.getAttribute("aria-valuetext"), /waiting –/);
  const chart = page.locator(".chart", { has: plot });
  await chart.getByText("As a table").click();
  const table = chart.getByRole("table");
  await table.waitFor();
  assert.equal(await table.locator("tbody tr").count(), 357, "times with nothing have no row");
  assert.deepEqual(await table.locator("thead th").allInnerTexts(), ["Until", "being written", "waiting", "slots"]);
  assert.equal((await table.locator("tbody tr").first().locator("td").allInnerTexts())[1], "59");
  await page.getByRole("combobox", { name: "Over" }).selectOption("21600");
  await page.getByRole("combobox", { name: "Of", exact: true }).selectOption("local");
  await page.waitForFunction(() => document.querySelector("#load-note").textContent === "");
  assert.deepEqual(page.requested.slice(0, 3), ["?range_s=3600", "?range_s=21600", "?range_s=21600&replica=local"]);
  assert.deepEqual(page.troubles, []);
  await closed(page);
});

test("a chart without anything says so, and a replica that does not answer is named", async () => {
  const page = await charted({}, () => ({ ...made(), kv_bytes: {}, silent: { south: "no answer in 2 s" } }));
  await page.getByText("No engine here counts its KV in bytes.").waitFor();
  await page.getByText("south does not answer: no answer in 2 s").waitFor();
  assert.equal(await page.getByRole("slider").count(), 4);
  await closed(page);
});

test("each session in memory has a cell on its replica's card, and the words beside it say the same", async () => {
  await chat(5);
  const running = await chat(400, true);
  const page = await opened();
  await page.locator(".replicas .cell.turn").waitFor();
  const words = await page.locator(".map-words").innerText();
  const [, all] = /^(\d+) sessions in memory: 1 answering; /.exec(words) ?? [];
  assert.equal(Number(all), await page.locator(".replicas .cell").count(), words);
  await fetch(`${server.url}v1/responses/${running.id}/cancel`, { method: "POST" });
  await page.locator(".replicas .cell.turn").waitFor({ state: "hidden" });
  await closed(page);
});

test("nothing of the chat page's own style lies over this page: the load meter is seen", async () => {
  const page = await opened();
  await page.getByRole("meter", { name: "Load of local" }).waitFor();
  const veils = await page.evaluate(() => [...document.querySelectorAll("body *")].flatMap((element) => ["::before", "::after"].flatMap((part) => {
    const { content, backgroundImage } = getComputedStyle(element, part);
    return content === "none" || backgroundImage === "none" ? [] : [`${element.className}${part}`];
  })));
  assert.deepEqual(veils, []);
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
    await axe(page);
    assert.deepEqual(page.troubles, []);
    await closed(page);
    const full = await charted(options);
    await full.locator("#sessions tr").first().waitFor();
    await full.getByText("As a table").first().click();
    await axe(full);
    const [chartsWide, chartsSeen] = await full.evaluate(() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]);
    assert.ok(chartsWide <= chartsSeen, `${chartsWide} px wide on ${chartsSeen}`);
    await shot(full, `operator-${options.isMobile ? "phone-dark" : "light"}`);
    await closed(full);
  });
}
