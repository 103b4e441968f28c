import assert from "node:assert/strict";
import { test } from "node:test";
import { HumanMessage, ToolMessage } from "@langchain/core/messages";
import { ChatOpenAI } from "@langchain/openai";
import { expected, model, question, schema, weather, weatherAnswer, weatherQuestion, weatherResult } from "./cases.mjs";

export default function (url) {
  const chat = new ChatOpenAI({ model, apiKey: "none", temperature: 0, maxTokens: 200, maxRetries: 0, configuration: { baseURL: `${url}/v1` } });

  test("langchain: text, whole and streamed", async () => {
    const whole = await chat.invoke(question);
    assert.match(whole.content, expected);
    let text = "";
    for await (const chunk of await chat.stream(question)) text += chunk.content;
    assert.equal(text, whole.content);
  });

  test("langchain: two turns with a tool", async () => {
    const bound = chat.bindTools([{ type: "function", function: weather }]);
    const messages = [new HumanMessage(weatherQuestion)];
    const first = await bound.invoke(messages);
    assert.equal(first.invalid_tool_calls?.length ?? 0, 0);
    assert.deepEqual(first.tool_calls[0].args, { city: "Paris" });
    const second = await bound.invoke([...messages, first,
      new ToolMessage({ tool_call_id: first.tool_calls[0].id, content: JSON.stringify(weatherResult) })]);
    assert.match(second.content, weatherAnswer);
  });

  test("langchain: structured output", async () => {
    const object = await chat.withStructuredOutput({ title: "city", ...schema }, { method: "jsonSchema" }).invoke("Tell me about Paris.");
    assert.equal(typeof object.big, "boolean");
  });
}
