import { expect, test } from "vitest";
import { branch, newestLeaf, siblings } from "../../src/tree";
import type { Message } from "../../src/types";

const message = (id: string, parent: string | null): Message => ({ id, parent, role: "user", content: id, created: 0 });
//  q1 ─ a1 ─ q2 ─ a2
//     └ b1 ─ q3
//  q9
const tree = [message("q1", null), message("a1", "q1"), message("q2", "a1"), message("a2", "q2"), message("b1", "q1"), message("q3", "b1"), message("q9", null)];
const ids = (messages: Message[]) => messages.map((m) => m.id);

test("a branch leads from the first turn to the leaf", () => {
  expect(ids(branch(tree, "a2"))).toEqual(["q1", "a1", "q2", "a2"]);
  expect(ids(branch(tree, "b1"))).toEqual(["q1", "b1"]);
  expect(ids(branch(tree, "q9"))).toEqual(["q9"]);
  expect(branch([], null)).toEqual([]);
});

test("without a leaf, or with one that is not there, the newest branch is shown", () => {
  expect(ids(branch(tree.slice(0, 6), null))).toEqual(["q1", "b1", "q3"]);
  expect(ids(branch(tree.slice(0, 6), "gone"))).toEqual(["q1", "b1", "q3"]);
});

test("siblings stand in the same place", () => {
  expect(ids(siblings(tree, tree[1]!))).toEqual(["a1", "b1"]);
  expect(ids(siblings(tree, tree[0]!))).toEqual(["q1", "q9"]);
  expect(ids(siblings(tree, tree[3]!))).toEqual(["a2"]);
});

test("the newest leaf below a turn", () => {
  expect(newestLeaf(tree, "a1")).toBe("a2");
  expect(newestLeaf(tree, "q1")).toBe("q3");
  expect(newestLeaf(tree, null)).toBe("q9");
  expect(newestLeaf([], null)).toBe(null);
});

test("a chain of many turns needs no stack and little time", () => {
  const chain = Array.from({ length: 20000 }, (_, i) => message(`m${i}`, i === 0 ? null : `m${i - 1}`));
  expect(branch(chain, "m19999")).toHaveLength(20000);
  expect(newestLeaf(chain, "m0")).toBe("m19999");
});
