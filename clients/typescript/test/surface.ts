/** What tests import from the library, in one place. */
export * from "../src/index.js";
export { SUBPROTOCOLS as SUBPROTOCOLS_FOR_TESTS } from "../src/protocol.js";
