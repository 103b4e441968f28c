import assert from "node:assert/strict";
import { spawn } from "node:child_process";

// `calla serve` on a free port. stop() ends it and tells its exit code and what it wrote.
export async function startServer(calla, args = []) {
  const child = spawn(calla, ["serve", "--port", "0", ...args], { stdio: ["ignore", "pipe", "pipe"] });
  let out = "", log = "";
  child.stderr.on("data", (data) => (log += data));
  const ended = new Promise((resolve) => child.on("exit", (code, signal) => resolve(signal ?? code)));
  const url = await new Promise((resolve, reject) => {
    child.stdout.on("data", (data) => {
      out += data;
      const found = out.match(/is served at (http:\S+)/);
      if (found) resolve(found[1]);
    });
    ended.then((code) => reject(new Error(`calla serve ended with ${code}: ${log}`)));
  });
  return {
    url,
    pid: child.pid,
    log: () => log,
    async stop() {
      child.kill("SIGTERM");
      return { code: await ended, log };
    },
  };
}

// Nobody waits any more, so nothing may run for long.
export async function becomesIdle(url) {
  const start = Date.now();
  for (;;) {
    const { running, queued } = await (await fetch(`${url}/health`)).json();
    if (running + queued === 0) break;
    assert.ok(Date.now() - start < 1000, "the answer goes on for nobody");
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}
