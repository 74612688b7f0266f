/** HTTP where no WebSocket gets through, and back; captive portals told from outages. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { FakeHub } from "./fake-hub.js";
import { HttpDoor, page, type Fate } from "./http-door.js";
import { seeded } from "./seeded.js";
import { settled, TestSocket, VirtualClock } from "./virtual.js";
import { SessileClient, StoppedError, View, type ClientOptions, type EventFrame, type Status } from "./surface.js";

const ROUNDS = Number(process.env["SESSILE_TEST_WAYS_ROUNDS"] ?? 200);

/** What becomes of a WebSocket that is dialled. */
type Line = (socket: TestSocket, it: Place) => void;

const refused = (httpStatus: number, retryAfterMs = 0): Line => (socket, it) => {
  socket.refusal = { httpStatus, retryAfterMs };
  it.clock.set(() => socket.drop(), 5);
};
const cut: Line = (socket, it) => void it.clock.set(() => socket.drop(), 5);
const hanging: Line = () => undefined;
/** It works, for `bytes` from the server. */
const open = (bytes = Infinity): Line => (socket, it) => {
  let left = bytes;
  let isOpen = true;
  const connection = it.hub.connect(
    (frame) => {
      if (!isOpen) return;
      left -= JSON.stringify(frame).length;
      if (left >= 0) return socket.play(frame);
      isOpen = false;
      connection.closed();
      it.clock.set(() => socket.drop(), 1);
    },
    (code) => socket.drop(code),
  );
  socket.send = (data) => {
    TestSocket.prototype.send.call(socket, data);
    const frames = socket.frames.splice(0);
    it.clock.set(() => isOpen && connection.received(frames), 1);
  };
  socket.close = () => {
    isOpen = false;
    connection.closed();
  };
  it.clock.set(() => isOpen && socket.accept(), 5);
};

interface Place {
  clock: VirtualClock;
  hub: FakeHub;
  door: HttpDoor;
  client: SessileClient;
  sockets: TestSocket[];
  statuses: Status[];
  line: Line;
}

function place(line: Line, options: Partial<ClientOptions> = {}, random: () => number = () => 0.5): Place {
  const clock = new VirtualClock();
  let made = 0;
  const hub = new FakeHub({
    now: () => clock.now,
    newId: (kind) => `${kind}_${++made}`,
    answer: (prompt) => Array.from({ length: 8 }, (_, i) => ` ${prompt}.${i}é`),
    replayMax: 1_000_000,
    windowEvents: 1024,
    windowBytes: 262_144,
    heartbeatMs: 25_000,
    merge: true,
    ...(options.auth !== undefined && { key: options.auth as string }),
  });
  hub.add("S").command({ type: "session.create", id: "c0" });
  const door = new HttpDoor(hub, clock);
  const it: Place = { clock, hub, door, sockets: [], statuses: [], line, client: null as never };
  class Socket extends TestSocket {
    constructor(url: string, protocols: string[]) {
      super(url, protocols);
      it.sockets.push(this);
      it.line(this, it);
    }
  }
  it.client = new SessileClient({ url: "http://server", WebSocket: Socket, timers: clock, now: () => clock.now, random, fetch: door.fetch, ...options });
  it.client.on("status", (status) => it.statuses.push(status));
  return it;
}

/** Says a word, lets it be answered, and returns the text that is shown. */
async function converse(it: Place, word: string): Promise<string> {
  const session = it.client.session("S").open();
  const sending = session.send(word, { queue: true });
  sending.catch(() => undefined);
  await it.clock.advance(20_000, () => it.hub.sessions.get("S")!.open.size > 0);
  for (let i = 0; i < 40; i++) {
    it.hub.sessions.get("S")!.step();
    await it.clock.advance(40);
  }
  const { answer } = await sending;
  let text = "";
  void answer!.done().then(() => (text = answer!.text));
  await it.clock.advance(60_000, () => text !== "");
  session.close();
  return text;
}
const answered = (word: string): string => Array.from({ length: 8 }, (_, i) => ` ${word}.${i}é`).join("");
const polls = (it: Place): number => it.door.asked.filter(({ path }) => path.includes("/events?")).length;
const probes = (it: Place): typeof it.door.asked => it.door.asked.filter(({ path }) => path === "/v1/ws");

