/** The review queue on the operator's page in a real Chromium: filters, a claim, a decision, the conversation around it. */
import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";

import { axe } from "./axe.mjs";
import { Browser, Server } from "./harness.mjs";

const SHOTS = process.env.SESSILE_TEST_SHOTS;
const POLICY = `
[policies.default.input]
phrases = { deny = ["nightjar"], action = "flag" }
secrets = { action = "block", review = true }
`;
const SECRET = "my key is AKIAIOSFODNN7EXAMPLE";
let server, browser;

before(async () => {
  server = new Server(["--sim-tokens-per-s", "2000", "--sim-answer-tokens", "12"]);
  const policy = join(server.data, "policy.toml");
  writeFileSync(policy, POLICY);
  server.args.push("--policy", policy);
  await server.start();
  browser = await new Browser().start();
});
after(async () => {
  await browser?.dispose();
  await server?.dispose();
});

async function post(path, body) {
  const answer = await fetch(server.url + path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
  return { status: answer.status, session: answer.headers.get("x-session-id"), body: await answer.json() };
}

const say = (input, conversation) => post("v1/responses", { model: "simulated", input, ...(conversation ? { conversation } : {}) });

async function opened(options) {
  const page = await browser.page(options);
  await page.goto(`${server.url}operator`);
  await page.getByText("1 of 1 serving").waitFor();
  return page;
}

async function shot(page, name) {
  if (SHOTS) await page.screenshot({ path: `${SHOTS}/${name}.png`, fullPage: true });
}

test("a flagged message is found, claimed and decided by keyboard, with the conversation around it", async () => {
  const { session } = await say("Good morning");
  await say("Tell me of the nightjar at dusk", session);
  const page = await opened();
  const look = page.getByRole("button", { name: `Look at phrases/phrase in local/${session}` });
  await look.waitFor();
  await shot(page, "reviews-list");
  await look.focus();
  await page.keyboard.press("Enter");
  const dialog = page.getByRole("dialog", { name: "phrases/phrase, flagged in a message" });
  await dialog.waitFor();
  const meant = dialog.locator(".meant");
  await meant.waitFor();
  assert.equal(await meant.locator("mark").innerText(), "nightjar");
  assert.equal(await meant.getAttribute("aria-current"), "true");
  assert.match(await dialog.locator(".talk li").first().innerText(), /Good morning/);
  assert.equal(await dialog.getByRole("button", { name: "Uphold" }).isVisible(), false);
  await dialog.getByRole("button", { name: "Claim it" }).focus();
  await page.keyboard.press("Enter");
  await dialog.getByText("It is yours for half an hour.").waitFor();
  assert.equal(await page.evaluate(() => document.activeElement.id), "case-note");
  await page.keyboard.type("A bird.");
  await axe(page);
  await shot(page, "reviews-case");
  await dialog.getByRole("button", { name: "Overturn" }).click();
  await dialog.getByText("It is overturned.").waitFor();
  assert.match(await dialog.innerText(), /A bird\./);
  await page.keyboard.press("Escape");
  await dialog.waitFor({ state: "hidden" });
  await look.waitFor({ state: "detached" });
  await page.getByRole("combobox", { name: "Case" }).selectOption("decided");
  await look.waitFor();
  assert.match(await page.locator("#reviews tr", { hasText: session }).innerText(), /overturned/);
  await page.getByRole("textbox", { name: "Category" }).fill("secrets");
  await page.keyboard.press("Enter");
  await page.getByText("No case fits.").waitFor();
  assert.deepEqual(page.troubles, []);
  await page.context().close();
});

test("an appeal is shown as one, with what its author says; what somebody else claims is theirs", async () => {
  const { session } = await say("Good evening");
  assert.equal((await say(SECRET, session)).status, 400);
  const appeal = await post(`v1/sessions/${session}/messages/appeal`, { content: SECRET, note: "It is the example of the manual." });
  assert.equal(appeal.status, 201);
  const page = await opened();
  await page.getByRole("checkbox", { name: "Appeals only" }).check();
  const row = page.locator("#reviews tr", { hasText: session });
  await page.waitForFunction(() => document.querySelectorAll("#reviews tr").length === 1);
  assert.match(await row.innerText(), /blocked[\s\S]*a refused message[\s\S]*appeal/);
  await page.route("**/claim", (route) => route.fulfill({ status: 409, json: { error: { code: "review_claimed", message: "Somebody else has claimed this case." } } }));
  await row.getByRole("button").click();
  const dialog = page.getByRole("dialog");
  await dialog.getByText("It is the example of the manual.").waitFor();
  await dialog.getByText("Here a message was refused.").waitFor();
  assert.equal((await dialog.innerText()).includes("AKIA"), false);
  await dialog.getByRole("button", { name: "Claim it" }).click();
  await dialog.getByText("Somebody else has claimed this case.").waitFor();
  await page.unrouteAll({ behavior: "ignoreErrors" });
  await dialog.getByRole("button", { name: "Claim it" }).click();
  await dialog.getByRole("button", { name: "Uphold" }).click();
  await dialog.getByText("It is upheld.").waitFor();
  const told = await (await fetch(`${server.url}v1/sessions/${session}`)).json();
  assert.deepEqual(told.reviews.map((each) => [each.review_id, each.outcome]), [[appeal.body.review_id, "upheld"]]);
  await dialog.getByRole("button", { name: "Close" }).click();
  await page.getByText("No case fits.").waitFor();
  await page.context().close();
});

test("a conversation that this key may not read is not shown, and the page says why", async () => {
  const { session } = await say("the nightjar again");
  const page = await browser.page();
  let asked = 0;
  await page.route("**/v1/reviews/rev_*", async (route) => {
    const answer = await (await route.fetch()).json();
    await route.fulfill({ json: { ...answer, tenant: "beta", readable: false } });
  });
  await page.route("**/export", (route) => {
    asked++;
    return route.continue();
  });
  await page.goto(`${server.url}operator`);
  await page.getByRole("button", { name: `Look at phrases/phrase in local/${session}` }).click();
  await page.getByText("Your key may not read this conversation: it is another tenant's.").waitFor();
  assert.equal(asked, 0);
  await page.unrouteAll({ behavior: "ignoreErrors" });
  await page.context().close();
});

test("on a phone in the dark the queue and a case are readable and in bounds", async () => {
  const { session } = await say("nightjars and nightjar");
  const page = await opened({ colorScheme: "dark", viewport: { width: 390, height: 844 }, hasTouch: true, isMobile: true });
  await page.getByRole("button", { name: new RegExp(`in local/${session}$`) }).click();
  await page.locator("#case .meant").waitFor();
  const [wide, seen] = await page.evaluate(() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]);
  assert.ok(wide <= seen, `${wide} px wide on ${seen}`);
  await axe(page);
  await shot(page, "reviews-phone-dark");
  await page.context().close();
});
