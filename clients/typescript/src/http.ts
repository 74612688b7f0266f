/**
 * The session protocol over HTTP, for where no WebSocket gets through: commands by POST, events by long poll.
 *
 * `ask` makes one request and says whose the answer is: our server repeats the name that a request has (`x-request-id`), and
 * whoever answers in its place (a captive portal, a proxy) does not know it. Nothing of theirs is taken for data, and the key
 * follows no redirect. `HttpLine` is a connection for the client's shell: it takes the frames that a WebSocket would, and
 * gives those that would come. By offset and epoch, and by the ids of commands, everything counts once as it does there.
 */
import { pack, unpack } from "./codec.js";
import { aborter, type Abort, type Platform } from "./platform.js";
import type { ClientFrame, CommandFrame, EventFrame, OkFrame, Position, ServerFrame, WireError } from "./protocol.js";

/** Requests that wait for events at a time; browsers have six to a host. */
const POLLS_MAX = 3;
const POLL_MS = 25_000;
/** Where more sessions are read than may wait at a time, they take turns. */
const TURN_MS = 2_000;
/** What a request may take beyond the time that it waits at the server. */
const REQUEST_MS = 15_000;
const TLS_WORDS = /cert|verif|self.signed/i;

export interface Heard {
  /** `ours`: the server's. `outage`: nobody's, or that of a gateway before it. `portal`: somebody else's. */
  from: "ours" | "outage" | "portal";
  status: number;
  retryAfterMs: number;
  text: string;
}

/** Whether words of a platform say that somebody else's certificate came: a portal's, as a rule. */
export function isForeign(words: unknown): boolean {
  return TLS_WORDS.test(String(words));
}

/** One request. Resolves always; `key` and `body` are sent to this address and to no other. */
export async function ask(
  { fetch, random, timers }: Platform,
  url: string,
  { key, body, waitMs = 0, stop }: { key?: string | undefined; body?: string | undefined; waitMs?: number; stop?: Abort } = {},
): Promise<Heard> {
  const name = `sdk-${random().toString(36).slice(2)}`;
  const abort = stop ?? aborter();
  const timer = timers.set(() => abort.abort(), waitMs + REQUEST_MS);
  const heard: Heard = { from: "outage", status: 0, retryAfterMs: 0, text: "" };
  try {
    const answer = await fetch!(url, {
      cache: "no-store",
      redirect: "manual",
      signal: abort.signal,
      headers: {
        "x-request-id": name,
        ...(key !== undefined && { authorization: `Bearer ${key}` }),
        ...(body !== undefined && { "content-type": "application/json" }),
        ...(body !== undefined && key === undefined && { "x-sessile-csrf": "1" }), // a page's cookie needs it
      },
      ...(body !== undefined && { method: "POST", body }),
    });
    const { status, headers } = answer;
    heard.status = status;
    heard.retryAfterMs = Number(headers.get("retry-after-ms") ?? Number(headers.get("retry-after")) * 1000) || 0;
    if (headers.get("x-request-id") === name) {
      heard.text = await answer.text();
      heard.from = "ours";
    } else if (status < 400 || status === 511) heard.from = "portal";
  } catch (error) {
    const { cause } = error as { cause?: { code?: unknown } };
    if (isForeign(cause?.code)) heard.from = "portal";
  }
  timers.clear(timer);
  return heard;
}

/** Silence after which the client asks for a sign of life: more than a poll takes. */
const HEARTBEAT_MS = 30_000;

interface Reading extends Partial<Position> {
  session: string;
  /** The server has said where it begins, and that all that was there has come. */
  isTold?: boolean;
  isLive?: boolean;
  /** Answers that come after the events up to their offset. */
  held?: OkFrame[];
}

export class HttpLine {
  readonly #open = new Set<Abort>();
  readonly #readings = new Map<string, Reading>();
  readonly #turns: Reading[] = [];
  /** The last command of each session: the next is sent when it is answered, so that they keep their order. */
  readonly #last = new Map<string | undefined, Promise<void>>();
  #polls = 0;
  #isReady = false;
  #isOver = false;

  constructor(
    private readonly platform: Platform,
    private readonly server: string,
    private readonly key: string | undefined,
    private readonly hear: (frames: ServerFrame[], bytes: number) => void,
    /** It is of no more use; why, where the answer says it. */
    private readonly ended: (heard: Heard) => void,
  ) {}

  send(frames: ClientFrame[]): void {
    for (const frame of frames as (CommandFrame & { resume?: Reading[] })[]) {
      const { type, id, session, resume } = frame;
      if (resume !== undefined) for (const each of resume) this.#read(each);
      else if (type === "hello" || type === "ping") void this.#ask("/v1/me").then((heard) => heard && this.hear([{ type: "pong" }], 0));
      else if (type === "subscribe" || type === "unsubscribe") {
        this.hear([{ type: "ok", id }], 0);
        if (type === "subscribe") this.#read(frame as unknown as Reading);
        else this.#readings.delete(session!);
      } else if (type !== "ack" && type !== "pong") {
        const before = this.#last.get(session) ?? Promise.resolve();
        this.#last.set(session, before.then(() => this.#command(frame)));
      }
    }
  }