for (const [name, line] of Object.entries({
  "a proxy that refuses the upgrade": refused(403),
  "a proxy that takes the upgrade away": refused(426),
  "cuts that say nothing": cut,
  "handshakes that hang": hanging,
  "a middlebox that cuts after the greeting": open(300),
  "a middlebox that cuts after some events": open(1_500),
})) {
  test(`over HTTP by itself, each event and each command once: ${name}`, async () => {
    const it = place(line, { auth: "secret" });
    const heard: EventFrame[] = [];
    it.client.session("S").on("event", (frame) => heard.push(frame));
    for (const word of ["one", "two", "three", "four"]) assert.equal(await converse(it, word), answered(word));
    assert.equal(it.client.status.via, "http");
    assert.equal(it.client.status.phase, "ready");
    const server = it.hub.sessions.get("S")!;
    assert.deepEqual(server.said, ["one", "two", "three", "four"]);
    for (let i = 1; i < heard.length; i++) assert.ok((heard[i]!.first_offset ?? heard[i]!.offset) > heard[i - 1]!.offset);
    assert.equal(heard[heard.length - 1]!.offset, server.top);
    assert.ok(probes(it).length > 0);
    for (const { path, headers, redirect } of it.door.asked) {
      assert.equal(redirect, "manual");
      assert.equal(headers["authorization"], path === "/v1/ws" ? undefined : "Bearer secret");
    }
    it.client.close();
    await it.clock.advance(0);
    assert.equal(it.clock.pending, 0);
  });
}

test("an idle app over HTTP asks 2.4 times a minute", async () => {
  const it = place(refused(403));
  it.client.session("S").open();
  await it.clock.advance(3_600_000); // the first tries of a WebSocket are over
  const before = it.door.asked.length + it.sockets.length;
  await it.clock.advance(600_000);
  const a_minute = (it.door.asked.length + it.sockets.length - before) / 10;
  assert.ok(a_minute < 3, String(a_minute));
});

test("back to WebSocket when it works again; what is tried meanwhile does not disturb", async () => {
  const it = place(refused(403));
  assert.equal(await converse(it, "one"), answered("one"));
  const dialled = it.sockets.length;
  const drops = it.statuses.filter(({ phase }) => phase === "offline").length;
  it.line = hanging;
  await it.clock.advance(60_000);
  assert.equal(it.sockets.length, dialled + 1);
  assert.equal(await converse(it, "two"), answered("two"));
  await it.clock.advance(120_000, () => it.sockets.length > dialled + 1);
  assert.equal(it.statuses.filter(({ phase }) => phase === "offline").length, drops);
  assert.equal(it.client.status.via, "http");
  it.line = open();
  await it.clock.advance(600_000, () => it.client.status.via === "websocket" && it.client.status.phase === "ready");
  const asked = it.door.asked.length;
  assert.equal(await converse(it, "three"), answered("three"));
  await it.clock.advance(600_000);
  assert.equal(it.door.asked.length, asked);
  assert.deepEqual(it.hub.sessions.get("S")!.said, ["one", "two", "three"]);
});

test("a captive portal is told from an outage, nothing of it is data, and it never sees the key", async () => {
  const tls = Object.assign(new TypeError("fetch failed"), { cause: { code: "ERR_TLS_CERT_ALTNAME_INVALID" } });
  for (const portal of [page(), page(302, { location: "http://login.example" }), page(0), page(511), tls]) {
    const it = place(cut, { auth: "secret" });
    it.door.instead = () => portal;
    it.client.session("S").open();
    await it.clock.advance(10_000);
    assert.equal(it.client.status.captivePortal, true);
    assert.notEqual(it.client.status.phase, "ready");
    assert.equal(it.client.session("S").view.items.size, 0);
    assert.ok(it.door.asked.every(({ path, headers }) => path === "/v1/ws" && headers["authorization"] === undefined));
    assert.ok(it.door.asked.length < 15);
    it.door.instead = null;
    it.line = open();
    await it.clock.advance(30_000);
    assert.equal(it.client.status.phase, "ready");
    assert.equal(it.client.status.captivePortal, false);
    assert.equal(it.client.session("S").phase, "live");
    assert.equal(it.statuses.filter(({ captivePortal }, i) => captivePortal && !it.statuses[i - 1]?.captivePortal).length, 1);
  }
  for (const outage of [new TypeError("fetch failed"), page(404), page(502), page(503, { "retry-after": "1" })]) {
    const it = place(cut);
    it.door.instead = () => outage;
    it.client.session("S").open();
    await it.clock.advance(60_000);
    assert.ok(it.statuses.every(({ captivePortal }) => !captivePortal));
    assert.notEqual(it.client.status.via, "http");
  }
});

