import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import type { Browser, Page } from "playwright-core";
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from "vitest";
import { hostile } from "../hostile";
import { answered, ask, type Calla, delta, end, event, head, launch, pause, says, Script, startCalla, type Visit, visit } from "./harness";

const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const firstLoadLimit = 150_000; // bytes over the wire

let calla: Calla;
let browser: Browser;
let script: Script;
let scriptUrl: string;
let visits: Visit[] = [];

beforeAll(async () => {
  [calla, browser] = await Promise.all([startCalla(), launch()]);
});
afterAll(async () => {
  await browser?.close();
  await calla?.stop();
});
beforeEach(async () => {
  script = new Script();
  scriptUrl = await script.start();
  visits = [];
});
afterEach(async () => {
  const problems = visits.flatMap((v) => v.problems);
  for (const v of visits) await v.context.close();
  await script.stop();
  expect(problems).toEqual([]);
});

async function open(options = {}, path = "/"): Promise<Page> {
  const v = await visit(browser, calla, scriptUrl, options, path);
  visits.push(v);
  return v.page;
}

const message = (page: Page) => page.getByRole("textbox", { name: "Message" });
const said = (page: Page, text: string) => page.locator(".answer").getByText(text).waitFor();
const conversations = (page: Page) => page.locator(".conversations a .title");
// Titles tell the conversations of different tests apart.
let counter = 0;
const question = (about: string) => `${about} ${++counter}`;

test("the first load is small and comes from the server alone", async () => {
  const context = await browser.newContext();
  const page = await context.newPage();
  const session = await context.newCDPSession(page);
  await session.send("Network.enable");
  const urls: string[] = [];
  let bytes = 0;
  session.on("Network.responseReceived", ({ response }) => urls.push(response.url));
  session.on("Network.loadingFinished", ({ encodedDataLength }) => (bytes += encodedDataLength));
  await page.goto(calla.url, { waitUntil: "networkidle" });
  expect(urls.length).toBeGreaterThan(3);
  expect(urls.filter((url) => !url.startsWith(`${calla.url}/`))).toEqual([]);
  console.log(`first load: ${bytes} bytes in ${urls.length} requests`);
  expect(bytes).toBeLessThan(firstLoadLimit);
  // Again: the files under /assets/ are not asked for.
  urls.length = 0;
  bytes = 0;
  await page.reload({ waitUntil: "networkidle" });
  expect(bytes).toBeLessThan(8000);
  await context.close();
});

test("Bud answers, and the conversation is there after a reload", async () => {
  const v = await visit(browser, calla);
  visits.push(v);
  const { page } = v;
  await ask(page, "What is the capital of France?");
  expect(await answered(page)).toContain("Paris");
  await page.locator(".figures").waitFor();
  expect(await page.locator(".figures").innerText()).toMatch(/^\d+ tokens( · [\d.]+ tokens\/s)? · \d+ of \d+ prompt tokens cached$/);
  expect(await page.locator(".context").innerText()).toMatch(/bud\s+\d+ of 8,192/);
  await ask(page, "What is 12 + 30?");
  expect(await answered(page)).toContain("42");
  expect(await page.locator(".figures").last().innerText()).not.toContain(" 0 of");
  const before = await page.locator(".messages").innerText();
  await page.reload();
  await page.locator(".message.assistant").nth(1).waitFor();
  expect(await page.locator(".messages").innerText()).toBe(before);
  expect(await conversations(page).first().innerText()).toBe("What is the capital of France?");
});

