/**
 * OpenAI's own JavaScript SDK, unchanged, against any server of ours: SESSILE_TEST_BASE_URL names it (with `/v1`),
 * SESSILE_TEST_MODEL the model. Nothing here depends on what a model says, only on what the API promises.
 *
 *   SESSILE_TEST_BASE_URL=http://127.0.0.1:8080/v1 SESSILE_TEST_MODEL=... node --test tests/integration/openai/sdk.test.mjs
 */
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { test } from "node:test";

const require = createRequire(new URL("../../../clients/typescript/package.json", import.meta.url));
const { default: OpenAI, ...kinds } = require("openai");

const baseURL = process.env.SESSILE_TEST_BASE_URL;
const client = new OpenAI({ baseURL, apiKey: process.env.SESSILE_TEST_KEY ?? "none", maxRetries: 0 });
const model = process.env.SESSILE_TEST_MODEL ?? (await client.models.list()).data[0].id;
const { capabilities } = await client.models.retrieve(model);

const LONG = 400;
const BLOCK = Number(process.env.SESSILE_TEST_OPENAI_BLOCK ?? 1); // KV is reused in whole blocks of so many tokens
const reusable = (tokens) => tokens - (tokens % BLOCK);
const HELLO = [
  { role: "system", content: "Be brief." },
  { role: "user", content: "Say something about rivers." },
];
const PARAMETERS = {
  type: "object",
  properties: { city: { enum: ["Rome", "Oslo"] } },
  required: ["city"],
  additionalProperties: false,
};
const WEATHER = { type: "function", function: { name: "weather", description: "Tells the weather.", parameters: PARAMETERS } };
const WEATHER_FLAT = { type: "function", name: "weather", parameters: PARAMETERS, strict: false };
const SCHEMA = {
  type: "object",
  properties: { kind: { enum: ["yes", "no"] }, count: { enum: [1, 2, 3] } },
  required: ["kind", "count"],
  additionalProperties: false,
};

const collected = async (stream) => {
  const all = [];
  for await (const one of stream) all.push(one);
  return all;
};
const deltas = (chunks) => chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join("");
const unless = (capability) => (capabilities[capability] ? {} : { skip: `the model says that it has no ${capability}` });

// -- models and errors ---------------------------------------------------------------------------------------------

test("models are listed and described", async () => {
  const models = await collected(client.models.list());
  const mine = models.find((each) => each.id === model);
  assert.equal(mine.object, "model");
  assert.deepEqual(await client.models.retrieve(model), mine);
  assert.ok(mine.context_window > 0);
});

test("errors are of the SDK's own kinds, with code, param and the request's id", async () => {
  const failed = async (promise) => promise.then(() => assert.fail("it was accepted"), (error) => error);
  const unknown = await failed(client.chat.completions.create({ model: "no-such-model", messages: HELLO }));
  assert.ok(unknown instanceof kinds.NotFoundError);
  assert.deepEqual([unknown.status, unknown.code, unknown.param], [404, "model_not_found", "model"]);
  assert.match(unknown.requestID, /^req_/);
  const hot = await failed(client.chat.completions.create({ model, messages: HELLO, temperature: 7 }));
  assert.ok(hot instanceof kinds.BadRequestError && hot.param === "temperature" && hot.type === "invalid_request_error");
  const empty = await failed(client.chat.completions.create({ model, messages: [], stream: true }));
  assert.ok(empty instanceof kinds.BadRequestError && empty.param === "messages");
  const strange = await failed(client.chat.completions.create({ model, messages: HELLO, nonsense: 1 }));
  assert.ok(strange instanceof kinds.BadRequestError && strange.code === "unknown_parameter" && strange.param === "nonsense");
  assert.ok((await failed(client.responses.retrieve("resp_no"))) instanceof kinds.NotFoundError);
  assert.ok((await failed(client.conversations.retrieve("conv_no"))) instanceof kinds.NotFoundError);
  assert.ok((await failed(client.models.retrieve("no"))) instanceof kinds.NotFoundError);
  const wrongTool = { type: "function", function: { name: "f", parameters: { type: "nope" } } };
  const refused = await failed(client.chat.completions.create({ model, messages: HELLO, tools: [wrongTool] }));
  assert.ok(refused instanceof kinds.BadRequestError && refused.param === "tools[0].function.parameters");
});

