/**
 * Frames to bytes and back, in the one encoding that a connection was opened with.
 *
 * A frame is one object or an array of objects. What is no object with a string `type` is refused here, so
 * that nothing behind this file meets it.
 */
import { DecodeError } from "./errors.js";
import { decode, encode, utf8Length } from "./msgpack.js";
import type { ClientFrame, Encoding, ServerFrame } from "./protocol.js";

export interface Decoded {
  frames: ServerFrame[];
  /** Size on the wire, for the window. */
  bytes: number;
}

export function pack(encoding: Encoding, frames: ClientFrame[]): string | Uint8Array {
  const body = frames.length === 1 ? frames[0] : frames;
  return encoding === "json" ? JSON.stringify(body) : encode(body);
}

export function unpack(encoding: Encoding, data: unknown): Decoded {
  let value: unknown;
  let bytes: number;
  if (encoding === "json") {
    if (typeof data !== "string") throw new DecodeError("a binary frame on a text connection");
    bytes = utf8Length(data);
    try {
      value = JSON.parse(data);
    } catch {
      throw new DecodeError("a frame that is not JSON");
    }
  } else {
    const packed = asBytes(data);
    bytes = packed.length;
    value = decode(packed);
  }
  const frames = Array.isArray(value) ? value : [value];
  for (const frame of frames) {
    if (typeof frame !== "object" || frame === null || typeof frame.type !== "string") {
      throw new DecodeError("a frame without a type");
    }
  }
  return { frames, bytes };
}

function asBytes(data: unknown): Uint8Array {
  if (data instanceof Uint8Array) return data;
  if (data instanceof ArrayBuffer) return new Uint8Array(data);
  throw new DecodeError("a text frame on a binary connection");
}
