/**
 * A storage that answers when it likes, made safe to be killed over: one write a key at a time, the newest wins, and a
 * position that was not shown yet is held back.
 *
 * AsyncStorage promises no order between two writes of one key. Here the second begins after the first ended, and
 * what was overtaken meanwhile is not written at all. `settled` says when all of it is on the disk.
 */
import type { StorageLike } from "sessile";

type Text = string | null;
interface Queued {
  text: Text;
  resolve(): void;
  reject(error: unknown): void;
}

/** One write a key at a time, in order, to a storage that may reorder them. */
export class OrderedStorage implements StorageLike {
  readonly #writing = new Map<string, Text>();
  readonly #queued = new Map<string, Queued[]>();
  #idle: (() => void)[] = [];

  constructor(private readonly below: StorageLike) {}

  getItem(key: string): Promise<Text> {
    const queue = this.#queued.get(key);
    const last = queue?.[queue.length - 1];
    if (last !== undefined) return Promise.resolve(last.text);
    const text = this.#writing.get(key);
    return text === undefined ? Promise.resolve(this.below.getItem(key)) : Promise.resolve(text);
  }

  setItem(key: string, text: string): Promise<void> {
    return this.#put(key, text);
  }

  removeItem(key: string): Promise<void> {
    return this.#put(key, null);
  }

  /** Resolves when nothing is being written; failures are told to who wrote. */
  settled(): Promise<void> {
    if (this.#writing.size === 0) return Promise.resolve();
    return new Promise((resolve) => this.#idle.push(resolve));
  }

  #put(key: string, text: Text): Promise<void> {
    return new Promise((resolve, reject) => {
      const queue = this.#queued.get(key) ?? [];
      queue.push({ text, resolve, reject });
      this.#queued.set(key, queue);
      if (!this.#writing.has(key)) this.#next(key);
    });
  }

  #next(key: string): void {
    const batch = this.#queued.get(key);
    if (batch === undefined) {
      if (this.#writing.size > 0) return;
      for (const resolve of this.#idle.splice(0)) resolve();
      return;
    }
    this.#queued.delete(key);
    const { text } = batch[batch.length - 1]!;
    this.#writing.set(key, text);
    const ended = (how: (each: Queued) => void): void => {
      this.#writing.delete(key);
      for (const each of batch) how(each);
      this.#next(key);
    };
    new Promise<unknown>((resolve) => resolve(text === null ? this.below.removeItem(key) : this.below.setItem(key, text))).then(
      () => ended((each) => each.resolve()),
      (error: unknown) => ended((each) => each.reject(error)),
    );
  }
}

interface Watched {
  watchers: number;
  /** The newest version of the view that was on the screen. */
  shown: number;
  held: { version: number; text: string } | null;
}

/**
 * Holds a session's position back until the view that it belongs to was on the screen. An app that is killed between
 * the two then reads those events once more; the other way round it would never show them.
 */
export class ShownFirst {
  readonly #sessions = new Map<string, Watched>();

  constructor(private readonly write: (session: string, text: string) => Promise<unknown>) {}

  /** Somebody draws this session; returns what ends it. What nobody draws is stored as it comes. */
  watch(session: string): () => void {
    const watched = this.#sessions.get(session) ?? { watchers: 0, shown: -1, held: null };
    this.#sessions.set(session, watched);
    watched.watchers++;
    let isOver = false;
    return () => {
      if (isOver) return;
      isOver = true;
      if (--watched.watchers === 0) this.#sessions.delete(session);
    };
  }

  /** This version of the view is on the screen. */
  shown(session: string, version: number): void {
    const watched = this.#sessions.get(session);
    if (watched === undefined || version <= watched.shown) return;
    watched.shown = version;
    const { held } = watched;
    if (held === null || held.version > version) return;
    watched.held = null;
    void this.write(session, held.text);
  }

  /** Store it now if its version was shown, else when it is. */
  store(session: string, version: number, text: string): Promise<unknown> {
    const watched = this.#sessions.get(session);
    if (watched === undefined || version <= watched.shown) return this.write(session, text);
    watched.held = { version, text };
    return Promise.resolve();
  }

  /** The session is gone: nothing of it is to be stored any more. */
  drop(session: string): void {
    const watched = this.#sessions.get(session);
    if (watched !== undefined) watched.held = null;
  }
}
