/** Many fake sessions behind connections: the server's half of PROTOCOL §1 and §3, window included, without sockets. */
import type { EventFrame } from "../src/protocol.js";
import { FakeSession, missing, type Command, type Settings } from "./fake-session.js";

export interface HubSettings extends Settings {
  /** Replays longer than this become snapshots. */
  replayMax: number;
  windowEvents: number;
  windowBytes: number;
  heartbeatMs: number;
  /** Lay adjacent deltas together when a reader has missed them. */
  merge: boolean;
  key?: string;
}

export interface HubConnection {
  received(frames: Record<string, unknown>[]): void;
  closed(): void;
}
interface Reader {
  send(frame: object): void;
  close(code: number, reason: string): void;
  greeted: boolean;
  cursors: Map<string, { offset: number; caughtUp: boolean }>;
  unacked: { session: string; offset: number; bytes: number }[];
}

export class FakeHub {
  readonly sessions = new Map<string, FakeSession>();
  readonly received: Record<string, unknown>[] = [];
  private readonly readers = new Set<Reader>();
  private connections = 0;

  constructor(readonly settings: HubSettings) {}

  connect(send: (frame: object) => void, close: (code: number, reason: string) => void): HubConnection {
    const reader: Reader = { send, close, greeted: false, cursors: new Map(), unacked: [] };
    this.readers.add(reader);
    return {
      received: (frames) => frames.forEach((frame) => this.readers.has(reader) && this.frame(reader, frame as Command)),
      closed: () => void this.readers.delete(reader),
    };
  }

  /** Everybody is cut off without a word. */
  forgetConnections(): void {
    this.readers.clear();
  }

  say(frame: object): void {
    for (const reader of this.readers) reader.send(frame);
  }

  add(id: string): FakeSession {
    const session = new FakeSession(id, this.settings.newId("ep"), this.settings);
    session.onEvent = () => this.feed(id);
    this.sessions.set(id, session);
    return session;
  }

  /** The log was lost: same words, another epoch. */
  loseLog(id: string): void {
    this.sessions.get(id)!.epoch = this.settings.newId("ep");
  }

  private frame(reader: Reader, frame: Command): void {
    this.received.push(frame);
    switch (frame.type) {
      case "hello":
        if (this.settings.key !== undefined && frame["auth"] !== this.settings.key) return reader.close(4401, "unauthorised");
        reader.greeted = true;
        reader.send({
          type: "ready",
          connection: `con_${++this.connections}`,
          heartbeat_ms: this.settings.heartbeatMs,
          window_events: this.settings.windowEvents,
          window_bytes: this.settings.windowBytes,
        });
        for (const wish of (frame["resume"] as Wish[] | undefined) ?? []) this.attach(reader, wish);
        return;
      case "ping":
        return reader.send({ type: "pong" });
      case "pong":
        return;
      case "ack":
        reader.unacked = reader.unacked.filter((sent) => sent.session !== frame["session"] || sent.offset > Number(frame["offset"]));
        for (const id of reader.cursors.keys()) this.advance(reader, id);
        return;
      case "subscribe":
        reader.send({ type: "ok", id: frame.id });
        return this.attach(reader, frame as unknown as Wish);
      case "unsubscribe":
        reader.cursors.delete(String(frame["session"]));
        return reader.send({ type: "ok", id: frame.id });
      case "session.list": {
        const all = [...this.sessions.values()].filter((session) => !session.deleted && session.top > 0).reverse();
        const from = all.findIndex((session) => session.id === frame["after"]) + 1;
        const limit = Number(frame["limit"] ?? 20);
        const data = all.slice(from, from + limit).map((session) => session.summary());
        return reader.send({ type: "ok", id: frame.id, data, has_more: from + limit < all.length, last_id: data[data.length - 1]?.["id"] ?? null });
      }
      case "session.create": {
        const id = String(frame["session"] ?? `ses_${frame.id.toLowerCase()}`);
        if (!this.sessions.has(id)) this.add(id);
        return this.answer(reader, frame, id);
      }
      default:
        return this.answer(reader, frame, String(frame["session"]));
    }
  }

  private answer(reader: Reader, frame: Command, id: string): void {
    const reply = this.sessions.get(id)?.command(frame) ?? missing();
    if ("ok" in reply) reader.send({ type: "ok", id: frame.id, ...reply.ok });
    else reader.send({ type: "error", id: frame.id, error: reply.error });
  }

  private attach(reader: Reader, { session: id, epoch, offset }: Wish): void {
    const session = this.sessions.get(id);
    if (session === undefined || session.deleted) {
      return reader.send({ type: "resumed", session: id, mode: "gone", error: (missing() as { error: object }).error });
    }
    const top = session.top;
    const state = (mode: string, extra: object = {}): void => {
      reader.cursors.set(id, { offset: top, caughtUp: false });
      const frame = { type: "resumed", session: id, mode, epoch: session.epoch, at: top, state: session.snapshot(), ...extra };
      this.transmit(reader, frame, id, top);
    };
    if (offset === undefined) state("snapshot");
    else if (!(offset === 0 && epoch === undefined) && (epoch !== session.epoch || offset > top)) state("reset", { reason: "log_lost" });
    else if (top - offset > this.settings.replayMax) state("snapshot");
    else {
      reader.cursors.set(id, { offset, caughtUp: false });
      reader.send({ type: "resumed", session: id, mode: "replay", epoch: session.epoch, from: offset + 1, top });
    }
    this.advance(reader, id);
  }

  private feed(id: string): void {
    for (const reader of this.readers) if (reader.cursors.has(id)) this.advance(reader, id);
  }

  private advance(reader: Reader, id: string): void {
    const cursor = reader.cursors.get(id)!;
    const { log } = this.sessions.get(id)!;
    while (cursor.offset < log.length) {
      if (reader.unacked.length >= this.settings.windowEvents) return;
      const bytes = reader.unacked.reduce((sum, sent) => sum + sent.bytes, 0);
      if (bytes >= this.settings.windowBytes) return;
      const frame = this.settings.merge ? merged(log, cursor.offset) : log[cursor.offset]!;
      cursor.offset = frame.offset;
      this.transmit(reader, frame, id, frame.offset);
    }
    if (!cursor.caughtUp) {
      cursor.caughtUp = true;
      reader.send({ type: "caught_up", session: id, offset: cursor.offset });
    }
  }

  private transmit(reader: Reader, frame: object, session: string, offset: number): void {
    reader.unacked.push({ session, offset, bytes: JSON.stringify(frame).length });
    reader.send(frame);
  }
}

interface Wish {
  session: string;
  epoch?: string;
  offset?: number;
}

/** The event after `from`, with the adjacent deltas of the same text laid together. */
function merged(log: EventFrame[], from: number): EventFrame {
  const first = log[from]!;
  if (first.event.type !== "response.output_text.delta") return first;
  let end = from;
  let delta = String(first.event["delta"]);
  while (end + 1 < log.length && log[end + 1]!.event.type === first.event.type && log[end + 1]!.event.item_id === first.event.item_id) {
    delta += String(log[++end]!.event["delta"]);
  }
  if (end === from) return first;
  return { ...first, first_offset: first.offset, offset: log[end]!.offset, event: { ...first.event, delta } };
}
