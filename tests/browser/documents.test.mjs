/** Made-up documents through the page's Markdown in a real Chromium; `bench.clients.page_documents` runs ten thousand. */
import assert from "node:assert/strict";
import { test } from "node:test";

import { document, run } from "./documents.mjs";

test("no document holds the page up or runs anything", async () => {
  const result = await run({ documents: Number(process.env.SESSILE_TEST_DOCUMENTS ?? 300), seed: 7 });
  assert.equal(result.scripts_run, 0);
  assert.deepEqual(result.faults, []);
});

test("a document is the same each time it is made", () => {
  assert.equal(document(7, 5), document(7, 5));
  assert.notEqual(document(7, 5), document(7, 8));
});
