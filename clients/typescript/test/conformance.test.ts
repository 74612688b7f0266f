/**
 * Runs every case of docs/protocol/cases that names `client`, once per encoding: the runner plays the server, in virtual
 * time, and asserts what this SDK sends and what a program using it sees. The format is docs/protocol/README.md.
 */
import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";
import { matches, played, type Names } from "./values.js";
import { settled, TestSocket, world, type World } from "./virtual.js";
import { CommandError, ENCODINGS, NAMES, type EncodingName, type Sent, type Session } from "./surface.js";

const FOLDER = new URL("../../../docs/protocol/cases/", import.meta.url);

interface Case {
  name: string;
  title: string;
  runs: string[];
  encodings?: EncodingName[];
  random?: number;
  ignore?: string[];
  given?: Record<string, unknown>;
  saved?: Record<string, { epoch: string; offset: number; state: object }>;
  steps: Record<string, unknown>[];
}
type Result = { state: "pending" } | { state: "ok"; ok: unknown } | { state: "error"; error: unknown };

const VERBS = ["connect", "client", "server", "client_raw", "server_raw", "close", "advance_ms", "quiet_ms", "call", "expect", "events"];

class Runner {
  private readonly names: Names = new Map();
  private readonly given: Record<string, unknown>;
  private readonly ignore: Set<string>;
  private readonly it: World;
  private readonly results = new Map<string, Result>();
  private socket: TestSocket | null = null;
  private dialsSeen = 0;
  private stepAt: number;

  constructor(
    private readonly spec: Case,
    encoding: EncodingName,
  ) {
    this.given = spec.given ?? {};
    this.ignore = new Set(spec.ignore ?? ["ack"]);
    const storage = new Map<string, string>();
    for (const [name, saved] of Object.entries(spec.saved ?? {})) {
      storage.set(`sessile:session:${String(this.play(name))}`, JSON.stringify(this.play(saved)));
    }
    this.it = world({ encoding: ENCODINGS[encoding], random: () => spec.random ?? 0.5 }, storage);
    this.stepAt = this.it.clock.now;
  }

  private play(value: unknown): unknown {
    return played(value, this.names, this.given);
  }
  private match(pattern: unknown, actual: unknown): void {
    matches(pattern, actual, this.names, this.given);
  }

  async run(): Promise<void> {
    this.it.client.connect();
    for (const [index, step] of this.spec.steps.entries()) {
      const verb = VERBS.find((name) => name in step);
      assert.ok(verb !== undefined, `step ${index} has no verb that is known here`);
      try {
        await settled();
        if (verb === "call") this.call(step);
        else await this.step(verb, step[verb]);
      } catch (error) {
        throw new Error(`step ${index} ${JSON.stringify(step).slice(0, 300)}: ${(error as Error).message}`, { cause: error });
      }
    }
    await settled();
    this.nothingLeft("at the end");
    this.it.client.close();
  }

  private nothingLeft(when: string): void {
    const frames = this.it.sockets.flatMap((socket) => socket.frames).filter((frame) => !this.ignore.has(String(frame["type"])));
    assert.deepEqual(frames, [], `${when}: frames that the case does not name`);
    assert.equal(this.it.sockets.length, this.dialsSeen, `${when}: dialled although the case does not say so`);
    if (this.socket?.closedWith) assert.fail(`${when}: closed with ${this.socket.closedWith.code}`);
  }

  private async step(verb: string, argument: unknown): Promise<void> {
    switch (verb) {
      case "connect":
        await this.connect((argument ?? {}) as { after_ms?: [number, number]; refuse?: unknown });
        break;
      case "client":
        for (const pattern of Array.isArray(argument) ? argument : [argument]) this.match(pattern, this.nextFrame());
        break;
      case "server":
        assert.ok(this.socket !== null, "no connection to play on");
        this.socket.play(...([this.play(argument)].flat() as object[]));
        break;
      case "server_raw": {
        const { text, hex } = argument as { text?: string; hex?: string };
        this.socket!.raw(text ?? new Uint8Array(Buffer.from(hex!, "hex")).slice().buffer);
        break;
      }
      case "close":
        this.close(argument as { by: string; code?: unknown });
        break;
      case "advance_ms":
        await this.it.clock.advance(Number(argument));
        break;
      case "quiet_ms":
        await this.it.clock.advance(Number(argument));
        this.nothingLeft("in quiet time");
        break;
      case "expect":
        this.expect(argument as Record<string, unknown>);
        break;
      default:
        assert.fail(`a client case cannot use ${verb}`);
    }
    await settled();
    this.stepAt = this.it.clock.now;
  }

