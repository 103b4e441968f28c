import assert from "node:assert/strict";
import { test } from "node:test";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";
import { expected, model, question, schema, weather, weatherAnswer, weatherQuestion, weatherResult } from "./cases.mjs";

export default function (url) {
  const compatible = createOpenAICompatible({ name: "calla", baseURL: `${url}/v1`, apiKey: "none", includeUsage: true, supportsStructuredOutputs: true });
  const providers = {
    "openai-compatible": compatible(model),
    anthropic: createAnthropic({ baseURL: `${url}/v1`, apiKey: "none" })(model),
    "openai (responses)": createOpenAI({ baseURL: `${url}/v1`, apiKey: "none" })(model),
  };
  const settings = { temperature: 0, maxRetries: 0, maxOutputTokens: 300 };

  for (const [name, chat] of Object.entries(providers)) {
    test(`ai with ${name}: text, whole and streamed`, async () => {
      const whole = await generateText({ model: chat, ...settings, prompt: question });
      assert.match(whole.text, expected);
      assert.equal(whole.finishReason, "stop");
      const stream = streamText({ model: chat, ...settings, prompt: question });
      let text = "";
      for await (const piece of stream.textStream) text += piece;
      assert.equal(text, whole.text);
      const usage = await stream.usage;
      assert.ok(usage.inputTokens > 0 && usage.outputTokens > 0);
      assert.ok(usage.cachedInputTokens >= usage.inputTokens - 1, JSON.stringify(usage));
    });

    test(`ai with ${name}: a loop of two steps with a tool`, async () => {
      const asked = [];
      const result = streamText({
        model: chat, ...settings, prompt: weatherQuestion, stopWhen: stepCountIs(3),
        tools: {
          get_weather: tool({
            description: weather.description, inputSchema: jsonSchema(weather.parameters),
            execute: (input) => (asked.push(input), weatherResult),
          }),
        },
      });
      let text = "";
      for await (const part of result.fullStream) {
        if (part.type === "error") throw part.error;
        if (part.type === "text-delta") text += part.text;
      }
      assert.deepEqual(asked, [{ city: "Paris" }]);
      assert.match(text, weatherAnswer);
      assert.equal((await result.steps).length, 2);
    });

    test(`ai with ${name}: an object`, async () => {
      const { object } = await generateObject({ model: chat, ...settings, schema: jsonSchema(schema), prompt: "Tell me about Paris." });
      assert.equal(typeof object.big, "boolean");
      assert.ok(Number.isInteger(object.population));
    });
  }

  test("ai with openai-compatible: thinking is reasoning", async () => {
    const stream = streamText({
      model: compatible(model), ...settings, prompt: "What is 12 + 30?",
      providerOptions: { calla: { chat_template_kwargs: { enable_thinking: true } } },
    });
    let reasoning = "";
    for await (const part of stream.fullStream) if (part.type === "reasoning-delta") reasoning += part.text;
    assert.ok(reasoning.length > 0);
    assert.match(await stream.text, /42/);
  });
}