test("Markdown streams: code with colours and a button, formulas, a table", async () => {
  const page = await open({ permissions: ["clipboard-read", "clipboard-write"] });
  let goOn = () => {};
  script.replies.push(async (response) => {
    head(response);
    delta(response, { content: "# Title\n\nfirst\n\n```python\ndef f():\n" });
    await new Promise<void>((done) => (goOn = done));
    delta(response, { content: "    return 1\n```\n\n$x^2$\n\n| a | b |\n|---|--:|\n| 1 | 2 |\n" });
    end(response);
  });
  await ask(page, question("Markdown"));
  await page.locator(".answer .hljs-keyword").first().waitFor();
  // What is complete stays in place while the rest grows: a reader can select it.
  const first = await page.locator(".answer p").first().elementHandle();
  goOn();
  await answered(page);
  expect(await first!.evaluate((e) => e.isConnected)).toBe(true);
  await page.locator(".answer .katex").waitFor();
  expect(await page.evaluate(() => document.fonts.ready.then((f) => [...f].filter((x) => x.status === "loaded").length))).toBeGreaterThan(0);
  expect(await page.locator(".answer td").last().evaluate((e) => getComputedStyle(e).textAlign)).toBe("right");
  await page.getByRole("button", { name: "Copy", exact: true }).and(page.locator(".copy-code")).click();
  await page.getByText("Copied").waitFor();
  expect(await page.evaluate(() => navigator.clipboard.readText())).toBe("def f():\n    return 1\n");
});

test("thinking is folded, timed, and sent back with the next question", async () => {
  const page = await open();
  script.replies.push(async (response) => {
    head(response);
    delta(response, { reasoning_content: "Let me" });
    await pause(1200);
    delta(response, { reasoning_content: " see" });
    delta(response, { content: "Done." });
    end(response);
  });
  await ask(page, question("Thinking"));
  await page.getByText("Thinking…").waitFor();
  expect(await answered(page)).toMatch(/^Thought for [1-9]\d* s\s+Done\.$/);
  await page.getByText("Thought for").click();
  expect(await page.locator(".thinking .prose").innerText()).toBe("Let me see");
  script.replies.push(says("Again."));
  await ask(page, "Next");
  await answered(page);
  expect(script.bodies[1].messages[1]).toMatchObject({ role: "assistant", content: "Done.", reasoning_content: "Let me see" });
});

test("Escape stops an answer, and what there is stays", async () => {
  const page = await open();
  script.replies.push(async (response) => {
    head(response);
    for (let i = 0; i < 1000 && !response.destroyed; ++i) {
      delta(response, { content: `word${i} ` });
      await pause(20);
    }
  });
  await ask(page, question("Stop"));
  await said(page, "word5");
  await page.keyboard.press("Escape");
  await page.getByText("Stopped.").waitFor();
  expect(await answered(page)).toContain("word5");
  await expect.poll(() => script.gone).toBe(1);
  await page.reload();
  await page.getByText("Stopped.").waitFor();
});

test("regenerate and edit make branches that can be walked", async () => {
  const page = await open();
  script.replies.push(says("Answer one."), says("Answer two."), says("Answer three."));
  const first = question("Branches");
  await ask(page, first);
  await answered(page);
  await page.getByRole("button", { name: "Regenerate" }).click();
  await said(page, "Answer two.");
  await answered(page);
  expect(script.bodies[1].messages).toHaveLength(1);
  expect(await page.locator(".assistant .branches").innerText()).toBe("2/2");
  await page.getByRole("button", { name: "Earlier version" }).click();
  await said(page, "Answer one.");
  // ArrowUp in the empty box edits the last question.
  await message(page).focus();
  await page.keyboard.press("ArrowUp");
  await page.getByRole("textbox", { name: "Edit your message" }).fill("Edited");
  await page.keyboard.press("Enter");
  await said(page, "Answer three.");
  await answered(page);
  expect(script.bodies[2].messages).toEqual([{ role: "user", content: "Edited" }]);
  expect(await page.locator(".user .branches").innerText()).toBe("2/2");
  await page.locator(".user").getByRole("button", { name: "Earlier version" }).click();
  await said(page, "Answer two."); // the newest below it
  await page.reload();
  await said(page, "Answer two.");
});