  private nextFrame(): Record<string, unknown> {
    for (;;) {
      const frame = this.socket?.take();
      assert.ok(frame !== undefined, "the SDK has sent nothing (more)");
      if (!this.ignore.has(String(frame["type"]))) return frame;
    }
  }

  private async connect({ after_ms: [low, high] = [0, 0], refuse }: { after_ms?: [number, number]; refuse?: unknown }): Promise<void> {
    await this.it.clock.advance(this.stepAt + high - this.it.clock.now, () => this.it.sockets.length > this.dialsSeen);
    assert.ok(this.it.sockets.length > this.dialsSeen, `no dial within ${high} ms`);
    const waited = this.it.clock.now - this.stepAt;
    assert.ok(waited >= low, `dialled after ${waited} ms, not ${low}`);
    this.socket = this.it.sockets[this.dialsSeen++]!;
    if (refuse === undefined) this.socket.accept();
    else {
      const { http, retry_after_s: seconds = 0 } = refuse as { http?: number; retry_after_s?: number };
      if (http !== undefined) this.socket.refusal = { httpStatus: http, retryAfterMs: seconds * 1000 };
      this.socket.drop(1006);
      this.socket = null;
    }
  }

  private close({ by, code }: { by: string; code?: unknown }): void {
    assert.ok(this.socket !== null, "no connection to close");
    if (by === "client") {
      assert.ok(this.socket.closedWith !== null, "the SDK has not closed");
      this.match(code, this.socket.closedWith.code);
      const left = this.socket.frames.filter((frame) => !this.ignore.has(String(frame["type"])));
      assert.deepEqual(left, [], "frames before the close that the case does not name");
    } else {
      this.socket.drop(by === "network" ? 1006 : Number(this.play(code)));
    }
    this.socket = null;
  }

  private call(step: Record<string, unknown>): void {
    const fields = this.play(without(step, "call", "as", "note", "on")) as Record<string, unknown>;
    const label = step["as"] as string | undefined;
    const work = this.invoke(String(step["call"]), fields);
    this.stepAt = this.it.clock.now;
    if (label === undefined) return void work.catch(() => undefined); // how it ends is not asked for
    this.results.set(label, { state: "pending" });
    work.then(
      (ok) => this.results.set(label, { state: "ok", ok }),
      (error: unknown) => this.results.set(label, { state: "error", error }),
    );
  }

  private async invoke(name: string, { session: id, ...fields }: Record<string, unknown>): Promise<unknown> {
    const { client } = this.it;
    const session = (): Session => client.session(String(id));
    switch (name) {
      case "attach":
        session().open();
        return {};
      case "detach":
        session().close();
        return {};
      case "stop":
        client.close();
        return {};
      case "create": {
        const made = await client.create({ ...fields, ...(id === undefined ? {} : { session: String(id) }) });
        return { session: made.id, epoch: made.position?.epoch };
      }
      case "send":
        return asOk(await session().send(fields["content"] as string, without(fields, "content")));
      case "edit":
        return asOk(await session().edit(String(fields["item_id"]), fields["content"] as string, without(fields, "content", "item_id")));
      case "regenerate": {
        const answer = await session().regenerate(fields);
        return { response_id: answer.responseId };
      }
      case "cancel":
        return { noop: !(await session().cancel(String(fields["response_id"]))) };
      case "steer":
        return asOk(await session().steer(String(fields["response_id"]), fields["content"] as string));
      case "appeal": {
        const { response_id, content, note } = fields as { response_id?: string; content?: string; note?: string };
        const about = content === undefined ? { responseId: String(response_id) } : { content };
        return { review_id: await session().appeal(about, note) };
      }
      case "tool_output":
        return asOk(await session().toolOutput(String(fields["call_id"]), fields["output"] as string, fields["is_error"] === true));
      case "update":
        return session().update(fields as never);
      case "delete":
        return session().delete();
      case "get":
        return session().get();
      case "list":
        return { data: await all(client.list(fields["limit"] as number | undefined)) };
      case "warm":
        return session().warm() ?? {};
      default:
        return assert.fail(`no such call: ${name}`);
    }
  }

