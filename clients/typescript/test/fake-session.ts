/**
 * A conversation as a server keeps it, small and predictable: for tests of this SDK and of the page, before and
 * beside the real server. It makes the log and the snapshot from its own records, so it can check the fold in src/view.ts.
 */
import type { EventFrame, Item, LogEvent, SessionState } from "../src/protocol.js";

interface Writing {
  id: string;
  parentId: string | null;
  item: Item | null;
  pieces: string[];
  sequence: number;
}
interface Waiting {
  id: string;
  item: Item | null;
  after: string;
  sequence: number;
}
export type Command = { type: string; id: string; [key: string]: unknown };
export type Reply = { ok: Record<string, unknown> } | { error: { type: string; code: string; message: string; retryable: boolean; retry_after_ms?: number } };

export interface Settings {
  now: () => number;
  newId: (kind: string) => string;
  /** The words of an answer, in the pieces that they arrive in. */
  answer: (prompt: string, attempt: number) => string[];
}

/** The server's own bound (protocol, 5.3). */
const QUEUE_MAX = 8;
const FULL = { error: { type: "server_error", code: "queue_full", message: "8 wait already.", retryable: true, retry_after_ms: 1_000 } };
const BUSY: Reply = { error: { type: "invalid_request_error", code: "response_in_progress", message: "An answer is being written on this branch.", retryable: true } };

export class FakeSession {
  readonly log: EventFrame[] = [];
  readonly items = new Map<string, Item>();
  readonly open = new Map<string, Writing>();
  readonly queue: Waiting[] = [];
  /** What was taken, in order. */
  readonly said: string[] = [];
  readonly answered = new Map<string, { body: string; reply: Reply }>();
  title: string | null = null;
  metadata: Record<string, never> = {};
  head: string | null = null;
  deleted = false;
  readonly createdAt: number;
  /** Told after each event. */
  onEvent: (frame: EventFrame) => void = () => undefined;

  constructor(
    readonly id: string,
    public epoch: string,
    private readonly settings: Settings,
  ) {
    this.createdAt = settings.now();
  }

  get top(): number {
    return this.log.length;
  }

  command(command: Command): Reply {
    const { id, ...rest } = command;
    const body = JSON.stringify(rest);
    const before = this.answered.get(id);
    if (before !== undefined) {
      if (before.body === body) return before.reply;
      return { error: { type: "invalid_request_error", code: "idempotency_conflict", message: "This id was used for something else.", retryable: false } };
    }
    const reply = this.carryOut(command);
    if ("ok" in reply) this.answered.set(id, { body, reply });
    return reply;
  }

  private carryOut(command: Command): Reply {
    if (this.deleted) return missing();
    switch (command.type) {
      case "session.create":
        this.title = (command["title"] as string | undefined) ?? null;
        this.emit({ type: "session.created", info: this.info() });
        return { ok: { session: this.id, epoch: this.epoch, offset: this.top } };
      case "session.update":
        if (command["title"] !== undefined) this.title = command["title"] as string | null;
        this.emit({ type: "session.updated", info: this.info() });
        return { ok: { offset: this.top } };
      case "session.delete":
        for (const id of [...this.open.keys()]) this.end(id, "incomplete", "session_deleted");
        this.deleted = true;
        this.emit({ type: "session.deleted" });
        return { ok: { offset: this.top } };
      case "message.create": {
        const parentId = command["parent_id"] === undefined ? this.head : (command["parent_id"] as string | null);
        return this.say(command, parentId, command["queue"] === true);
      }
      case "message.edit": {
        const edited = this.items.get(String(command["item_id"]));
        return edited === undefined ? missing() : this.say(command, edited.parent_id, false);
      }
      case "response.create": {
        const parentId = command["parent_id"] === undefined ? this.head : (command["parent_id"] as string | null);
        const busy = this.busyWith(parentId);
        if (busy !== null && command["queue"] !== true) return BUSY;
        const id = this.settings.newId("resp");
        if (busy !== null) this.enqueue(id, null, busy);
        else this.begin(id, parentId);
        return { ok: { response_id: id, offset: this.top } };
      }
      case "response.cancel": {
        const id = String(command["response_id"]);
        const waiting = this.queue.findIndex((entry) => entry.id === id);
        if (waiting >= 0) {
          const { sequence } = this.queue.splice(waiting, 1)[0]!;
          const response = { id, status: "incomplete", parent_id: null, output: [], incomplete_details: { reason: "cancelled" } };
          this.emit({ type: "response.incomplete", response_id: id, sequence_number: sequence, response });
          return { ok: { offset: this.top } };
        }
        if (!this.open.has(id)) return { ok: { noop: true } };
        this.end(id, "incomplete", "cancelled");
        return { ok: { offset: this.top } };
      }
      case "session.warm":
        return { ok: {} };
      case "session.get":
        return { ok: { session: this.summary() } };
      default:
        return { error: { type: "invalid_request_error", code: "unknown_type", message: `No command ${command.type}.`, retryable: false } };
    }
  }

