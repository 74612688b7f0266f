/**
 * Which way the client goes: WebSocket, or HTTP (http.ts) where something on the way lets no WebSocket through; and whether who
 * answers is the server at all, or a captive portal. Loaded when a connection is first wanted.
 *
 * A refused handshake, one that hangs, two in a row that never came to `ready`, or four connections in a row that were cut soon
 * after it, make it ask: `GET /v1/ws` without an upgrade, without a key. 426 from our own server means that a handshake would
 * be welcome there, so it is the way that is closed: HTTP it is. While that serves, a WebSocket is tried beside it now and then,
 * and is gone back to once the server has greeted on it.
 */
import { pack } from "./codec.js";
import type { Core } from "./core.js";
import { isFinalStatus } from "./errors.js";
import { ask, HttpLine, isForeign, type Heard } from "./http.js";
import type { Platform, WebSocketLike } from "./platform.js";
import type { Encoding } from "./protocol.js";

/** A handshake that takes longer is asked about beside. */
const HANGING_MS = 4_000;
/** A connection that was cut before counts as one that something cuts. */
const BRIEF_MS = 10_000;
const MISSES_MAX = 4;
const TRIAL_FIRST_MS = 60_000;
const TRIAL_LAST_MS = 600_000;
const TRIAL_TAKES_MS = 10_000;

/** What a client lets its ways do. */
export interface WaysEnds {
  drive(step: (core: Core, now: number) => unknown): void;
  /** `found` changed. */
  changed(): void;
  /** The connection over HTTP is of no more use. */
  ended(): void;
  /** A WebSocket for a trial. */
  open(): WebSocketLike;
  encoding: Encoding;
}

export class Ways {
  /** What the client's status has of it. */
  found: { via: "websocket" | "http"; captivePortal: boolean } = { via: "websocket", captivePortal: false };
  readonly #server: string;
  #key: string | undefined;
  #misses = 0;
  #readyAt: number | null = null;
  #timer: unknown = null;
  #trialMs = TRIAL_FIRST_MS;
  #trial: WebSocketLike | null = null;
  /** Counts what makes an answer that is still awaited too late. */
  #turn = 0;
  #isAsking = false;

  constructor(
    private readonly platform: Platform,
    url: string,
    private readonly ends: WaysEnds,
  ) {
    this.#server = url.replace(/^ws/, "http").replace(/\/v1\/ws(\?.*)?$|\/+$/, "");
  }

  /** The client connects. The line over HTTP, where that is the way. */
  dialled(key: string | undefined): HttpLine | null {
    this.#key = key;
    this.#readyAt = null;
    if (this.found.via === "websocket") {
      this.#after(HANGING_MS, () => this.#ask());
      return null;
    }
    const { ends } = this;
    const line: HttpLine = new HttpLine(
      this.platform,
      this.#server,
      key,
      (frames, bytes) => ends.drive((core, now) => core.received(now, frames, bytes)),
      (heard) => this.#lineEnded(heard),
    );
    return line;
  }

  ready(): void {
    this.left();
    this.#readyAt = this.platform.now();
    this.#tell({ captivePortal: false });
    if (this.found.via === "http") this.#after(this.#trialMs, () => this.#try());
  }

  /** A WebSocket ended, and not by us. True: a refusal is not to be believed until the server itself was asked. */
  lost(code: number, words: string, refusal?: { httpStatus: number; retryAfterMs: number }): boolean {
    const readyAt = this.#readyAt;
    this.#readyAt = null;
    this.#after();
    if (isForeign(words)) this.#tell({ captivePortal: true });
    const lived = readyAt === null ? 0 : this.platform.now() - readyAt;
    if (lived >= BRIEF_MS) {
      this.#misses = 0;
      this.#trialMs = TRIAL_FIRST_MS;
    } else if (readyAt === null) this.#misses += refusal === undefined ? 2 : MISSES_MAX;
    else if (code === 1006) this.#misses++;
    // What says when to come back, or that the key is wrong, is the server.
    if (this.#misses < MISSES_MAX || refusal?.httpStatus === 401 || refusal?.retryAfterMs) return false;
    this.#ask(refusal?.httpStatus);
    return refusal !== undefined && isFinalStatus(refusal.httpStatus);
  }

  /** No connection is wanted, or another one: what is under way for this one counts no more. */
  left(): void {
    this.#turn++;
    this.#after();
    this.#isAsking = false;
    this.#trial?.close();
    this.#trial = null;
  }

  /** The network is another: what was found of the old one means nothing. */
  forget(): void {
    this.left();
    this.#misses = 0;
    this.#trialMs = TRIAL_FIRST_MS;
    this.#tell({ via: "websocket", captivePortal: false });
  }

  #lineEnded({ from, status, retryAfterMs }: Heard): void {
    if (this.#readyAt === null) this.#tell({ via: "websocket" });
    this.#readyAt = null;
    this.left();
    this.ends.ended();
    this.#tell({ captivePortal: from === "portal" });
    this.ends.drive((core, now) => {
      if (from === "ours") core.refused(now, status, 0);
      else core.closed(now, 1006, "");
      if (from === "outage" && retryAfterMs > 0) core.wait(now, retryAfterMs);
    });
  }

  #after(ms?: number, run?: () => void): void {
    const { timers } = this.platform;
    if (this.#timer !== null) timers.clear(this.#timer);
    this.#timer = ms === undefined ? null : timers.set(run!, ms);
  }

  #tell(change: Partial<Ways["found"]>): void {
    const found = { ...this.found, ...change };
    const isNews = found.via !== this.found.via || found.captivePortal !== this.found.captivePortal;
    this.found = found;
    if (isNews) this.ends.changed();
  }

  #ask(httpStatus?: number): void {
    if (this.#isAsking) return;
    this.#isAsking = true;
    const turn = this.#turn;
    void ask(this.platform, `${this.#server}/v1/ws`).then(({ from, status, retryAfterMs }) => {
      if (turn !== this.#turn) return;
      this.#isAsking = false;
      const isPortal = from === "portal";
      this.#tell({ captivePortal: isPortal });
      if (from === "ours" && status === 426) this.#go("http");
      else if (!isPortal && retryAfterMs > 0) this.ends.drive((core, now) => core.wait(now, retryAfterMs));
      else if (httpStatus !== undefined && (from === "ours" || isFinalStatus(status)))
        this.ends.drive((core, now) => core.refused(now, httpStatus, 0));
    });
  }

  #go(via: "websocket" | "http"): void {
    this.#misses = 0;
    this.#tell({ via });
    this.ends.drive((core, now) => core.redial(now));
  }

  /** Beside the connection over HTTP, which goes on meanwhile. */
  #try(): void {
    const { ends } = this;
    const socket = (this.#trial = ends.open());
    const over = (isOpen: boolean): void => {
      if (this.#trial !== socket) return;
      this.#trial = null;
      socket.close();
      if (isOpen) return this.#go("websocket");
      this.#trialMs = Math.min(this.#trialMs * 2, TRIAL_LAST_MS);
      this.#after(this.#trialMs, () => this.#try());
    };
    const hello = { type: "hello", ...(this.#key !== undefined && { auth: this.#key }) };
    socket.onopen = () => socket.send(pack(ends.encoding, [hello]) as string);
    socket.onmessage = () => over(true);
    socket.onerror = () => undefined;
    socket.onclose = () => over(false);
    this.#after(TRIAL_TAKES_MS, () => over(false));
  }
}
