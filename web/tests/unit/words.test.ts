import { expect, test } from "vitest";
import { parseTools, requestBody } from "../../src/api";
import { newId, titleOf } from "../../src/chat";
import { duration } from "../../src/message";
import { ageOf } from "../../src/sidebar";
import type { Message } from "../../src/types";

test("titles are first lines, cut between words", () => {
  expect(titleOf("\n  How   tall?\nVery")).toBe("How tall?");
  expect(titleOf(" \n ")).toBe("New conversation");
  expect(titleOf(`${"word ".repeat(30)}`)).toBe(`${"word ".repeat(11).trim()} word…`);
  expect(titleOf("x".repeat(100))).toBe(`${"x".repeat(60)}…`);
});

test("ages", () => {
  const now = new Date(2026, 10, 30, 15).getTime();
  const at = (day: number, hour: number) => ageOf(new Date(2026, 10, day, hour).getTime(), now);
  expect([at(30, 0), at(29, 23), at(29, 0), at(28, 23), at(24, 0), at(23, 23)]).toEqual([
    "Today", "Yesterday", "Yesterday", "This week", "This week", "November 2026",
  ]);
});

test("durations", () => {
  expect([0, 499, 500, 59_400, 61_000].map(duration)).toEqual(["less than a second", "less than a second", "1 s", "59 s", "1 min 1 s"]);
});

test("identifiers are new and of the store's alphabet", () => {
  const ids = Array.from({ length: 1000 }, newId);
  expect(new Set(ids).size).toBe(1000);
  expect(ids.every((id) => /^[\w-]{1,64}$/.test(id))).toBe(true);
});

test("empty answers are left out of a request, and so are empty settings", () => {
  const message = (role: Message["role"], content: string): Message => ({ id: content, parent: null, role, content, created: 0 });
  const body = requestBody("m", { system: "  ", tools: "[]" }, [message("user", "a"), message("assistant", ""), message("user", "b")]);
  expect(JSON.parse(JSON.stringify(body))).toEqual({
    model: "m",
    messages: [{ role: "user", content: "a" }, { role: "user", content: "b" }],
    stream: true,
    stream_options: { include_usage: true },
  });
});

test("tools are an array", () => {
  expect(parseTools(undefined)).toBe(undefined);
  expect(parseTools('[{"type": "function"}]')).toEqual([{ type: "function" }]);
  expect(() => parseTools("{}")).toThrow("must be a JSON array");
  expect(() => parseTools("[")).toThrow("not valid JSON");
});