test("a portal that comes in the middle, over HTTP: nothing of it is taken, and what was said is said once afterwards", async () => {
  const it = place(refused(403), { auth: "secret" });
  assert.equal(await converse(it, "one"), answered("one"));
  it.door.instead = () => page();
  const session = it.client.session("S").open();
  const sent = session.send("two");
  sent.catch(() => undefined);
  await it.clock.advance(30_000);
  assert.equal(it.client.status.captivePortal, true);
  it.door.instead = null;
  await it.clock.advance(60_000);
  assert.ok((await sent).answer);
  assert.equal(it.client.status.captivePortal, false);
  assert.deepEqual(it.hub.sessions.get("S")!.said, ["one", "two"]);
});

test("words of the platform about a certificate tell a portal too", async () => {
  const it = place((socket, { clock }) => void clock.set(() => socket.drop(1006, "Hostname chat.example not verified"), 5), { fetch: () => Promise.reject(new TypeError("Network request failed")) });
  it.client.connect();
  await it.clock.advance(10);
  assert.equal(it.client.status.captivePortal, true);
});

test("who is not told `Retry-After` asks for it; a server that is full is not asked for HTTP", async () => {
  const it = place(refused(503));
  it.door.instead = ({ headers }) => page(503, { "x-request-id": headers["x-request-id"]!, "retry-after": "3" });
  it.client.connect();
  await it.clock.advance(3_000);
  assert.equal(it.sockets.length, 1);
  await it.clock.advance(100);
  assert.equal(it.sockets.length, 2);
  assert.notEqual(it.client.status.via, "http");
});

test("a refusal for good stops the client, once the server itself is not behind another way", async () => {
  const down = place(refused(403));
  down.door.instead = () => new TypeError("fetch failed");
  const sent = down.client.command("session.list");
  sent.catch(() => undefined);
  await down.clock.advance(1_000);
  assert.notEqual(down.client.status.phase, "stopped"); // nobody but a proxy has said so
  down.door.instead = ({ headers }) => page(403, { "x-request-id": headers["x-request-id"]! });
  await down.clock.advance(10_000);
  assert.equal(down.client.status.phase, "stopped");
  await assert.rejects(sent, (error) => error instanceof StoppedError && error.httpStatus === 403);
  const wrong = place(refused(401));
  wrong.client.connect();
  await wrong.clock.advance(10);
  assert.equal(wrong.client.status.phase, "stopped");
  assert.equal(wrong.door.asked.length, 0);
});

test("a key that is wrong over HTTP stops the client", async () => {
  const it = place(refused(403), { auth: "good" });
  (it.hub.settings as { key: string }).key = "other";
  it.client.session("S").open();
  await it.clock.advance(5_000);
  assert.equal(it.client.status.phase, "stopped");
  assert.equal(it.client.status.httpStatus, 401);
});

test("an unknown session over HTTP is gone, and more sessions than may wait at a time take turns", async () => {
  const it = place(refused(403));
  const gone = it.client.session("nobody's").open();
  gone.live().catch(() => undefined);
  const many = Array.from({ length: 9 }, (_, i) => {
    it.hub.add(`T${i}`).command({ type: "session.create", id: `t${i}` });
    return it.client.session(`T${i}`).open();
  });
  await it.clock.advance(20_000);
  assert.equal(gone.phase, "gone");
  assert.deepEqual(many.map(({ phase }) => phase), many.map(() => "live"));
  many.forEach(({ id }) => it.hub.sessions.get(id)!.command({ type: "session.update", id: `u${id}`, title: id }));
  await it.clock.advance(15_000);
  assert.deepEqual(many.map(({ view }) => view.title), many.map(({ id }) => id));
  many.forEach((session) => session.close());
  await it.clock.advance(5_000);
  const before = polls(it);
  await it.clock.advance(20_000);
  assert.equal(polls(it), before);
});

