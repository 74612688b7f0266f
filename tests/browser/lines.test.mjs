/**
 * The TypeScript SDK, as built for the page, over bad lines and through killed servers: the text shown equals the log every time.
 *
 * Rounds are few by default; SESSILE_TEST_LINE_ROUNDS=1000 and SESSILE_TEST_KILL_ROUNDS=30 are the figures in docs/benchmarks.md.
 */
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { test } from "node:test";
import { Answer, itemText, SessileClient } from "../../transport/web/sessile.js";
import { FaultProxy, seeded } from "./fault_proxy.mjs";
import { Server } from "./harness.mjs";

const packages = createRequire(new URL("../../clients/typescript/package.json", import.meta.url));
const [WebSocket, msgpack] = [packages("ws"), packages("@msgpack/msgpack")];
const LINE_ROUNDS = Number(process.env.SESSILE_TEST_LINE_ROUNDS ?? 60);
const KILL_ROUNDS = Number(process.env.SESSILE_TEST_KILL_ROUNDS ?? 3);
const AT_ONCE = 6;
/** The client's clock runs so much faster, so that 35 s of silence take one. */
const HASTE = 35;
const ROUND_LIMIT_MS = 60_000;

function client(url, random, encoding) {
  const started = Date.now();
  return new SessileClient({
    url,
    encoding,
    random,
    WebSocket,
    now: () => started + (Date.now() - started) * HASTE,
    timers: { set: (run, ms) => setTimeout(run, ms / HASTE), clear: (handle) => clearTimeout(handle) },
  });
}

/** The whole log of a session, read from its start over a good line. */
async function log(url, id) {
  const reader = new SessileClient({ url, WebSocket });
  const session = reader.session(id);
  const events = [];
  session.on("event", (frame) => events.push(frame));
  session.open({ epoch: "", offset: 0 });
  await session.live();
  const items = [...session.view.items.values()];
  reader.close();
  return { events, items };
}

/** Says something, follows the answer to its end, and returns what a person would have seen. */
async function converse(sdk, content, seen) {
  const session = await sdk.create({ title: content });
  session.on("event", (frame) => seen.push(frame));
  const sent = await session.send(content);
  assert.ok(sent.answer instanceof Answer);
  let shown = "";
  for await (const piece of sent.answer) {
    shown = piece.restarted ? piece.delta : shown + piece.delta;
    assert.equal(shown, piece.text);
  }
  return { id: session.id, shown, record: await sent.answer.done(), item: sent.itemId };
}

function judge({ shown, record, item }, { events, items }, seen, content) {
  const answers = items.filter((each) => each.role === "assistant");
  assert.equal(answers.length, 1, "one generation");
  assert.equal(shown, itemText(answers[0]), "the text shown is the log's");
  assert.equal(record.status, "completed");
  const said = items.filter((each) => each.role === "user");
  assert.deepEqual(said.map((each) => [each.id, itemText(each)]), [[item, content]], "said once");
  let last = 0;
  for (const frame of events) {
    assert.equal(frame.first_offset ?? frame.offset, last + 1, "the log has no gap");
    last = frame.offset;
  }
  // What this reader applied: nothing twice, nothing out of order; what it skipped, a snapshot covered.
  for (let i = 1; i < seen.length; i++) assert.ok((seen[i].first_offset ?? seen[i].offset) > seen[i - 1].offset, "applied once");
}

function within(promise, ms, what) {
  let timer;
  const limit = new Promise((_, reject) => (timer = setTimeout(() => reject(new Error(what())), ms)));
  return Promise.race([promise, limit]).finally(() => clearTimeout(timer));
}

test(`${LINE_ROUNDS} conversations over lines that cut, delay and go silent`, async () => {
  const server = await new Server(["--sim-tokens-per-s", "400", "--sim-answer-tokens", "60"]).start();
  const random = seeded(Number(process.env.SESSILE_TEST_SEED ?? 1));
  const proxy = await new FaultProxy(() => server.port, random).start();
  let next = 0;
  try {
    await Promise.all(
      Array.from({ length: AT_ONCE }, async () => {
        while (next < LINE_ROUNDS) {
          const content = `round ${next++}`;
          const sdk = client(proxy.url, random, next % 2 ? "json" : msgpack);
          const seen = [];
          const result = await within(converse(sdk, content, seen), ROUND_LIMIT_MS, () => `${content}: ${JSON.stringify(sdk.status)}`);
          sdk.close();
          judge(result, await log(server.url, result.id), seen, content);
        }
      }),
    );
    assert.ok(proxy.counts.cut > LINE_ROUNDS / 10 && proxy.counts.silent > 0, JSON.stringify(proxy.counts));
    console.log(`# ${JSON.stringify(proxy.counts)}`);
  } finally {
    await proxy.stop();
    await server.dispose();
  }
});

test(`${KILL_ROUNDS} times the server is killed in mid-answer, and the answer goes on`, async () => {
  const server = await new Server(["--sim-tokens-per-s", "120", "--sim-answer-tokens", "80"]).start();
  const random = seeded(Number(process.env.SESSILE_TEST_SEED ?? 2));
  try {
    for (let round = 0; round < KILL_ROUNDS; round++) {
      const content = `kill ${round}`;
      const sdk = client(server.url, random, round % 2 ? "json" : msgpack);
      const seen = [];
      const strike = 4 + Math.floor(random() * 12);
      const struck = new Promise((resolve) => {
        const look = setInterval(() => seen.length >= strike && (clearInterval(look), resolve()), 1);
      });
      const conversing = converse(sdk, content, seen);
      await within(Promise.race([struck, conversing]), ROUND_LIMIT_MS, () => `${content}: no events`);
      await server.stop("SIGKILL");
      await server.start();
      const result = await within(conversing, ROUND_LIMIT_MS, () => `${content}: ${JSON.stringify(sdk.status)}`);
      sdk.close();
      judge(result, await log(server.url, result.id), seen, content);
    }
  } finally {
    await server.dispose();
  }
});