test("tool calls are shown and their results handed in", async () => {
  const page = await open();
  const tools = [{ type: "function", function: { name: "add", parameters: { type: "object", properties: { a: { type: "number" } } } } }];
  await page.keyboard.press("Tab"); // out of the message box
  await page.getByRole("button", { name: "Settings", exact: true }).click();
  await page.getByRole("textbox", { name: "Tools" }).fill("[{]");
  await page.keyboard.press("Tab");
  await page.getByText("not valid JSON").waitFor();
  await page.getByRole("textbox", { name: "Tools" }).fill(JSON.stringify(tools));
  await page.keyboard.press("Tab");
  await page.keyboard.press("Escape");
  script.replies.push((response) => {
    head(response);
    delta(response, { tool_calls: [{ index: 0, id: "call_1", type: "function", function: { name: "add", arguments: "" } }] });
    delta(response, { tool_calls: [{ index: 0, function: { arguments: '{"a": 1' } }] });
    delta(response, { tool_calls: [{ index: 1, id: "call_2", type: "function", function: { name: "now", arguments: "{}" } }] });
    delta(response, { tool_calls: [{ index: 0, function: { arguments: "}" } }] });
    end(response, "tool_calls");
  }, says("It is 2."));
  await ask(page, question("Tools"));
  await page.getByRole("textbox", { name: "Result of add" }).fill("2");
  await page.getByRole("textbox", { name: "Result of now" }).fill("noon");
  expect(await page.getByRole("region", { name: "Call of add" }).locator("pre").innerText()).toBe('{\n  "a": 1\n}');
  await page.getByRole("button", { name: "Continue" }).click();
  await said(page, "It is 2.");
  await answered(page);
  expect(script.bodies[0].tools).toEqual(tools);
  expect(script.bodies[1].messages.slice(1)).toEqual([
    {
      role: "assistant",
      content: "",
      tool_calls: [
        { id: "call_1", type: "function", function: { name: "add", arguments: '{"a": 1}' } },
        { id: "call_2", type: "function", function: { name: "now", arguments: "{}" } },
      ],
    },
    { role: "tool", tool_call_id: "call_1", content: "2" },
    { role: "tool", tool_call_id: "call_2", content: "noon" },
  ]);
  await page.reload();
  expect(await page.getByRole("region", { name: "Call of now" }).getByRole("region", { name: "Result" }).innerText()).toBe("noon");
});

test("settings reach the request and stay with the conversation", async () => {
  const page = await open();
  script.replies.push(says("One."), says("Two."));
  await page.getByRole("button", { name: "Settings", exact: true }).click();
  await page.getByRole("textbox", { name: "System prompt" }).fill("Be brief.");
  for (const [name, value] of Object.entries({ Temperature: "0.3", "Top p": "0.9", "Top k": "40", "Min p": "0.05", "Maximum tokens": "77" })) {
    await page.getByRole("spinbutton", { name }).fill(value);
  }
  await page.getByRole("radio", { name: "Off" }).check({ force: true });
  await page.keyboard.press("Escape");
  expect(await page.getByRole("button", { name: "Thinking", exact: true }).getAttribute("aria-pressed")).toBe("false");
  await ask(page, question("Settings"));
  await answered(page);
  expect(script.bodies[0]).toMatchObject({
    stream: true,
    stream_options: { include_usage: true },
    temperature: 0.3,
    top_p: 0.9,
    top_k: 40,
    min_p: 0.05,
    max_tokens: 77,
    chat_template_kwargs: { enable_thinking: false },
    messages: [{ role: "system", content: "Be brief." }, { role: "user" }],
  });
  const other = await open({}, new URL(page.url()).hash.replace(/^/, "/"));
  await said(other, "One.");
  await ask(other, "Next");
  await answered(other);
  expect(script.bodies[1]).toMatchObject({ temperature: 0.3, max_tokens: 77 });
});

