// `calla serve` with Bud, Chromium, and a server whose answers a test scripts.

import { type ChildProcess, spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { type Browser, type BrowserContext, type BrowserContextOptions, chromium, type Page } from "playwright-core";

const repository = resolve(fileURLToPath(new URL(".", import.meta.url)), "../../..");

export interface Calla {
  url: string;
  data: string; // its folder of data
  stop(): Promise<void>;
}

export async function startCalla(...options: string[]): Promise<Calla> {
  const data = mkdtempSync(join(tmpdir(), "calla-page-"));
  const program = resolve(repository, process.env.CALLA ?? "build/release/calla");
  const child: ChildProcess = spawn(program, ["serve", "--port", "0", "--log-level", "error", ...options], {
    cwd: repository,
    env: { ...process.env, XDG_DATA_HOME: data },
    stdio: ["ignore", "pipe", "inherit"],
  });
  const url = await new Promise<string>((done, failed) => {
    let output = "";
    child.stdout!.on("data", (bytes) => {
      output += bytes;
      const match = /is served at (http:\S+)/.exec(output);
      if (match) done(match[1]!);
    });
    child.on("exit", (code) => failed(new Error(`calla serve ended with ${code}: ${output}`)));
  });
  return {
    url,
    data,
    async stop() {
      const ended = new Promise((done) => child.once("exit", done));
      child.kill("SIGTERM");
      await ended;
      rmSync(data, { recursive: true });
    },
  };
}

export type Reply = (response: ServerResponse, body: any) => Promise<void> | void;

/** Answers each request with the next of `replies`, in its own time. */
export class Script {
  replies: Reply[] = [];
  readonly bodies: any[] = [];
  gone = 0; // clients that left before the end
  private readonly server = createServer((request, response) => void this.answer(request, response));

  async start(): Promise<string> {
    await new Promise<void>((done) => this.server.listen(0, "127.0.0.1", done));
    return `http://127.0.0.1:${(this.server.address() as AddressInfo).port}`;
  }
  async stop(): Promise<void> {
    this.server.closeAllConnections();
    await new Promise((done) => this.server.close(done));
  }
  private async answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    let text = "";
    for await (const piece of request) text += piece;
    const body = JSON.parse(text);
    this.bodies.push(body);
    response.on("close", () => (this.gone += response.writableFinished ? 0 : 1));
    await (this.replies.shift() ?? says("No reply is scripted."))(response, body);
  }
}

export const pause = (milliseconds: number) => new Promise((done) => setTimeout(done, milliseconds));
export const event = (response: ServerResponse, data: object) => response.write(`data: ${JSON.stringify(data)}\n\n`);
export const delta = (response: ServerResponse, d: object) => event(response, { choices: [{ index: 0, delta: d, finish_reason: null }] });

export function end(response: ServerResponse, finish = "stop", tokens = 12): void {
  event(response, { choices: [{ index: 0, delta: {}, finish_reason: finish }] });
  event(response, { choices: [], usage: { prompt_tokens: 100, completion_tokens: tokens, prompt_tokens_details: { cached_tokens: 90 } } });
  response.end("data: [DONE]\n\n");
}

export function head(response: ServerResponse): void {
  response.writeHead(200, { "Content-Type": "text/event-stream" });
  response.write(": ping\n\n");
}

/** A whole answer, in pieces of a few characters. */
export const says =
  (content: string, reasoning = ""): Reply =>
  async (response) => {
    head(response);
    for (const piece of reasoning.match(/[^]{1,7}/g) ?? []) delta(response, { reasoning_content: piece });
    for (const piece of content.match(/[^]{1,7}/g) ?? []) {
      delta(response, { content: piece });
      await pause(1);
    }
    end(response);
  };

export interface Visit {
  page: Page;
  context: BrowserContext;
  problems: string[]; // of the console, the policy and the network; a test ends with none
}

/** A fresh browser profile at the page. Requests to anywhere but `calla` are problems, and are not let out. */
export async function visit(browser: Browser, calla: Calla, script?: string, options: BrowserContextOptions = {}, path = "/"): Promise<Visit> {
  const context = await browser.newContext(options);
  const page = await context.newPage();
  page.setDefaultTimeout(15_000);
  const problems: string[] = [];
  page.on("console", (message) => {
    // A refused request of ours logs a line; tests of refusals look at what the page says instead.
    if (["error", "warning"].includes(message.type()) && !message.text().startsWith("Failed to load resource")) problems.push(message.text());
  });
  page.on("pageerror", (error) => problems.push(String(error)));
  page.on("dialog", (dialog) => {
    problems.push(`dialog: ${dialog.message()}`);
    void dialog.dismiss();
  });
  await context.exposeFunction("pwned", () => problems.push("a script of the model ran"));
  await context.route("**/*", (route) => {
    const url = new URL(route.request().url());
    if (url.origin !== calla.url && url.protocol !== "blob:") {
      problems.push(`request to ${url}`);
      return route.abort();
    }
    if (script && url.pathname === "/v1/chat/completions") return route.continue({ url: script });
    return route.continue();
  });
  await page.goto(calla.url + path);
  await page.getByRole("textbox", { name: "Message" }).waitFor();
  return { page, context, problems };
}

export function launch(): Promise<Browser> {
  return chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox"] });
}

export async function ask(page: Page, text: string): Promise<void> {
  await page.getByRole("textbox", { name: "Message" }).fill(text);
  await page.keyboard.press("Enter");
}

/** The text of the last answer, once it is complete. */
export async function answered(page: Page): Promise<string> {
  await page.getByRole("button", { name: "Send" }).waitFor();
  await page.locator(".message.assistant[aria-busy=false]").last().waitFor();
  return (await page.locator(".message.assistant .answer").last().innerText()).trim();
}
