/**
 * One answer as a stream of text that can be asked for at any time, before, while and after it is written.
 *
 * It follows the view, not the frames, so replay, snapshot, reset and retraction need no care here: each piece takes the
 * reader from the text it has to the text that stands. Almost always `delta` is appended; when what was shown has
 * changed, `restarted` is set and `delta` is the whole text.
 */
import { Channel } from "./channel.js";
import { SessileError } from "./errors.js";
import type { Session, Sent } from "./session.js";
import type { ContentPart } from "./protocol.js";
import { isOpen, type ResponseRecord } from "./view.js";

export interface Piece {
  delta: string;
  text: string;
  restarted?: true;
}

const UNREAD_PIECES_MAX = 65_536;

export class Answer implements AsyncIterable<Piece> {
  constructor(
    private readonly session: Session,
    readonly responseId: string,
    /** Where in the log it was accepted. */
    private readonly offset: number,
  ) {}

  /** undefined until its first event has come. */
  get response(): ResponseRecord | undefined {
    return this.session.view.responses.get(this.responseId);
  }

  get text(): string {
    return this.session.view.text(this.responseId);
  }

  /** Resolves with how it ended (completed, incomplete or failed). Opens the session while it waits. */
  async done(): Promise<ResponseRecord> {
    this.session.open();
    try {
      await this.session.until(() => this.#isOver());
    } finally {
      this.session.close();
    }
    return this.#ended();
  }

  /** See `Session.steer`. */
  steer(content: string | ContentPart[]): Promise<Sent> {
    return this.session.steer(this.responseId, content);
  }

  /** See `Session.cancel`: of a turn that waits for tool outputs, too. */
  cancel(): Promise<boolean> {
    return this.session.cancel(this.responseId);
  }

  [Symbol.asyncIterator](): AsyncIterator<Piece> {
    let shown = "";
    const channel = new Channel<Piece>(UNREAD_PIECES_MAX, () => {
      for (const stop of stops) stop();
      this.session.close();
    });
    const look = (): void => {
      const { text } = this;
      if (text !== shown) {
        if (text.startsWith(shown)) channel.push({ delta: text.slice(shown.length), text });
        else channel.push({ delta: text, text, restarted: true });
        shown = text;
      }
      if (!this.#isOver()) return;
      try {
        this.#ended();
        channel.end();
      } catch (error) {
        channel.end(error);
      }
    };
    const stops = [this.session.on("change", look), this.session.on("gone", (error) => channel.end(error))];
    this.session.open();
    look();
    return channel;
  }

  #isOver(): boolean {
    const { response } = this;
    if (response !== undefined) return !isOpen(response);
    // The log is past the point of its beginning, and it is not in the view: it ended while we were away.
    const { phase, position } = this.session;
    return phase === "deleted" || (phase === "live" && this.offset > 0 && (position?.offset ?? 0) >= this.offset);
  }

  #ended(): ResponseRecord {
    const { response } = this;
    if (response !== undefined) return response;
    throw new SessileError("outcome_unknown", "The answer ended while nobody read; its items are in the view.");
  }
}