test("conversations are searched, renamed, exported and deleted", async () => {
  const page = await open();
  script.replies.push(says("The walrus sleeps."), says("The pelican flies."));
  const [walrus, pelican] = [question("About one animal"), question("About another animal")];
  await ask(page, walrus);
  await answered(page);
  await page.getByRole("button", { name: "New conversation" }).click();
  await ask(page, pelican);
  await answered(page);
  await page.locator("h1").click();
  await page.locator("body").press("/");
  await page.keyboard.type("walrus sleeps");
  expect(await page.getByRole("searchbox").inputValue()).toBe("walrus sleeps");
  await expect.poll(() => conversations(page).allInnerTexts()).toEqual([walrus]);
  expect(await page.locator(".snippet").innerText()).toBe("The walrus sleeps.");
  await page.keyboard.press("Escape");
  await expect.poll(() => conversations(page).count()).toBeGreaterThan(1);

  const menu = async (title: string, item: string) => {
    await page.getByRole("button", { name: `Actions for ${title}` }).click();
    await page.getByRole("menuitem", { name: item }).click();
  };
  await menu(walrus, "Rename");
  await page.getByRole("textbox", { name: "Title" }).fill("Sleeping animals");
  await page.keyboard.press("Enter");
  await expect.poll(() => conversations(page).allInnerTexts()).toContain("Sleeping animals");
  for (const [item, name, start] of [
    ["Export as Markdown", "Sleeping-animals.md", "# Sleeping animals\n\n## You\n\n"],
    ["Export as JSON", "Sleeping-animals.json", '{"id": "'],
  ] as const) {
    const download = page.waitForEvent("download");
    await menu("Sleeping animals", item);
    const file = await download;
    expect(file.suggestedFilename()).toBe(name);
    const text = readFileSync(await file.path(), "utf8");
    expect(text.startsWith(start)).toBe(true);
    expect(text).toContain("The walrus sleeps.");
  }
  await menu(pelican, "Delete");
  await page.getByRole("button", { name: "Keep" }).click();
  await menu(pelican, "Delete");
  await page.getByRole("button", { name: "Delete", exact: true }).click();
  await expect.poll(() => conversations(page).allInnerTexts()).not.toContain(pelican);
  expect(await page.locator("h1").innerText()).toBe("New conversation");
});

test("an answer goes on while another conversation is shown", async () => {
  const page = await open();
  let goOn = () => {};
  script.replies.push(async (response) => {
    head(response);
    delta(response, { content: "begin" });
    await new Promise<void>((done) => (goOn = done));
    delta(response, { content: " and end" });
    end(response);
  }, says("Other."));
  const slow = question("Slow");
  await ask(page, slow);
  await said(page, "begin");
  await page.getByRole("button", { name: "New conversation" }).click();
  await ask(page, question("Quick"));
  await said(page, "Other.");
  goOn();
  await page.getByRole("link", { name: slow }).click();
  await said(page, "begin and end");
});

test("the keyboard reaches everything", async () => {
  const page = await open();
  script.replies.push(says("One."));
  await message(page).fill("line one");
  await page.keyboard.press("Shift+Enter");
  await page.keyboard.type(question("line two"));
  await page.keyboard.press("Enter");
  await answered(page);
  expect(script.bodies[0].messages[0].content).toMatch(/^line one\nline two \d+$/);
  await page.evaluate(() => (document.activeElement as HTMLElement).blur());
  await page.keyboard.press("?");
  await page.getByRole("dialog", { name: "Keyboard shortcuts" }).waitFor();
  await page.keyboard.press("Escape");
  await page.keyboard.press(",");
  await page.getByRole("dialog", { name: "Settings" }).waitFor();
  await page.keyboard.press("Escape");
  await page.keyboard.press("b");
  expect(await page.locator(".sidebar").isVisible()).toBe(false);
  await page.keyboard.press("/");
  await page.keyboard.type("in the hidden box");
  expect(await page.getByRole("searchbox").inputValue()).toBe("in the hidden box");
  await page.keyboard.press("Escape");
  await page.keyboard.press("n");
  expect(await page.locator("h1").innerText()).toBe("New conversation");
  // A menu: opened, walked and left by keys alone; the focus returns.
  const actions = page.locator(".conversations button").first();
  await actions.focus();
  await page.keyboard.press("Enter");
  await page.keyboard.press("ArrowDown");
  expect(await page.evaluate(() => document.activeElement!.textContent)).toBe("Export as Markdown");
  await page.keyboard.press("Escape");
  expect(await actions.evaluate((e) => e === document.activeElement)).toBe(true);
  // The first thing that takes the focus leads to the message box.
  expect(await page.evaluate(() => document.querySelector("a[href], button, input, textarea")!.className)).toBe("skip");
  await page.locator(".skip").focus();
  await page.keyboard.press("Enter");
  expect(await message(page).evaluate((e) => e === document.activeElement)).toBe(true);
});

test("screen readers hear that an answer begins and what it says", async () => {
  const page = await open();
  let goOn = () => {};
  script.replies.push(async (response) => {
    head(response);
    await new Promise<void>((done) => (goOn = done));
    delta(response, { content: "The answer." });
    end(response);
  });
  await ask(page, question("Status"));
  const status = page.getByRole("status");
  await expect.poll(() => status.innerText()).toBe("Answering");
  goOn();
  await expect.poll(() => status.innerText()).toBe("Answer: The answer.");
});

