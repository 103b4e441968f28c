import assert from "node:assert/strict";
import { test } from "node:test";
import { Agent, OpenAIProvider, Runner, setTracingDisabled, tool } from "@openai/agents";
import { z } from "zod";
import { model, weather, weatherAnswer, weatherQuestion, weatherResult } from "./cases.mjs";

export default function (url) {
  setTracingDisabled(true);
  for (const useResponses of [true, false]) {
    test(`agents over ${useResponses ? "responses" : "chat completions"}: a run with a tool, streamed`, async () => {
      const asked = [];
      const agent = new Agent({
        name: "Assistant", instructions: "Use tools.", model, modelSettings: { temperature: 0, maxTokens: 200 },
        tools: [tool({
          name: weather.name, description: weather.description, parameters: z.object({ city: z.string() }),
          execute: (input) => (asked.push(input), JSON.stringify(weatherResult)),
        })],
      });
      const modelProvider = new OpenAIProvider({ baseURL: `${url}/v1`, apiKey: "none", useResponses });
      const result = await new Runner({ modelProvider }).run(agent, weatherQuestion, { stream: true });
      for await (const _ of result) { /* to its end */ }
      await result.completed;
      assert.deepEqual(asked, [{ city: "Paris" }]);
      assert.match(result.finalOutput, weatherAnswer);
    });
  }
}
