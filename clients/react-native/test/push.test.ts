/** Push for an app: what the server is told and when, and what a message of it says. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { PushError, pushNotice, PushRegistration, type DeviceToken, type FetchLike, type PushOptions } from "../src/push.js";

class FakePort {
  token: DeviceToken | null = { kind: "fcm", token: "first" };
  listener: ((token: DeviceToken) => void) | null = null;
  getToken(): Promise<DeviceToken | null> {
    return Promise.resolve(this.token);
  }
  onTokenChange(listener: (token: DeviceToken) => void): () => void {
    this.listener = listener;
    return () => (this.listener = null);
  }
}

function world(more: Partial<PushOptions> = {}, disk = new Map<string, string>()) {
  const requests: { method: string; url: string; body: unknown; key: string | undefined }[] = [];
  const answers = new Map<string, { status: number; said?: unknown }>();
  const fetch: FetchLike = async (url, { method, headers, body }) => {
    const said = body === undefined ? undefined : (JSON.parse(body) as Record<string, unknown>);
    requests.push({ method, url, body: said, key: headers["authorization"] });
    const other = answers.get(method);
    if (other?.status === 0) throw new TypeError("Network request failed");
    if (other !== undefined) return { status: other.status, json: () => (other.said === undefined ? Promise.reject(new Error("no JSON")) : Promise.resolve(other.said)) };
    const usual: Record<string, unknown> = { GET: { kinds: ["apns", "fcm"] }, POST: { id: `push_${String(said?.["token"])}` } };
    return { status: method === "DELETE" ? 204 : 200, json: () => Promise.resolve(usual[method]) };
  };
  const storage = {
    getItem: (key: string) => disk.get(key) ?? null,
    setItem: (key: string, text: string) => void disk.set(key, text),
    removeItem: (key: string) => void disk.delete(key),
  };
  const port = new FakePort();
  const push = new PushRegistration({ url: "https://chat.example", auth: "k", port, storage, fetch, ...more });
  return { push, port, requests, answers, disk, told: () => requests.map(({ method, url }) => `${method} ${url.replace("https://chat.example/v1/push", "")}`) };
}

test("a start tells the token with what the person wants; a stop of a later run ends it", async () => {
  const { push, requests, disk, told } = world({ label: "Phone", quietHours: { start: 1320, end: 420, timeZone: "Europe/Berlin" } });
  assert.equal(await push.start(), "on");
  assert.deepEqual(told(), ["GET ", "POST /subscriptions"]);
  assert.deepEqual(requests[1]?.body, { kind: "fcm", token: "first", label: "Phone", quiet_hours: { start: 1320, end: 420, time_zone: "Europe/Berlin" } });
  assert.equal(requests[1]?.key, "Bearer k");
  const later = world({}, disk);
  await later.push.stop();
  assert.deepEqual(later.told(), ["DELETE /subscriptions/push_first"]);
  await later.push.stop();
  assert.equal(later.requests.length, 1);
});

test("another token takes the place of the one before, in order, and none is told after a stop", async () => {
  const { push, port, told, disk } = world();
  const started = push.start();
  port.listener?.({ kind: "apns", token: "second", sandbox: true });
  port.listener?.({ kind: "apns", token: "third" });
  await started;
  const stopped = push.stop();
  assert.equal(port.listener, null);
  await stopped;
  const all = told();
  assert.deepEqual(all.slice(0, 2), ["GET ", "POST /subscriptions"]);
  assert.equal(all.at(-1), "DELETE /subscriptions/push_first");
  assert.equal(disk.size, 0);
});

test("a token that changes while the app runs is told, and the one before ends", async () => {
  const { push, port, told, requests } = world();
  await push.start();
  port.listener?.({ kind: "apns", token: "second", sandbox: true });
  port.token = { kind: "apns", token: "second", sandbox: true };
  assert.equal(await push.start(), "on");
  assert.deepEqual(told().slice(2), ["POST /subscriptions", "DELETE /subscriptions/push_first", "GET ", "POST /subscriptions"]);
  assert.deepEqual(requests[2]?.body, { kind: "apns", token: "second", sandbox: true });
});

test("who wants none, or whose server sends none, is not told of; a no ends what was there", async () => {
  const { push, port, answers, told, disk } = world();
  await push.start();
  port.token = null;
  assert.equal(await push.start(), "denied");
  assert.equal(disk.size, 0);
  port.token = { kind: "fcm", token: "first" };
  for (const said of [{ kinds: ["web_push"] }, { kinds: [] }, { application_server_key: "" }, null]) {
    answers.set("GET", { status: 200, said });
    assert.equal(await push.start(), "unavailable");
  }
  assert.equal(told().filter((each) => each.startsWith("POST")).length, 1);
});

test("failures say their code, and the next turn goes on", async () => {
  const errors: PushError[] = [];
  const { push, port, answers } = world({ onError: (error) => errors.push(error) });
  answers.set("POST", { status: 429, said: { error: { code: "quota_exceeded", message: "End one first." } } });
  await assert.rejects(push.start(), (error) => error instanceof PushError && error.code === "quota_exceeded" && error.status === 429);
  answers.set("POST", { status: 0 });
  await assert.rejects(push.start(), (error) => error instanceof PushError && error.code === "unreachable");
  answers.set("POST", { status: 502 });
  port.listener?.({ kind: "fcm", token: "second" });
  answers.set("GET", { status: 401, said: null });
  await assert.rejects(push.start(), (error) => error instanceof PushError && error.status === 401);
  assert.deepEqual(errors.map(({ status }) => status), [502]);
  answers.clear();
  assert.equal(await push.start(), "on");
  answers.set("DELETE", { status: 404, said: {} });
  await push.stop();
});

test("addresses as the client takes them", async () => {
  for (const [url, base] of [
    ["wss://chat.example/v1/ws", "https://chat.example"],
    ["ws://10.0.2.2:8080/v1/ws", "http://10.0.2.2:8080"],
    ["https://chat.example/", "https://chat.example"],
    ["https://chat.example/app", "https://chat.example/app"],
  ] as const) {
    const { push, requests } = world({ url, auth: () => Promise.resolve(undefined) });
    await push.start();
    assert.equal(requests[0]?.url, `${base}/v1/push`);
    assert.equal(requests[0]?.key, undefined);
  }
});

test("messages by both ways, and what is not ours", () => {
  const said = { id: "resp_1:7", cause: "approval", session: "ses_1", response: "resp_1", offset: 7 } as const;
  assert.deepEqual(pushNotice({ aps: {}, sessile: { v: 1, ...said } }), said);
  assert.deepEqual(pushNotice({ v: "1", ...said, offset: "7" }), said);
  assert.equal(pushNotice({ ...said, cause: "other" })?.cause, "answer");
  for (const other of [null, undefined, 7, "x", {}, { ...said, offset: "x" }, { ...said, offset: -1 }, { ...said, session: 7 }, { sessile: null }]) assert.equal(pushNotice(other), null);
});