async function violations(page: Page): Promise<string[]> {
  await page.evaluate(() => document.getAnimations().forEach((a) => a.finish()));
  // As a DevTools script: the page's policy lets no other script in.
  const session = await page.context().newCDPSession(page);
  await session.send("Runtime.evaluate", { expression: axe });
  const { result } = await session.send("Runtime.evaluate", {
    expression: "axe.run({runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice']}).then((r) => JSON.stringify(r.violations))",
    awaitPromise: true,
  });
  return JSON.parse(result.value).map((v: any) => `${v.id}: ${v.nodes.map((n: any) => n.html).join(" | ")}`);
}

test.each(["light", "dark"] as const)("axe finds nothing in the %s theme", async (colorScheme) => {
  const page = await open({ colorScheme, reducedMotion: "reduce" });
  expect(await violations(page)).toEqual([]);
  script.replies.push(says("# Title\n\nText with `code`, [link](https://example.org).\n\n```js\n// comment\nconst x = \"a\" + 1;\n```\n\n> quote\n\n$x$\n\n|a|\n|-|\n|1|", "Hm."));
  await ask(page, question("Axe"));
  await answered(page);
  await page.locator(".katex").waitFor();
  await page.getByText("Thought").click();
  expect(await violations(page)).toEqual([]);
  await page.getByRole("button", { name: "Settings", exact: true }).click();
  expect(await violations(page)).toEqual([]);
  await page.keyboard.press("Escape");
  await page.locator(".conversations button").first().focus();
  await page.keyboard.press("Enter");
  expect(await violations(page)).toEqual([]);
});

test("a phone's width is enough", async () => {
  const page = await open({ viewport: { width: 360, height: 640 }, hasTouch: true, isMobile: true });
  script.replies.push(says(`${"x".repeat(300)}\n\n\`\`\`\n${"y".repeat(300)}\n\`\`\`\n\n|${" long column |".repeat(12)}\n|${"-|".repeat(12)}\n\n$$${"a+".repeat(80)}b$$`));
  await ask(page, question("Phone"));
  await answered(page);
  await page.locator(".katex").waitFor();
  expect(await page.evaluate(() => document.documentElement.scrollWidth)).toBe(360);
  expect(await page.locator(".messages").evaluate((e) => e.scrollWidth <= e.clientWidth)).toBe(true);
  expect(await page.locator(".sidebar").isVisible()).toBe(false);
  await page.locator(".top").getByRole("button", { name: "Conversations" }).tap();
  await page.locator(".sidebar").waitFor();
  expect(await violations(page)).toEqual([]);
  await page.getByRole("button", { name: "New conversation" }).tap();
  expect(await page.locator(".sidebar").isVisible()).toBe(false);
});

test("what a model writes never runs, loads or sends anything", async () => {
  const page = await open();
  for (let at = 0; at < hostile.length; at += 12) {
    const corpus = hostile.slice(at, at + 12).join("\n\n\n");
    script.replies.push((response) => {
      head(response);
      for (const piece of corpus.match(/[^]{1,11}/g)!) delta(response, { reasoning_content: piece });
      for (const piece of corpus.match(/[^]{1,11}/g)!) delta(response, { content: piece });
      delta(response, { tool_calls: [{ index: 0, id: "<img src=x onerror=pwned()>", function: { name: "<img src=x onerror=pwned()>", arguments: corpus } }] });
      end(response, "stop");
    });
    await ask(page, `${question("XSS")} ${corpus}`);
    await answered(page);
    await page.locator(".thinking summary").last().click();
    await page.getByRole("button", { name: "New conversation" }).click();
  }
  // And as it comes back from the store, in titles, snippets and exports.
  const titles = (await conversations(page).allInnerTexts()).filter((title) => title.startsWith("XSS"));
  expect(titles).toHaveLength(Math.ceil(hostile.length / 12));
  const forbidden = "script, iframe, object, embed, svg:not(.icon):not(.katex *), style, link, form, base, meta, video, audio, img, [onerror], [onclick]";
  for (const title of titles) {
    await page.getByRole("link", { name: title }).click();
    await page.locator("h1", { hasText: title }).waitFor();
    await page.locator(".message.assistant").waitFor();
    const links = await page.locator(".answer a").evaluateAll((all) => all.map((a) => a.getAttribute("href")));
    expect(links.filter((href) => href !== null && !/^(https?|mailto):/.test(href))).toEqual([]);
    expect(await page.locator(".answer").evaluate((answer, list) => answer.querySelectorAll(list).length, forbidden)).toBe(0);
  }
  await page.getByRole("searchbox").fill("onerror");
  await page.locator(".snippet").first().waitFor();
  await pause(300);
});

