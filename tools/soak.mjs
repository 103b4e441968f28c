// Mixed requests for a long time: chats that go on, are edited and regenerated, tools, schemas, raw text, streams that are cut. At the end the
// server's memory must be where it was after half of the time, and every greedy answer what it is on a server without snapshots that answers one
// request at a time and has seen nothing else. Two kinds of chats:
//
// - Told ones hold answers that the model never gave. Each request is compared alone.
// - Its own hold what it answered, with its reasoning, without it, or with another. The server puts the tokens that were generated in their place,
//   so the same requests must be asked again from the first: then both servers read the same tokens.
//
// Passes of other lengths round otherwise, so of two tokens that are about as likely the other may be chosen (docs/numerics.md). A difference that
// begins at two such tokens is counted as a tie, as is one in reasoning, where nothing tells how likely a token is; of a hundred answers, one may be.
// The rest of such a chat goes another way and is not compared. `-- --backend reference` does not round: there, not even ties may be.
//
//   node tools/soak.mjs build/release/calla [--minutes 30] [--seed 1] [--clients 6] [-- ARGUMENTS OF calla serve]

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
const kTie = args.includes("reference") ? 1e-6 : 0.2;  // in log-probabilities: two tokens this close may change places
const likely = { logprobs: true, top_logprobs: 3 };
const user = (content) => ({ role: "user", content });

// A request that always has the same answer: [path, body].
function request(messages) {
  const plain = { messages, temperature: 0, max_tokens: 16 + 16 * random(4) }, body = { ...plain, ...likely };
  const kind = random(8);
  if (kind === 0) return ["/v1/messages", { ...plain, messages: messages.filter((m) => m.role !== "system") }];
  if (kind === 1) return ["/v1/completions", { prompt: `Once upon a time ${random(4)}`, temperature: 0, max_tokens: 24 }];
  if (kind === 2) body.tools = [tool];
  if (kind === 3) body.response_format = { type: "json_schema", json_schema: { name: "a", schema } };
  if (kind === 4) body.chat_template_kwargs = { enable_thinking: true };
  return ["/v1/chat/completions", body];
}

async function post(url, [path, body], signal) {
  const response = await fetch(url + path, { method: "POST", signal, body: JSON.stringify(body) });
  const json = await response.json();
  if (response.status !== 200) throw new Error(`${response.status}: ${JSON.stringify(json)} for ${JSON.stringify(body)}`);
  return json;
}

// What does not change from one time to the next: ids do.
function essence(json) {
  const message = json.choices?.[0].message;
  if (message?.tool_calls) return JSON.stringify([message.content, message.reasoning_content, ...message.tool_calls.map((c) => c.function)]);
  return JSON.stringify(message ?? json.choices?.[0].text ?? json.content.map(({ id, ...block }) => block));
}

const server = await startServer(calla, ["--log-level", "error", "--cache-memory", "64", ...args]);
const resident = () => Number(readFileSync(`/proc/${server.pid}/status`, "utf8").match(/VmRSS:\s+(\d+)/)[1]) / 1024;
const told = new Map();  // a request as JSON → its answer
const own = [];          // chats: requests with their answers, in order
let asked = 0, cut = 0, compared = 0, different = 0, ties = 0, worst = 0;

// Compares two answers to a request.
function same(request, one, other) {
  ++compared;
  const [a, b] = [one, other].map((json) => json.choices?.[0].logprobs?.content ?? []);
  const parts = a.findIndex((t, i) => t.token !== b[i]?.token), end = parts < 0 ? a.length : parts;
  const reasoning = (json) => json.choices?.[0].message?.reasoning_content;
  const alike = reasoning(one) === reasoning(other);
  if (alike) for (let i = 0; i < end; ++i) worst = Math.max(worst, Math.abs(a[i].logprob - b[i].logprob));
  if (essence(one) === essence(other) && one.usage.prompt_tokens === other.usage.prompt_tokens) return true;
  const rival = parts < 0 ? undefined : a[parts].top_logprobs.find((t) => t.token === b[parts]?.token);
  const gap = rival ? a[parts].logprob - rival.logprob : Infinity;
  if (one.usage.prompt_tokens === other.usage.prompt_tokens && (alike ? gap <= kTie : kTie > 1e-6)) {
    ++ties;
  } else {
    ++different;
  }
  const text = (json) => `${essence(json)} after ${JSON.stringify(json.usage)}`;
  console.log(`DIFFERENT by ${alike ? gap : "its reasoning"} ${JSON.stringify(request)}\n  ${text(one)}\n  ${text(other)}`);
  return false;
}

