/**
 * The wire, as types: what the Sessile session protocol v1 puts into frames.
 *
 * Nothing here decides anything. Fields that the server may leave out are optional, and every object may
 * carry more than is written here (unknown fields are ignored). The specification is docs/protocol.md.
 */

export const SUBPROTOCOLS = { json: "sessile.v1+json", msgpack: "sessile.v1+msgpack" } as const;
interface KeyDecoder {
  canBeCached(length: number): boolean;
  decode(bytes: Uint8Array, at: number, length: number): string;
}
/** As much of `@msgpack/msgpack` as is used. */
export interface MessagePack {
  encode(value: unknown): Uint8Array;
  decode(bytes: Uint8Array, options?: { keyDecoder: KeyDecoder }): unknown;
}
export type Encoding = "json" | MessagePack;

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };
export type Metadata = { [key: string]: Json };

/** Where a reader stands in a session's log. `offset` counts from 1; 0 is before the first event. */
export interface Position {
  epoch: string;
  offset: number;
}

export interface ContentPart {
  type: string;
  text?: string;
  refusal?: string;
  /** What the model thought before its text: a part of its own, before the text's. */
  reasoning?: string;
  /** Of an `input_passage`: what the answer cites it by, like [1]. */
  number?: number;
  [key: string]: unknown;
}

export interface Item {
  id: string;
  parent_id: string | null;
  type: string;
  role?: string;
  content: ContentPart[];
  status?: string;
  created_at?: number;
  response_id?: string;
  /** Of a `function_call`. */
  name?: string;
  call_id?: string;
  arguments?: string;
  /** Of a `function_call_output`. */
  output?: unknown;
  [key: string]: unknown;
}

export interface Usage {
  input_tokens: number;
  output_tokens: number;
  input_tokens_details?: { cached_tokens?: number };
  [key: string]: unknown;
}

export interface WireError {
  type?: string;
  code: string;
  message: string;
  param?: string | null;
  retryable?: boolean;
  retry_after_ms?: number;
}

/** What is searched with a message's words before its answer begins; passages stand in front of them, as `input_passage`. */
export interface Knowledge {
  vector_store_ids: string[];
  results_max?: number;
  filters?: { [key: string]: Json } | null;
  score_min?: number;
}

/** What stands in the log. `type` follows the Responses stream of OpenAI where that has a name. */
export interface LogEvent {
  type: string;
  response_id?: string;
  item_id?: string;
  sequence_number?: number;
  output_index?: number;
  content_index?: number;
  [key: string]: unknown;
}

/** An event as a reader gets it. `first_offset` is there when one frame covers several adjacent deltas. */
export interface EventFrame {
  type: "event";
  session: string;
  epoch: string;
  offset: number;
  first_offset?: number;
  at?: number;
  event: LogEvent;
}

/** A session in full, as `snapshot` and `reset` carry it. */
export interface SessionState {
  items: Item[];
  open: { response_id: string; output?: Item[]; parent_id?: string | null; [key: string]: unknown }[];
  /** Accepted and waiting for their branch; `item` is the message that waits with it. */
  queued?: { response_id: string; item?: Item | null; [key: string]: unknown }[];
  /** Item id → id of the response that made it. */
  made_by?: { [itemId: string]: string };
  /** Id of a response that has ended → why it is incomplete. */
  incomplete?: { [responseId: string]: string };
  reviews?: ReviewState[];
  /** Id of a response that has ended → what made it, when, and what it took. Times in ms. */
  answers?: { [responseId: string]: AnswerState };
  feedback?: FeedbackState[];
  /** Summaries in force, the oldest first. */
  compactions?: CompactionState[];
  /** Ids of items that the model reads word by word. */
  pinned?: string[];
  temperature?: number | null;
  max_output_tokens?: number | null;
  head?: string | null;
  title?: string | null;
  metadata?: Metadata | null;
  [key: string]: unknown;
}

/** What a snapshot says of a review case, and events of it. */
export interface ReviewState {
  review_id: string;
  category?: string;
  response_id?: string | null;
  appealed?: boolean;
  outcome?: "upheld" | "overturned" | null;
}

export interface AnswerState {
  status: string;
  model: string;
  created_at: number;
  completed_at: number;
  usage: Usage | null;
}

/** What a snapshot says of a summary, and `context.compacted`. */
export interface CompactionState {
  summary: Item;
  model: string;
  items: number;
  read_item_id: string;
}

export type Rating = "up" | "down";

/** A rating in a snapshot, and in `feedback.updated`; there no rating: it was taken back. */
export interface FeedbackState {
  response_id: string;
  by: string;
  rating?: Rating | null;
  reason?: string;
}

export interface ReadyFrame {
  type: "ready";
  connection?: string;
  heartbeat_ms?: number;
  window_events?: number;
  window_bytes?: number;
}

export type ResumedFrame = { type: "resumed"; session: string; id?: string } & (
  | { mode: "replay"; epoch: string; from: number; top: number }
  | { mode: "snapshot"; epoch: string; at: number; state: SessionState }
  | { mode: "reset"; epoch: string; at: number; state: SessionState; reason?: string }
  | { mode: "gone"; error?: WireError }
);

export type OkFrame = { type: "ok"; id: string; [key: string]: unknown };
export type ErrorFrame = { type: "error"; id?: string; error: WireError };

export type ServerFrame =
  | ReadyFrame
  | ResumedFrame
  | EventFrame
  | { type: "caught_up"; session: string; offset: number }
  | OkFrame
  | ErrorFrame
  | { type: "ping" }
  | { type: "pong" }
  | { type: "goaway"; reason?: string; after_ms?: number };

/** A command on its way: its `id` is the idempotency key. */
export interface CommandFrame {
  type: string;
  id: string;
  session?: string;
  [key: string]: unknown;
}

export type ClientFrame = CommandFrame | { type: string; [key: string]: unknown };

/** How an answer is sampled: the fields of OpenAI's Responses, and what local engines have besides. */
export interface Sampling {
  temperature?: number;
  top_p?: number;
  top_k?: number;
  min_p?: number;
  max_output_tokens?: number;
  seed?: number;
  stop?: string | string[];
  presence_penalty?: number;
  frequency_penalty?: number;
  tool_choice?: unknown;
  text?: unknown;
  [key: string]: unknown;
}

export interface SessionInfo {
  id?: string;
  session?: string;
  title?: string | null;
  created_at?: number;
  updated_at?: number;
  [key: string]: unknown;
}

/** A session in which a search found something. `item_id` null: in its title. `start`, `end`: code points of `snippet`. */
export interface SessionMatch extends SessionInfo {
  matches: { item_id: string | null; role: string | null; snippet: string; start: number; end: number }[];
}

export interface Page<T> {
  data: T[];
  has_more: boolean;
  last_id?: string | null;
}
