/** The fold: against what the fake server itself knows, over generated histories; and the rules one by one. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { FakeSession } from "./fake-session.js";
import { seeded } from "./seeded.js";
import { View, type CompactionState, type Item, type LogEvent } from "./surface.js";

function history(seed: number, steps: number): { session: FakeSession; snapshots: string[] } {
  const random = seeded(seed);
  let made = 0;
  let now = 1_760_000_000_000;
  const session = new FakeSession("ses_1", "ep_1", {
    now: () => ++now,
    newId: (kind) => `${kind}_${++made}`,
    answer: (prompt, attempt) => Array.from({ length: Math.floor(random() * 6) }, (_, i) => ` ${prompt}·${attempt}·${i}😀`),
  });
  const snapshots: string[] = [];
  session.onEvent = () => undefined;
  const pick = <T>(list: T[]): T | undefined => list[Math.floor(random() * list.length)];
  const command = (type: string, fields: object): void => void session.command({ type, id: `cmd_${++made}`, ...fields });
  command("session.create", { title: "t" });
  snapshots.push(JSON.stringify({ at: session.top, state: session.snapshot() }));
  for (let i = 0; i < steps; i++) {
    const users = [...session.items.values()].filter((item) => item.role === "user");
    const answers = [...session.items.values()].filter((item) => item.role === "assistant");
    const dice = random();
    if (dice < 0.62) session.step(Math.floor(random() * 4));
    else if (dice < 0.72) command("message.create", { content: `m${i}`, queue: random() < 0.7 });
    else if (dice < 0.77) command("message.create", { content: `p${i}`, parent_id: pick(answers)?.id ?? null });
    else if (dice < 0.83) command("message.edit", { content: `e${i}`, item_id: pick(users)?.id ?? "none" });
    else if (dice < 0.89) command("response.create", { parent_id: pick(users)?.id ?? null });
    else if (dice < 0.94) command("response.cancel", { response_id: pick([...session.open.keys(), ...session.queue.map((w) => w.id)]) ?? "none" });
    else if (dice < 0.97) {
      const item = pick(answers);
      const length = Array.from(item?.content[0]?.text ?? "").length;
      if (item !== undefined && length > 1) session.retract(item.id, Math.floor(random() * length), length, "█");
    } else command("session.update", { title: `title ${i}` });
    snapshots.push(JSON.stringify({ at: session.top, state: session.snapshot() }));
  }
  return { session, snapshots };
}

/** Of every item, without the answers that ended wordless: those are in no snapshot. */
function siblings(view: View): object {
  const isKept = (id: string): boolean => view.items.has(id) || view.open.some((response) => response.id === id);
  return [...view.items.keys()].sort().map((id) => view.thread(id).find((entry) => entry.id === id)!.siblings.filter(isKept));
}

/** All that a program can see of the tree and the words. */
function seen(view: View): object {
  const everything = [...view.items.keys()].sort();
  return {
    items: everything.map((id) => view.items.get(id)),
    open: view.open.map(({ id, status, parentId, output, waiting }) => ({ id, status, parentId, output, waiting })).sort((a, b) => (a.id < b.id ? -1 : 1)),
    head: view.head,
    title: view.title,
    branch: view.branch(),
    siblings: siblings(view),
    texts: view.open.map(({ id }) => [id, view.text(id)]).sort(),
  };
}

test("what the events add up to is what the server has, at every point of 150 generated histories", () => {
  for (let seed = 1; seed <= 150; seed++) {
    const { session, snapshots } = history(seed, 60);
    const view = new View();
    let offset = 0;
    for (const line of snapshots) {
      const { at, state } = JSON.parse(line) as { at: number; state: never };
      for (const frame of session.log.slice(offset, at)) view.apply(structuredClone(frame.event));
      offset = at;
      const loaded = new View();
      loaded.load(state);
      assert.deepEqual(seen(view), seen(loaded), `seed ${seed}, offset ${at}`);
    }
  }
});

