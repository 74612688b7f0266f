/**
 * A phone that goes through tunnels: generated conversations under generated faults, in virtual time. Whatever happened, in
 * the end the text shown is the log's, every command was applied once, and nothing is left waiting.
 */
import assert from "node:assert/strict";
import { test } from "node:test";
import { FakeHub } from "./fake-hub.js";
import { seeded } from "./seeded.js";
import { TestSocket, VirtualClock, settled } from "./virtual.js";
import { ENCODINGS, SessileClient, View, type Encoding, type EventFrame, type Piece, type Session } from "./surface.js";

const ROUNDS = Number(process.env["SESSILE_TEST_TUNNEL_ROUNDS"] ?? 1000);

class Tunnel {
  readonly clock = new VirtualClock();
  readonly storage = new Map<string, string>();
  readonly hub: FakeHub;
  readonly random: () => number;
  client!: SessileClient;
  session!: Session;
  heard: EventFrame[] = [];
  private made = 0;
  private live: { socket: TestSocket; drop: () => void; mute: () => void } | null = null;

  constructor(seed: number) {
    const random = (this.random = seeded(seed));
    this.hub = new FakeHub({
      now: () => this.clock.now,
      newId: (kind) => `${kind}_${++this.made}`,
      answer: (prompt, attempt) => Array.from({ length: 1 + Math.floor(random() * 12) }, (_, i) => ` ${prompt}.${attempt}.${i}é😀`),
      replayMax: random() < 0.5 ? 1_000_000 : 5,
      windowEvents: random() < 0.5 ? 1024 : 4,
      windowBytes: 262_144,
      heartbeatMs: 25_000,
      merge: random() < 0.5,
    });
    this.hub.add("S").command({ type: "session.create", id: "c0" });
    this.launch(ENCODINGS[random() < 0.5 ? "json" : "msgpack"]);
  }

  /** The program starts (again), with what the storage holds. */
  launch(encoding: Encoding): void {
    const tunnel = this;
    class Socket extends TestSocket {
      constructor(url: string, protocols: string[]) {
        super(url, protocols);
        tunnel.dialled(this);
      }
    }
    this.client = new SessileClient({
      url: "http://s",
      encoding,
      WebSocket: Socket,
      timers: this.clock,
      now: () => this.clock.now,
      random: this.random,
      storage: {
        getItem: (key) => this.storage.get(key) ?? null,
        setItem: (key, value) => this.storage.set(key, value),
        removeItem: (key) => this.storage.delete(key),
      },
      fetch: null,
    });
    this.session = this.client.session("S").open();
    this.session.on("event", (frame) => this.heard.push(frame));
    this.client.connect();
  }

  /** The program is killed: no goodbye, no last writing. */
  kill(): void {
    this.live?.mute();
    this.live?.socket.close();
    this.live = null;
    this.clock["timers"].length = 0;
  }

  private dialled(socket: TestSocket): void {
    const fate = this.random();
    if (fate < 0.2) return void this.clock.set(() => socket.drop(), 5 + fate * 100);
    if (fate < 0.25) return; // a black hole
    let open = true;
    const delay = Math.floor(this.random() * 40);
    const later = (run: () => void): void => void this.clock.set(() => open && run(), delay);
    const connection = this.hub.connect(
      (frame) => later(() => socket.play(frame)),
      (code) => later(() => socket.drop(code)),
    );
    const mute = (): void => {
      open = false;
      connection.closed();
    };
    const send = socket.send.bind(socket);
    socket.send = (data) => {
      send(data);
      const frames = socket.frames.splice(0);
      later(() => connection.received(frames));
    };
    const close = socket.close.bind(socket);
    socket.close = (code, reason) => {
      close(code, reason);
      mute();
    };
    const drop = (): void => {
      mute();
      socket.drop();
    };
    this.live = { socket, drop, mute };
    later(() => socket.accept());
  }

  async fault(): Promise<void> {
    const dice = this.random();
    if (dice < 0.4) this.live?.drop();
    else if (dice < 0.55) this.live?.mute(); // half-open: nothing comes any more, and nobody says so
    else if (dice < 0.7) {
      this.client.suspend();
      await this.clock.advance(this.random() * 5_000);
      this.client.resume();
    } else if (dice < 0.8) this.hub.say({ type: "goaway", reason: "restart", after_ms: Math.floor(this.random() * 300) });
    else if (dice < 0.92) {
      this.kill();
      await settled();
      this.heard = [];
      this.launch(ENCODINGS[this.random() < 0.5 ? "json" : "msgpack"]);
    } else this.clock.sleep(this.random() * 200_000);
  }
}

