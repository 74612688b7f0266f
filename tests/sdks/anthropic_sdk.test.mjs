/**
 * Anthropic's SDK, unchanged: SESSILE_TEST_BASE_URL names the server (with `/v1`), SESSILE_TEST_MODEL the model.
 */
import assert from "node:assert/strict";
import { test } from "node:test";
import Anthropic from "@anthropic-ai/sdk";

const baseURL = process.env.SESSILE_TEST_BASE_URL.replace(/\/v1\/?$/, "");
const apiKey = process.env.SESSILE_TEST_KEY ?? "none";
const model = process.env.SESSILE_TEST_MODEL ?? "simulated";
const client = new Anthropic({ baseURL, apiKey, maxRetries: 0 });
const weather = {
  name: "weather",
  description: "Reports the weather of a city.",
  input_schema: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
};
const question = { role: "user", content: "What is the weather in Rome?" };

test("an answer, whole and streamed", async () => {
  const whole = await client.messages.create({ model, max_tokens: 20, system: "Be brief.", messages: [question] });
  assert.equal(whole.role, "assistant");
  assert.ok(whole.content[0].text && whole.usage.output_tokens > 0);
  const stream = client.messages.stream({ model, max_tokens: 20, messages: [question] });
  let text = "";
  stream.on("text", (piece) => (text += piece));
  const final = await stream.finalMessage();
  assert.equal(final.content[0].text, text);
});

test("a call, streamed, and its result", async () => {
  const given = { model, max_tokens: 400, tools: [weather], messages: [question] };
  const first = await client.messages.stream(given).finalMessage();
  const call = first.content.find((block) => block.type === "tool_use");
  assert.equal(first.stop_reason, "tool_use");
  assert.equal(call.name, "weather");
  assert.equal(typeof call.input.city, "string");
  const result = { type: "tool_result", tool_use_id: call.id, content: "18 degrees" };
  const messages = [question, { role: "assistant", content: first.content }, { role: "user", content: [result] }];
  const second = await client.messages.create({ ...given, messages });
  assert.ok(second.content[0].text && second.usage.cache_read_input_tokens > 0);
});

test("a stream that is left, counts, models and refusals", async () => {
  const stream = await client.messages.create({ model, max_tokens: 400, messages: [question], stream: true });
  for await (const event of stream) if (event.type === "content_block_delta") break;
  const counted = await client.messages.countTokens({ model, messages: [question] });
  assert.ok(counted.input_tokens > 0);
  const listed = await client.models.list();
  assert.equal(listed.data[0].id, model);
  await assert.rejects(client.messages.create({ model: "other", max_tokens: 9, messages: [question] }), {
    status: 404,
  });
});
