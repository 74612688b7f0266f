/** For editors and the type check only: the types of the bundle beside this file. */
import type { StreamParser } from "../../clients/typescript/node_modules/@codemirror/streamparser/dist/index.js";

export { StringStream } from "../../clients/typescript/node_modules/@codemirror/streamparser/dist/index.js";
export type Mode = StreamParser<any>;
export declare const languages: Map<string, Mode>;
