/**
 * Thoughts of a model that thinks, as Vercel's AI SDK and Anthropic's SDK show them, and send them back in a
 * conversation with a tool: SESSILE_TEST_BASE_URL names the server (with `/v1`), SESSILE_TEST_MODEL the model.
 */
import assert from "node:assert/strict";
import { test } from "node:test";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import Anthropic from "@anthropic-ai/sdk";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

globalThis.AI_SDK_LOG_WARNINGS = false;
const baseURL = process.env.SESSILE_TEST_BASE_URL;
const apiKey = process.env.SESSILE_TEST_KEY ?? "none";
const name = process.env.SESSILE_TEST_MODEL ?? "simulated";
const models = {
  "openai responses": createOpenAI({ baseURL, apiKey }).responses(name),
  "openai compatible": createOpenAICompatible({ name: "sessile", baseURL, apiKey }).chatModel(name),
};
const weather = tool({
  description: "Reports the weather of a city.",
  inputSchema: z.object({ city: z.string() }),
  execute: async () => "18 degrees",
});
const question = "How is the weather in Rome?";

/** Both are there, and neither has a mark. */
function areApart(thought, text) {
  assert.ok(thought && text);
  assert.doesNotMatch(thought + text, /<\/?think>/);
}

for (const [kind, model] of Object.entries(models)) {
  test(`AI SDK, ${kind}: whole and streamed`, async () => {
    const whole = await generateText({ model, prompt: "2 + 2?", maxRetries: 0 });
    areApart(whole.reasoningText, whole.text);
    const streamed = streamText({ model, prompt: "2 + 2?", maxRetries: 0 });
    const pieces = { "reasoning-delta": "", "text-delta": "" };
    for await (const part of streamed.fullStream) if (part.type in pieces) pieces[part.type] += part.text;
    assert.deepEqual(pieces, { "reasoning-delta": whole.reasoningText, "text-delta": whole.text });
  });

  test(`AI SDK, ${kind}: steps with a tool, and a turn behind them`, async () => {
    const asked = { model, tools: { get_weather: weather }, stopWhen: stepCountIs(3), maxRetries: 0 };
    const first = await generateText({ ...asked, prompt: question });
    assert.equal(first.steps.length, 2);
    for (const step of first.steps) assert.ok(step.reasoningText);
    const messages = [{ role: "user", content: question }, ...first.response.messages, { role: "user", content: "Go on." }];
    const second = await generateText({ ...asked, messages });
    areApart(second.reasoningText, second.text);
  });
}

test("Anthropic: whole and streamed", async () => {
  const client = new Anthropic({ baseURL: baseURL.replace(/\/v1\/?$/, ""), apiKey, maxRetries: 0 });
  const thinking = { type: "enabled", budget_tokens: 1024 };
  const asked = { model: name, max_tokens: 2000, thinking, messages: [{ role: "user", content: "2 + 2?" }] };
  const whole = await client.messages.create(asked);
  assert.deepEqual(whole.content.map((block) => block.type), ["thinking", "text"]);
  areApart(whole.content[0].thinking, whole.content[1].text);
  const stream = client.messages.stream(asked);
  const pieces = { thinking: "", text: "" };
  stream.on("thinking", (piece) => (pieces.thinking += piece)).on("text", (piece) => (pieces.text += piece));
  const final = await stream.finalMessage();
  assert.deepEqual(final.content, whole.content);
  assert.deepEqual(pieces, { thinking: whole.content[0].thinking, text: whole.content[1].text });
});

test("Anthropic: a call behind a thought, and its result", async () => {
  const client = new Anthropic({ baseURL: baseURL.replace(/\/v1\/?$/, ""), apiKey, maxRetries: 0 });
  const input_schema = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
  const tools = [{ name: "get_weather", description: "Reports the weather of a city.", input_schema }];
  const asked = { model: name, max_tokens: 2000, tools, messages: [{ role: "user", content: question }] };
  const first = await client.messages.stream(asked).finalMessage();
  assert.deepEqual(first.content.map((block) => block.type), ["thinking", "tool_use"]);
  const result = { type: "tool_result", tool_use_id: first.content[1].id, content: "18 degrees" };
  const messages = [...asked.messages, { role: "assistant", content: first.content }, { role: "user", content: [result] }];
  const second = await client.messages.create({ ...asked, messages });
  assert.deepEqual(second.content.map((block) => block.type), ["thinking", "text"]);
  assert.ok(second.usage.cache_read_input_tokens > 0);
});
