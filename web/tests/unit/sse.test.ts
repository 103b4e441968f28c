import { expect, test } from "vitest";
import { events } from "../../src/sse";

async function* pieces(bytes: Uint8Array, cuts: number[]) {
  let from = 0;
  for (const cut of [...cuts, bytes.length]) {
    yield bytes.slice(from, cut);
    from = cut;
  }
}

async function read(bytes: Uint8Array, cuts: number[]): Promise<string[]> {
  const all: string[] = [];
  for await (const data of events(pieces(bytes, cuts))) all.push(data);
  return all;
}

const stream = ': ping\r\n\r\ndata: {"a":"é🙂"}\n\n:\n\nevent: x\ndata:two\ndata:  lines\n\nid: 1\n\ndata\n\ndata: \r\n\r\ndata: [DONE]\n\ndata: cut off';
const expected = ['{"a":"é🙂"}', "two\n lines", "", "[DONE]"];

test("events survive a cut at every byte", async () => {
  const bytes = new TextEncoder().encode(stream);
  for (let cut = 0; cut <= bytes.length; ++cut) expect(await read(bytes, [cut]), `cut at ${cut}`).toEqual(expected);
});

test("events come out of single bytes", async () => {
  const bytes = new TextEncoder().encode(stream);
  expect(await read(bytes, [...bytes.keys()])).toEqual(expected);
});

test("lines may end in carriage returns alone", async () => {
  expect(await read(new TextEncoder().encode("data: a\r\rdata: b\r\r\n"), [])).toEqual(["a", "b"]);
});