  private say(command: Command, parentId: string | null, queue: boolean): Reply {
    const busy = this.busyWith(parentId);
    const item = this.message(String(command["content"]), parentId);
    const responseId = command["respond"] === false ? null : this.settings.newId("resp");
    if (busy !== null) {
      if (!queue || responseId === null) return BUSY;
      if (this.queue.length >= QUEUE_MAX) return FULL;
      this.enqueue(responseId, item, busy);
    } else {
      this.add(item);
      if (responseId !== null) this.begin(responseId, item.id);
    }
    this.said.push(String(command["content"]));
    return { ok: { item_id: item.id, ...(responseId === null ? {} : { response_id: responseId }), offset: this.top } };
  }

  private message(text: string, parentId: string | null): Item {
    return {
      id: this.settings.newId("item"),
      parent_id: parentId,
      type: "message",
      role: "user",
      content: [{ type: "input_text", text }],
      status: "completed",
      created_at: this.settings.now(),
    };
  }

  private add(item: Item): void {
    this.items.set(item.id, item);
    this.head = item.id;
    this.emit({ type: "item.created", item: structuredClone(item) });
  }

  private busyWith(parentId: string | null): string | null {
    for (let id = parentId; id !== null; id = this.items.get(id)?.parent_id ?? null) {
      for (const writing of this.open.values()) if (writing.item?.id === id || writing.parentId === id) return writing.id;
    }
    return null;
  }

  private enqueue(id: string, item: Item | null, after: string): void {
    this.queue.push({ id, item, after, sequence: 1 });
    const response = { id, status: "queued", parent_id: null, output: [] };
    this.emit({ type: "response.queued", response_id: id, sequence_number: 0, response, item: structuredClone(item) });
  }

  private begin(id: string, parentId: string | null, sequence = 0): void {
    const prompt = this.items.get(parentId ?? "")?.content[0]?.text ?? "";
    const attempt = [...this.items.values()].filter((item) => item.parent_id === parentId && item.role === "assistant").length;
    const writing: Writing = { id, parentId, item: null, pieces: this.settings.answer(prompt, attempt), sequence };
    this.open.set(id, writing);
    this.say_(writing, "response.created", { response: { id, status: "in_progress", parent_id: parentId, output: [] } });
    this.say_(writing, "response.in_progress", {});
  }

  private say_(writing: Writing, type: string, fields: object): void {
    this.emit({ type, response_id: writing.id, sequence_number: writing.sequence++, ...structuredClone(fields) });
  }

