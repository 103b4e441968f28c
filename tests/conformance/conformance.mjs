// Clients of others against `calla serve` with Bud, over the wire as their users have it.
//
//   npm install --no-package-lock --prefix tests/conformance
//   node tests/conformance/conformance.mjs build/release/calla
//
// Exits with 1 if a test fails, with 77 (skipped) if the packages are not installed.

import { startServer } from "./server.mjs";

try {
  await Promise.all(["openai", "@anthropic-ai/sdk", "ai", "@ai-sdk/openai-compatible", "@ai-sdk/anthropic", "@langchain/openai", "@openai/agents"]
    .map((name) => import(name)));
} catch (error) {
  if (error.code !== "ERR_MODULE_NOT_FOUND") throw error;
  console.error("SKIPPED: npm install --no-package-lock --prefix tests/conformance");
  process.exit(77);
}
if (process.argv.length !== 3) {
  console.error("usage: node conformance.mjs CALLA");
  process.exit(2);
}

const { after } = await import("node:test");
const server = await startServer(process.argv[2]);
after(() => server.stop());
for (const file of ["openai", "responses", "anthropic", "ai_sdk", "langchain", "agents"]) {
  (await import(`./${file}.mjs`)).default(server.url);
}