// -- chat ----------------------------------------------------------------------------------------------------------

test("a whole chat completion", async () => {
  const { data, request_id: requestId } = await client.chat.completions
    .create({ model, messages: HELLO, max_completion_tokens: 8, temperature: 0, user: "ann" })
    .withResponse();
  assert.match(requestId, /^req_/);
  assert.equal(data.object, "chat.completion");
  assert.equal(data.choices[0].message.role, "assistant");
  assert.ok(data.choices[0].message.content.length > 0);
  assert.ok(["stop", "length"].includes(data.choices[0].finish_reason));
  const { usage } = data;
  assert.ok(usage.completion_tokens > 0 && usage.completion_tokens <= 8);
  assert.equal(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens);
});

test("a stream says what the whole answer says, with usage only where it was asked for", async () => {
  const ask = { model, messages: HELLO, max_tokens: 12, temperature: 0 };
  const whole = await client.chat.completions.create(ask);
  const plain = await collected(await client.chat.completions.create({ ...ask, stream: true }));
  assert.equal(deltas(plain), whole.choices[0].message.content);
  assert.ok(plain.every((chunk) => chunk.choices.length === 1 && chunk.usage == null));
  const counted = await collected(
    await client.chat.completions.create({ ...ask, stream: true, stream_options: { include_usage: true } }),
  );
  assert.equal(deltas(counted), whole.choices[0].message.content);
  assert.deepEqual(counted.at(-1).choices, []);
  assert.equal(counted.at(-1).usage.completion_tokens, whole.usage.completion_tokens);
});

test("the SDK's own accumulator, several choices", async () => {
  const stream = client.chat.completions.stream({ model, messages: HELLO, max_tokens: 6, n: 2, temperature: 1, seed: 5 });
  const told = ["", ""];
  for await (const chunk of stream) for (const choice of chunk.choices) told[choice.index] += choice.delta.content ?? "";
  const final = await stream.finalChatCompletion();
  assert.deepEqual(final.choices.map((choice) => [choice.index, choice.message.content]), [[0, told[0]], [1, told[1]]]);
});

test("a client that resends its history reuses what was computed", async () => {
  const messages = [...HELLO];
  let before = 0;
  let session;
  for (let turn = 0; turn < 4; turn += 1) {
    const { data, response } = await client.chat.completions
      .create({ model, messages, max_tokens: 6, temperature: 0, user: "history" })
      .withResponse();
    session ??= response.headers.get("x-session-id");
    assert.equal(response.headers.get("x-session-id"), session);
    if (turn > 0) assert.ok(data.usage.prompt_tokens_details.cached_tokens >= reusable(before - 2));
    before = data.usage.total_tokens;
    messages.push(data.choices[0].message, { role: "user", content: `Tell me more (${turn}).` });
  }
});

test("an aborted stream ends for its reader", async () => {
  const stream = await client.chat.completions.create({ model, messages: HELLO, max_tokens: LONG, stream: true });
  let seen = 0;
  let finished = false;
  for await (const { choices: [choice] } of stream) {
    if (choice.delta.content && (seen += 1) === 2) stream.controller.abort();
    finished ||= choice.finish_reason !== null;
  }
  // What had come in one piece with the second is still handed out by the SDK: more than two on a busy machine.
  assert.ok(seen >= 2 && seen < LONG / 2 && !finished, `${seen} pieces, finished: ${finished}`);
});

