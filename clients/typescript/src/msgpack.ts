/**
 * MessagePack, as much of it as the protocol needs: nil, booleans, numbers, strings, binaries, arrays and
 * maps with string keys. Integers travel as integers when they are safe (below 2⁵³), all else as float64.
 * Extension types, other keys, deep nesting and trailing bytes are refused with DecodeError.
 *
 * UTF-8 is done here because not every phone runtime has TextEncoder and TextDecoder; a lone surrogate is
 * written as U+FFFD, and bytes that are no UTF-8 are refused. Source: the MessagePack specification.
 */
import { DecodeError } from "./errors.js";

const DEPTH_MAX = 64;

export function utf8Length(text: string): number {
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

export function encode(value: unknown): Uint8Array {
  let bytes = new Uint8Array(256);
  let view = new DataView(bytes.buffer);
  let at = 0;

  function room(count: number): void {
    if (at + count <= bytes.length) return;
    const grown = new Uint8Array(Math.max(bytes.length * 2, at + count));
    grown.set(bytes);
    bytes = grown;
    view = new DataView(bytes.buffer);
  }
  function u8(byte: number): void {
    room(1);
    bytes[at++] = byte;
  }
  function u16(number: number): void {
    room(2);
    view.setUint16(at, number);
    at += 2;
  }
  function u32(number: number): void {
    room(4);
    view.setUint32(at, number);
    at += 4;
  }
  /** A length: `fix` holds it below `fixMax`, then 8 bits (when the family has them), 16, 32. */
  function header(length: number, fix: number, fixMax: number, wide8: number | null, wide16: number): void {
    if (length < fixMax) u8(fix | length);
    else if (wide8 !== null && length < 0x100) {
      u8(wide8);
      u8(length);
    } else if (length < 0x10000) {
      u8(wide16);
      u16(length);
    } else {
      u8(wide16 + 1);
      u32(length);
    }
  }
  function number(n: number): void {
    if (!Number.isSafeInteger(n) || Object.is(n, -0)) {
      u8(0xcb);
      room(8);
      view.setFloat64(at, n);
      at += 8;
    } else if (n >= 0) {
      if (n < 0x80) u8(n);
      else if (n < 0x100) (u8(0xcc), u8(n));
      else if (n < 0x10000) (u8(0xcd), u16(n));
      else if (n < 0x100000000) (u8(0xce), u32(n));
      else (u8(0xcf), u32(Math.floor(n / 0x100000000)), u32(n % 0x100000000));
    } else if (n >= -0x20) u8(n & 0xff);
    else if (n >= -0x80) (u8(0xd0), u8(n & 0xff));
    else if (n >= -0x8000) (u8(0xd1), u16(n & 0xffff));
    else if (n >= -0x80000000) (u8(0xd2), u32(n >>> 0));
    else (u8(0xd3), u32(Math.floor(n / 0x100000000) >>> 0), u32(n >>> 0));
  }
  function string(text: string): void {
    const length = utf8Length(text);
    header(length, 0xa0, 32, 0xd9, 0xda);
    room(length);
    for (let i = 0; i < text.length; i++) {
      let point = text.codePointAt(i)!;
      if (point > 0xffff) i++;
      else if (point >= 0xd800 && point < 0xe000) point = 0xfffd;
      if (point < 0x80) bytes[at++] = point;
      else {
        if (point < 0x800) bytes[at++] = 0xc0 | (point >> 6);
        else {
          if (point < 0x10000) bytes[at++] = 0xe0 | (point >> 12);
          else {
            bytes[at++] = 0xf0 | (point >> 18);
            bytes[at++] = 0x80 | ((point >> 12) & 63);
          }
          bytes[at++] = 0x80 | ((point >> 6) & 63);
        }
        bytes[at++] = 0x80 | (point & 63);
      }
    }
  }
  function any(item: unknown, depth: number): void {
    if (depth > DEPTH_MAX) throw new DecodeError("nested too deeply");
    if (item === null || item === undefined) u8(0xc0);
    else if (typeof item === "boolean") u8(item ? 0xc3 : 0xc2);
    else if (typeof item === "number") number(item);
    else if (typeof item === "string") string(item);
    else if (item instanceof Uint8Array) {
      header(item.length, 0, 0, 0xc4, 0xc5);
      room(item.length);
      bytes.set(item, at);
      at += item.length;
    } else if (Array.isArray(item)) {
      header(item.length, 0x90, 16, null, 0xdc);
      for (const entry of item) any(entry, depth + 1);
    } else if (typeof item === "object") {
      const entries = Object.entries(item).filter(([, entry]) => entry !== undefined);
      header(entries.length, 0x80, 16, null, 0xde);
      for (const [key, entry] of entries) {
        string(key);
        any(entry, depth + 1);
      }
    } else throw new DecodeError(`cannot pack a ${typeof item}`);
  }

  any(value, 0);
  return bytes.slice(0, at);
}

export function decode(bytes: Uint8Array): unknown {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  let at = 0;

  function take(count: number): number {
    const start = at;
    if (count > bytes.length - at) throw new DecodeError("cut off");
    at += count;
    return start;
  }
  const u8 = () => view.getUint8(take(1));
  const u16 = () => view.getUint16(take(2));
  const u32 = () => view.getUint32(take(4));

  function wide(high: number): number {
    const n = high * 0x100000000 + u32();
    if (!Number.isSafeInteger(n)) throw new DecodeError("integer beyond 2^53", 1002);
    return n;
  }
  function string(length: number): string {
    const start = take(length);
    const end = start + length;
    let text = "";
    for (let i = start; i < end; ) {
      const lead = bytes[i++]!;
      if (lead < 0x80) {
        text += String.fromCharCode(lead);
        continue;
      }
      const more = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : 1;
      let point = lead & (0x3f >> more);
      if (lead < 0xc2 || lead > 0xf4 || i + more > end) throw new DecodeError("not UTF-8");
      for (let k = 0; k < more; k++) {
        const next = bytes[i++]!;
        if ((next & 0xc0) !== 0x80) throw new DecodeError("not UTF-8");
        point = (point << 6) | (next & 0x3f);
      }
      const least = more === 3 ? 0x10000 : more === 2 ? 0x800 : 0x80;
      if (point < least || point > 0x10ffff || (point >= 0xd800 && point < 0xe000)) throw new DecodeError("not UTF-8");
      text += String.fromCodePoint(point);
    }
    return text;
  }
  function binary(length: number): Uint8Array {
    const start = take(length);
    return bytes.slice(start, start + length);
  }
  function array(length: number, depth: number): unknown[] {
    if (length > bytes.length - at) throw new DecodeError("cut off"); // each entry takes at least one byte
    const list: unknown[] = [];
    for (let i = 0; i < length; i++) list.push(any(depth + 1));
    return list;
  }
  function map(length: number, depth: number): Record<string, unknown> {
    if (length * 2 > bytes.length - at) throw new DecodeError("cut off");
    const object: Record<string, unknown> = {};
    for (let i = 0; i < length; i++) {
      const key = any(depth + 1);
      if (typeof key !== "string") throw new DecodeError("a key is no string");
      const value = any(depth + 1);
      // Own property whatever its name is: `__proto__` must not reach the prototype.
      Object.defineProperty(object, key, { value, enumerable: true, writable: true, configurable: true });
    }
    return object;
  }
  function any(depth: number): unknown {
    if (depth > DEPTH_MAX) throw new DecodeError("nested too deeply");
    const tag = u8();
    if (tag < 0x80) return tag;
    if (tag < 0x90) return map(tag & 15, depth);
    if (tag < 0xa0) return array(tag & 15, depth);
    if (tag < 0xc0) return string(tag & 31);
    if (tag >= 0xe0) return tag - 0x100;
    switch (tag) {
      case 0xc0: return null;
      case 0xc2: return false;
      case 0xc3: return true;
      case 0xc4: return binary(u8());
      case 0xc5: return binary(u16());
      case 0xc6: return binary(u32());
      case 0xca: return view.getFloat32(take(4));
      case 0xcb: return view.getFloat64(take(8));
      case 0xcc: return u8();
      case 0xcd: return u16();
      case 0xce: return u32();
      case 0xcf: return wide(u32());
      case 0xd0: return view.getInt8(take(1));
      case 0xd1: return view.getInt16(take(2));
      case 0xd2: return view.getInt32(take(4));
      case 0xd3: return wide(view.getInt32(take(4)));
      case 0xd9: return string(u8());
      case 0xda: return string(u16());
      case 0xdb: return string(u32());
      case 0xdc: return array(u16(), depth);
      case 0xdd: return array(u32(), depth);
      case 0xde: return map(u16(), depth);
      case 0xdf: return map(u32(), depth);
      default: throw new DecodeError(`tag 0x${tag.toString(16)} is not used here`);
    }
  }

  const value = any(0);
  if (at !== bytes.length) throw new DecodeError("trailing bytes");
  return value;
}
