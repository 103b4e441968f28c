// What the scripts of this folder share.

import { spawn } from "node:child_process";
import { createInterface } from "node:readline";

export function skip() {
  console.error("SKIPPED: npm install --no-package-lock --prefix tests/oracle");
  process.exit(77);
}

// The modules of these imports; the script is skipped if one is not installed.
export function installed(...imports) {
  return Promise.all(imports).catch((error) => {
    if (error.code !== "ERR_MODULE_NOT_FOUND") throw error;
    skip();
  });
}

// A 32-bit generator (mulberry32), so that a seed names what was tried: random(n) is below n.
export function generator(seed) {
  let state = Number(seed) >>> 0;
  function random(n) {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t = (t + Math.imul(t ^ (t >>> 7), t | 61)) ^ t;
    return Math.floor((((t ^ (t >>> 14)) >>> 0) / 2 ** 32) * n);
  }
  return { random, pick: (list) => list[random(list.length)] };
}

// grammar_probe with the tokenizer of a folder: ask() sends one request and gives its answer.
export function startProbe(path, folder) {
  const probe = spawn(path, [folder], { stdio: ["pipe", "pipe", "inherit"] });
  const lines = createInterface({ input: probe.stdout })[Symbol.asyncIterator]();
  async function ask(request) {
    probe.stdin.write(JSON.stringify(request) + "\n");
    const { value, done } = await lines.next();
    if (done) throw new Error("grammar_probe ended");
    return JSON.parse(value);
  }
  return { ask, end: () => probe.stdin.end() };
}
