import assert from "node:assert/strict";
import { test } from "node:test";
import Ajv from "ajv";
import OpenAI from "openai";
import { expected, model, question, schema, weather, weatherAnswer, weatherQuestion, weatherResult } from "./cases.mjs";
import { becomesIdle } from "./server.mjs";

const tools = [{ type: "function", function: weather }];
const user = (content) => ({ role: "user", content });

export default function (url) {
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
  const ask = (request) => client.chat.completions.create({ model, temperature: 0, max_tokens: 200, ...request });

  test("openai: an answer, whole and streamed, is the same", async () => {
    const whole = await ask({ messages: [user(question)] });
    assert.match(whole.choices[0].message.content, expected);
    assert.equal(whole.choices[0].finish_reason, "stop");
    assert.equal(whole.usage.total_tokens, whole.usage.prompt_tokens + whole.usage.completion_tokens);
    const stream = await ask({ messages: [user(question)], stream: true, stream_options: { include_usage: true } });
    let text = "", usage, finishes = 0;
    for await (const chunk of stream) {
      text += chunk.choices[0]?.delta.content ?? "";
      finishes += chunk.choices[0]?.finish_reason ? 1 : 0;
      usage = chunk.usage ?? usage;
    }
    assert.equal(text, whole.choices[0].message.content);
    assert.equal(finishes, 1);
    assert.equal(usage.prompt_tokens, whole.usage.prompt_tokens);
    assert.equal(usage.completion_tokens, whole.usage.completion_tokens);
    assert.ok(usage.prompt_tokens_details.cached_tokens >= usage.prompt_tokens - 1, "the second time, the prompt is cached");
  });

  test("openai: thinking is reasoning_content and has tokens of its own", async () => {
    const answer = await ask({ messages: [user("What is 12 + 30?")], chat_template_kwargs: { enable_thinking: true } });
    assert.ok(answer.choices[0].message.reasoning_content.length > 0);
    assert.match(answer.choices[0].message.content, /42/);
    assert.ok(answer.usage.completion_tokens_details.reasoning_tokens > 0);
  });

  test("openai: two turns with a tool, streamed by the helper", async () => {
    const messages = [user(weatherQuestion)];
    const first = await client.chat.completions
      .stream({ model, temperature: 0, messages, tools, stream_options: { include_usage: true } }).finalChatCompletion();
    const call = first.choices[0].message.tool_calls[0];
    assert.equal(first.choices[0].finish_reason, "tool_calls");
    assert.equal(call.function.name, "get_weather");
    assert.deepEqual(JSON.parse(call.function.arguments), { city: "Paris" });
    const second = await ask({
      messages: [...messages, first.choices[0].message, { role: "tool", tool_call_id: call.id, content: JSON.stringify(weatherResult) }],
      tools,
    });
    assert.match(second.choices[0].message.content, weatherAnswer);
    assert.ok(second.usage.prompt_tokens_details.cached_tokens >= first.usage.total_tokens - 1, JSON.stringify([first.usage, second.usage]));
  });

  // What agents do, with every way of sending the thinking back: whole, under its other name, or not at all.
  for (const [how, kept] of Object.entries({ kept: (m) => m, renamed: ({ reasoning_content, ...m }) => ({ ...m, reasoning: reasoning_content }),
    dropped: ({ reasoning_content, ...m }) => m })) {
    test(`openai: two parallel calls and their results; thinking ${how}; the whole first turn is cached`, async () => {
      const messages = [{ role: "system", content: "Use tools." }, user("What is the weather in Paris and in Rome?")];
      const settings = { tools, chat_template_kwargs: { enable_thinking: true }, max_tokens: 400 };
      // Bud makes one call at a time; kept from ending its turn, it makes another, and max_tokens then ends the answer.
      const { tokens: [end] } = await (await fetch(`${url}/tokenize`, {
        method: "POST", body: JSON.stringify({ content: "<|im_end|>", parse_special: true }) })).json();
      const first = await ask({ messages, ...settings, tool_choice: "required", max_tokens: 66, logit_bias: { [end]: -22 } });
      const { tool_calls } = first.choices[0].message;
      assert.equal(tool_calls.length, 2);
      assert.equal(new Set(tool_calls.map((c) => c.id)).size, tool_calls.length, "ids are unique");
      for (const c of tool_calls) assert.equal(typeof JSON.parse(c.function.arguments).city, "string");
      const second = await ask({
        messages: [...messages, kept(first.choices[0].message),
          ...tool_calls.map((c) => ({ role: "tool", tool_call_id: c.id, content: JSON.stringify(weatherResult) }))],
        ...settings,
      });
      assert.ok(second.choices[0].message.content.length > 0);
      assert.ok(second.usage.prompt_tokens_details.cached_tokens >= first.usage.total_tokens - 1, JSON.stringify([first.usage, second.usage]));
    });
  }

  test("openai: tool_choice none and a named function", async () => {
    const none = await ask({ messages: [user(weatherQuestion)], tools, tool_choice: "none" });
    assert.equal(none.choices[0].message.tool_calls, undefined);
    const named = await ask({ messages: [user(question)], tools, tool_choice: { type: "function", function: { name: "get_weather" } } });
    assert.equal(named.choices[0].message.tool_calls[0].function.name, "get_weather");
    assert.deepEqual(Object.keys(JSON.parse(named.choices[0].message.tool_calls[0].function.arguments)), ["city"]);
  });

  test("openai: structured output obeys the schema, with and without thinking", async () => {
    const valid = new Ajv().compile(schema);
    for (const enable_thinking of [false, true]) {
      const answer = await ask({
        messages: [user("Tell me about Paris in JSON.")], max_tokens: 400,
        response_format: { type: "json_schema", json_schema: { name: "city", schema, strict: true } },
        chat_template_kwargs: { enable_thinking },
      });
      assert.ok(valid(JSON.parse(answer.choices[0].message.content)), answer.choices[0].message.content);
    }
    const object = await ask({ messages: [user("Tell me about Paris in JSON.")], response_format: { type: "json_object" } });
    if (object.choices[0].finish_reason === "stop") assert.equal(typeof JSON.parse(object.choices[0].message.content), "object");
  });

  test("openai: n, seed, stop, logprobs, max_tokens", async () => {
    const request = { messages: [user("Tell me a story.")], temperature: 1, seed: 5, max_tokens: 12 };
    const [a, b] = [await ask({ ...request, n: 2 }), await ask(request)];
    assert.equal(a.choices.length, 2);
    assert.deepEqual(a.choices.map((c) => c.index), [0, 1]);
    assert.equal(a.choices[0].finish_reason, "length");
    assert.equal(a.choices[0].message.content, b.choices[0].message.content, "a seed repeats");
    const stopped = await ask({ messages: [user("Count from 1 to 9.")], stop: ["5"] });
    assert.ok(!stopped.choices[0].message.content.includes("5"));
    const probable = await ask({ messages: [user(question)], logprobs: true, top_logprobs: 2 });
    const tokens = probable.choices[0].logprobs.content;
    assert.ok(tokens.length > 0 && tokens.every((t) => t.logprob <= 0 && t.top_logprobs.length === 2));
    assert.equal(tokens.map((t) => t.token).join("").trim().startsWith(probable.choices[0].message.content.slice(0, 8)), true);
  });

  test("openai: errors have their class, and name the field", async () => {
    await assert.rejects(ask({ messages: [user("x")], temperature: "hot" }), (e) => e instanceof OpenAI.BadRequestError && e.param === "temperature");
    await assert.rejects(ask({ messages: "x" }), (e) => e instanceof OpenAI.BadRequestError && /messages/.test(e.message));
    await assert.rejects(ask({ messages: [user("word ".repeat(20000))] }), (e) => e.status === 400 && e.code === "context_length_exceeded");
    await assert.rejects(client.get("/nothing"), OpenAI.NotFoundError);
    await assert.rejects(client.put("/chat/completions", { body: {} }), (e) => e.status === 405);
  });

  test("openai: an aborted stream frees its place", async () => {
    const stream = await ask({ messages: [user("Tell me a long story.")], stream: true, max_tokens: 4000, ignore_eos: true });
    for await (const _ of stream) {
      stream.controller.abort();
      break;
    }
    await becomesIdle(url);
  });

  test("openai: completions, models, embeddings' absence", async () => {
    const raw = await client.completions.create({ model, prompt: "Once upon a time", max_tokens: 8, temperature: 0 });
    assert.ok(raw.choices[0].text.length > 0);
    const models = (await client.models.list()).data;
    assert.equal(models[0].id, model);
    assert.equal(models[0].context_length, 8192);
    assert.equal((await client.models.retrieve(model)).id, model);
    await assert.rejects(client.embeddings.create({ model, input: "x" }), OpenAI.NotFoundError);
  });
}