test("a snapshot and its tail show what the whole log shows; so does a view that was stored and loaded again", () => {
  for (let seed = 200; seed <= 300; seed++) {
    const { session, snapshots } = history(seed, 50);
    const whole = new View();
    for (const frame of session.log) whole.apply(structuredClone(frame.event));
    for (const line of snapshots.filter((_, index) => index % 7 === seed % 7)) {
      const { at, state } = JSON.parse(line) as { at: number; state: never };
      const tailed = new View();
      tailed.load(state);
      const stored = new View();
      for (const frame of session.log.slice(0, at)) stored.apply(structuredClone(frame.event));
      const again = new View();
      again.load(JSON.parse(JSON.stringify(stored.state())));
      for (const frame of session.log.slice(at)) {
        tailed.apply(structuredClone(frame.event));
        again.apply(structuredClone(frame.event));
      }
      assert.deepEqual(seen(tailed), seen(whole), `seed ${seed}, snapshot at ${at}`);
      assert.deepEqual(seen(again), seen(whole), `seed ${seed}, stored at ${at}`);
      assert.deepEqual([...again.responses.keys()].sort(), [...whole.responses.keys()].sort());
      for (const entry of again.thread()) assert.equal(entry.siblings[entry.index], entry.id);
      assert.deepEqual(again.thread().map((entry) => entry.id), whole.thread().map((entry) => entry.id));
    }
  }
});

test("every node is on exactly one thread position: siblings agree, parents chain", () => {
  const { session } = history(11, 120);
  const view = new View();
  for (const frame of session.log) view.apply(structuredClone(frame.event));
  for (const id of view.items.keys()) {
    const thread = view.thread(id);
    const at = thread.findIndex((entry) => entry.id === id);
    assert.ok(at >= 0);
    thread.forEach((entry, index) => {
      assert.equal(entry.parentId, index === 0 ? null : thread[index - 1]!.id);
      assert.equal(entry.siblings[entry.index], entry.id);
      assert.equal(new Set(entry.siblings).size, entry.siblings.length);
    });
  }
});

const message = (id: string, parent: string | null, role: string, text: string) => ({
  id, parent_id: parent, type: "message", role, status: "completed", content: [{ type: role === "user" ? "input_text" : "output_text", text }],
});
function fold(...events: object[]): View {
  const view = new View();
  for (const event of events) view.apply(event as LogEvent);
  return view;
}

test("an answer without an item stands in the tree under its own id, and gives its place to its first item", () => {
  const view = fold(
    { type: "item.created", item: message("u", null, "user", "Hi") },
    { type: "response.created", response_id: "r1", response: { id: "r1", parent_id: "u" } },
  );
  assert.deepEqual(view.thread().map((entry) => entry.id), ["u", "r1"]);
  assert.deepEqual(view.branch(), ["u"]);
  view.apply({ type: "response.output_item.added", response_id: "r1", output_index: 0, item: { ...message("a", "u", "assistant", ""), status: "in_progress" } });
  const thread = view.thread();
  assert.deepEqual(thread.map((entry) => entry.id), ["u", "a"]);
  assert.equal(thread[1]!.response?.id, "r1");
  assert.deepEqual(view.branch(), ["u", "a"]);
});

test("regenerating adds a sibling; a tip on the older one shows the older branch", () => {
  const view = fold(
    { type: "item.created", item: message("u", null, "user", "Hi") },
    { type: "response.created", response_id: "r1", response: { parent_id: "u" } },
    { type: "response.completed", response_id: "r1", response: { parent_id: "u", output: [message("a1", "u", "assistant", "one")] } },
    { type: "response.created", response_id: "r2", response: { parent_id: "u" } },
  );
  view.apply({ type: "item.created", item: message("other", "u", "user", "beside") } as LogEvent);
  const now = view.thread("r2");
  assert.deepEqual(now.map((entry) => entry.id), ["u", "r2"]);
  assert.deepEqual([now[1]!.siblings, now[1]!.index], [["a1", "other", "r2"], 2]);
  assert.deepEqual(view.thread("a1").map((entry) => entry.id), ["u", "a1"]);
  assert.deepEqual(view.thread("unknown"), view.thread());
});

test("a failed answer without words stays in the tree with its error, and over storing", () => {
  const view = fold(
    { type: "item.created", item: message("u", null, "user", "Hi") },
    { type: "response.created", response_id: "r1", response: { parent_id: "u" } },
    { type: "response.failed", response_id: "r1", response: { parent_id: "u", output: [], error: { code: "engine", message: "It broke." } } },
  );
  const again = new View();
  again.load(view.state());
  for (const each of [view, again]) {
    const last = each.thread()[1]!;
    assert.equal(last.response?.status, "failed");
    assert.equal(last.response?.error?.message, "It broke.");
    assert.deepEqual(each.open, []);
  }
});