  private expect(what: Record<string, unknown>): void {
    if ("label" in what) {
      const result = this.results.get(String(what["label"]))!;
      if (what["pending"] === true) assert.equal(result.state, "pending");
      if ("ok" in what) {
        assert.equal(result.state, "ok", JSON.stringify(result));
        this.match(what["ok"], (result as { ok: unknown }).ok);
      }
      if ("error" in what) {
        assert.equal(result.state, "error", JSON.stringify(result));
        this.match(what["error"], errorFields((result as { error: unknown }).error));
      }
    }
    if ("client" in what) {
      const { status } = this.it.client;
      const wanted = what["client"] as Record<string, unknown>;
      if ("phase" in wanted) assert.equal(status.phase, wanted["phase"]);
      if ("error" in wanted) this.match(wanted["error"], { ...status.error, close_code: status.closeCode, http_status: status.httpStatus });
    }
    if ("session" in what) this.expectSession(what);
  }

  private expectSession(what: Record<string, unknown>): void {
    const session = this.it.client.session(String(this.play(what["session"])));
    const { view } = session;
    const itemText = (id: string): string => (view.items.get(id)?.content ?? []).map((part) => part.text ?? "").join("");
    const seen: Record<string, unknown> = {
      phase: session.phase,
      epoch: session.position?.epoch,
      offset: session.position?.offset,
      open: view.open.map((response) => response.id),
      items: [...view.items.keys()],
      head: view.head,
      title: view.title,
      branch: view.branch(),
    };
    const perId: Record<string, (id: string) => unknown> = {
      text: (id) => view.text(id),
      status: (id) => view.responses.get(id)?.status,
      item_text: itemText,
      arguments: (id) => view.items.get(id)?.arguments,
      reviews: (id) => {
        const review = view.reviews.get(id);
        return review?.outcome ?? (review?.appealed === true ? "appealed" : "open");
      },
    };
    for (const [key, wanted] of Object.entries(what)) {
      if (key === "session") continue;
      const of = perId[key];
      if (of === undefined) {
        assert.ok(key in seen, `expect knows no ${key}`);
        matches(wanted, seen[key], this.names, this.given, key);
      } else {
        for (const [id, value] of Object.entries(wanted as object)) {
          matches(value, of(String(this.play(id))), this.names, this.given, `${key}[${id}]`);
        }
      }
    }
  }
}

async function all<T>(list: AsyncIterable<T>): Promise<T[]> {
  const entries: T[] = [];
  for await (const entry of list) entries.push(entry);
  return entries;
}
function asOk(sent: Sent): object {
  return { item_id: sent.itemId, offset: sent.offset, response_id: sent.answer?.responseId };
}
function without(fields: Record<string, unknown>, ...names: string[]): Record<string, unknown> {
  return Object.fromEntries(Object.entries(fields).filter(([name]) => !names.includes(name)));
}
function errorFields(error: unknown): object {
  if (!(error instanceof Error)) return { message: String(error) };
  const { code, retryable, closeCode } = error as unknown as Record<string, unknown>;
  const wire = error instanceof CommandError ? { type: error.type, param: error.param, retry_after_ms: error.retryAfterMs } : {};
  return { message: error.message, code, retryable, close_code: closeCode, ...wire };
}

const cases = readdirSync(FOLDER)
  .filter((name) => name.endsWith(".json"))
  .sort()
  .map((name) => JSON.parse(readFileSync(new URL(name, FOLDER), "utf8")) as Case)
  .filter((spec) => spec.runs.includes("client"));

test("there are cases to run", () => assert.ok(cases.length > 0));
for (const spec of cases) {
  for (const encoding of spec.encodings ?? NAMES) {
    test(`${spec.name} (${encoding}): ${spec.title}`, () => new Runner(spec, encoding).run());
  }
}
