/**
 * Frames to bytes and back, in the one encoding that a connection was opened with.
 *
 * A frame is one object or an array of objects. What is no object with a string `type` is refused here, so
 * that nothing behind this file meets it.
 */
import { DecodeError } from "./errors.js";
import type { ClientFrame, Encoding, MessagePack, ServerFrame } from "./protocol.js";

export interface Decoded {
  frames: ServerFrame[];
  /** Size on the wire, for the window. */
  bytes: number;
}

/** Half of a surrogate pair, which JSON writes as an escape and the server refuses, goes as U+FFFD. */
export function pack(encoding: Encoding, frames: ClientFrame[]): string | Uint8Array {
  const body = frames.length === 1 ? frames[0] : frames;
  const text = JSON.stringify(body).replace(/\\(ud[89a-f]..|.)/g, (escape) => (escape.length > 2 ? "\ufffd" : escape));
  return encoding === "json" ? text : encoding.encode(JSON.parse(text));
}

function utf8Length(text: string): number {
  let length = 0;
  for (let i = 0; i < text.length; i++) {
    const unit = text.charCodeAt(i);
    if (unit < 0x80) length += 1;
    else if (unit < 0x800) length += 2;
    else if (unit >= 0xd800 && unit < 0xdc00 && (text.charCodeAt(i + 1) & 0xfc00) === 0xdc00) {
      length += 4;
      i++;
    } else length += 3;
  }
  return length;
}

export function unpack(encoding: Encoding, data: unknown): Decoded {
  let value: unknown;
  let bytes: number;
  if (encoding === "json") {
    if (typeof data !== "string") throw new DecodeError("a binary frame on a text connection", 1003);
    bytes = utf8Length(data);
    try {
      value = JSON.parse(data);
    } catch {
      throw new DecodeError("a frame that is not JSON");
    }
  } else {
    const packed = asBytes(data);
    bytes = packed.length;
    try {
      value = encoding.decode(packed);
    } catch {
      value = unpackWithProto(encoding, packed);
    }
  }
  const frames: unknown[] = Array.isArray(value) ? value : [value];
  for (const frame of frames) check(frame);
  return { frames: frames as ServerFrame[], bytes };
}

/** The package refuses a key `__proto__`. JSON.parse makes it a property like any other, and so is it here: its key is half of a
 * surrogate pair, which no text from a server holds, until JSON.parse has made the objects. */
function unpackWithProto(encoding: MessagePack, packed: Uint8Array): unknown {
  const keyDecoder = {
    canBeCached: (length: number): boolean => length === "__proto__".length,
    decode: (bytes: Uint8Array, at: number, length: number): string => {
      const key = encoding.decode(Uint8Array.of(0xa0 + length, ...bytes.subarray(at, at + length))) as string;
      return key === "__proto__" ? "\ud800" : key;
    },
  };
  try {
    return JSON.parse(JSON.stringify(encoding.decode(packed, { keyDecoder })).replace(/"\\ud800":/g, '"__proto__":'));
  } catch (error) {
    throw new DecodeError(`a frame that is not MessagePack: ${String(error)}`);
  }
}

type Fields = Record<string, unknown>;
const isObject = (value: unknown): value is Fields => typeof value === "object" && value !== null;
const isOffset = (value: unknown): boolean => Number.isSafeInteger(value) && (value as number) >= 0;

/** What the core relies on, per type; unknown types pass, they are ignored. */
const RELIED_ON: { [type: string]: (frame: Fields) => boolean } = {
  event: ({ session, epoch, offset, first_offset: first, event }) =>
    typeof session === "string" &&
    typeof epoch === "string" &&
    isOffset(offset) &&
    (first === undefined || isOffset(first)) &&
    isObject(event) &&
    typeof event["type"] === "string",
  resumed: ({ session, mode, epoch, from, top, at, state }) =>
    typeof session === "string" &&
    (mode === "gone" ||
      (typeof epoch === "string" &&
        (mode === "replay" ? isOffset(from) && isOffset(top) : isOffset(at) && isObject(state) && Array.isArray(state["items"])))),
  caught_up: ({ session, offset }) => typeof session === "string" && isOffset(offset),
  ok: ({ id }) => typeof id === "string",
  error: ({ error }) => isObject(error),
};

function check(frame: unknown): void {
  if (!isObject(frame) || typeof frame["type"] !== "string") throw new DecodeError("a frame without a type", 1002);
  const type = frame["type"];
  if (Object.hasOwn(RELIED_ON, type) && !RELIED_ON[type]!(frame)) throw new DecodeError(`a malformed ${type}`, 1002);
}

function asBytes(data: unknown): Uint8Array {
  if (data instanceof Uint8Array) return data;
  if (data instanceof ArrayBuffer) return new Uint8Array(data);
  throw new DecodeError("a text frame on a binary connection", 1003);
}
