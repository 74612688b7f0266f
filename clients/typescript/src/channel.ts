/**
 * A bounded queue read by `for await`. Whoever pushes never waits: a reader that falls behind by more than
 * `limit` gets an OverflowError after what it has not yet read, and nothing more.
 */
import { OverflowError } from "./errors.js";

export class Channel<T> implements AsyncIterableIterator<T> {
  readonly #queue: T[] = [];
  readonly #waiting: { resolve(result: IteratorResult<T>): void; reject(error: unknown): void }[] = [];
  #ended = false;
  #error: unknown;

  constructor(
    private readonly limit: number,
    private readonly onEnd: () => void,
  ) {}

  push(value: T): void {
    if (this.#ended) return;
    const reader = this.#waiting.shift();
    if (reader !== undefined) reader.resolve({ done: false, value });
    else if (this.#queue.length < this.limit) this.#queue.push(value);
    else this.end(new OverflowError(`More than ${this.limit} events were not read in time.`));
  }

  end(error?: unknown): void {
    if (this.#ended) return;
    this.#ended = true;
    this.#error = error;
    this.onEnd();
    for (const reader of this.#waiting.splice(0)) this.#finish(reader);
  }

  next(): Promise<IteratorResult<T>> {
    return new Promise((resolve, reject) => {
      if (this.#queue.length > 0) resolve({ done: false, value: this.#queue.shift()! });
      else if (this.#ended) this.#finish({ resolve, reject });
      else this.#waiting.push({ resolve, reject });
    });
  }

  return(): Promise<IteratorResult<T>> {
    this.#queue.length = 0;
    this.end();
    return Promise.resolve({ done: true, value: undefined });
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  #finish(reader: { resolve(result: IteratorResult<T>): void; reject(error: unknown): void }): void {
    const error = this.#error;
    this.#error = undefined; // thrown once, then simply done
    if (error === undefined) reader.resolve({ done: true, value: undefined });
    else reader.reject(error);
  }
}
