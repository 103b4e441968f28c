// Mixed requests for a long time: chats that go on, are edited and regenerated, tools, schemas, raw text, streams that are cut. At the end the
// server's memory must be where it was after half of the time, and every greedy answer what it is on a server that has seen
// nothing else.
//
//   node tools/soak.mjs build/release/calla [--minutes 30] [--seed 1] [--clients 6] [ARGUMENTS OF calla serve]

import { readFileSync } from "node:fs";
import { parseArgs } from "node:util";
import { startServer } from "../tests/conformance/server.mjs";

const { values, positionals: [calla, ...args] } = parseArgs({
  allowPositionals: true,
  options: { minutes: { type: "string", default: "30" }, seed: { type: "string", default: "1" }, clients: { type: "string", default: "6" } },
});
const end = Date.now() + Number(values.minutes) * 60_000;

// A 32-bit generator (mulberry32), so that a seed names the requests.
let state = Number(values.seed) >>> 0;
function random(n) {
  state = (state + 0x6d2b79f5) >>> 0;
  let t = Math.imul(state ^ (state >>> 15), state | 1);
  t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
  return ((t ^ (t >>> 14)) >>> 0) % n;
}
const pick = (list) => list[random(list.length)];

const questions = ["What is the capital of France?", "What is 12 + 30?", "Tell me a story about a fox.", "What is the weather in Paris?",
  "What is the opposite of hot?", "Count from 1 to 9.", "Which day comes after Monday?", "What is the capital of Italy?"];
const systems = ["", "Answer in capital letters.", "You are a helpful assistant.", "Be brief."];
const replies = ["I think it is.", "Well, yes and no.", "That is a good question!", "Let me think about it."];
const tool = { type: "function", function: { name: "get_weather", description: "Get the weather for a city.",
  parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] } } };
const schema = { type: "object", properties: { name: { type: "string", maxLength: 20 }, big: { type: "boolean" } }, required: ["name", "big"],
  additionalProperties: false };
const user = (content) => ({ role: "user", content });

// A request that always has the same answer: [path, body].
function request(messages) {
  const body = { messages, temperature: 0, max_tokens: 16 + 16 * random(4) };
  const kind = random(8);
  if (kind === 0) return ["/v1/messages", { ...body, messages: messages.filter((m) => m.role !== "system") }];
  if (kind === 1) return ["/v1/completions", { prompt: `Once upon a time ${random(4)}`, temperature: 0, max_tokens: 24 }];
  if (kind === 2) body.tools = [tool];
  if (kind === 3) body.response_format = { type: "json_schema", json_schema: { name: "a", schema } };
  if (kind === 4) body.chat_template_kwargs = { enable_thinking: true };
  return ["/v1/chat/completions", body];
}

async function ask(url, [path, body], signal) {
  const response = await fetch(url + path, { method: "POST", signal, body: JSON.stringify(body) });
  const json = await response.json();
  if (response.status !== 200) throw new Error(`${response.status}: ${JSON.stringify(json)} for ${JSON.stringify(body)}`);
  const message = json.choices?.[0].message;
  // Ids are new each time.
  if (message?.tool_calls) return [message.content, message.reasoning_content, ...message.tool_calls.map((c) => c.function)];
  return message ?? json.choices?.[0].text ?? json.content.map(({ id, ...block }) => block);
}

const server = await startServer(calla, ["--log-level", "error", "--cache-memory", "64", ...args]);
const resident = () => Number(readFileSync(`/proc/${server.pid}/status`, "utf8").match(/VmRSS:\s+(\d+)/)[1]) / 1024;
const given = new Map();  // a request as JSON → its answer as JSON
let asked = 0, cut = 0, changed = 0;

async function client() {
  let messages = [];
  while (Date.now() < end) {
    const step = random(10);
    if (messages.length === 0 || messages.length > 10 || step === 0) {
      const system = pick(systems);
      messages = [...(system ? [{ role: "system", content: system }] : []), user(pick(questions))];
    } else if (step === 1 && messages.at(-1).role === "user") {  // an edit
      messages = [...messages.slice(0, -1), user(pick(questions))];
    }
    const next = request(messages);
    if (random(8) === 0) {
      const abort = new AbortController();
      setTimeout(() => abort.abort(), random(60));
      await ask(server.url, [next[0], { ...next[1], max_tokens: 2000, ignore_eos: true }], abort.signal).catch((e) => {
        if (e.name !== "AbortError") throw e;
        ++cut;
      });
      continue;
    }
    const answer = await ask(server.url, next);
    const key = JSON.stringify(next);
    ++asked;
    if (given.has(key) && given.get(key) !== JSON.stringify(answer)) {
      ++changed;
      console.log(`CHANGED ${key}\n  ${given.get(key)}\n  ${JSON.stringify(answer)}`);
    }
    given.set(key, JSON.stringify(answer));
    // Told answers, not the model's own: those would stand in the prompt with the tokens that it chose, which a cold server cannot know.
    messages = [...messages, { role: "assistant", content: pick(replies) }, user(pick(questions))];
  }
}

let half = 0;
setTimeout(() => (half = resident()), Number(values.minutes) * 30_000);
await Promise.all(Array.from({ length: Number(values.clients) }, client));
const late = resident();
await server.stop();
console.log(`${asked} answers, ${given.size} different requests, ${cut} cut; ${half.toFixed(0)} MiB after half of the time, ${late.toFixed(0)} MiB at the end`);

// Now each request alone, on servers that have seen little or nothing: without snapshots, one at a time.
const cold = await startServer(calla, ["--log-level", "error", "--sequences", "1", "--cache-memory", "0", ...args]);
const sample = [...given].filter((_, i) => i % Math.ceil(given.size / 400) === 0);
let different = 0;
for (const [key, answer] of sample) {
  const alone = JSON.stringify(await ask(cold.url, JSON.parse(key)));
  if (alone === answer) continue;
  ++different;
  console.log(`DIFFERENT ${key}\n  cold ${alone}\n  warm ${answer}`);
}
await cold.stop();
console.log(`${sample.length} compared with cold ones: ${different} different; ${changed} changed while running`);
process.exit(different + changed > 0 || late > half * 1.05 + 16 ? 1 : 0);
