/**
 * Vercel's AI SDK, unchanged: SESSILE_TEST_BASE_URL names the server (with `/v1`), SESSILE_TEST_MODEL the model.
 */
import assert from "node:assert/strict";
import { test } from "node:test";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

globalThis.AI_SDK_LOG_WARNINGS = false;
const baseURL = process.env.SESSILE_TEST_BASE_URL;
const apiKey = process.env.SESSILE_TEST_KEY ?? "none";
const name = process.env.SESSILE_TEST_MODEL ?? "simulated";
const openai = createOpenAI({ baseURL, apiKey });
const compatible = createOpenAICompatible({ name: "sessile", baseURL, apiKey, supportsStructuredOutputs: true });

const models = {
  "openai responses": openai.responses(name),
  "openai chat": openai.chat(name),
  "openai compatible": compatible.chatModel(name),
};
const weather = tool({
  description: "Reports the weather of a city.",
  inputSchema: z.object({ city: z.string() }),
  execute: async () => "18 degrees",
});

for (const [kind, model] of Object.entries(models)) {
  test(`${kind}: text and stream`, async () => {
    const whole = await generateText({ model, system: "Be brief.", prompt: "Say something.", maxRetries: 0 });
    assert.ok(whole.text && whole.usage.outputTokens > 0);
    const streamed = streamText({ model, prompt: "Say something.", maxRetries: 0 });
    let text = "";
    for await (const piece of streamed.textStream) text += piece;
    assert.ok(text);
  });

  test(`${kind}: turns of one conversation`, async () => {
    const messages = [{ role: "user", content: "Say something." }];
    for (let turn = 0; turn < 3; turn++) {
      const done = await generateText({ model, messages, maxRetries: 0 });
      assert.ok(done.text);
      messages.push(...done.response.messages, { role: "user", content: "Go on." });
    }
  });

  test(`${kind}: tools in several steps`, async () => {
    const done = await generateText({
      model,
      tools: { get_weather: weather },
      stopWhen: stepCountIs(3),
      prompt: "How is the weather in Rome?",
      maxRetries: 0,
    });
    assert.equal(done.steps.length, 2);
    assert.equal(done.steps[0].toolResults[0].output, "18 degrees");
    assert.ok(done.text);
    const streamed = streamText({
      model,
      tools: { get_weather: weather },
      stopWhen: stepCountIs(3),
      prompt: "How is the weather in Rome?",
      maxRetries: 0,
    });
    await streamed.consumeStream();
    assert.equal((await streamed.steps).length, 2);
  });

  test(`${kind}: structured output`, async () => {
    const schema = z.object({ city: z.enum(["Rome", "Oslo"]) });
    const done = await generateText({ model, output: Output.object({ schema }), prompt: "Where is it?", maxRetries: 0 });
    assert.ok(["Rome", "Oslo"].includes(done.output.city));
  });
}

test("stored responses and conversations", async () => {
  const model = openai.responses(name);
  const first = await generateText({ model, prompt: "Say something.", maxRetries: 0 });
  const previousResponseId = first.providerMetadata.openai.responseId;
  const providerOptions = { openai: { previousResponseId } };
  assert.ok((await generateText({ model, prompt: "Go on.", providerOptions, maxRetries: 0 })).text);
  const made = await fetch(`${baseURL}/conversations`, { method: "POST", headers: { authorization: `Bearer ${apiKey}` } });
  const conversation = (await made.json()).id;
  for (const prompt of ["Say something.", "Go on."]) {
    const done = await generateText({ model, prompt, providerOptions: { openai: { conversation } }, maxRetries: 0 });
    assert.ok(done.text);
  }
});

test("completions", async () => {
  const done = await generateText({ model: openai.completion(name), prompt: "Once upon a time", maxRetries: 0 });
  assert.ok(done.text);
});
