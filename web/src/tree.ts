// The tree of turns. Every function is pure; `messages` holds parents before children.

import type { Message } from "./types";

/** From the first turn to the leaf. A leaf that is not there gives the newest branch. */
export function branch(messages: Message[], leaf: string | null): Message[] {
  const byId = new Map(messages.map((m) => [m.id, m]));
  const path: Message[] = [];
  let at = leaf === null ? undefined : byId.get(leaf);
  if (!at && messages.length > 0) at = byId.get(newestLeaf(messages, null)!);
  while (at && path.length <= messages.length) {
    path.push(at);
    at = at.parent === null ? undefined : byId.get(at.parent);
  }
  return path.reverse();
}

/** The turns that could stand in a turn's place, itself among them, oldest first. */
export function siblings(messages: Message[], message: Message): Message[] {
  return messages.filter((m) => m.parent === message.parent);
}

/** The end of the newest branch at or below a turn (null: of all). */
export function newestLeaf(messages: Message[], id: string | null): string | null {
  const newestChild = new Map<string | null, string>();
  for (const m of messages) newestChild.set(m.parent, m.id);
  let at = id;
  for (let next = newestChild.get(at); next !== undefined; next = newestChild.get(at)) at = next;
  return at;
}
