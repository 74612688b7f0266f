/** What tests import from the library, in one place. */
import * as msgpack from "@msgpack/msgpack";
import type { Encoding } from "../src/index.js";
export * from "../src/index.js";
export { SUBPROTOCOLS as SUBPROTOCOLS_FOR_TESTS } from "../src/protocol.js";

/** The encodings by the names that the cases have for them. */
export const ENCODINGS = { json: "json", msgpack } as const satisfies Record<string, Encoding>;
export type EncodingName = keyof typeof ENCODINGS;
export const NAMES: readonly EncodingName[] = ["json", "msgpack"];
