/** The storage under the client: order where the platform promises none, and what is held back until it was shown. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { OrderedStorage, ShownFirst } from "../src/index.js";
import { SlowStorage } from "./phone-world.js";

test("writes of one key stay in order on a disk that turns them round, and what was overtaken is not written", async () => {
  const disk = new SlowStorage();
  disk.isSlow = true;
  const storage = new OrderedStorage(disk);
  const all = ["1", "2", "3"].map((text) => storage.setItem("a", text));
  void storage.setItem("b", "x");
  assert.equal(await storage.getItem("a"), "3");
  assert.equal(await storage.getItem("b"), "x");
  let isSettled = false;
  void storage.settled().then(() => (isSettled = true));
  assert.equal(isSettled, false);
  await disk.work(true);
  await Promise.all(all);
  assert.equal(disk.disk.get("a"), "3");
  assert.equal(disk.writes, 3);
  assert.equal(isSettled, true);
  const removed = storage.removeItem("a");
  assert.equal(await storage.getItem("a"), null);
  await disk.work();
  await removed;
  assert.equal(disk.disk.has("a"), false);
  await storage.settled();
});

test("a write that fails is told to who wrote, and the next one goes on", async () => {
  let isFull = true;
  const map = new Map<string, string>();
  const storage = new OrderedStorage({
    getItem: (key) => map.get(key) ?? null,
    setItem: (key, value) => {
      if (isFull) throw new Error("full");
      map.set(key, value);
    },
    removeItem: (key) => map.delete(key),
  });
  await assert.rejects(storage.setItem("a", "1"), /full/);
  isFull = false;
  await storage.setItem("a", "2");
  assert.equal(await storage.getItem("a"), "2");
});

test("the newest of what waited is written when its version is on the screen", () => {
  const written: string[] = [];
  const gate = new ShownFirst((session, text) => Promise.resolve(written.push(`${session} ${text}`)));
  void gate.store("S", 1, "unwatched");
  const stops = [gate.watch("S"), gate.watch("S")];
  void gate.store("S", 2, "two");
  void gate.store("S", 3, "three");
  gate.shown("S", 2);
  assert.deepEqual(written, ["S unwatched"]);
  gate.shown("S", 3);
  gate.shown("S", 2);
  void gate.store("S", 3, "three again");
  stops[0]!();
  stops[0]!();
  void gate.store("S", 4, "four");
  assert.deepEqual(written, ["S unwatched", "S three", "S three again"]);
  stops[1]!();
  gate.shown("S", 4);
  assert.equal(written.length, 3, "it was never shown: the next run reads it once more");
});