// Asks and goes away, perhaps before the answer is there.
async function leave([path, body]) {
  const abort = new AbortController();
  setTimeout(() => abort.abort(), random(60));
  await post(server.url, [path, { ...body, max_tokens: 2000, ignore_eos: true }], abort.signal).catch((e) => {
    if (e.name !== "AbortError") throw e;
    ++cut;
  });
}

function begin(question) {
  const system = pick(systems);
  return [...(system ? [{ role: "system", content: system }] : []), user(question)];
}

async function toldChat() {
  let messages = begin(pick(questions));
  while (Date.now() < end && messages.length <= 10) {
    if (random(10) === 0) messages = [...messages.slice(0, -1), user(pick(questions))];  // an edit
    const next = request(messages);
    if (random(8) === 0) {
      await leave(next);
      continue;
    }
    const answer = await post(server.url, next), key = JSON.stringify(next);
    ++asked;
    if (told.has(key)) same(next, told.get(key), answer);
    told.set(key, answer);
    messages = [...messages, { role: "assistant", content: pick(replies) }, user(pick(questions))];
  }
}

// What a client makes of an answer when it sends it back.
function echo(message) {
  const { reasoning_content, ...rest } = message;
  const kind = random(3);
  if (kind === 0 || !reasoning_content) return message;
  return kind === 1 ? rest : { ...rest, reasoning_content: "Let me see." };
}

async function ownChat(number) {
  const chat = [];
  // The number keeps it apart from the other chats: answers are remembered by what led to them.
  let messages = begin(`${pick(questions)} (${number})`), turns = [messages];
  let thinking = random(2) === 0;
  while (Date.now() < end && chat.length < 8) {
    if (random(8) === 0) thinking = !thinking;
    if (random(5) === 0) messages = pick(turns);  // regenerates or forks
    if (random(5) === 0) messages = [...messages.slice(0, -1), user(pick(questions))];
    const body = { messages, temperature: 0, max_tokens: 16 + 16 * random(6), ...likely, tools: number % 2 ? [tool] : [],
      chat_template_kwargs: { enable_thinking: thinking } };
    const next = ["/v1/chat/completions", body];
    if (random(8) === 0) {
      await leave(next);
      continue;
    }
    const answer = await post(server.url, next);
    ++asked;
    chat.push([next, answer]);
    const { message } = answer.choices[0];
    const results = (message.tool_calls ?? []).map(({ id }) => ({ role: "tool", tool_call_id: id, content: "Sunny." }));
    messages = [...messages, echo(message), ...(results.length ? results : [user(pick(questions))])];
    turns.push(messages);
  }
  own.push(chat);
}

let chats = 0;
async function client() {
  while (Date.now() < end) await (random(2) === 0 ? toldChat() : ownChat(++chats));
}

let half = 0;
setTimeout(() => (half = resident()), Number(values.minutes) * 30_000);
await Promise.all(Array.from({ length: Number(values.clients) }, client));
const late = resident();
await server.stop();
console.log(`${asked} answers, ${told.size} different told requests and ${own.length} chats of its own answers, ${cut} cut; ` +
  `${half.toFixed(0)} MiB after half of the time, ${late.toFixed(0)} MiB at the end`);

// Some, spread over the whole time.
const some = (list, count) => list.filter((_, i) => i % Math.ceil(list.length / count) === 0);
const cold = await startServer(calla, ["--log-level", "error", "--sequences", "1", "--cache-memory", "0", ...args]);
for (const [key, answer] of some([...told], 200)) {
  const next = JSON.parse(key);
  same(next, await post(cold.url, next), answer);
}
for (const chat of some(own, 60)) {
  for (const [next, answer] of chat) {
    if (!same(next, await post(cold.url, next), answer)) break;
  }
}
await cold.stop();
console.log(`${compared} compared: ${different} different, ${ties} at ties; log-probabilities differ by at most ${worst.toPrecision(2)}`);
process.exit(different > 0 || ties > compared / 100 || late > half * 1.05 + 16 ? 1 : 0);