test("a repeated Idempotency-Key gives the same completion", async () => {
  const idempotencyKey = `js-${Date.now()}`;
  const ask = { model, messages: HELLO, max_tokens: 6, temperature: 1 };
  const headers = { "Idempotency-Key": idempotencyKey };
  const first = await client.chat.completions.create(ask, { headers });
  assert.deepEqual(await client.chat.completions.create(ask, { headers }), first);
  await assert.rejects(client.chat.completions.create({ ...ask, max_tokens: 7 }, { headers }), kinds.ConflictError);
});

test("structured output", unless("structured_output"), async () => {
  const done = await client.chat.completions.parse({
    model,
    messages: [{ role: "user", content: "Answer in JSON." }],
    max_tokens: 60,
    response_format: { type: "json_schema", json_schema: { name: "answer", schema: SCHEMA, strict: true } },
  });
  const said = JSON.parse(done.choices[0].message.content);
  assert.ok(["yes", "no"].includes(said.kind) && [1, 2, 3].includes(said.count));
});

test("logprobs", unless("logprobs"), async () => {
  const done = await client.chat.completions.create({ model, messages: HELLO, max_tokens: 4, logprobs: true, top_logprobs: 2 });
  const { content } = done.choices[0].logprobs;
  assert.ok(content.length > 0 && content.every((each) => each.logprob <= 0 && each.top_logprobs.length === 2));
});

// -- tools ---------------------------------------------------------------------------------------------------------

test("a call and its output, whole", unless("tools"), async () => {
  const messages = [{ role: "user", content: "How is the weather in Rome?" }];
  const ask = { model, messages, tools: [WEATHER], max_tokens: 60, temperature: 0 };
  const first = await client.chat.completions.create({ ...ask, tool_choice: "required" });
  const [call] = first.choices[0].message.tool_calls;
  assert.equal(first.choices[0].finish_reason, "tool_calls");
  assert.equal(call.function.name, "weather");
  assert.ok(["Rome", "Oslo"].includes(JSON.parse(call.function.arguments).city));
  messages.push(first.choices[0].message, { role: "tool", tool_call_id: call.id, content: "18 degrees" });
  const second = await client.chat.completions.create({ ...ask, messages, tool_choice: "none" });
  assert.ok(second.choices[0].message.content.length > 0);
  await assert.rejects(client.chat.completions.create({ ...ask, messages: messages.slice(0, 2) }), kinds.BadRequestError);
});

test("a streamed call through the SDK's accumulator", unless("tools"), async () => {
  const named = { type: "function", function: { name: "weather" } };
  const stream = client.chat.completions.stream({ model, messages: HELLO, tools: [WEATHER], tool_choice: named, max_tokens: 60 });
  const final = await stream.finalChatCompletion();
  const [call] = final.choices[0].message.tool_calls;
  assert.equal(call.function.name, "weather");
  assert.ok(["Rome", "Oslo"].includes(JSON.parse(call.function.arguments).city));
});

test("a call in the Responses API, answered by the next response", unless("tools"), async () => {
  const ask = { model, tools: [WEATHER_FLAT], max_output_tokens: 60 };
  const first = await client.responses.create({ ...ask, input: "How is the weather?", tool_choice: "required" });
  const [call] = first.output;
  assert.equal(call.type, "function_call");
  const output = { type: "function_call_output", call_id: call.call_id, output: "18 degrees" };
  const second = await client.responses.create({ ...ask, input: [output], previous_response_id: first.id, tool_choice: "none" });
  assert.equal(second.previous_response_id, first.id);
  assert.ok(second.output_text.length > 0);
});

// -- responses -----------------------------------------------------------------------------------------------------