  close(): void {
    this.#isOver = true;
    for (const request of this.#open) request.abort();
  }

  /** null: the line is over. */
  async #ask(path: string, body?: string, waitMs = 0): Promise<Heard | null> {
    if (this.#isOver) return null;
    const stop = aborter();
    this.#open.add(stop);
    const heard = await ask(this.platform, this.server + path, { key: this.key, body, waitMs, stop });
    this.#open.delete(stop);
    if (this.#isOver) return null;
    if (heard.from !== "ours" || heard.status === 401) {
      this.close();
      this.ended(heard);
      return null;
    }
    if (!this.#isReady) {
      this.#isReady = true;
      this.hear([{ type: "ready", heartbeat_ms: HEARTBEAT_MS }], 0);
    }
    return heard;
  }

  async #command(frame: CommandFrame): Promise<void> {
    const heard = await this.#ask("/v1/commands", pack("json", [frame]) as string);
    if (heard === null) return;
    const { id, session } = frame;
    if (heard.status !== 200) return this.hear([{ type: "error", id, error: errorOf(heard) }], 0);
    const answer = { ...(parsed(heard) as object), type: "ok", id } as OkFrame;
    const reading = this.#readings.get(session!);
    if (reading !== undefined && Number(answer["offset"]) > (reading.offset ?? 0)) (reading.held ??= []).push(answer);
    else this.hear([answer], 0);
  }

  #read({ session, epoch, offset }: Reading): void {
    const reading: Reading = { session, ...(epoch !== undefined && { epoch }), ...(offset !== undefined && { offset }) };
    this.#readings.set(session, reading);
    this.#turns.push(reading);
    this.#work();
  }

  #work(): void {
    while (this.#polls < POLLS_MAX && this.#turns.length > 0) {
      const reading = this.#turns.shift()!;
      if (this.#readings.get(reading.session) !== reading) continue;
      this.#polls++;
      void this.#poll(reading).then(() => {
        this.#polls--;
        this.#work();
      });
    }
  }

  async #poll(reading: Reading): Promise<void> {
    const { session, epoch = "", offset } = reading;
    const waitMs = !reading.isLive ? 0 : this.#readings.size > POLLS_MAX ? TURN_MS : POLL_MS;
    const after = offset === undefined ? "" : `&after=${offset}${epoch && `&epoch=${encodeURIComponent(epoch)}`}`;
    const heard = await this.#ask(`/v1/sessions/${session}/events?wait_ms=${waitMs}${after}`, undefined, waitMs);
    if (heard === null || this.#readings.get(session) !== reading) return;
    let frames: ServerFrame[];
    let bytes = 0;
    if (heard.status === 200) {
      try {
        ({ frames, bytes } = unpack("json", heard.text));
      } catch {
        return this.ended({ ...heard, from: "outage" });
      }
      this.#turns.push(reading);
    } else {
      frames = [{ type: "resumed", session, mode: "gone", error: errorOf(heard) }];
      this.#readings.delete(session);
    }
    if (!reading.isTold && frames[0]?.type !== "resumed") {
      const begun = epoch || (frames[0] as EventFrame).epoch;
      frames.unshift({ type: "resumed", session, mode: "replay", epoch: begun, from: offset! + 1, top: offset! });
    }
    reading.isTold = true;
    const told = frames.filter((frame) => {
      if (frame.type === "event") reading.offset = frame.offset;
      else if (frame.type === "resumed" && "at" in frame) [reading.epoch, reading.offset] = [frame.epoch, frame.at];
      else if (frame.type === "resumed" && "from" in frame) reading.epoch = frame.epoch;
      else if (frame.type === "caught_up") return !reading.isLive && (reading.isLive = true);
      return true;
    });
    if (!reading.isLive && told.length === 0) {
      reading.isLive = true;
      told.push({ type: "caught_up", session, offset: reading.offset! });
    }
    const { held = [] } = reading;
    const isBegun = told[0]?.type !== "event";
    const isTold = (answer: OkFrame): boolean => isBegun || Number(answer["offset"]) <= reading.offset!;
    reading.held = held.filter((answer) => !isTold(answer));
    this.hear([...told, ...held.filter(isTold)], bytes);
  }
}

function parsed(heard: Heard): { error?: WireError } {
  try {
    return (JSON.parse(heard.text) as object | null) ?? {};
  } catch {
    return {};
  }
}

function errorOf(heard: Heard): WireError {
  return parsed(heard).error ?? { code: `http_${heard.status}`, message: `HTTP ${heard.status}`, retryable: heard.status >= 500 };
}
