/** A client in virtual time: a clock that moves when told, sockets that a test plays the server of, a storage in memory. */
import { unpack, pack } from "../src/codec.js";
import { ENCODINGS, SessileClient, SUBPROTOCOLS_FOR_TESTS } from "./surface.js";
import type { ClientOptions, Encoding, StorageLike, WebSocketLike } from "./surface.js";

export class VirtualClock {
  now = 1_760_000_000_000;
  private timers: { at: number; run: () => void; handle: number }[] = [];
  private handles = 0;

  readonly set = (run: () => void, ms: number): number => {
    const handle = ++this.handles;
    this.timers.push({ at: this.now + ms, run, handle });
    return handle;
  };
  readonly clear = (handle: unknown): void => {
    this.timers = this.timers.filter((timer) => timer.handle !== handle);
  };

  get pending(): number {
    return this.timers.length;
  }
  next(): number | null {
    return this.timers.length === 0 ? null : Math.min(...this.timers.map((timer) => timer.at));
  }
  /** Runs what falls due within `ms`, in order; stops early when `until` holds. */
  async advance(ms: number, until: () => boolean = () => false): Promise<void> {
    const end = this.now + ms;
    for (let runs = 0; ; runs++) {
      if (runs > 100_000) throw new Error("timers run in circles");
      await settled();
      if (until()) return;
      const at = this.next();
      if (at === null || at > end) break;
      this.now = Math.max(this.now, at);
      const index = this.timers.findIndex((timer) => timer.at === at);
      this.timers.splice(index, 1)[0]!.run();
    }
    this.now = end;
    await settled();
  }
  /** The device slept: time has passed, and no timer ran in it. */
  sleep(ms: number): void {
    this.now += ms;
  }
}

export function settled(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}

export class TestSocket implements WebSocketLike {
  binaryType = "";
  refusal?: { httpStatus: number; retryAfterMs: number };
  onopen: ((event: unknown) => void) | null = null;
  onmessage: ((event: unknown) => void) | null = null;
  onclose: ((event: unknown) => void) | null = null;
  onerror: ((event: unknown) => void) | null = null;
  readonly frames: Record<string, unknown>[] = [];
  closedWith = null as { code: number | undefined; reason: string | undefined } | null;

  constructor(
    readonly url: string,
    readonly protocols: string[],
  ) {}

  get encoding(): Encoding {
    return this.protocols[0] === SUBPROTOCOLS_FOR_TESTS.json ? "json" : ENCODINGS.msgpack;
  }
  send(data: string | Uint8Array): void {
    this.frames.push(...(unpack(this.encoding, data).frames as unknown as Record<string, unknown>[]));
  }
  close(code?: number, reason?: string): void {
    this.closedWith = { code, reason };
  }

  accept(): void {
    this.onopen?.({});
  }
  play(...frames: object[]): void {
    const data = pack(this.encoding, frames as never);
    this.raw(typeof data === "string" ? data : data.slice().buffer);
  }
  raw(data: string | ArrayBuffer): void {
    this.onmessage?.({ data });
  }
  drop(code = 1006, reason = ""): void {
    this.onerror?.({});
    this.onclose?.({ code, reason });
  }
  take(): Record<string, unknown> | undefined {
    return this.frames.shift();
  }
}

export interface World {
  clock: VirtualClock;
  client: SessileClient;
  sockets: TestSocket[];
  /** The newest socket. */
  socket: TestSocket;
  storage: Map<string, string>;
}

export function world(options: Partial<ClientOptions> & { random?: () => number } = {}, storage = new Map<string, string>()): World {
  const clock = new VirtualClock();
  const sockets: TestSocket[] = [];
  class Socket extends TestSocket {
    constructor(url: string, protocols: string[]) {
      super(url, protocols);
      sockets.push(this);
    }
  }
  const store: StorageLike = {
    getItem: (key) => storage.get(key) ?? null,
    setItem: (key, value) => storage.set(key, value),
    removeItem: (key) => storage.delete(key),
  };
  const client = new SessileClient({
    url: "http://server",
    WebSocket: Socket,
    timers: clock,
    now: () => clock.now,
    random: () => 0.5,
    storage: store,
    fetch: null,
    ...options,
  });
  return {
    clock,
    client,
    sockets,
    storage,
    get socket() {
      return sockets[sockets.length - 1]!;
    },
  };
}

export const READY = { type: "ready", connection: "con_1", heartbeat_ms: 25_000, window_events: 1024, window_bytes: 262_144 };

/** Accepts the newest socket and answers its `hello`, which is returned. */
export function greet(it: World, ready: object = READY): Record<string, unknown> {
  it.socket.accept();
  const hello = it.socket.take();
  it.socket.play(ready);
  return hello!;
}