test("a response is kept, read again, continued and erased", async () => {
  const made = await client.responses.create({
    model, input: "hello", instructions: "Be brief.", metadata: { topic: "x" }, max_output_tokens: 8, temperature: 0.5,
  });
  assert.ok(["completed", "incomplete"].includes(made.status));
  assert.ok(made.output_text.length > 0 && made.usage.output_tokens > 0);
  assert.deepEqual([made.instructions, made.metadata, made.temperature], ["Be brief.", { topic: "x" }, 0.5]);
  assert.deepEqual(await client.responses.retrieve(made.id), made);
  const next = await client.responses.create({ model, input: "and then", previous_response_id: made.id, max_output_tokens: 8 });
  assert.ok(next.usage.input_tokens_details.cached_tokens > 0 || BLOCK > 1);
  const items = await collected(client.responses.inputItems.list(next.id));
  assert.deepEqual(items.map((item) => item.role), ["user"]);
  await client.responses.delete(made.id);
  await assert.rejects(client.responses.retrieve(made.id), kinds.NotFoundError);
});

test("a response as a stream, through the SDK's accumulator", async () => {
  const stream = client.responses.stream({ model, input: "hello", max_output_tokens: 12 });
  const seen = [];
  stream.on("event", (event) => seen.push(event.type));
  const final = await stream.finalResponse();
  assert.deepEqual(seen.slice(0, 2), ["response.created", "response.in_progress"]);
  assert.ok(seen.includes("response.output_text.delta"));
  assert.ok(["response.completed", "response.incomplete"].includes(seen.at(-1)));
  assert.equal((await client.responses.retrieve(final.id)).output_text, final.output_text);
});

test("a background response is resumed behind what was seen", async () => {
  const stream = await client.responses.create({ model, input: "hello", max_output_tokens: 60, background: true, stream: true });
  const events = [];
  for await (const event of stream) {
    events.push(event);
    if (event.type === "response.output_text.delta") break;
  }
  const id = events[0].response.id;
  const rest = await client.responses.retrieve(id, { stream: true, starting_after: events.at(-1).sequence_number });
  events.push(...(await collected(rest)));
  assert.deepEqual(events.map((event) => event.sequence_number), events.map((_, index) => index));
  const text = events.filter((event) => event.type === "response.output_text.delta").map((event) => event.delta).join("");
  assert.equal(text, (await client.responses.retrieve(id)).output_text);
});

test("a background response is polled, cancelled, and stays cancelled", async () => {
  const made = await client.responses.create({ model, input: "hello", max_output_tokens: LONG, background: true });
  assert.ok(["queued", "in_progress"].includes(made.status) && made.background);
  assert.equal((await client.responses.retrieve(made.id)).id, made.id);
  assert.equal((await client.responses.cancel(made.id)).status, "cancelled");
  assert.equal((await client.responses.cancel(made.id)).status, "cancelled");
  assert.equal((await client.responses.retrieve(made.id)).status, "cancelled");
});

test("what is not stored is not shown again", async () => {
  const made = await client.responses.create({ model, input: "hello", max_output_tokens: 4, store: false });
  await assert.rejects(client.responses.retrieve(made.id), kinds.NotFoundError);
});

// -- conversations -------------------------------------------------------------------------------------------------

test("a conversation with its items", async () => {
  const made = await client.conversations.create({ metadata: { topic: "x" }, items: [{ type: "message", role: "user", content: "before" }] });
  assert.deepEqual((await client.conversations.retrieve(made.id)).metadata, { topic: "x" });
  const answer = await client.responses.create({ model, input: "hello", conversation: made.id, max_output_tokens: 6 });
  assert.equal(answer.conversation.id, made.id);
  await client.conversations.items.create(made.id, { items: [{ type: "message", role: "user", content: "after" }] });
  const items = await collected(client.conversations.items.list(made.id, { order: "asc", limit: 2 }));
  assert.deepEqual(items.map((item) => item.role), ["user", "user", "assistant", "user"]);
  assert.deepEqual(await client.conversations.items.retrieve(items[0].id, { conversation_id: made.id }), items[0]);
  assert.deepEqual((await client.conversations.update(made.id, { metadata: { topic: "y" } })).metadata, { topic: "y" });
  assert.ok((await client.conversations.delete(made.id)).deleted);
  await assert.rejects(client.conversations.retrieve(made.id), (error) => [404, 410].includes(error.status));
});
