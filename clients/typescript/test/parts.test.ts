/** ULIDs, MessagePack, the channel: the small parts. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { Channel } from "../src/channel.js";
import { pack, unpack } from "../src/codec.js";
import { DecodeError, fromWire, BusyError, GoneError, CommandError, OverflowError, msgpackDecode as decode, msgpackEncode as encode, ulids } from "./surface.js";
import { ulidMs } from "../src/ulid.js";
import { seeded } from "./seeded.js";

test("ULIDs ascend within a millisecond, over it, and when the clock steps back", () => {
  const next = ulids(seeded(1));
  const ids = [1_760_000_000_000, 1_760_000_000_000, 1_760_000_000_001, 1_759_999_999_999, 1_760_000_000_500].map(next);
  assert.deepEqual([...ids].sort(), ids);
  for (const id of ids) assert.match(id, /^[0-7][0-9A-HJKMNP-TV-Z]{25}$/);
  assert.equal(ids[0]!.slice(0, 10), "01K742SG00");
});

test("a ULID tells when it was made, and other ids do not", () => {
  for (const ms of [0, 1_760_000_000_123, 2 ** 48 - 1]) assert.equal(ulidMs(ulids(seeded(2))(ms)), ms);
  for (const id of ["", "mine", "01K742SG00", "U".repeat(26)]) assert.equal(ulidMs(id), null);
});

test("a ULID whose chance is all ones borrows from the next millisecond", () => {
  const next = ulids(() => 0.999999);
  const [first, second] = [next(1000), next(1000)];
  assert.ok(first!.endsWith("ZZZZZZZZZZZZZZZZ"));
  assert.ok(second! > first!);
});

const VECTORS: [unknown, string][] = [
  [null, "c0"], [false, "c2"], [true, "c3"], [0, "00"], [127, "7f"], [128, "cc80"], [255, "ccff"], [256, "cd0100"],
  [65535, "cdffff"], [65536, "ce00010000"], [4294967295, "ceffffffff"], [4294967296, "cf0000000100000000"],
  [9007199254740991, "cf001fffffffffffff"], [-1, "ff"], [-32, "e0"], [-33, "d0df"], [-128, "d080"], [-129, "d1ff7f"],
  [-32769, "d2ffff7fff"], [-2147483649, "d3ffffffff7fffffff"], [-9007199254740991, "d3ffe0000000000001"],
  [1.5, "cb3ff8000000000000"], ["", "a0"], ["aé€😀", "aa61c3a9e282acf09f9880"], [[1, [2]], "920191" + "02"],
  [{ a: 1, b: [] }, "82a16101a16290"], [new Uint8Array([1, 2]), "c4020102"],
];

test("MessagePack: known vectors, both ways", () => {
  for (const [value, hex] of VECTORS) {
    assert.equal(Buffer.from(encode(value)).toString("hex"), hex);
    assert.deepEqual(decode(new Uint8Array(Buffer.from(hex, "hex"))), value);
  }
});

test("MessagePack: whatever is packed comes back, over generated values", () => {
  const random = seeded(7);
  const letters = ["a", "é", "€", "😀", "\u0000", "\uffff", "ß"];
  const any = (depth: number): unknown => {
    const kind = Math.floor(random() * (depth > 3 ? 5 : 7));
    const count = Math.floor(random() * random() * 40);
    if (kind === 0) return random() < 0.5;
    if (kind === 1) return Math.floor((random() - 0.5) * 2 ** Math.floor(random() * 53));
    if (kind === 2) return (random() - 0.5) * 1e9;
    if (kind === 3) return null;
    if (kind === 4) return Array.from({ length: count * 3 }, () => letters[Math.floor(random() * letters.length)]).join("");
    if (kind === 5) return Array.from({ length: count }, () => any(depth + 1));
    return Object.fromEntries(Array.from({ length: count }, (_, i) => [`k${i}`, any(depth + 1)]));
  };
  for (let round = 0; round < 2000; round++) {
    const value = any(0);
    assert.deepEqual(decode(encode(value)), value);
  }
});

test("MessagePack: long strings, arrays and maps use the wider headers", () => {
  for (const size of [31, 32, 255, 256, 65535, 65536]) {
    const text = "x".repeat(size);
    assert.equal(decode(encode(text)), text);
    assert.deepEqual(decode(encode(new Array(size).fill(1))), new Array(size).fill(1));
  }
});

test("MessagePack: damage is refused, never misread and never fatal", () => {
  for (const hex of ["", "c1", "d9", "d905616263", "92" + "01", "8101" + "02", "a1ff", "a2c328", "a3eda080", "a2c0af", "0000", "cfffffffffffffffff", "c7" + "0001", "dd" + "ffffffff", "dfffffffff"]) {
    assert.throws(() => decode(Buffer.from(hex, "hex")), DecodeError, hex);
  }
  assert.throws(() => decode(Buffer.from("91".repeat(100) + "00", "hex")), /nested/);
  const random = seeded(3);
  const whole = encode({ type: "event", session: "s", event: { type: "x", delta: "héllo", list: [1, 2.5, null] } });
  for (let round = 0; round < 5000; round++) {
    const bytes = whole.slice(0, Math.floor(random() * (whole.length + 1)));
    for (let i = 0; i < 3; i++) if (bytes.length > 0) bytes[Math.floor(random() * bytes.length)] = Math.floor(random() * 256);
    try {
      decode(bytes);
    } catch (error) {
      assert.ok(error instanceof DecodeError, String(error));
    }
  }
});

test("a key called __proto__ stays a key", () => {
  const value = decode(Buffer.from("81a95f5f70726f746f5f5f81a17801", "hex")) as Record<string, unknown>;
  assert.deepEqual(Object.keys(value), ["__proto__"]);
  assert.equal((value as { x?: unknown }).x, undefined);
});

test("frames: one object or an array; what has no type is refused", () => {
  assert.equal(pack("json", [{ type: "ping" }]), '{"type":"ping"}');
  assert.equal(unpack("json", '[{"type":"ping"},{"type":"pong"}]').frames.length, 2);
  assert.equal(unpack("json", '{"type":"é"}').bytes, 13);
  for (const bad of ["", "nonsense", "1", "null", "[null]", '{"type":1}', "[[]]"]) assert.throws(() => unpack("json", bad), DecodeError);
  assert.throws(() => unpack("json", new Uint8Array()), DecodeError);
  assert.throws(() => unpack("msgpack", "text"), DecodeError);
  assert.throws(() => unpack("msgpack", encode([1]).buffer), DecodeError);
});

test("a channel hands on in order, and a reader that falls behind is told after what it has", async () => {
  let ended = 0;
  const channel = new Channel<number>(3, () => ended++);
  for (const value of [1, 2, 3, 4, 5]) channel.push(value);
  const got: number[] = [];
  await assert.rejects(async () => {
    for await (const value of channel) got.push(value);
  }, OverflowError);
  assert.deepEqual(got, [1, 2, 3]);
  assert.equal(ended, 1);
  assert.deepEqual(await channel.next(), { done: true, value: undefined });
});

test("leaving a loop early ends the channel", async () => {
  let ended = 0;
  const channel = new Channel<number>(3, () => ended++);
  channel.push(1);
  for await (const value of channel) if (value === 1) break;
  assert.equal(ended, 1);
});

test("errors from the wire become the leaf that fits", () => {
  const wire = { message: "m", retryable: true };
  assert.ok(fromWire({ ...wire, code: "response_in_progress" }) instanceof BusyError);
  assert.ok(fromWire({ ...wire, code: "session_not_found" }) instanceof GoneError);
  assert.ok(fromWire({ ...wire, code: "forbidden" }, true) instanceof GoneError);
  const other = fromWire({ code: "rate_limited", message: "m", type: "rate_limit_error", retry_after_ms: 7, retryable: true });
  assert.ok(other instanceof CommandError && !(other instanceof BusyError));
  assert.deepEqual([other.code, other.type, other.retryable, other.retryAfterMs], ["rate_limited", "rate_limit_error", true, 7]);
});
