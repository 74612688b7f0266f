/** Stands for the SDK's own test/virtual.ts: the same world, but the client is a phone's, over React Native's WebSocket. */
import { pack, unpack } from "../../../typescript/src/codec.js";
import { TestSocket as Played, VirtualClock, READY, settled } from "../../../typescript/test/virtual.js";
import { PhoneClient, type PhoneOptions } from "../../src/index.js";
import RCTDeviceEventEmitter from "react-native/Libraries/EventEmitter/RCTDeviceEventEmitter";
import WebSocket from "react-native/Libraries/WebSocket/WebSocket";
import { dials, emitsBy, type NativeSocket } from "./native.js";

export { VirtualClock, READY, settled };
emitsBy((name, event) => RCTDeviceEventEmitter.emit(name, event));

/** The server's end of a line, with what the runner asks of a socket. */
export class TestSocket extends Played {
  constructor(private readonly line: NativeSocket) {
    super(line.url, line.protocols);
    line.onMessage = (data) => this.frames.push(...(unpack(this.encoding, data).frames as unknown as Record<string, unknown>[]));
    line.onClose = (code, reason) => (this.closedWith = { code, reason });
  }
  override accept(): void {
    this.line.opened();
  }
  override play(...frames: object[]): void {
    this.raw(pack(this.encoding, frames as never) as never);
  }
  override raw(data: string | ArrayBuffer | Uint8Array): void {
    this.line.play(typeof data === "string" ? data : new Uint8Array(data as ArrayBuffer));
  }
  /** Android's words. A cut has none of HTTP. */
  override drop(code = 1006, reason = ""): void {
    const status = this.refusal?.httpStatus;
    if (status !== undefined) this.line.failed(`Expected HTTP 101 response but was '${status} X'`);
    else if (code === 1006) this.line.failed("Software caused connection abort");
    else this.line.closed(code, reason);
  }
}

export function world(options: Partial<PhoneOptions> = {}, storage = new Map<string, string>()): unknown {
  const clock = new VirtualClock();
  const sockets: TestSocket[] = [];
  dials.splice(0, dials.length, (line) => void sockets.push(new TestSocket(line)));
  const client = new PhoneClient({
    url: "http://server",
    fetch: async (_url, { headers }) => {
      const { refusal } = sockets[sockets.length - 1]!;
      if (refusal === undefined) throw new TypeError("Network request failed");
      const all: Record<string, string> = { "x-request-id": headers["x-request-id"]!, "retry-after-ms": String(refusal.retryAfterMs) };
      return { status: refusal.httpStatus, headers: { get: (name) => all[name] ?? null }, text: () => Promise.resolve("{}") };
    },
    WebSocket: WebSocket as never,
    timers: clock,
    now: () => clock.now,
    random: () => 0.5,
    storage: {
      getItem: (key) => storage.get(key) ?? null,
      setItem: (key, value) => storage.set(key, value),
      removeItem: (key) => storage.delete(key),
    },
    appState: { currentState: "active", addEventListener: () => ({ remove: () => undefined }) },
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