test("a busy server is asked again, a refusal is shown", async () => {
  const page = await open();
  script.replies.push(
    (response) => void response.writeHead(503, { "Retry-After": "1" }).end('{"error": {"message": "busy"}}'),
    says("After all."),
    (response) => void response.writeHead(400).end('{"error": {"message": "the prompt has 9,000 tokens, more than 8,192"}}'),
    (response) => {
      head(response);
      delta(response, { content: "Half" });
      event(response, { error: { message: "out of memory" } });
      response.end();
    },
    (response) => {
      head(response);
      delta(response, { content: "Broken" });
      setTimeout(() => response.destroy(), 50);
    },
  );
  await ask(page, question("Errors"));
  await page.getByText("The server is busy").waitFor();
  expect(await answered(page)).toBe("After all.");
  await ask(page, "two");
  expect(await answered(page)).toBe("the prompt has 9,000 tokens, more than 8,192");
  await ask(page, "three");
  expect(await answered(page)).toMatch(/^Half\s+out of memory$/);
  await ask(page, "four");
  expect(await answered(page)).toMatch(/^Broken\s+.*connection/s);
});

test("a conversation that cannot be saved says so, goes on, and is saved when that is possible again", async () => {
  const page = await open();
  script.replies.push(says("Answer."), says("Another."));
  let full = true;
  await page.route("**/api/conversations/*", (route) =>
    full && route.request().method() === "PUT" ? route.fulfill({ status: 503, body: '{"error": {"message": "the disk is full"}}' }) : route.fallback(),
  );
  await ask(page, question("Full"));
  expect(await answered(page)).toBe("Answer.");
  await page.getByText("Not saved: the disk is full").waitFor();
  full = false;
  await ask(page, "And now?");
  expect(await answered(page)).toBe("Another.");
  await expect.poll(() => page.locator(".problem").count()).toBe(0);
  await page.reload();
  await said(page, "Another.");
  expect(await page.locator(".message").count()).toBe(4);
});

test("a conversation that is deleted while it is answered stays deleted", async () => {
  const page = await open();
  script.replies.push(async (response) => {
    head(response);
    delta(response, { content: "begin" });
    await pause(60_000);
  });
  const title = question("Deleted");
  await ask(page, title);
  await said(page, "begin");
  await page.getByRole("button", { name: `Actions for ${title}` }).click();
  await page.getByRole("menuitem", { name: "Delete" }).click();
  await page.getByRole("button", { name: "Delete", exact: true }).click();
  await expect.poll(() => conversations(page).allInnerTexts()).not.toContain(title);
  await pause(300);
  await page.reload();
  await conversations(page).first().waitFor();
  expect(await conversations(page).allInnerTexts()).not.toContain(title);
});

test("a server with a key asks for it once", async () => {
  const guarded = await startCalla("--api-key", "a-secret-key");
  try {
    const v = await visit(browser, guarded);
    visits.push(v);
    const { page } = v;
    await page.getByRole("dialog", { name: "This server wants a key" }).waitFor();
    await page.getByLabel("The API key").fill("wrong-key-1");
    await page.keyboard.press("Enter");
    await page.getByRole("dialog", { name: "This server wants a key" }).waitFor();
    await page.getByLabel("The API key").fill("a-secret-key");
    await page.keyboard.press("Enter");
    await page.getByText("bud").waitFor();
    expect(await page.getByRole("dialog").count()).toBe(0);
  } finally {
    await guarded.stop();
  }
});
