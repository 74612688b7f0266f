/**
 * React Native's native half, as its JavaScript sees it: `RCTWebSocket` speaks to a server that the tests play, in bytes that come
 * in pieces, and tells events by the device's emitter. The WebSocket class above it is React Native's own file.
 */
import { framed, Line, text, utf8 } from "./bytes.js";

type Emit = (name: string, event: object) => void;
let emit: Emit = () => undefined;
let chance = 1;
/** A small source of chance for masks and for where the line cuts. */
const roll = (below: number): number => (chance = (Math.imul(chance, 1_103_515_245) + 12_345) >>> 1) % below;

/** Where React Native's emitter is handed over. */
export function emitsBy(how: Emit): void {
  emit = how;
}

export const lines = new Map<number, NativeSocket>();
/** Told of each dial. */
export const dials: ((socket: NativeSocket) => void)[] = [];

const DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
export function base64(bytes: Uint8Array): string {
  let out = "";
  for (let i = 0; i < bytes.length; i += 3) {
    const [a, b, c] = [bytes[i]!, bytes[i + 1], bytes[i + 2]];
    out += DIGITS[a >> 2]! + DIGITS[((a & 3) << 4) | ((b ?? 0) >> 4)]!;
    out += b === undefined ? "=" : DIGITS[((b & 15) << 2) | ((c ?? 0) >> 6)]!;
    out += c === undefined ? "=" : DIGITS[c & 63]!;
  }
  return out;
}
export function unbase64(digits: string): Uint8Array {
  const out: number[] = [];
  let bits = 0;
  let held = 0;
  for (const digit of digits.replace(/=+$/, "")) {
    held = ((held << 6) | DIGITS.indexOf(digit)) & 0xffffff;
    bits += 6;
    if (bits >= 8) out.push((held >> (bits -= 8)) & 255);
  }
  return Uint8Array.from(out);
}

/** One line, both ends: the phone's native socket and the server that a test plays. */
export class NativeSocket {
  private readonly incoming = new Line();
  private readonly outgoing = new Line();
  isOver = false;
  /** What the server heard. */
  onMessage: (data: string | Uint8Array) => void = () => undefined;
  onClose: (code: number, reason: string) => void = () => undefined;

  constructor(
    readonly id: number,
    readonly url: string,
    readonly protocols: string[],
  ) {}

  /** The phone writes: masked, and in pieces. */
  write(opcode: number, payload: Uint8Array): void {
    const mask = Uint8Array.from([roll(256), roll(256), roll(256), roll(256)]);
    for (const piece of pieces(framed(opcode, payload, mask))) {
      for (const heard of this.outgoing.read(piece)) {
        if (heard.opcode === 8) this.onClose((heard.payload[0]! << 8) | heard.payload[1]!, text(heard.payload.subarray(2)));
        else this.onMessage(heard.opcode === 1 ? text(heard.payload) : heard.payload);
      }
    }
  }

  /** The server writes: in one frame or in fragments, in pieces. */
  play(data: string | Uint8Array): void {
    const opcode = typeof data === "string" ? 1 : 2;
    const payload = typeof data === "string" ? utf8(data) : data;
    const cut = payload.length > 1 && roll(3) === 0 ? 1 + roll(payload.length - 1) : payload.length;
    const bytes = [framed(opcode, payload.subarray(0, cut), undefined, cut === payload.length)];
    if (cut < payload.length) bytes.push(framed(9, utf8("?")), framed(0, payload.subarray(cut)));
    for (const frame of bytes) for (const piece of pieces(frame)) this.hear(piece);
  }

  opened(): void {
    emit("websocketOpen", { id: this.id, protocol: this.protocols[0] });
  }
  closed(code: number, reason: string): void {
    this.isOver = true;
    emit("websocketClosed", { id: this.id, code, reason });
  }
  failed(message: string): void {
    this.isOver = true;
    emit("websocketFailed", { id: this.id, message });
  }

  private hear(piece: Uint8Array): void {
    for (const { opcode, payload } of this.incoming.read(piece)) {
      if (this.isOver || opcode >= 8) continue; // a ping is answered by the platform; JavaScript never sees it
      const event = opcode === 1 ? { type: "text", data: text(payload) } : { type: "binary", data: base64(payload) };
      emit("websocketMessage", { id: this.id, ...event });
    }
  }
}

function pieces(bytes: Uint8Array): Uint8Array[] {
  const out: Uint8Array[] = [];
  for (let at = 0; at < bytes.length; ) {
    const size = bytes.length > 64 ? 1 + roll(bytes.length) : 1 + roll(8);
    out.push(bytes.subarray(at, at + size));
    at += size;
  }
  return out;
}

/** The native module that React Native's WebSocket calls. */
export const RCTWebSocket = {
  connect(url: string, protocols: string[] | null, _options: object, id: number): void {
    const socket = new NativeSocket(id, url, protocols ?? []);
    lines.set(id, socket);
    for (const told of dials) told(socket);
  },
  send(message: string, id: number): void {
    lines.get(id)!.write(1, utf8(message));
  },
  sendBinary(digits: string, id: number): void {
    lines.get(id)!.write(2, unbase64(digits));
  },
  ping(id: number): void {
    lines.get(id)!.write(9, utf8(""));
  },
  close(code: number, reason: string, id: number): void {
    // OkHttp throws for these.
    if (code < 1000 || code >= 5000 || (code >= 1004 && code <= 1006) || (code >= 1015 && code <= 2999)) throw new Error(`Code ${code} is reserved and may not be used.`);
    const socket = lines.get(id)!;
    if (!socket.isOver) socket.write(8, Uint8Array.from([code >> 8, code & 255, ...utf8(reason)]));
  },
  addListener(): void {},
  removeListeners(): void {},
};