test("an image that is retracted is gone", () => {
  const image = { type: "input_image", image_url: "data:image/png;base64,AAAA", sha256: "00", width: 1, height: 1 };
  const content = [{ type: "input_text", text: "Look" }, image, image];
  const view = fold(
    { type: "item.created", item: { ...message("u", null, "user", ""), content } },
    { type: "content.retracted", response_id: "", item_id: "u", content_index: 1, start: 0, end: 1, replacement: "", category: "deleted" },
  );
  assert.deepEqual(view.items.get("u")!.content, [content[0], { type: "input_image" }, image]);
});

test("an item that is deleted is out of the tree", () => {
  const gone = (id: string) => ({ type: "content.retracted", response_id: "", item_id: id, content_index: 0, start: 0, end: 2, replacement: "", category: "item_deleted" });
  const view = fold(
    { type: "item.created", item: message("u", null, "user", "Hi") },
    { type: "response.created", response_id: "r", response: { parent_id: "u" } },
    { type: "response.output_item.added", response_id: "r", output_index: 0, item: { ...message("a", "u", "assistant", "Ho") } },
    { type: "item.created", item: message("v", "a", "user", "And?") },
    gone("u"),
    gone("none"),
  );
  assert.deepEqual(view.branch(), ["a", "v"]);
  assert.deepEqual(view.thread().map((entry) => entry.id), ["a", "v"]);
  view.apply(gone("v") as never);
  view.apply(gone("a") as never);
  assert.deepEqual([view.branch(), view.thread(), view.head, view.text("r")], [[], [], null, ""]);
});

test("items are replaced, never changed in place", () => {
  const view = fold(
    { type: "item.created", item: message("u", null, "user", "Hi") },
    { type: "response.created", response_id: "r", response: { parent_id: "u" } },
    { type: "response.output_item.added", response_id: "r", output_index: 0, item: { ...message("a", "u", "assistant", "x"), status: "in_progress" } },
  );
  const [user, answer] = [view.items.get("u"), view.items.get("a")];
  view.apply({ type: "response.output_text.delta", response_id: "r", item_id: "a", content_index: 0, delta: "y" });
  assert.equal(view.items.get("u"), user);
  assert.notEqual(view.items.get("a"), answer);
  assert.equal(answer!.content[0]!.text, "x");
});

test("tool calls: arguments add up, refusals are words", () => {
  const view = fold(
    { type: "item.created", item: message("u", null, "user", "Hi") },
    { type: "response.created", response_id: "r", response: { parent_id: "u" } },
    { type: "response.output_item.added", response_id: "r", output_index: 0, item: { id: "c", parent_id: "u", type: "function_call", name: "f", call_id: "k", arguments: "", status: "in_progress" } },
    { type: "response.function_call_arguments.delta", response_id: "r", item_id: "c", delta: '{"a"' },
    { type: "response.function_call_arguments.delta", response_id: "r", item_id: "c", delta: ":1}" },
    { type: "response.output_item.added", response_id: "r", output_index: 1, item: { ...message("m", "c", "assistant", ""), content: [] } },
    { type: "response.refusal.delta", response_id: "r", item_id: "m", content_index: 0, delta: "No." },
    { type: "an.event.of.a.newer.server", response_id: "r" },
  );
  assert.equal(view.items.get("c")!.arguments, '{"a":1}');
  assert.equal(view.text("r"), "No.");
  assert.deepEqual(view.branch(), ["u", "c", "m"]);
});

test("a snapshot says why an answer is incomplete, to a device that never saw it end", () => {
  const view = new View();
  view.load({
    items: [message("u", null, "user", "Hi"), { ...message("a", "u", "assistant", "Withheld."), status: "completed" }, message("b", "u", "assistant", "Yes.")],
    open: [],
    made_by: { a: "r", b: "s" },
    incomplete: { r: "content_filter", gone: "cancelled" },
    head: "b",
  });
  const ends = [...view.responses.values()].map(({ id, status, reason }) => [id, status, reason]);
  assert.deepEqual(ends, [["r", "incomplete", "content_filter"], ["s", "completed", undefined]]);
});

