/** ULIDs, MessagePack, the channel: the small parts. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { Channel } from "../src/channel.js";
import { pack, unpack } from "../src/codec.js";
import { DecodeError, fromWire, BusyError, GoneError, CommandError, OverflowError, ENCODINGS, ulids } from "./surface.js";
import { ulidMs } from "../src/ulid.js";
import { seeded } from "./seeded.js";
import { world } from "./virtual.js";

const { msgpack } = ENCODINGS;

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

test("frames: one object or an array; what has no type is refused", () => {
  assert.equal(pack("json", [{ type: "ping" }]), '{"type":"ping"}');
  assert.equal(unpack("json", '[{"type":"ping"},{"type":"pong"}]').frames.length, 2);
  assert.equal(unpack("json", '{"type":"é"}').bytes, 13);
  for (const bad of ["", "nonsense", "1", "null", "[null]", '{"type":1}', "[[]]"]) assert.throws(() => unpack("json", bad), DecodeError);
  assert.throws(() => unpack("json", new Uint8Array()), DecodeError);
  assert.throws(() => unpack(msgpack, "text"), DecodeError);
  assert.throws(() => unpack(msgpack, msgpack.encode([1]).slice().buffer), DecodeError);
});

test("frames: damage on the way is a DecodeError, whatever it does to MessagePack", () => {
  const random = seeded(3);
  const whole = pack(msgpack, [{ type: "event", session: "s", event: { type: "x", delta: "héllo", list: [1, 2.5, null] } } as never]) as Uint8Array;
  for (let round = 0; round < 5000; round++) {
    const bytes = whole.slice(0, Math.floor(random() * (whole.length + 1)));
    for (let i = 0; i < 3; i++) if (bytes.length > 0) bytes[Math.floor(random() * bytes.length)] = Math.floor(random() * 256);
    try {
      unpack(msgpack, bytes);
    } catch (error) {
      assert.ok(error instanceof DecodeError, String(error));
    }
  }
});

test("frames: half of a surrogate pair goes as U+FFFD, in both encodings, and what only looks like its escape stays", () => {
  const text = 'half \ud83d, whole 😀, \\ud800 in letters, "\n\u0001 and \udc00';
  const frame = { type: "ping", text, left: undefined } as never;
  const sent = { type: "ping", text: text.replace("half \ud83d", "half \ufffd").replace("\udc00", "\ufffd") };
  for (const encoding of [ENCODINGS.json, msgpack]) assert.deepEqual(unpack(encoding, pack(encoding, [frame])).frames, [sent]);
  assert.deepEqual(JSON.parse(pack("json", [frame]) as string), sent);
});

test("frames: a key `__proto__` that somebody wrote is a property like any other, in both encodings, and touches no prototype", () => {
  const text = '{"type":"x","made":{"__proto__":{"é":[{"__proto__":1}],"nïne_bit":"__proto__","\\\\ud800":"\\"\\\\ud800\\":"},"to":true}}';
  const frame = JSON.parse(text) as { made: object };
  for (const encoding of [ENCODINGS.json, msgpack]) {
    const [read] = unpack(encoding, pack(encoding, [frame as never])).frames as unknown as [typeof frame];
    assert.equal(JSON.stringify(read), text);
    assert.equal(Object.getPrototypeOf(read.made), Object.prototype);
  }
});

test("an encoding by name, as it was before, is refused with what to give", () => {
  assert.throws(() => world({ encoding: "msgpack" as never }), /@msgpack\/msgpack/);
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
