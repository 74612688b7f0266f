/** The client's behaviour in virtual time: coming back, repeating, acknowledging, noticing silence, sleeping, storing. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { greet, READY, settled, world } from "./virtual.js";
import { backoffMs, BusyError, ClosedError, ExpiredError, GoneError, OverflowError, place, StoppedError, StorageError, TimeoutError, type SessileError } from "./surface.js";

const EVENT = (offset: number, event: object = { type: "session.updated", title: `t${offset}` }, first?: number) => ({
  type: "event", session: "S", epoch: "E", offset, ...(first === undefined ? {} : { first_offset: first }), event,
});
const REPLAY = (from: number, top = from) => ({ type: "resumed", session: "S", mode: "replay", epoch: "E", from, top });
const SNAPSHOT = (at: number, mode = "snapshot", epoch = "E") => ({ type: "resumed", session: "S", mode, epoch, at, state: { items: [], open: [], head: null, title: `s${at}` } });

const quietly = (promise: Promise<unknown>): void => void promise.catch(() => undefined);

test("the rule for one event", () => {
  const position = { epoch: "E", offset: 5 };
  assert.equal(place(position, { epoch: "E", offset: 6 }), "apply");
  assert.equal(place(position, { epoch: "E", offset: 9, first_offset: 6 }), "apply");
  assert.equal(place(position, { epoch: "E", offset: 5 }), "old");
  assert.equal(place(position, { epoch: "E", offset: 4, first_offset: 2 }), "old");
  assert.equal(place(position, { epoch: "E", offset: 7 }), "gap");
  assert.equal(place(position, { epoch: "E", offset: 9, first_offset: 7 }), "gap");
  assert.equal(place(position, { epoch: "E", offset: 9, first_offset: 5 }), "gap");
  assert.equal(place(position, { epoch: "F", offset: 6 }), "gap");
});

test("backoff: full jitter over 0.25 s · 2ⁿ, at most 20 s", () => {
  assert.deepEqual([0, 1, 2, 6, 7, 50].map((n) => backoffMs(n, 1)), [250, 500, 1000, 16_000, 20_000, 20_000]);
  assert.equal(backoffMs(3, 0), 0);
});

test("attempts back off while nobody answers, and begin small again after success", async () => {
  const it = world({ random: () => 0.5 });
  it.client.connect();
  const gaps: number[] = [];
  for (let i = 0; i < 9; i++) {
    it.socket.drop();
    const from = it.clock.now;
    const dials = it.sockets.length;
    await it.clock.advance(60_000, () => it.sockets.length > dials);
    gaps.push(it.clock.now - from);
  }
  assert.deepEqual(gaps, [125, 250, 500, 1000, 2000, 4000, 8000, 10_000, 10_000]);
  greet(it);
  it.socket.drop(1013); // a connection that was of no use does not count
  assert.equal(it.client.status.retryAt! - it.clock.now, 10_000);
  await it.clock.advance(10_000);
  it.client.session("S").open();
  greet(it);
  it.socket.play(SNAPSHOT(1));
  it.socket.drop(1012);
  assert.equal(it.client.status.retryAt! - it.clock.now, 125);
});

test("close codes: 1002, 1003, 1007, 1008, 1009, 4400, 4401, 4403 are final, the others are not", async () => {
  for (const code of [1000, 1001, 1005, 1006, 1011, 1012, 1013, 4402, 4408, 4412, 4999]) {
    const it = world();
    it.client.connect();
    greet(it);
    it.socket.drop(code);
    assert.equal(it.client.status.phase, "offline", String(code));
  }
  for (const code of [1002, 1003, 1007, 1008, 1009, 4400, 4401, 4403]) {
    const it = world();
    const made = it.client.command("session.create");
    greet(it);
    it.socket.drop(code, "no");
    assert.equal(it.client.status.phase, "stopped", String(code));
    await assert.rejects(made, (error: StoppedError) => error instanceof StoppedError && error.closeCode === code);
    await assert.rejects(it.client.command("session.list"), StoppedError);
    assert.equal(it.clock.pending, 0);
  }
});

test("after a refusal the program may try again, with another key", async () => {
  const keys = ["old", "new"];
  const it = world({ auth: () => keys.shift() });
  it.client.connect();
  await settled();
  assert.equal(greet(it)["auth"], "old");
  it.socket.drop(4401);
  assert.equal(it.client.status.closeCode, 4401);
  it.client.connect();
  await settled();
  assert.equal(greet(it)["auth"], "new");
  assert.equal(it.client.status.phase, "ready");
  assert.equal(it.client.status.closeCode, undefined);
});

test("a key that cannot be had is an error and a later attempt", async () => {
  let tries = 0;
  const it = world({ auth: () => (++tries === 1 ? Promise.reject(new Error("offline")) : Promise.resolve("k")) });
  const errors: SessileError[] = [];
  it.client.on("error", (error) => errors.push(error));
  it.client.connect();
  await settled();
  assert.equal(errors[0]!.code, "auth");
  assert.equal(it.sockets.length, 0);
  await it.clock.advance(1000);
  assert.equal(greet(it)["auth"], "k");
});

test("dialling is given 10 s, and `ready` another 10 s", async () => {
  const it = world();
  it.client.connect();
  await it.clock.advance(10_000, () => it.client.status.phase === "offline");
  assert.equal(it.socket.closedWith?.code, 4412);
  await it.clock.advance(1_000, () => it.client.status.phase === "connecting");
  await it.clock.advance(9_000);
  it.socket.accept();
  await it.clock.advance(9_999);
  assert.equal(it.socket.closedWith === null, true);
  await it.clock.advance(1);
  assert.equal(it.socket.closedWith?.code, 4412);
});

test("commands: repeated with the same id after a reconnect, in order, until they are answered", async () => {
  const it = world();
  const one = it.client.command("message.create", { session: "S", content: "1" });
  const two = it.client.command("message.create", { session: "S", content: "2" });
  greet(it);
  const first = [it.socket.take()!, it.socket.take()!];
  assert.deepEqual(first.map((frame) => frame["content"]), ["1", "2"]);
  it.socket.play({ type: "ok", id: first[0]!["id"], item_id: "i1" });
  assert.equal((await one)["item_id"], "i1");
  it.socket.drop();
  await it.clock.advance(1000);
  greet(it);
  assert.deepEqual(it.socket.frames, [first[1]]);
  it.socket.play({ type: "ok", id: first[1]!["id"], item_id: "i2" }, { type: "ok", id: first[1]!["id"], item_id: "again" });
  assert.equal((await two)["item_id"], "i2");
});

test("what is said after a message that is refused for a moment waits for it: their order in the log is that of saying", async () => {
  const it = world();
  const say = (content: string, queue = true) => it.client.command("message.create", { session: "S", content, ...(queue && { queue }) });
  const said = Promise.all([say("1"), say("2"), say("3", false), it.client.command("message.create", { session: "T", content: "other" })]);
  const cancelled = it.client.command("response.cancel", { session: "S", response_id: "r" });
  greet(it);
  const taken: Record<string, unknown>[] = [];
  const sent = (): unknown[] => it.socket.frames.splice(0).map((frame) => (taken.push(frame), frame["content"] ?? frame["type"]));
  const answer = (error?: object): void => it.socket.play({ type: error ? "error" : "ok", id: taken.find((frame) => frame["content"] === "1")!["id"], ...error });
  assert.deepEqual(sent(), ["1", "other", "response.cancel"]);
  answer({ error: { code: "queue_full", message: "8 wait already.", retryable: true, retry_after_ms: 1000 } });
  await it.clock.advance(999);
  assert.deepEqual(sent(), []);
  await it.clock.advance(1);
  assert.deepEqual(sent(), ["1"]);
  answer();
  assert.deepEqual(sent(), ["2"]);
  it.socket.play(...taken.filter((frame) => frame["content"] !== "1").map(({ id }) => ({ type: "ok", id })));
  assert.deepEqual(sent(), ["3"]);
  it.socket.play({ type: "ok", id: taken.at(-1)!["id"] });
  await Promise.all([said, cancelled]);
});

test("a refusal with retry_after_ms is repeated by the same id; a busy branch is the caller's to judge", async () => {
  const it = world();
  const sent = it.client.command("message.create", { session: "S" });
  greet(it);
  const { id } = it.socket.take()!;
  const limited = { type: "error", id, error: { code: "rate_limited", message: "slow", retryable: true, retry_after_ms: 700 } };
  it.socket.play(limited);
  await it.clock.advance(699);
  assert.deepEqual(it.socket.frames, []);
  await it.clock.advance(1);
  assert.equal(it.socket.take()!["id"], id);
  for (let i = 0; i < 3; i++) {
    it.socket.play(limited);
    await it.clock.advance(700);
  }
  it.socket.frames.length = 0;
  it.socket.play(limited);
  await assert.rejects(sent, /slow/);

  const busy = it.client.command("message.create", { session: "S" });
  const again = it.socket.frames.pop()!;
  it.socket.play({ type: "error", id: again["id"], error: { code: "response_in_progress", message: "busy", retryable: true } });
  await assert.rejects(busy, BusyError);
});

test("a time-out rejects, and the command is not repeated afterwards", async () => {
  const it = world();
  greetLater(it);
  const sent = it.client.command("session.list", {}, { timeoutMs: 500 });
  const failed = assert.rejects(sent, TimeoutError);
  await it.clock.advance(500);
  await failed;
  it.socket.frames.length = 0;
  it.socket.drop();
  await it.clock.advance(1000);
  greet(it);
  assert.deepEqual(it.socket.frames, []);
});
function greetLater(it: ReturnType<typeof world>): void {
  it.client.connect();
  greet(it);
}

test("the number of unanswered commands is bounded", async () => {
  const it = world({ unansweredMax: 2 });
  const kept = [it.client.command("a"), it.client.command("b")];
  await assert.rejects(it.client.command("c"), OverflowError);
  it.client.close();
  for (const each of kept) await assert.rejects(each, ClosedError);
});

test("what is not the next event: old is dropped, a gap asks again from where we stand, nothing is applied meanwhile", () => {
  const it = world();
  const session = it.client.session("S").open();
  greet(it);
  it.socket.play(SNAPSHOT(3), { type: "caught_up", session: "S", offset: 3 });
  it.socket.play(EVENT(4), EVENT(4), EVENT(3), EVENT(6));
  assert.equal(session.phase, "attaching");
  assert.equal(session.view.title, "t4");
  const ask = it.socket.frames.filter((frame) => frame["type"] === "subscribe");
  assert.equal(ask.length, 1);
  assert.deepEqual([ask[0]!["epoch"], ask[0]!["offset"]], ["E", 4]);
  it.socket.play(EVENT(7), { type: "ok", id: ask[0]!["id"] });
  assert.equal(session.position!.offset, 4);
  it.socket.play(REPLAY(5, 7), EVENT(6, { type: "session.updated", title: "both" }, 5), EVENT(7), { type: "caught_up", session: "S", offset: 7 });
  assert.deepEqual([session.phase, session.position!.offset, session.view.title], ["live", 7, "t7"]);
});

test("a replay that would leave a hole is not taken; gaps without end lead to a snapshot, then to a new connection", async () => {
  const it = world();
  const session = it.client.session("S").open();
  greet(it);
  it.socket.play(SNAPSHOT(3));
  it.socket.drop();
  await it.clock.advance(1000);
  greet(it);
  const asked = (): unknown => it.socket.frames.pop()!["offset"];
  it.socket.play(REPLAY(5));
  assert.equal(asked(), 3);
  it.socket.play(REPLAY(5));
  assert.equal(asked(), 3);
  it.socket.play(REPLAY(5));
  assert.equal(asked(), undefined);
  it.socket.play(REPLAY(5));
  assert.equal(it.socket.closedWith?.code, 1001);
  await it.clock.advance(1000);
  assert.deepEqual(greet(it)["resume"], [{ session: "S" }]);
  it.socket.play(SNAPSHOT(9));
  assert.equal(session.position!.offset, 9);
});

test("reset begins anew and says so; gone ends reading with a typed error", async () => {
  const it = world();
  const session = it.client.session("S").open();
  const resets: unknown[] = [];
  session.on("reset", (told) => resets.push(told.reason));
  greet(it);
  it.socket.play(SNAPSHOT(3), { ...SNAPSHOT(1, "reset", "E2"), reason: "restored" });
  assert.deepEqual(resets, ["restored"]);
  assert.deepEqual([session.position, session.view.title], [{ epoch: "E2", offset: 1 }, "s1"]);
  const waiting = session.until(() => false);
  it.socket.play({ type: "resumed", session: "S", mode: "gone", error: { code: "session_deleted", message: "gone" } });
  await assert.rejects(waiting, GoneError);
  assert.equal(session.phase, "gone");
});

test("one session's trouble leaves the others alone", () => {
  const it = world();
  const [bad, good] = [it.client.session("bad").open(), it.client.session("S").open()];
  greet(it);
  it.socket.play({ type: "resumed", session: "bad", mode: "gone", error: { code: "forbidden", message: "no" } }, SNAPSHOT(2));
  assert.equal(bad.phase, "gone");
  assert.equal(good.position!.offset, 2);
});

test("acks: by half a window of events, by half a window of bytes, and after a second", async () => {
  const it = world();
  it.client.session("S").open();
  greet(it, { ...READY, window_events: 8, window_bytes: 100_000 });
  it.socket.play(REPLAY(1, 100));
  it.socket.play(EVENT(1), EVENT(2), EVENT(3));
  assert.deepEqual(it.socket.frames, []);
  it.socket.play(EVENT(4));
  assert.deepEqual(it.socket.take(), { type: "ack", session: "S", offset: 4 });
  it.socket.play(EVENT(5));
  await it.clock.advance(999);
  assert.deepEqual(it.socket.frames, []);
  await it.clock.advance(1);
  assert.deepEqual(it.socket.take(), { type: "ack", session: "S", offset: 5 });
  it.socket.play(EVENT(6, { type: "session.updated", title: "é".repeat(30_000) }));
  assert.deepEqual(it.socket.take(), { type: "ack", session: "S", offset: 6 });
  await it.clock.advance(5_000);
  assert.deepEqual(it.socket.frames, []);
});

test("heartbeat: pong for ping; a ping of our own after 25 s of silence; reconnect after 35 s", async () => {
  const it = world();
  it.client.connect();
  greet(it);
  it.socket.play({ type: "ping" });
  assert.deepEqual(it.socket.take(), { type: "pong" });
  await it.clock.advance(24_999);
  assert.deepEqual(it.socket.frames, []);
  await it.clock.advance(1);
  assert.deepEqual(it.socket.take(), { type: "ping" });
  it.socket.play({ type: "pong" });
  await it.clock.advance(25_000);
  assert.deepEqual(it.socket.take(), { type: "ping" });
  await it.clock.advance(9_999);
  assert.equal(it.socket.closedWith === null, true);
  await it.clock.advance(1);
  assert.equal(it.socket.closedWith?.code, 4412);
  assert.equal(it.client.status.phase, "offline");
  assert.deepEqual(it.socket.frames, []);
});

test("a device that slept asks for a sign of life before it gives the connection up", async () => {
  const it = world();
  it.client.connect();
  greet(it);
  it.clock.sleep(600_000);
  await it.clock.advance(0);
  assert.deepEqual(it.socket.take(), { type: "ping" });
  assert.equal(it.socket.closedWith === null, true);
  it.socket.play({ type: "pong" });
  await it.clock.advance(10_000);
  assert.equal(it.client.status.phase, "ready");
  it.clock.sleep(600_000);
  await it.clock.advance(5_000);
  assert.equal(it.socket.closedWith?.code, 4412);
});

test("suspend hangs up and stops every timer; resume comes back at once where it was", async () => {
  const it = world();
  const session = it.client.session("S").open();
  greet(it);
  it.socket.play(SNAPSHOT(3), { type: "caught_up", session: "S", offset: 3 });
  it.client.suspend();
  assert.equal(it.socket.closedWith?.code, 1000);
  assert.equal(it.clock.pending, 0);
  const written = session.send("in the tunnel");
  await it.clock.advance(3_600_000);
  assert.equal(it.sockets.length, 1);
  it.client.resume();
  assert.equal(it.sockets.length, 2);
  assert.deepEqual(greet(it)["resume"], [{ session: "S", epoch: "E", offset: 3 }]);
  const { id } = it.socket.take()!;
  it.socket.play({ type: "ok", id, item_id: "i", offset: 4 });
  assert.deepEqual(await written, { itemId: "i", offset: 4 });
});

test("resume while waiting connects at once; while connected it asks for a sign of life", async () => {
  const it = world();
  it.client.connect();
  for (let i = 0; i < 6; i++) {
    it.socket.drop();
    await it.clock.advance(20_000, () => it.client.status.phase === "connecting");
  }
  it.socket.drop();
  const dials = it.sockets.length;
  it.client.resume();
  assert.equal(it.sockets.length, dials + 1);
  greet(it);
  it.client.resume();
  assert.deepEqual(it.socket.take(), { type: "ping" });
  await it.clock.advance(5_000);
  assert.equal(it.socket.closedWith?.code, 4412);
});

test("goaway: the stream goes on to its end, then another connection is made", async () => {
  const it = world();
  const session = it.client.session("S").open();
  const told: unknown[] = [];
  it.client.on("goaway", ({ reason, afterMs }) => told.push([reason, afterMs]));
  greet(it);
  it.socket.play(SNAPSHOT(1), { type: "goaway", reason: "restart", after_ms: 3000 }, EVENT(2));
  assert.deepEqual(told, [["restart", 3000]]);
  assert.equal(session.position!.offset, 2);
  assert.equal(it.client.status.draining, true);
  await it.clock.advance(7_999);
  assert.equal(it.socket.closedWith === null, true);
  await it.clock.advance(1);
  assert.equal(it.socket.closedWith?.code, 1001);
  await it.clock.advance(1_000);
  assert.deepEqual(greet(it)["resume"], [{ session: "S", epoch: "E", offset: 2 }]);
  assert.equal(it.client.status.draining, false);
});

test("an error about the connection with retry_after_ms keeps the client away that long", async () => {
  const it = world();
  it.client.on("error", () => undefined);
  it.client.connect();
  greet(it);
  it.socket.play({ type: "error", error: { code: "overloaded", message: "later", retryable: true, retry_after_ms: 8_000 } });
  it.socket.drop(1013);
  assert.equal(it.client.status.retryAt! - it.clock.now, 8_000);
  assert.equal(it.client.status.error?.code, "overloaded");
});

test("a server that does not speak the protocol is left for good, with the code that says why", async () => {
  const bad: [string | ArrayBuffer, number][] = [
    ["{", 1007], ["[1]", 1002], ["{}", 1002], [new ArrayBuffer(1), 1003], ['{"type":"event","session":"S"}', 1002],
    ['{"type":"caught_up","session":"S","offset":-1}', 1002], ['{"type":"resumed","session":"S","mode":"replay","epoch":"E","from":0.5,"top":1}', 1002],
    ['{"type":"resumed","session":"S","mode":"snapshot","epoch":"E","at":1,"state":{}}', 1002], ['{"type":"error"}', 1002],
  ];
  for (const [raw, code] of bad) {
    const it = world();
    const waiting = it.client.command("session.get", { session: "S" });
    greet(it);
    it.socket.raw(raw);
    assert.equal(it.socket.closedWith?.code, code, String(raw));
    assert.equal(it.client.status.phase, "stopped");
    await assert.rejects(waiting, StoppedError);
  }
});

test("a browser's socket that refuses the code is closed without one", () => {
  const it = world();
  it.client.connect();
  greet(it);
  const close = it.socket.close.bind(it.socket);
  it.socket.close = (code, reason) => {
    if (code !== undefined && code !== 1000 && code < 3000) throw new Error("InvalidAccessError");
    close(code, reason);
  };
  it.socket.raw("{");
  assert.deepEqual(it.socket.closedWith, { code: undefined, reason: undefined });
});

test("at most 24 commands are out at a time; the others follow in order as answers come", async () => {
  const it = world();
  const all = Array.from({ length: 60 }, (_, n) => it.client.command("x", { n }));
  greet(it);
  const seen: unknown[] = [];
  while (it.socket.frames.length > 0) {
    assert.ok(it.socket.frames.length <= 24);
    const frame = it.socket.take()!;
    seen.push(frame["n"]);
    it.socket.play({ type: "ok", id: frame["id"] });
  }
  await Promise.all(all);
  assert.deepEqual(seen, Array.from({ length: 60 }, (_, n) => n));
});

test("subscribing on an open connection; a retryable refusal asks again, another ends it", async () => {
  const it = world();
  it.client.connect();
  greet(it);
  const session = it.client.session("S").open();
  const ask = it.socket.take()!;
  assert.deepEqual([ask["type"], ask["session"], "offset" in ask], ["subscribe", "S", false]);
  it.socket.play({ type: "error", id: ask["id"], error: { code: "unavailable", message: "m", retryable: true, retry_after_ms: 2_000 } });
  await it.clock.advance(2_000);
  const again = it.socket.take()!;
  assert.notEqual(again["id"], ask["id"]);
  it.socket.play({ type: "error", id: again["id"], error: { code: "session_not_found", message: "m" } });
  assert.equal(session.phase, "gone");
});

test("open and close count; the last close unsubscribes; reopening asks anew", () => {
  const it = world();
  it.client.connect();
  greet(it);
  const session = it.client.session("S");
  session.open().open();
  it.socket.play(SNAPSHOT(1));
  it.socket.frames.length = 0;
  session.close();
  assert.deepEqual(it.socket.frames, []);
  session.close();
  assert.equal(it.socket.take()!["type"], "unsubscribe");
  assert.equal(session.phase, "detached");
  it.socket.play(EVENT(2));
  assert.equal(session.view.title, "s1");
  session.open();
  assert.deepEqual([it.socket.frames[0]!["type"], it.socket.frames[0]!["offset"]], ["subscribe", 1]);
});

test("storage: position and view are kept together and continued by the next run", async () => {
  const it = world();
  it.client.session("S").open();
  greet(it);
  it.socket.play(SNAPSHOT(3), EVENT(4));
  await it.clock.advance(1_000);
  const next = world({}, it.storage);
  const session = next.client.session("S").open();
  assert.equal(session.view.title, "t4", "shown before any connection");
  assert.deepEqual(greet(next)["resume"], [{ session: "S", epoch: "E", offset: 4 }]);
  next.socket.play(REPLAY(5), EVENT(5));
  assert.equal(session.view.title, "t5");
});

test("storage: a long conversation is written less often while it grows, and whole when it is closed", async () => {
  let written = 0;
  const kept = new Map<string, string>();
  const it = world({ storage: { getItem: (key) => kept.get(key) ?? null, setItem: (key, value) => ((written += key.includes("session:S") ? 1 : 0), kept.set(key, value)), removeItem: (key) => kept.delete(key) } });
  const session = it.client.session("S").open();
  greet(it);
  const long = SNAPSHOT(1);
  long.state.title = "x".repeat(500_000); // 5 s at 100 characters a millisecond
  it.socket.play(long);
  await it.clock.advance(1_000);
  assert.equal(written, 1);
  for (let offset = 2; offset < 22; offset++) {
    it.socket.play(EVENT(offset, { type: "session.updated", info: { title: "x".repeat(500_000) } }));
    await it.clock.advance(500);
  }
  assert.equal(written, 2);
  it.socket.play(EVENT(22, { type: "session.updated", info: { title: "the end" } }));
  session.close();
  await settled();
  assert.equal(written, 3);
  assert.match([...kept].find(([key]) => key.includes("session:S"))![1], /the end/);
});

test("storage: what is damaged is not used, what fails is told, and the conversation goes on", async () => {
  const it = world({}, new Map([["sessile:session:S", '{"epoch":"E","offset":4}'], ["sessile:outbox", "}"]]));
  const errors: SessileError[] = [];
  it.client.on("error", (error) => errors.push(error));
  it.client.session("S").open();
  assert.deepEqual(greet(it)["resume"], [{ session: "S" }]);
  assert.deepEqual(errors.map((error) => error.code), ["storage"]);

  const refuse = (): never => {
    throw new Error("full");
  };
  const full = world({ storage: { getItem: refuse, setItem: refuse, removeItem: refuse } });
  full.client.on("error", (error) => errors.push(error));
  const session = full.client.session("S").open();
  greet(full);
  full.socket.play(SNAPSHOT(3));
  await full.clock.advance(1_000);
  assert.equal(session.position!.offset, 3);
  assert.ok(errors.every((error) => error instanceof StorageError));
  assert.ok(errors.length >= 3);
});

test("storage that answers later works too", async () => {
  const map = new Map([["sessile:session:S", JSON.stringify({ epoch: "E", offset: 9, state: { items: [], open: [], title: "kept" } })]]);
  const it = world({
    storage: {
      getItem: async (key) => map.get(key) ?? null,
      setItem: async (key, value) => void map.set(key, value),
      removeItem: async (key) => void map.delete(key),
    },
  });
  it.client.session("S").open();
  await settled();
  assert.deepEqual(greet(it)["resume"], [{ session: "S", epoch: "E", offset: 9 }]);
});

test("nothing is sent, and nothing stored over what an earlier run left, before the storage has answered", async () => {
  const earlier = world();
  quietly(earlier.client.session("S").send("early"));
  let answer: (text: string | null) => void = () => undefined;
  const { storage } = earlier;
  const it = world({
    random: () => 0.25,
    storage: {
      getItem: () => new Promise<string | null>((resolve) => (answer = resolve)),
      setItem: (key, value) => storage.set(key, value),
      removeItem: (key) => storage.delete(key),
    },
  });
  const contents = (): unknown[] => (JSON.parse(storage.get("sessile:outbox")!) as { content: string }[]).map((frame) => frame.content);
  it.client.connect();
  quietly(it.client.session("S").send("late"));
  it.client.resume();
  await settled();
  assert.equal(it.sockets.length, 0);
  assert.deepEqual(contents(), ["early"]);
  it.client.suspend();
  answer(storage.get("sessile:outbox")!);
  await settled();
  assert.equal(it.sockets.length, 0, "it was suspended meanwhile");
  assert.deepEqual(contents(), ["early", "late"]);
  it.client.resume();
  greet(it);
  assert.deepEqual(it.socket.frames.map((frame) => frame["content"]), ["early", "late"]);
});

test("what an earlier run left is taken up without connecting, and a damaged outbox is told", async () => {
  const earlier = world();
  quietly(earlier.client.session("S").send("early"));
  const it = world({ random: () => 0.25 }, earlier.storage);
  it.client.suspend();
  quietly(it.client.session("S").send("said while suspended"));
  assert.deepEqual(it.client.unanswered.map((frame) => frame["content"]), ["early", "said while suspended"]);
  assert.equal(it.sockets.length, 0);
  assert.match(it.storage.get("sessile:outbox")!, /early.*said while suspended/);
  const errors: unknown[] = [];
  const damaged = world({}, new Map([["sessile:outbox", "{}"]]));
  damaged.client.on("error", (error) => errors.push(error));
  damaged.client.restore();
  assert.ok(errors[0] instanceof StorageError && errors.length === 1);
  assert.equal(damaged.sockets.length, 0);
});

test("a message written in a tunnel is sent by the next run, with the same id, though the program was killed", async () => {
  const it = world();
  it.client.session("S").send("hello?").catch(() => undefined);
  void it.client.command("session.list").catch(() => undefined);
  const next = world({}, it.storage);
  next.client.connect();
  greet(next);
  assert.equal(next.socket.frames.length, 1);
  const frame = next.socket.take()!;
  assert.equal(frame["content"], "hello?");
  next.socket.play({ type: "ok", id: frame["id"] });
  assert.equal(next.storage.has("sessile:outbox"), false);
});

test("what waited longer than the server remembers ids is not sent, and the program is told", async () => {
  const DAY_MS = 24 * 3600 * 1000;
  const it = world();
  it.client.session("S").send("old").catch(() => undefined);
  const next = world({}, it.storage);
  const errors: SessileError[] = [];
  next.client.on("error", (error) => errors.push(error));
  next.clock.sleep(1000);
  const young = next.client.command("message.create", { session: "S", content: "young" });
  young.catch(() => undefined);
  next.clock.sleep(DAY_MS - 1000);
  greet(next);
  assert.deepEqual(next.socket.frames.map((frame) => frame["content"]), ["young"]);
  const [error] = errors;
  assert.ok(error instanceof ExpiredError && errors.length === 1);
  assert.equal(error.command["content"], "old");
  assert.match(next.storage.get("sessile:outbox")!, /young/);
  assert.doesNotMatch(next.storage.get("sessile:outbox")!, /old/);
  next.socket.drop();
  next.clock.sleep(1000);
  next.client.resume();
  greet(next);
  assert.deepEqual(next.socket.frames, []);
  await assert.rejects(young, ExpiredError);
  assert.equal(next.storage.has("sessile:outbox"), false);
});

test("warm is sent once while somebody types, and soon forgotten without a connection", async () => {
  const it = world();
  const session = it.client.session("S");
  session.warm();
  await it.clock.advance(10_000);
  it.client.suspend();
  await it.clock.advance(20_000);
  it.client.resume();
  greet(it);
  assert.deepEqual(it.socket.frames, []);
  for (let i = 0; i < 50; i++) session.warm();
  assert.deepEqual(it.socket.frames.map((frame) => frame["type"]), ["session.warm"]);
  await it.clock.advance(20_000);
  session.warm();
  assert.equal(it.socket.frames.filter((frame) => frame["type"] === "session.warm").length, 2);
});

test("session.deleted is the end: no resuming, nothing stored, iterators end", async () => {
  const it = world();
  const session = it.client.session("S");
  const events = session.events();
  greet(it);
  it.socket.play(SNAPSHOT(3), EVENT(4), EVENT(5, { type: "session.deleted" }));
  const offsets: number[] = [];
  for await (const frame of events) offsets.push(frame.offset);
  assert.deepEqual(offsets, [4, 5]);
  assert.equal(session.view.deleted, true);
  it.socket.drop();
  await it.clock.advance(2_000);
  assert.equal("resume" in greet(it), false);
  assert.equal([...it.storage.keys()].some((key) => key.includes("session:S")), false);
});

test("a listener that throws hinders nobody", async () => {
  const it = world();
  const uncaught: unknown[] = [];
  const before = process.listeners("uncaughtException");
  process.removeAllListeners("uncaughtException");
  process.on("uncaughtException", (error) => uncaught.push(error));
  it.client.on("status", () => {
    throw new Error("theirs");
  });
  it.client.connect();
  greet(it);
  await settled();
  process.removeAllListeners("uncaughtException");
  for (const listener of before) process.on("uncaughtException", listener);
  assert.equal(it.client.status.phase, "ready");
  assert.ok(uncaught.length > 0 && (uncaught[0] as Error).message === "theirs");
});

test("urls", () => {
  for (const [url, dialled] of [
    ["http://h:1", "ws://h:1/v1/ws"],
    ["https://h/", "wss://h/v1/ws"],
    ["https://h/base/", "wss://h/base/v1/ws"],
    ["wss://h/v1/ws?ticket=t", "wss://h/v1/ws?ticket=t"],
    ["https://h/v1/ws", "wss://h/v1/ws"],
    ["ws://h:1", "ws://h:1/v1/ws"],
    ["ws://h:1/", "ws://h:1/v1/ws"],
    ["wss://[::1]:1", "wss://[::1]:1/v1/ws"],
    ["h:1", "ws://h:1/v1/ws"],
    ["[::1]:1/", "ws://[::1]:1/v1/ws"],
    ["wss://h/behind/a/path", "wss://h/behind/a/path"],
  ] as const) {
    const it = world({ url });
    it.client.connect();
    assert.equal(it.socket.url, dialled);
    assert.deepEqual(it.socket.protocols, ["sessile.v1+json"]);
  }
  const it = world({ url: "ftp://x" });
  assert.throws(() => it.client.connect(), /Not a URL/);
});

test("on a slow link the hello asks for a roll-up, and the address for compression", () => {
  const it = world({ slowLink: true });
  it.client.connect();
  it.socket.accept();
  assert.match(it.socket.url, /\/v1\/ws\?compress=deflate$/);
  assert.equal((it.socket.frames[0] as { rollup_ms?: number }).rollup_ms, 200);
  const plain = world();
  plain.client.connect();
  plain.socket.accept();
  assert.match(plain.socket.url, /\/v1\/ws$/);
  assert.equal("rollup_ms" in (plain.socket.frames[0] as object), false);
});
