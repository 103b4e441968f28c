// How `calla serve` bears load:
//
//   node tools/loadtest.mjs build/release/calla [--streams 32] [--idle 500] [--tokens 200] [ARGUMENTS OF calla serve]
//
// One stream alone; then many at once: the time to the first byte of each, tokens a second of all together; then idle ones, which wait in the
// queue: the server's memory for each. Exits with 1 if a request fails.

import { readFileSync } from "node:fs";
import { parseArgs } from "node:util";
import { startServer } from "../tests/conformance/server.mjs";

const { values, positionals: [calla, ...args] } = parseArgs({
  allowPositionals: true,
  options: { streams: { type: "string", default: "32" }, idle: { type: "string", default: "500" }, tokens: { type: "string", default: "200" } },
});
const [streams, idle, tokens] = [values.streams, values.idle, values.tokens].map(Number);
let server = await startServer(calla, ["--log-level", "error", "--sequences", String(streams), ...args]);

async function stream(topic, signal, max_tokens = tokens) {
  const start = performance.now();
  const response = await fetch(`${server.url}/v1/chat/completions`, {
    method: "POST", signal, body: JSON.stringify({
      messages: [{ role: "user", content: `Tell me a story about ${topic}.` }], stream: true, max_tokens, ignore_eos: true,
      stream_options: { include_usage: true } }),
  });
  if (response.status !== 200) throw new Error(`${response.status}: ${await response.text()}`);
  const reader = response.body.getReader();
  await reader.read();
  return { first: (performance.now() - start) / 1000, reader };
}

async function finish({ first, reader }) {
  let text = "";
  for (const decoder = new TextDecoder();;) {
    const { done, value } = await reader.read();
    if (done) break;
    text += decoder.decode(value, { stream: true });
  }
  if (!text.includes("data: [DONE]")) throw new Error(`an answer broke off: ${text.slice(-200)}`);
  return { first, tokens: Number(text.match(/"completion_tokens": (\d+)/)[1]) };
}

async function measure(count) {
  const start = performance.now();
  const answers = await Promise.all(Array.from({ length: count }, async (_, i) => finish(await stream(`${count} foxes and ${i} kites`))));
  const seconds = (performance.now() - start) / 1000;
  return { rate: answers.reduce((sum, a) => sum + a.tokens, 0) / seconds, first: Math.max(...answers.map((a) => a.first)) };
}

const resident = () => 1024 * Number(readFileSync(`/proc/${server.pid}/status`, "utf8").match(/VmRSS:\s+(\d+)/)[1]);

await measure(1);
const one = await measure(1);
console.log(`1 stream: ${one.rate.toFixed(0)} tokens/s, first byte after ${one.first.toFixed(3)} s`);
const many = await measure(streams);
console.log(`${streams} streams: ${many.rate.toFixed(0)} tokens/s together (${(many.rate / one.rate).toFixed(2)} times one), ` +
            `first bytes after at most ${many.first.toFixed(3)} s`);

await server.stop();

// The one place is taken by a long answer, so that all others are idle.
server = await startServer(calla, ["--log-level", "error", "--sequences", "1", "--queue", String(idle), ...args]);
const stop = new AbortController();
await stream("a long road", stop.signal, 7000);
const before = resident();
const open = await Promise.all(Array.from({ length: idle }, (_, i) => stream(`nothing ${i}`, stop.signal)));
console.log(`${idle} idle streams: ${((resident() - before) / idle / 1024).toFixed(1)} KiB each, ` +
            `first bytes after at most ${Math.max(...open.map((o) => o.first)).toFixed(3)} s`);
stop.abort();
await server.stop();
