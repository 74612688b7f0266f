/** The chat page in a real Chromium: what was withheld, asking that a person looks at it, and what came of it. */
import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";

import { Browser, Server } from "./harness.mjs";

// The simulated engine's answers are English words: none of them goes for long without an e.
const POLICY = `
[policies.default.input]
phrases = { deny = ["nightjar"], action = "block" }
[policies.default.output]
phrases = { deny = ["e"], words = false, action = "block" }
`;
let server, browser;

before(async () => {
  server = new Server(["--sim-tokens-per-s", "2000", "--sim-answer-tokens", "60"]);
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

async function asked(path, body) {
  const answer = await fetch(server.url + path, body && { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
  assert.ok(answer.ok, await answer.clone().text());
  return answer.json();
}

async function decided(id, outcome) {
  await asked(`v1/reviews/${id}/claim`, {});
  await asked(`v1/reviews/${id}/decide`, { outcome });
}

async function say(page, text) {
  await page.fill("#message", text);
  await page.press("#message", "Enter");
}

test("an answer that was withheld is put before a person, and the page tells what they decide", async () => {
  const page = await browser.page();
  await page.goto(server.url);
  await say(page, "Hello");
  await page.getByText("The rest was withheld by a safety filter.").waitFor();
  const ask = page.getByRole("button", { name: "Ask for a review" });
  await ask.click();
  await page.getByText("A person will look at it.").waitFor();
  await ask.waitFor({ state: "detached" });
  const { data } = await asked("v1/reviews?appealed=true");
  assert.equal(data.length, 1);
  await decided(data[0].id, "overturned");
  await page.getByText("it need not have been withheld").waitFor();
  await page.reload();
  await page.getByText("it need not have been withheld").waitFor();
  assert.deepEqual(page.troubles, []);
  await page.context().close();
});

test("a message that was refused is put before a person", async () => {
  const page = await browser.page();
  await page.goto(server.url);
  await say(page, "Tell me of the nightjar");
  await page.getByText(/Not sent:/).first().waitFor();
  await page.getByRole("button", { name: "Ask for a review" }).click();
  await page.getByText("A message that was refused. A person will look at it.").waitFor();
  const { data } = await asked("v1/reviews?appealed=true&state=open");
  assert.equal(data.length, 1);
  await decided(data[0].id, "upheld");
  await page.getByText("it stays withheld").waitFor();
  assert.equal(await page.getByRole("button", { name: "Ask for a review" }).count(), 0);
  await page.context().close();
});
