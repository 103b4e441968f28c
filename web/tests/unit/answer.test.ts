import { expect, test } from "vitest";
import { Answer, StreamError } from "../../src/answer";
import type { Message } from "../../src/types";

const empty = (): Message => ({ id: "a", parent: null, role: "assistant", content: "", created: 0 });
const delta = (d: object) => JSON.stringify({ choices: [{ index: 0, delta: d, finish_reason: null }] });

test("reasoning, text, time and speed", () => {
  let now = 1000;
  const answer = new Answer(empty(), () => now);
  answer.push(delta({ role: "assistant", content: "" }));
  answer.push(delta({ reasoning_content: "Hm" }));
  now = 3000;
  answer.push(delta({ reasoning_content: "m" }));
  now = 5000;
  answer.push(delta({ content: "Hel" }));
  now = 9000;
  answer.push(delta({ content: "lo" }));
  expect(answer.complete).toBe(false);
  answer.push(JSON.stringify({ choices: [{ delta: {}, finish_reason: "stop" }] }));
  answer.push(JSON.stringify({ choices: [], usage: { prompt_tokens: 10, completion_tokens: 17, prompt_tokens_details: { cached_tokens: 9 } } }));
  answer.push("[DONE]");
  expect(answer.complete).toBe(true);
  expect(answer.message).toMatchObject({ reasoning_content: "Hmm", content: "Hello", thinking_ms: 4000, finish: "stop", speed: 2 });
  expect(answer.message.usage?.prompt_tokens_details?.cached_tokens).toBe(9);
});

test("two calls whose arguments come in pieces", () => {
  const answer = new Answer(empty());
  answer.push(delta({ tool_calls: [{ index: 0, id: "c1", type: "function", function: { name: "add", arguments: "" } }] }));
  answer.push(delta({ tool_calls: [{ index: 0, function: { arguments: '{"a":' } }] }));
  answer.push(delta({ tool_calls: [{ index: 1, id: "c2", type: "function", function: { name: "now", arguments: "{}" } }] }));
  answer.push(delta({ tool_calls: [{ index: 0, function: { arguments: " 1}" } }] }));
  expect(answer.message.tool_calls).toEqual([
    { id: "c1", type: "function", function: { name: "add", arguments: '{"a": 1}' } },
    { id: "c2", type: "function", function: { name: "now", arguments: "{}" } },
  ]);
});

test("an error in the stream", () => {
  const answer = new Answer(empty());
  expect(() => answer.push('{"error": {"message": "out of memory"}}')).toThrow(new StreamError("out of memory"));
  expect(() => answer.push("not JSON")).toThrow();
});
