/** The public surface of `sessile`. */
export { SessileClient, type ClientEvents, type ClientOptions, type CommandOptions } from "./client.js";
export { Session, type MessageOptions, type SendOptions, type Sent } from "./session.js";
export { type SessionEvents, type SessionPhase, type TurnOptions } from "./session.js";
export { Answer, type Piece } from "./answer.js";
export { View, isOpen, itemText } from "./view.js";
export type { CompactionRecord, Entry, FeedbackRecord, ResponseRecord, ResponseStatus, ReviewRecord } from "./view.js";
export { Core, backoffMs, place, type ClientPhase, type Effect, type Status } from "./core.js";
export { memoryStorage, platform } from "./platform.js";
export type { Platform, StorageLike, Timers, WebSocketClass, WebSocketLike } from "./platform.js";
export { ulids } from "./ulid.js";
export * from "./errors.js";
export type * from "./protocol.js";
