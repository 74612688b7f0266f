/**
 * A phone that goes through a tunnel: it asks, loses the network in mid-answer, is put to sleep, wakes, and shows the answer
 * whole. Run it against a server:
 *
 *     npm run build && node examples/phone.mjs http://127.0.0.1:8080
 */
import * as msgpack from "@msgpack/msgpack";
import WebSocket from "ws";
import { SessileClient } from "sessile";
import { nodeWebSocket } from "sessile/node";

const client = new SessileClient({
  url: process.argv[2] ?? "http://127.0.0.1:8080",
  auth: process.env["SESSILE_API_KEY"],
  encoding: msgpack,
  device: "phone-example",
  WebSocket: nodeWebSocket(WebSocket),
});
client.on("status", ({ phase }) => process.stderr.write(`[${phase}]`));

const session = await client.create({ title: "From a train" });
const { answer } = await session.send("Describe a tunnel.");

let isAsleep = false;
let shown = "";
for await (const piece of answer) {
  if (piece.restarted) process.stdout.write("\n");
  process.stdout.write(piece.delta);
  shown = piece.text;
  if (!isAsleep) {
    isAsleep = true;
    client.suspend(); // what an app does when it goes to the background
    setTimeout(() => client.resume(), 500); // and when it comes back
  }
}
const { status, usage } = await answer.done();
console.log(`\n${status}, ${shown.length} characters, ${usage?.output_tokens} tokens`);
await session.delete();
client.close();
