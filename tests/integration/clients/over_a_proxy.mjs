/** The TypeScript SDK, as built for the page: says its arguments at a URL, and prints what was shown. */
import { createRequire } from "node:module";
import { SessileClient } from "../../../transport/web/sessile.js";

const WebSocket = createRequire(new URL("../../../clients/typescript/package.json", import.meta.url))("ws");
const [url, ...words] = process.argv.slice(2);
const client = new SessileClient({ url, WebSocket });
let portals = 0;
client.on("status", ({ captivePortal }) => (portals += captivePortal ? 1 : 0));
const session = await client.create({});
const offsets = [];
session.on("event", (frame) => offsets.push([frame.first_offset ?? frame.offset, frame.offset]));
const texts = [];
for (const word of words) {
  const { answer } = await session.send(word, { max_output_tokens: 20 });
  await answer.done();
  texts.push(answer.text);
}
console.log(JSON.stringify({ session: session.id, via: client.status.via, portals, offsets, texts }));
client.close();
