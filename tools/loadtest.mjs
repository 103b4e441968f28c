// How `calla serve` bears load:
//
//   node tools/loadtest.mjs build/release/calla [--streams 32] [--idle 500] [--tokens 200] [ARGUMENTS OF calla serve]
//
// One stream alone; then many at once: the time to the first byte of each, tokens a second of all together; then idle ones, which wait in the
// queue: the server's memory for each. Exits with 1 if a request fails.
//
// Clients and server share the machine's processors. So the clients are bare sockets, which look at the beginning and the end of what comes, and
// what they took of the processors is printed. Before each measurement as many other prompts warm the server up.

import { readFileSync } from "node:fs";
import { connect } from "node:net";
import { parseArgs } from "node:util";
import { startServer } from "../tests/conformance/server.mjs";

const { values, positionals: [calla, ...args] } = parseArgs({
  allowPositionals: true,
  options: { streams: { type: "string", default: "32" }, idle: { type: "string", default: "500" }, tokens: { type: "string", default: "200" } },
});
const [streams, idle, tokens] = [values.streams, values.idle, values.tokens].map(Number);
let server = await startServer(calla, ["--log-level", "error", "--sequences", String(streams), ...args]);

const seconds_since = (start) => (performance.now() - start) / 1000;

// One answer. `begun`: seconds until the first bytes of the body; `ended`: the number of tokens, when the stream is complete.
function stream(topic, max_tokens = tokens) {
  const start = performance.now(), { hostname, port } = new URL(server.url);
  const body = JSON.stringify({
    messages: [{ role: "user", content: `Tell me a story about ${topic}.` }], stream: true, max_tokens, ignore_eos: true,
    stream_options: { include_usage: true } });
  let socket, begin, text = "", begun = false;
  const first = new Promise((resolve) => (begin = resolve));
  const ended = new Promise((resolve, reject) => {
    const callback = (count, buffer) => {
      text += buffer.latin1Slice(0, count);
      if (!begun) {
        const head = text.indexOf("\r\n\r\n");
        if (head < 0 || head + 4 === text.length) return;
        if (!text.startsWith("HTTP/1.1 200 ")) reject(new Error(text));
        begun = true;
        begin(seconds_since(start));
      }
      text = text.slice(-1000);
    };
    socket = connect({ host: hostname, port, noDelay: true, onread: { buffer: Buffer.alloc(1 << 16), callback } });
    socket.on("error", reject);
    socket.on("end", () => {
      const count = text.includes("data: [DONE]") && text.match(/"completion_tokens": (\d+)/);
      count ? resolve(Number(count[1])) : reject(new Error(`an answer broke off: ${text}`));
    });
  });
  socket.write(`POST /v1/chat/completions HTTP/1.1\r\nHost: ${hostname}:${port}\r\nConnection: close\r\nContent-Type: application/json\r\n` +
               `Content-Length: ${body.length}\r\n\r\n${body}`);
  return { begun: Promise.race([first, ended]), ended, stop: () => socket.destroy() };
}

const stories = (count, what) => Array.from({ length: count }, (_, i) => `${count} foxes and ${i} ${what}`);

async function measure(count) {
  await Promise.all(stories(count, "mice").map((topic) => stream(topic).ended));
  const start = performance.now(), before = process.cpuUsage();
  const answers = stories(count, "kites").map((topic) => stream(topic));
  const first = Math.max(...(await Promise.all(answers.map((a) => a.begun))));
  const all = (await Promise.all(answers.map((a) => a.ended))).reduce((sum, n) => sum + n);
  const seconds = seconds_since(start), { user, system } = process.cpuUsage(before);
  return { rate: all / seconds, first, client: (user + system) / 1e4 / seconds };
}

const resident = () => 1024 * Number(readFileSync(`/proc/${server.pid}/status`, "utf8").match(/VmRSS:\s+(\d+)/)[1]);

const one = await measure(1);
console.log(`1 stream: ${one.rate.toFixed(0)} tokens/s, first byte after ${one.first.toFixed(3)} s; the client took ${one.client.toFixed(0)} % of a processor`);
const many = await measure(streams);
console.log(`${streams} streams: ${many.rate.toFixed(0)} tokens/s together (${(many.rate / one.rate).toFixed(2)} times one), ` +
            `first bytes after at most ${many.first.toFixed(3)} s; the clients took ${many.client.toFixed(0)} %`);

await server.stop();

// The one place is taken by a long answer, so that all others are idle.
server = await startServer(calla, ["--log-level", "error", "--sequences", "1", "--queue", String(idle), ...args]);
const road = stream("a long road", 7000);
await road.begun;
const before = resident();
const open = Array.from({ length: idle }, (_, i) => stream(`nothing ${i}`));
const first = Math.max(...(await Promise.all(open.map((o) => o.begun))));
console.log(`${idle} idle streams: ${((resident() - before) / idle / 1024).toFixed(1)} KiB each, first bytes after at most ${first.toFixed(3)} s`);
for (const o of [road, ...open]) o.stop();
await server.stop();
