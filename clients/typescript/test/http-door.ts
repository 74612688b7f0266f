/** The server's doors over HTTP, for a fake hub in virtual time, and what a network may do to requests on their way. */
import type { Fetch } from "../src/platform.js";
import type { FakeHub } from "./fake-hub.js";
import type { VirtualClock } from "./virtual.js";

export interface Asked {
  path: string;
  method: string;
  headers: Record<string, string>;
  redirect: string;
}
type Answer = Awaited<ReturnType<Fetch>>;

/** `lost`: nothing arrives. `cut`: it arrives, and the answer does not. */
export type Fate = "whole" | "lost" | "cut";

export class HttpDoor {
  readonly asked: Asked[] = [];
  /** How the network is, request by request. */
  fate: () => Fate = () => "whole";
  /** Who answers in the server's place. */
  instead: ((asked: Asked) => Answer | Error) | null = null;
  delayMs = 5;

  constructor(
    private readonly hub: FakeHub,
    private readonly clock: VirtualClock,
  ) {}

  readonly fetch: Fetch = (url, options) =>
    new Promise((resolve, reject) => {
      const path = url.replace(/^https?:\/\/[^/]+/, "");
      const asked = { path, method: options.method ?? "GET", headers: options.headers, redirect: options.redirect };
      this.asked.push(asked);
      let isOver = false;
      let stop = (): void => undefined;
      const over = (): void => {
        isOver = true;
        stop();
        reject(new Error("aborted"));
      };
      (options.signal as AbortSignal).addEventListener("abort", over);
      const fate = this.fate();
      const answer = (status: number, body: unknown, headers: Record<string, string> = {}): void => {
        const text = JSON.stringify(body);
        const all: Record<string, string> = { "x-request-id": options.headers["x-request-id"]!, ...headers };
        this.clock.set(() => {
          if (isOver) return;
          if (fate === "cut") return reject(new TypeError("fetch failed"));
          resolve({ status, headers: { get: (name) => all[name] ?? null }, text: () => Promise.resolve(text) });
        }, this.delayMs);
      };
      this.clock.set(() => {
        if (isOver) return;
        const other = this.instead?.(asked);
        if (other instanceof Error) reject(other);
        else if (other) resolve(other);
        else if (fate === "lost") reject(new TypeError("fetch failed"));
        else stop = this.take(path, options.body, options.headers, answer) ?? stop;
      }, this.delayMs);
    });

  private take(path: string, body: string | undefined, headers: Record<string, string>, answer: (status: number, body: unknown, headers?: Record<string, string>) => void): (() => void) | void {
    if (path === "/v1/ws") return answer(426, { error: { code: "upgrade_required" } });
    const { key } = this.hub.settings;
    if (key !== undefined && headers["authorization"] !== `Bearer ${key}`) return answer(401, { error: { code: "unauthorized" } });
    if (path === "/v1/me") return answer(200, { object: "principal" });
    const frames: Record<string, unknown>[] = [];
    let heard = (): void => undefined;
    const line = this.hub.connect(
      (frame) => {
        frames.push(frame as Record<string, unknown>);
        heard();
      },
      () => undefined,
    );
    line.received([{ type: "hello", ...(key === undefined ? {} : { auth: key }) }]);
    frames.length = 0;
    if (path === "/v1/commands") {
      const command = JSON.parse(body!) as Record<string, unknown>;
      line.received([command]);
      line.closed();
      const { error, ...ok } = frames.find((frame) => frame["id"] === command["id"])!;
      return error === undefined ? answer(200, ok) : answer(409, { error });
    }
    const [, session, query] = /^\/v1\/sessions\/([^/]+)\/events\?(.*)$/.exec(path)!;
    const asked = new Map(query!.split("&").map((pair) => pair.split("=").map(decodeURIComponent) as [string, string]));
    const [after = null, epoch = null, waitMs] = [asked.get("after"), asked.get("epoch"), Number(asked.get("wait_ms"))];
    line.received([{ type: "subscribe", id: "x", session, ...(after !== null && { offset: Number(after) }), ...(epoch !== null && { epoch }) }]);
    const told = (): void => {
      heard = () => undefined;
      line.closed();
      const own = frames.filter((frame) => frame["type"] !== "ok" && frame["mode"] !== "replay");
      if (own[0]?.["mode"] === "gone") answer(404, { error: own[0]["error"] });
      else answer(200, own.length === 1 && own[0]!["type"] === "caught_up" ? [] : own);
    };
    if (frames.some((frame) => frame["type"] === "event" || (frame["type"] === "resumed" && frame["mode"] !== "replay"))) return told();
    const timer = this.clock.set(told, waitMs);
    heard = () => {
      this.clock.clear(timer);
      heard = () => undefined;
      this.clock.set(told, 1);
    };
    return () => {
      this.clock.clear(timer);
      heard = () => undefined;
      line.closed();
    };
  }
}

/** What a captive portal says: a page of its own. */
export function page(status = 200, headers: Record<string, string> = {}): Answer {
  return { status, headers: { get: (name) => headers[name] ?? null }, text: () => Promise.resolve("<html>Welcome to Wi-Fi</html>") };
}