test("what made an answer, when and at what cost is the same live and from a snapshot, and so is what people think of it", () => {
  const item = { id: "a", parent_id: null, type: "message", role: "assistant", content: [], status: "completed", created_at: 5 };
  const usage = { input_tokens: 3, output_tokens: 2 };
  const body = { id: "r", model: "m", created_at: 4, parent_id: null };
  const live = new View();
  live.apply({ type: "session.created", info: { model: "m", title: null, metadata: {}, temperature: 0, created_at: 1 } }, 1);
  live.apply({ type: "response.created", response_id: "r", response: body }, 4);
  live.apply({ type: "response.completed", response_id: "r", response: { ...body, output: [item], usage } }, 9);
  live.apply({ type: "feedback.updated", response_id: "r", by: "ana", rating: "up" });
  live.apply({ type: "feedback.updated", response_id: "r", by: "ana", rating: "down", reason: "old" });
  const snapshot = new View();
  snapshot.load({
    items: [item],
    open: [],
    made_by: { a: "r" },
    answers: { r: { status: "completed", model: "m", created_at: 4, completed_at: 9, usage } },
    feedback: [{ response_id: "r", by: "ana", rating: "down", reason: "old" }],
    temperature: 0,
    max_output_tokens: null,
    head: "a",
  });
  for (const view of [live, snapshot]) {
    const { model, createdAt, completedAt, usage: took, status } = view.responses.get("r")!;
    assert.deepEqual({ model, createdAt, completedAt, took, status }, { model: "m", createdAt: 4, completedAt: 9, took: usage, status: "completed" });
    assert.deepEqual(view.feedbackOf("r"), { responseId: "r", by: "ana", rating: "down", reason: "old" });
    assert.deepEqual([view.temperature, view.maxOutputTokens], [0, null]);
  }
  const again = new View();
  again.load(live.state());
  assert.deepEqual(again.feedbackOf("r"), live.feedbackOf("r"));
  live.apply({ type: "feedback.updated", response_id: "r", by: "ana", rating: null });
  assert.equal(live.feedbackOf("r"), undefined);
});

test("summaries and pins are the same live and from a snapshot, and go with their retraction", () => {
  const said = { id: "u", parent_id: null, type: "message", role: "user", content: [], status: "completed", created_at: 3 };
  const item = { id: "a", parent_id: "u", type: "message", role: "assistant", content: [], status: "completed", created_at: 5 };
  const summary = (id: string): Item => ({ id, parent_id: null, type: "message", role: "user", content: [{ type: "input_text", text: "In short." }] });
  const told = (id: string): CompactionState => ({ summary: summary(id), model: "m", items: 2, read_item_id: "a" });
  const live = new View();
  live.apply({ type: "item.created", item: said });
  live.apply({ type: "response.created", response_id: "r", response: { id: "r", parent_id: "u" } });
  live.apply({ type: "response.completed", response_id: "r", response: { id: "r", parent_id: "u", output: [item] } });
  live.apply({ type: "context.compacted", ...told("c1") });
  live.apply({ type: "item.pinned", item_id: "u", pinned: true });
  const snapshot = new View();
  snapshot.load({ items: [said, item], open: [], made_by: { a: "r" }, compactions: [told("c1")], pinned: ["u"], head: "a" });
  const stored = new View();
  stored.load(live.state());
  for (const view of [live, snapshot, stored]) {
    assert.deepEqual([...view.compactions.values()], [{ id: "c1", text: "In short.", model: "m", items: 2, readItemId: "a" }]);
    assert.deepEqual([[...view.pinned], view.responses.get("r")!.summarised, view.items.size], [["u"], 2, 2]);
    view.apply({ type: "context.compacted", ...told("c2") });
    view.apply({ type: "content.retracted", response_id: "", item_id: "c1", content_index: 0, start: 0, end: 9, replacement: "", category: "compaction_voided" });
    view.apply({ type: "context.compaction_undone", compaction_id: "c2" });
    view.apply({ type: "item.pinned", item_id: "u", pinned: false });
    assert.deepEqual([view.compactions.size, view.pinned.size, view.responses.get("r")!.summarised], [0, 0, 0]);
  }
});
