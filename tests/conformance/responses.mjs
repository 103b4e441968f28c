import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";
import { expected, model, question, schema, weather, weatherAnswer, weatherQuestion, weatherResult } from "./cases.mjs";

export default function (url) {
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
  const tools = [{ type: "function", strict: false, ...weather }];
  const ask = (request) => client.responses.create({ model, temperature: 0, max_output_tokens: 200, store: false, ...request });

  test("responses: an answer, whole and streamed, is the same", async () => {
    const whole = await ask({ input: question });
    assert.equal(whole.status, "completed");
    assert.match(whole.output_text, expected);
    const stream = await ask({ input: question, stream: true });
    let text = "", sequence = 0, last;
    for await (const event of stream) {
      assert.equal(event.sequence_number, sequence++);
      if (event.type === "response.output_text.delta") text += event.delta;
      last = event;
    }
    assert.equal(text, whole.output_text);
    assert.equal(last.type, "response.completed");
    assert.ok(last.response.usage.input_tokens_details.cached_tokens >= last.response.usage.input_tokens - 1);
  });

  test("responses: two turns with a tool, items sent back as they came", async () => {
    const input = [{ role: "developer", content: "Use tools." }, { role: "user", content: weatherQuestion }];
    const first = await client.responses.stream({ model, temperature: 0, input, tools, store: false }).finalResponse();
    const call = first.output.find((item) => item.type === "function_call");
    assert.deepEqual(JSON.parse(call.arguments), { city: "Paris" });
    const second = await ask({
      input: [...input, ...first.output, { type: "function_call_output", call_id: call.call_id, output: JSON.stringify(weatherResult) }], tools,
    });
    assert.match(second.output_text, weatherAnswer);
    assert.ok(second.usage.input_tokens_details.cached_tokens >= first.usage.input_tokens - 1);
  });

  test("responses: structured output", async () => {
    const answer = await ask({ input: "Tell me about Paris in JSON.", text: { format: { type: "json_schema", name: "city", schema, strict: true } } });
    assert.equal(typeof JSON.parse(answer.output_text).big, "boolean");
  });

  test("responses: errors", async () => {
    await assert.rejects(ask({ input: question, previous_response_id: "resp_1" }), (e) => e.status === 400);
    await assert.rejects(ask({ input: 7 }), (e) => e.status === 400 && /input/.test(e.message));
  });
}
