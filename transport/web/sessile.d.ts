/** For editors and the type check only: the types of the bundle beside this file. */
export * from "../../clients/typescript/src/index.js";
