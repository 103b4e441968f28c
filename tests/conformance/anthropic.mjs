import assert from "node:assert/strict";
import { test } from "node:test";
import Anthropic from "@anthropic-ai/sdk";
import { expected, model, question, weather, weatherAnswer, weatherQuestion, weatherResult } from "./cases.mjs";
import { becomesIdle } from "./server.mjs";

export default function (url) {
  const client = new Anthropic({ baseURL: url, apiKey: "none", maxRetries: 0 });
  const tools = [{ name: weather.name, description: weather.description, input_schema: weather.parameters }];
  const user = (content) => ({ role: "user", content });
  const ask = (request) => client.messages.create({ model, temperature: 0, max_tokens: 200, ...request });

  test("anthropic: a message, whole and streamed, is the same", async () => {
    const whole = await ask({ messages: [user(question)] });
    assert.equal(whole.content[0].type, "text");
    assert.match(whole.content[0].text, expected);
    assert.equal(whole.stop_reason, "end_turn");
    const streamed = await client.messages.stream({ model, temperature: 0, max_tokens: 200, messages: [user(question)] }).finalMessage();
    assert.deepEqual(streamed.content.map((c) => c.text), whole.content.map((c) => c.text));
    const usage = streamed.usage;
    assert.ok(usage.cache_read_input_tokens >= usage.cache_read_input_tokens + usage.input_tokens - 1, "the prompt is cached");
    const count = await client.messages.countTokens({ model, messages: [user(question)] });
    assert.equal(count.input_tokens, usage.input_tokens + usage.cache_read_input_tokens);
  });

  test("anthropic: thinking blocks", async () => {
    const message = await ask({ messages: [user("What is 12 + 30?")], max_tokens: 2000, thinking: { type: "enabled", budget_tokens: 1024 } });
    assert.deepEqual(message.content.map((c) => c.type), ["thinking", "text"]);
    assert.equal(typeof message.content[0].signature, "string");
    assert.match(message.content[1].text, /42/);
    const next = await ask({ messages: [user("What is 12 + 30?"), { role: "assistant", content: message.content }, user(question)] });
    assert.match(next.content[0].text, expected);
  });

  test("anthropic: two turns with a tool, streamed", async () => {
    const messages = [user(weatherQuestion)];
    const first = await client.messages.stream({ model, temperature: 0, max_tokens: 200, messages, tools }).finalMessage();
    assert.equal(first.stop_reason, "tool_use");
    const use = first.content.find((c) => c.type === "tool_use");
    assert.deepEqual(use.input, { city: "Paris" });
    const second = await ask({
      messages: [...messages, { role: "assistant", content: first.content },
        user([{ type: "tool_result", tool_use_id: use.id, content: JSON.stringify(weatherResult) }])],
      tools,
    });
    assert.match(second.content[0].text, weatherAnswer);
    assert.ok(second.usage.cache_read_input_tokens >= first.usage.input_tokens + first.usage.cache_read_input_tokens - 1);
  });

  test("anthropic: tool_choice any, a named tool, none", async () => {
    for (const tool_choice of [{ type: "any" }, { type: "tool", name: "get_weather" }]) {
      const message = await ask({ messages: [user(question)], tools, tool_choice });
      assert.equal(message.content.find((c) => c.type === "tool_use").name, "get_weather");
    }
    const none = await ask({ messages: [user(weatherQuestion)], tools, tool_choice: { type: "none" } });
    assert.ok(none.content.every((c) => c.type === "text"));
  });

  test("anthropic: errors have their class and shape", async () => {
    await assert.rejects(ask({ messages: [user("x")], temperature: "hot" }), (e) => {
      assert.ok(e instanceof Anthropic.BadRequestError);
      assert.equal(e.error.type, "error");
      assert.equal(e.error.error.type, "invalid_request_error");
      return /temperature/.test(e.message);
    });
    await assert.rejects(client.get("/v1/messages/nothing"), Anthropic.NotFoundError);
    await assert.rejects(client.get("/v1/messages"), (e) => e.status === 405);
  });

  test("anthropic: an aborted stream frees its place", async () => {
    const stream = await client.messages.create({ model, max_tokens: 4000, messages: [user("Tell me a long story.")], stream: true });
    for await (const _ of stream) {
      stream.controller.abort();
      break;
    }
    await becomesIdle(url);
  });
}