test("another network: the connection is given up at once and resumed by cursor, and a WebSocket comes first again", async () => {
  const it = place(open());
  assert.equal(await converse(it, "one"), answered("one"));
  it.client.session("S").open();
  const [dialled, at] = [it.sockets.length, it.client.session("S").position!];
  const resumed: unknown[] = [];
  it.client.session("S").on("event", (frame) => resumed.push(frame));
  it.line = cut;
  it.client.reconnect();
  assert.equal(it.sockets.length, dialled + 1);
  await it.clock.advance(5_000);
  assert.equal(it.client.status.via, "http");
  it.line = open();
  it.client.reconnect();
  await it.clock.advance(50);
  assert.deepEqual([it.client.status.via, it.client.status.phase], ["websocket", "ready"]);
  await it.clock.advance(1_000);
  assert.deepEqual(it.client.session("S").position, at);
  assert.deepEqual(resumed, []);
  it.client.suspend();
  it.client.reconnect();
  await it.clock.advance(60_000);
  assert.equal(it.client.status.phase, "suspended");
});

test(`${ROUNDS} generated journeys over HTTP: requests that are lost, answers that are cut, suspensions, ways that open and close`, async () => {
  for (let seed = 1; seed <= ROUNDS; seed++) {
    const random = seeded(seed);
    const it = place(refused(403), {}, random);
    const heard: EventFrame[] = [];
    const session = it.client.session("S").open({ epoch: "", offset: 0 });
    session.on("event", (frame) => heard.push(frame));
    it.door.fate = (): Fate => (random() < 0.85 ? "whole" : random() < 0.5 ? "lost" : "cut");
    const server = it.hub.sessions.get("S")!;
    let said = 0;
    for (let i = 0; i < 40; i++) {
      const dice = random();
      if (dice < 0.4) session.send(`m${++said}`, { queue: true }).catch(() => undefined);
      else if (dice < 0.45) it.client.suspend();
      else if (dice < 0.5) it.client.reconnect();
      else if (dice < 0.6) it.line = [refused(403), cut, hanging, open(1_000), open()][Math.floor(random() * 5)]!;
      else if (dice < 0.65) it.hub.forgetConnections();
      it.client.resume();
      for (let steps = Math.floor(random() * 6); steps > 0; steps--) server.step(Math.floor(random() * 3));
      await it.clock.advance(random() * 2_000);
    }
    it.door.fate = () => "whole";
    for (let left = 0; left < 400 && (server.open.size > 0 || server.queue.length > 0); left++) server.step();
    const isTogether = (): boolean => session.phase === "live" && session.position!.offset === server.top && it.client.unanswered.length === 0;
    for (let tries = 0; tries < 400 && !isTogether(); tries++) {
      await it.clock.advance(500);
      server.step();
    }
    assert.ok(isTogether(), `seed ${seed}: ${JSON.stringify([session.phase, session.position, server.top, it.client.status, it.client.unanswered])}`);
    const truth = new View();
    truth.load(server.snapshot());
    assert.deepEqual([...session.view.items.keys()].sort(), [...truth.items.keys()].sort(), `seed ${seed}`);
    for (const [id, item] of truth.items) assert.deepEqual(session.view.items.get(id), item, `seed ${seed}: ${id}`);
    assert.equal(new Set(server.said).size, server.said.length, `seed ${seed}: said twice`);
    const numbers = server.said.map((word) => Number(word.slice(1)));
    assert.deepEqual(numbers, [...numbers].sort((one, other) => one - other), `seed ${seed}: said in another order`);
    for (let i = 1; i < heard.length; i++) assert.equal(heard[i]!.first_offset ?? heard[i]!.offset, heard[i - 1]!.offset + 1, `seed ${seed}`);
    it.client.close();
    await settled();
  }
});
