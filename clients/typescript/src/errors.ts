/**
 * Everything that can go wrong, as types.
 *
 *   SessileError
 *   ├── CommandError      the server refused a command (code, type, param, retryable, retryAfterMs)
 *   │   ├── GoneError     … because the session is unknown, forbidden or deleted
 *   │   └── BusyError     … because the branch already has an open answer or waits for tools
 *   ├── StoppedError      the connection ended for good (closeCode, httpStatus); trying again would not help
 *   ├── TimeoutError      no answer in the time that the caller gave; whether it took effect is unknown
 *   ├── ExpiredError      a command waited for longer than the server remembers ids (command); a repeat would not be known as one
 *   ├── ClosedError       the client was closed by its owner
 *   ├── OverflowError     a bound of this client was reached (unanswered commands, unread events)
 *   ├── StorageError      the storage given by the owner failed; the conversation goes on without it
 *   └── DecodeError       bytes that are no frame of this protocol
 */
import type { CommandFrame, WireError } from "./protocol.js";

export class SessileError extends Error {
  readonly code: string;
  readonly retryable: boolean;
  constructor(code: string, message: string, retryable = false) {
    super(message);
    this.name = new.target.name;
    this.code = code;
    this.retryable = retryable;
  }
}

export class CommandError extends SessileError {
  readonly type: string | undefined;
  readonly param: string | undefined;
  readonly retryAfterMs: number | undefined;
  constructor(error: WireError) {
    super(error.code, error.message, error.retryable ?? false);
    this.type = error.type;
    this.param = error.param ?? undefined;
    this.retryAfterMs = error.retry_after_ms;
  }
}
export class GoneError extends CommandError {}
export class BusyError extends CommandError {}

export class StoppedError extends SessileError {
  readonly closeCode: number | undefined;
  readonly httpStatus: number | undefined;
  constructor(why: { closeCode?: number; httpStatus?: number; message: string }) {
    super("stopped", why.message);
    this.closeCode = why.closeCode;
    this.httpStatus = why.httpStatus;
  }
}
export class TimeoutError extends SessileError {
  constructor(message: string) {
    super("timeout", message, true);
  }
}
export class ExpiredError extends SessileError {
  readonly command: CommandFrame;
  constructor(command: CommandFrame) {
    super("expired", `${command.type} was not answered in 24 h; whether it took effect is unknown.`);
    this.command = command;
  }
}
export class ClosedError extends SessileError {
  constructor() {
    super("closed", "The client was closed.");
  }
}
export class OverflowError extends SessileError {
  constructor(message: string) {
    super("overflow", message, true);
  }
}
export class StorageError extends SessileError {
  constructor(message: string, cause: unknown) {
    super("storage", message);
    this.cause = cause;
  }
}
/** `closeCode` is what the connection is closed with: 1007 for bytes that are not the encoding, 1002 for anything else. */
export class DecodeError extends SessileError {
  readonly closeCode: number;
  constructor(message: string, closeCode = 1007) {
    super("bad_frame", message);
    this.closeCode = closeCode;
  }
}

const BUSY = new Set(["response_in_progress", "tools_pending"]);
const GONE = new Set(["session_not_found", "session_deleted", "not_found", "forbidden"]);

/** The leaf that fits what the server said. */
export function fromWire(error: WireError, aboutSession = false): CommandError {
  if (BUSY.has(error.code)) return new BusyError(error);
  if (aboutSession || (GONE.has(error.code) && error.code.startsWith("session_"))) return new GoneError(error);
  return new CommandError(error);
}

/** Whether to wait for a busy branch, to queue or to give up is the program's decision (protocol, 5.3). */
export function isBusy(code: string): boolean {
  return BUSY.has(code);
}

/** A handshake refused with one of these is worth another attempt, unlike the rest of 400–499. */
const PASSING_STATUSES = new Set([408, 425, 429]);

export function isFinalStatus(status: number): boolean {
  return status >= 400 && status < 500 && !PASSING_STATUSES.has(status);
}

/** Close codes after which a client must not come back by itself (protocol, 6.1). */
const FINAL_CLOSES = new Set([1002, 1003, 1007, 1008, 1009, 4400, 4401, 4403]);

export function isFinalClose(code: number): boolean {
  return FINAL_CLOSES.has(code);
}
