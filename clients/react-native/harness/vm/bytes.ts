/** RFC 6455 as bytes on a line: what a platform's native WebSocket writes and reads, in an engine that has no sockets. */
export type Heard = { opcode: number; payload: Uint8Array };

export function utf8(text: string): Uint8Array {
  return Uint8Array.from(unescape(encodeURIComponent(text)), (char) => char.charCodeAt(0));
}
export function text(bytes: Uint8Array): string {
  let chars = "";
  for (let i = 0; i < bytes.length; i += 4096) chars += String.fromCharCode(...bytes.subarray(i, i + 4096));
  return decodeURIComponent(escape(chars));
}

/** One frame; clients mask theirs. */
export function framed(opcode: number, payload: Uint8Array, mask?: Uint8Array, isLast = true): Uint8Array {
  const size = payload.length;
  const length = size < 126 ? [size] : size < 65_536 ? [126, size >> 8, size & 255] : [127, 0, 0, 0, 0, size >>> 24, (size >> 16) & 255, (size >> 8) & 255, size & 255];
  length[0]! |= mask === undefined ? 0 : 128;
  const head = [(isLast ? 128 : 0) | opcode, ...length, ...(mask ?? [])];
  const out = new Uint8Array(head.length + size);
  out.set(head);
  for (let i = 0; i < size; i++) out[head.length + i] = payload[i]! ^ (mask?.[i & 3] ?? 0);
  return out;
}

/** Puts frames together from the pieces that a line delivers. */
export class Line {
  private rest = new Uint8Array(0);
  private parts: Uint8Array[] = [];
  private opcode = 0;

  /** Whole messages and control frames, in order. */
  *read(piece: Uint8Array): Generator<Heard, void, undefined> {
    const all = new Uint8Array(this.rest.length + piece.length);
    all.set(this.rest);
    all.set(piece, this.rest.length);
    let at = 0;
    for (;;) {
      const [first, second] = [all[at], all[at + 1]];
      if (first === undefined || second === undefined) break;
      const wide = second & 127;
      const more = wide === 126 ? 2 : wide === 127 ? 8 : 0;
      const isMasked = (second & 128) !== 0;
      const head = 2 + more + (isMasked ? 4 : 0);
      if (all.length < at + head) break;
      let size = more === 0 ? wide : 0;
      for (let i = 0; i < more; i++) size = size * 256 + all[at + 2 + i]!;
      if (all.length < at + head + size) break;
      const mask = isMasked ? all.slice(at + 2 + more, at + head) : new Uint8Array(4);
      const payload = all.slice(at + head, at + head + size).map((byte, i) => byte ^ mask[i & 3]!);
      at += head + size;
      const opcode = first & 15;
      if (opcode >= 8) {
        yield { opcode, payload };
        continue;
      }
      if (opcode !== 0) this.opcode = opcode;
      this.parts.push(payload);
      if ((first & 128) === 0) continue;
      const whole = new Uint8Array(this.parts.reduce((sum, part) => sum + part.length, 0));
      this.parts.reduce((start, part) => (whole.set(part, start), start + part.length), 0);
      this.parts = [];
      yield { opcode: this.opcode, payload: whole };
    }
    this.rest = all.slice(at);
  }
}