  /** One open answer goes on by one piece. False when there was nothing to do. */
  step(which = 0): boolean {
    const writing = [...this.open.values()][which % Math.max(1, this.open.size)];
    if (writing === undefined) return false;
    if (writing.item === null) {
      writing.item = {
        id: this.settings.newId("item"),
        parent_id: writing.parentId,
        type: "message",
        role: "assistant",
        content: [],
        status: "in_progress",
        created_at: this.settings.now(),
      };
      this.items.set(writing.item.id, writing.item);
      this.head = writing.item.id;
      this.say_(writing, "response.output_item.added", { output_index: 0, item: writing.item });
      writing.item.content = [{ type: "output_text", text: "" }];
      this.say_(writing, "response.content_part.added", { ...this.at(writing), part: writing.item.content[0] });
      return true;
    }
    const piece = writing.pieces.shift();
    if (piece === undefined) this.end(writing.id, "completed");
    else {
      writing.item.content[0]!.text += piece;
      this.say_(writing, "response.output_text.delta", { ...this.at(writing), delta: piece });
    }
    return true;
  }

  /** Takes back code points [start, end) of an item, everywhere. */
  retract(itemId: string, start: number, end: number, replacement: string): void {
    const item = this.items.get(itemId)!;
    const points = Array.from(item.content[0]!.text!);
    item.content[0]!.text = [...points.slice(0, start), replacement, ...points.slice(end)].join("");
    this.emit({ type: "content.retracted", response_id: "", item_id: itemId, content_index: 0, start, end, replacement, category: "test" });
  }

  private at(writing: Writing): object {
    return { item_id: writing.item!.id, output_index: 0, content_index: 0 };
  }

  private end(id: string, status: "completed" | "incomplete", reason?: string): void {
    const writing = this.open.get(id)!;
    this.open.delete(id);
    if (writing.item !== null) {
      const text = writing.item.content[0]!.text!;
      writing.item.status = status;
      this.say_(writing, "response.output_text.done", { ...this.at(writing), text });
      this.say_(writing, "response.content_part.done", { ...this.at(writing), part: writing.item.content[0] });
      this.say_(writing, "response.output_item.done", { output_index: 0, item: writing.item });
    }
    const output = writing.item === null ? [] : [writing.item];
    this.say_(writing, `response.${status}`, {
      response: {
        id,
        status,
        parent_id: writing.parentId,
        output,
        usage: { input_tokens: 12, input_tokens_details: { cached_tokens: 8 }, output_tokens: 20 },
        ...(reason === undefined ? {} : { incomplete_details: { reason } }),
      },
    });
    const next = this.queue.findIndex((waiting) => waiting.after === id);
    if (next < 0 || this.deleted || reason === "session_deleted") return;
    const { id: nextId, item, sequence } = this.queue.splice(next, 1)[0]!;
    for (const waiting of this.queue) if (waiting.after === id) waiting.after = nextId;
    const last = writing.item?.id ?? writing.parentId;
    if (item !== null) this.add({ ...item, parent_id: last });
    this.begin(nextId, item?.id ?? last, sequence);
  }

  private emit(event: LogEvent): void {
    const frame: EventFrame = { type: "event", session: this.id, epoch: this.epoch, offset: this.log.length + 1, at: this.settings.now(), event };
    this.log.push(frame);
    this.onEvent(frame);
  }

  private info(): object {
    return { model: "fake", instructions: null, tools: [], metadata: this.metadata, title: this.title, created_at: this.createdAt };
  }

  summary(): Record<string, unknown> {
    return { id: this.id, title: this.title, created_at: this.createdAt, updated_at: this.log[this.log.length - 1]?.at ?? this.createdAt };
  }

  snapshot(): SessionState {
    const unfinished = new Set([...this.open.values()].map((writing) => writing.item?.id));
    return structuredClone({
      items: [...this.items.values()].filter((item) => !unfinished.has(item.id)),
      open: [...this.open.values()].map(({ id, parentId, item }) => ({ response_id: id, parent_id: parentId, output: item === null ? [] : [item] })),
      queued: this.queue.map(({ id, item, after }) => ({ response_id: id, item, after })),
      head: this.head,
      title: this.title,
      metadata: this.metadata,
    });
  }
}

export function missing(): Reply {
  return { error: { type: "invalid_request_error", code: "session_not_found", message: "There is no such session.", retryable: false } };
}
