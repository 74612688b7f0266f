/** The operator's page of a cluster's gateway, which writes no answer itself: its headline, charts and map are the replicas'. */
import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { axe } from "./axe.mjs";
import { Browser, Cluster } from "./harness.mjs";

const SHOTS = process.env.SESSILE_TEST_SHOTS;
let cluster, browser;

before(async () => {
  [cluster, browser] = await Promise.all([new Cluster(["--sim-tokens-per-s", "200"]).start(), new Browser().start()]);
});
after(async () => {
  await browser?.dispose();
  await cluster?.dispose();
});

async function chat(max_output_tokens) {
  const body = { model: "simulated", input: "Tell me of the sea.", max_output_tokens };
  const answer = await fetch(`${cluster.url}v1/responses`, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
  assert.equal(answer.status, 200, await answer.text());
}

test("on a gateway the headline is of all replicas, and so are the charts and the map", async () => {
  await Promise.all(Array.from({ length: 8 }, () => chat(20)));
  const page = await browser.page();
  await page.goto(`${cluster.url}operator`);
  await page.getByText("2 of 2 serving").waitFor();
  const tiles = Object.fromEntries(await page.locator("#tiles > div").evaluateAll((all) => all.map((each) => [each.querySelector("dt").textContent, each.querySelector("dd").firstChild.textContent])));
  assert.equal(tiles["Answers"], "8");
  for (const name of ["In time", "First token", "Between tokens", "Journal"]) assert.match(tiles[name], /\d/, `${name}: ${tiles[name]}`);
  await page.getByText("Of 2 replicas, each since it started").waitFor();
  await page.waitForFunction(() => document.querySelectorAll(".replicas .cell").length === 8);
  const words = await page.locator(".map-words").allInnerTexts();
  assert.equal(words.map((each) => Number(/^\d+/.exec(each)[0])).reduce((a, b) => a + b), 8, `${words}`);
  // A sample is due within ten seconds. The predicate cannot wait itself: it looks at what the last answer said.
  await page.waitForFunction(() => {
    globalThis.looking ??= fetch("v1/operator/series?range_s=900").then((answer) => answer.json()).then(({ step_s, tokens_per_s }) => {
      globalThis.written = step_s * tokens_per_s.decoded.reduce((sum, each) => sum + (each ?? 0), 0);
      globalThis.looking = null;
    });
    return globalThis.written >= 150;
  }, null, { polling: 500 });
  await page.getByRole("combobox", { name: "Over" }).selectOption("900");
  const chart = page.locator(".chart", { has: page.getByRole("slider", { name: "Tokens a second over time" }) });
  await chart.getByText("As a table").click();
  await chart.locator("tbody td", { hasText: /[1-9]/ }).first().waitFor();
  await axe(page);
  if (SHOTS) await page.screenshot({ path: `${SHOTS}/operator-cluster.png`, fullPage: true });
  assert.deepEqual(page.troubles, []);
  await page.context().close();
});
