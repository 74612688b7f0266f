/** What a screen reader's user would meet on a page as it stands: nothing that axe-core finds is let through. */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";

import { axePath } from "./harness.mjs";

const RULES = ["wcag2a", "wcag2aa", "wcag21aa", "best-practice"];

export async function axe(page) {
  await page.evaluate(readFileSync(axePath, "utf8"));
  const found = await page.evaluate((runOnly) => globalThis.axe.run(document, { runOnly }), RULES);
  assert.deepEqual(found.violations.map((each) => `${each.id}: ${each.nodes.map((node) => node.html).slice(0, 3).join(" | ")}`), []);
}
