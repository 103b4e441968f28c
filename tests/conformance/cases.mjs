// What all clients are asked. Bud answers these the same way every time, greedily.

export const model = "bud";
export const question = "What is the capital of France?";
export const expected = /Paris/;

export const weather = {
  name: "get_weather",
  description: "Get the weather for a city.",
  parameters: {
    type: "object",
    properties: { city: { type: "string", description: "The city." } },
    required: ["city"],
    additionalProperties: false,
  },
};
export const weatherQuestion = "What is the weather in Paris?";
export const weatherResult = { temperature: 21, condition: "sunny" };
export const weatherAnswer = /21.*sunny/;

export const schema = {
  type: "object",
  properties: { city: { type: "string" }, population: { type: "integer", minimum: 1, maximum: 99 }, big: { type: "boolean" } },
  required: ["city", "population", "big"],
  additionalProperties: false,
};
