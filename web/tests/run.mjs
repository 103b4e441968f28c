// Runs one project of the page's tests for CTest; exits with 77 (skipped) and a reason where something is not installed.
//
//   node web/tests/run.mjs unit
//   node web/tests/run.mjs browser build/release/calla    (also needs web/dist in the program, and Chromium)

import { spawnSync } from "node:child_process";
import { existsSync } from "node:fs";
import { fileURLToPath } from "node:url";

const [project, calla] = process.argv.slice(2);
const web = fileURLToPath(new URL("..", import.meta.url));
const chromium = "/usr/bin/chromium";

function skip(reason) {
  console.error(`SKIPPED: ${reason}`);
  process.exit(77);
}
if (!existsSync(`${web}/node_modules/vitest`)) skip("make web");
if (Number(process.versions.node.split(".")[0]) < 20) skip(`Node.js 20 or later runs the page's tests, this is ${process.version}`);
if (project === "browser" && !existsSync(chromium)) skip(`there is no ${chromium} (Debian's package chromium)`);

const { status } = spawnSync(process.execPath, ["node_modules/vitest/vitest.mjs", "run", "--project", project], {
  cwd: web,
  stdio: "inherit",
  env: { ...process.env, CALLA: calla, CHROMIUM: chromium },
});
process.exit(status ?? 1);
