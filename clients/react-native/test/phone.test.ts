/** What the client of a phone does when the app goes and comes, and when the network does. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { seeded } from "../../typescript/test/seeded.js";
import { greet, settled } from "../../typescript/test/virtual.js";
import { ulids } from "../src/index.js";
import { FakeAppState, FakeBackground, phone, SlowStorage, type Phone } from "./phone-world.js";

const STATE = (at: number, title = "one") => ({ type: "resumed", session: "S", mode: "snapshot", epoch: "E", at, state: { items: [], open: [], title } });
const RENAMED = (offset: number, title: string) => ({ type: "event", session: "S", epoch: "E", offset, event: { type: "session.updated", title } });
const saved = (it: Phone): { offset: number } | null => JSON.parse(it.storage.disk.get("sessile:session:S") ?? "null") as { offset: number } | null;
const outbox = (it: Phone): string[] => (JSON.parse(it.storage.disk.get("sessile:outbox") ?? "[]") as { content: string }[]).map((frame) => frame.content);
const closeCode = (it: Phone): number | undefined => it.socket.closedWith?.code;
const quietly = (promise: Promise<unknown>): void => void promise.catch(() => undefined);

async function started(options: Parameters<typeof phone>[0] = {}, storage?: SlowStorage): Promise<Phone> {
  const it = phone(options, storage);
  it.client.start();
  await settled();
  return it;
}

test("the socket is closed in the background, nothing ticks there, and it resumes by cursor", async () => {
  const it = await started();
  it.client.session("S").open();
  await settled();
  greet(it as never);
  it.socket.play(STATE(7));
  it.appState.go("inactive");
  assert.equal(it.client.status.phase, "ready");
  it.appState.go("background");
  assert.equal(closeCode(it), 1000);
  assert.equal(it.clock.pending, 0);
  await it.client.stored();
  assert.equal(saved(it)!.offset, 7);
  await it.clock.advance(3_600_000);
  assert.equal(it.sockets.length, 1);
  it.appState.go("inactive");
  it.appState.go("active");
  assert.equal(it.sockets.length, 2);
  assert.deepEqual(greet(it as never)["resume"], [{ session: "S", epoch: "E", offset: 7 }]);
});

test("an app that starts in the background dials nothing, and keeps what is said there", async () => {
  const appState = new FakeAppState();
  appState.currentState = "background";
  const it = await started({ appState });
  quietly(it.client.session("S").send("later"));
  await it.client.stored();
  await it.clock.advance(60_000);
  assert.equal(it.sockets.length, 0);
  assert.deepEqual(outbox(it), ["later"]);
  appState.go("active");
  greet(it as never);
  assert.deepEqual(it.socket.frames.map((frame) => frame["content"]), ["later"]);
});

test("without a network nothing is dialled; when one comes, at once; with another address, anew", async () => {
  const it = await started();
  greet(it as never);
  it.network.tell({ type: "none", isConnected: false, details: null });
  assert.equal(closeCode(it), 1000);
  assert.equal(it.clock.pending, 0);
  await it.clock.advance(600_000);
  assert.equal(it.sockets.length, 1);
  it.network.tell({ type: "cellular", isConnected: true, details: { ipAddress: "100.64.0.9" } });
  assert.equal(it.sockets.length, 2);
  greet(it as never);
  it.network.tell({ isConnected: null });
  assert.equal(it.sockets.length, 2);
  it.network.tell({ details: { ipAddress: "100.64.0.10" } });
  assert.equal(it.sockets.length, 3);
  it.appState.go("background");
  it.network.tell({ type: "wifi", details: { ipAddress: "10.0.0.7" } });
  assert.equal(it.sockets.length, 3);
  it.appState.go("active");
  assert.equal(it.sockets.length, 4);
});

test("commands under way have their moment in the background, and the platform gets it back after the disk", async () => {
  const background = new FakeBackground();
  const it = await started({ background });
  greet(it as never);
  const sending = it.client.session("S").send("go");
  const { id } = it.socket.take()!;
  it.storage.isSlow = true;
  it.appState.go("background");
  assert.equal(closeCode(it), undefined);
  assert.equal(background.open.size, 1);
  it.socket.play({ type: "ok", id, item_id: "i", offset: 2 });
  await sending;
  assert.equal(closeCode(it), 1000);
  assert.equal(background.open.size, 1);
  await it.storage.work();
  assert.equal(background.open.size, 0);
  assert.equal(it.clock.pending, 0);
});

test("the moment ends when nothing answers, when the platform takes it back, and when the app returns", async () => {
  const background = new FakeBackground();
  const it = await started({ background, graceMs: 3_000 });
  greet(it as never);
  quietly(it.client.session("S").send("go"));
  it.appState.go("background");
  await it.clock.advance(2_999);
  assert.equal(closeCode(it), undefined);
  await it.clock.advance(1);
  assert.equal(closeCode(it), 1000);
  assert.equal(background.open.size, 0);

  it.appState.go("active");
  greet(it as never);
  it.appState.go("background");
  background.expire();
  assert.equal(closeCode(it), 1000);
  assert.equal(background.open.size, 0);
  it.appState.go("active");
  greet(it as never);
  const dialled = it.sockets.length;
  it.appState.go("background");
  it.appState.go("active");
  await settled();
  assert.equal(it.sockets.length, dialled);
  assert.equal(closeCode(it), undefined);
  assert.equal(background.open.size, 0);
  it.client.close();
  assert.equal(it.appState.listeners.size + it.network.listeners.size, 0);
});

test("what was written offline is sent once, in order, by its ids, over killed apps", async () => {
  const disk = new Map<string, string>();
  const ids: unknown[] = [];
  let runs = 0;
  for (const words of [["a", "b"], ["c"], []]) {
    const it = phone({ random: seeded(words.length) }, new SlowStorage(disk));
    it.clock.now += 1_000 * runs++;
    it.network.state = { type: "none", isConnected: false };
    it.client.start();
    for (const word of words) quietly(it.client.session("S").send(word));
    await settled();
    await it.client.stored();
    if (words.length > 0) continue; // killed
    it.network.tell({ type: "wifi", isConnected: true });
    greet(it as never);
    assert.deepEqual(it.socket.frames.map((frame) => frame["content"]), ["a", "b", "c"]);
    ids.push(...it.socket.frames.splice(0).map((frame) => frame["id"]));
    it.socket.drop();
    await it.clock.advance(1_000);
    greet(it as never);
    assert.deepEqual(it.socket.frames.map((frame) => frame["id"]), ids);
    for (const id of ids) it.socket.play({ type: "ok", id, item_id: "i", offset: 2 });
    await it.client.stored();
    assert.equal(disk.has("sessile:outbox"), false);
  }
  assert.deepEqual([...ids].sort(), ids);
});

test("what is said while the disk is read goes behind what an earlier run left, and is not written over it", async () => {
  const left = JSON.stringify([{ type: "message.create", id: ulids(() => 0)(1_760_000_000_000), session: "S", content: "early" }]);
  const storage = new SlowStorage(new Map([["sessile:outbox", left]]));
  storage.isSlow = true;
  const it = phone({}, storage);
  it.client.start();
  quietly(it.client.session("S").send("late"));
  await settled();
  assert.deepEqual(outbox(it), ["early"]);
  assert.equal(it.sockets.length, 0);
  await storage.work();
  assert.deepEqual(outbox(it), ["early", "late"]);
  greet(it as never);
  assert.deepEqual(it.socket.frames.map((frame) => frame["content"]), ["early", "late"]);
});

test("a position is stored after what was shown, never before", async () => {
  const it = await started();
  const drawn = it.client.draws("S");
  const session = it.client.session("S").open();
  await settled();
  greet(it as never);
  it.socket.play(STATE(7));
  const first = session.view.version;
  await it.clock.advance(1_000);
  assert.equal(saved(it), null);
  it.client.shown("S", first);
  await it.client.stored();
  assert.equal(saved(it)!.offset, 7);
  it.socket.play(RENAMED(8, "two"));
  it.appState.go("background");
  await it.client.stored();
  assert.equal(saved(it)!.offset, 7, "the app is killed here: 8 comes again");
  it.client.shown("S", session.view.version);
  await it.client.stored();
  assert.equal(saved(it)!.offset, 8);
  drawn();
  it.appState.go("active");
  greet(it as never);
  it.socket.play({ type: "resumed", session: "S", mode: "replay", epoch: "E", from: 9, top: 9 }, RENAMED(9, "three"));
  await it.clock.advance(1_000);
  await it.client.stored();
  assert.equal(saved(it)!.offset, 9, "nobody draws it: stored as it comes");
});

test("a session that was deleted leaves nothing behind, though its position waited", async () => {
  const it = await started();
  it.client.draws("S");
  const session = it.client.session("S").open();
  await settled();
  greet(it as never);
  it.socket.play(STATE(7));
  await it.clock.advance(1_000);
  it.socket.play({ type: "event", session: "S", epoch: "E", offset: 8, event: { type: "session.deleted" } });
  it.client.shown("S", session.view.version + 1);
  await it.client.stored();
  assert.equal(saved(it), null);
});

test("a connected app that idles wakes at most three times a minute, and in the background never", async () => {
  const it = await started();
  it.client.session("S").open();
  await settled();
  greet(it as never);
  it.socket.play(STATE(7), { type: "caught_up", session: "S", offset: 7 });
  await it.clock.advance(2_000);
  // What comes within a second of the last is one wake-up: the radio and the processor are still awake.
  const wakings: number[] = [];
  const wakes = (): void => void (it.clock.now - (wakings.at(-1) ?? -Infinity) >= 1_000 && wakings.push(it.clock.now));
  const { set } = it.clock;
  Object.assign(it.clock, { set: (run: () => void, ms: number) => set(() => (wakes(), run()), ms) });
  it.client.resume(); // arms the timers anew, through what counts
  it.socket.frames.length = 0;
  it.socket.play({ type: "pong" });
  const heard = { at: it.clock.now, said: it.clock.now };
  const begun = it.clock.now;
  while (it.clock.now < begun + 3_600_000) {
    await it.clock.advance(100);
    for (const frame of it.socket.frames.splice(0)) {
      heard.at = it.clock.now;
      if (frame["type"] !== "ping") continue;
      heard.said = it.clock.now;
      wakes();
      it.socket.play({ type: "pong" });
    }
    if (it.clock.now - Math.min(heard.at, heard.said) < 25_000) continue;
    heard.said = it.clock.now; // the server's half of 6.3
    heard.at = it.clock.now;
    wakes();
    it.socket.play({ type: "ping" });
  }
  assert.equal(it.client.status.phase, "ready");
  assert.equal(it.sockets.length, 1);
  assert.ok(wakings.length >= 60, `${wakings.length} wake-ups an hour: the connection was not kept`);
  assert.ok(wakings.length / 60 <= 3, `${wakings.length / 60} wake-ups a minute`);
  it.appState.go("background");
  wakings.length = 0;
  await it.clock.advance(3_600_000);
  assert.equal(wakings.length, 0);
});
