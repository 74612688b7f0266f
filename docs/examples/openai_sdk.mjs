/**
 * OpenAI's JavaScript SDK, unchanged: chat that streams, an answer in the background that is resumed, a conversation.
 *
 *   npm install openai
 *   node docs/examples/openai_sdk.mjs http://127.0.0.1:8080
 */
import { createRequire } from "node:module";

// From where you are, or from what this project's own tests have installed.
const here = createRequire(`${process.cwd()}/`);
const { default: OpenAI } = here("openai");

const [url = "http://127.0.0.1:8080", apiKey = "none"] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey });
const model = (await client.models.list()).data[0].id;

// A client that keeps its history itself: resending it lands on the actor that holds the KV of it.
const messages = [{ role: "user", content: "Say hello." }];
for (const next of ["And now goodbye.", null]) {
  let said = "";
  for await (const chunk of await client.chat.completions.create({ model, messages, stream: true })) {
    said += chunk.choices[0]?.delta.content ?? "";
  }
  console.log("chat:", said);
  messages.push({ role: "assistant", content: said });
  if (next) messages.push({ role: "user", content: next });
}

// An answer in the background outlives its reader, who comes back with the number of the last event that it saw.
const stream = await client.responses.create({ model, input: "Tell me more.", background: true, stream: true });
let text = "";
let seen = 0;
let responseId = "";
for await (const event of stream) {
  seen = event.sequence_number;
  if (event.type === "response.created") responseId = event.response.id;
  if (event.type === "response.output_text.delta") {
    text += event.delta;
    break;
  }
}
for await (const event of await client.responses.retrieve(responseId, { stream: true, starting_after: seen })) {
  if (event.type === "response.output_text.delta") text += event.delta;
}
const whole = (await client.responses.retrieve(responseId)).output_text;
if (text !== whole) throw new Error(`the stream said ${text}, the response says ${whole}`);
console.log("response:", text);

// A conversation that the server keeps.
const conversation = await client.conversations.create();
for (const input of ["One?", "Two?"]) {
  await client.responses.create({ model, input, conversation: conversation.id });
}
const roles = [];
for await (const item of client.conversations.items.list(conversation.id, { order: "asc" })) {
  if (item.type === "message") roles.push(item.role);
}
console.log("conversation:", roles.join(" "));