async function round(seed: number): Promise<void> {
  const tunnel = new Tunnel(seed);
  const { hub, clock, random } = tunnel;
  const server = hub.sessions.get("S")!;
  let said = 0;
  for (let i = 0; i < 40; i++) {
    const dice = random();
    if (dice < 0.3) tunnel.session.send(`m${++said}`, { queue: true }).catch(() => undefined);
    else if (dice < 0.36) tunnel.session.regenerate().catch(() => undefined);
    else if (dice < 0.42) tunnel.session.cancel([...server.open.keys()][0] ?? "none").catch(() => undefined);
    else if (dice < 0.62) await tunnel.fault();
    else if (dice < 0.63) hub.loseLog("S");
    for (let steps = Math.floor(random() * 6); steps > 0; steps--) server.step(Math.floor(random() * 3));
    await clock.advance(random() * 400);
  }
  // The faults end: everything must come together by itself.
  for (let left = 0; left < 400 && (server.open.size > 0 || server.queue.length > 0); left++) server.step();
  const isTogether = (): boolean =>
    tunnel.session.phase === "live" && tunnel.session.position!.offset === server.top && tunnel.client.unanswered.length === 0;
  tunnel.client.resume();
  for (let tries = 0; tries < 400 && !isTogether(); tries++) {
    await clock.advance(500);
    server.step();
  }
  assert.ok(isTogether(), `seed ${seed}: not together: ${JSON.stringify([tunnel.session.phase, tunnel.session.position, server.top, tunnel.client.status])}`);

  const truth = new View();
  truth.load(server.snapshot());
  const { view } = tunnel.session;
  assert.deepEqual([...view.items.keys()].sort(), [...truth.items.keys()].sort(), `seed ${seed}`);
  for (const [id, item] of truth.items) assert.deepEqual(view.items.get(id), item, `seed ${seed}: ${id}`);
  assert.equal(view.head, truth.head);
  const words = [...server.items.values()].filter((item) => item.role === "user").map((item) => item.content[0]!.text!);
  assert.deepEqual(words.length, new Set(words).size, `seed ${seed}: a command was applied twice`);
  const numbers = server.said.map((word) => Number(word.slice(1)));
  assert.deepEqual(numbers, [...numbers].sort((one, other) => one - other), `seed ${seed}: said in another order`);
  assert.equal(tunnel.storage.get("sessile:outbox"), undefined);
  for (let i = 1; i < tunnel.heard.length; i++) {
    const [before, after] = [tunnel.heard[i - 1]!, tunnel.heard[i]!];
    if (before.epoch === after.epoch) assert.ok((after.first_offset ?? after.offset) > before.offset, `seed ${seed}: an event came twice`);
  }
  tunnel.client.close();
}

test(`${ROUNDS} rounds of tunnels, suspensions, kills and lost logs: the text shown is the log's`, async () => {
  for (let seed = 1; seed <= ROUNDS; seed++) await round(seed);
});

test("an answer is an iterable that survives cuts: what its pieces add up to is the text", async () => {
  for (let seed = 1000; seed < 1040; seed++) {
    const tunnel = new Tunnel(seed);
    const { hub, clock, random } = tunnel;
    const server = hub.sessions.get("S")!;
    const sending = tunnel.session.send("go");
    for (let i = 0; i < 200 && server.open.size === 0; i++) await clock.advance(500);
    const reading = (async () => {
      const { answer } = await sending;
      let shown = "";
      for await (const piece of answer! as AsyncIterable<Piece>) {
        shown = piece.restarted ? piece.delta : shown + piece.delta;
        assert.equal(shown, piece.text);
      }
      return [shown, (await answer!.done()).status];
    })();
    for (let i = 0; i < 300 && server.open.size > 0; i++) {
      server.step();
      if (random() < 0.3) tunnel["live"]?.drop();
      await clock.advance(random() * 300);
    }
    let result: unknown = null;
    reading.then(
      (value) => (result = value),
      (error: unknown) => (result = error),
    );
    for (let i = 0; i < 300 && result === null; i++) await clock.advance(500);
    const text = [...server.items.values()].find((item) => item.role === "assistant")!.content[0]!.text;
    if (result instanceof Error && /ended while nobody read/.test(result.message)) assert.ok(hub.settings.replayMax === 5);
    else assert.deepEqual(result, [text, "completed"], `seed ${seed}`);
    tunnel.client.close();
  }
});
