// Server-sent events from the bytes of a response.

/** Yields the data of each event. Comments and other fields are passed over; bytes may be split anywhere. */
export async function* events(bytes: AsyncIterable<Uint8Array>): AsyncGenerator<string> {
  const decoder = new TextDecoder();
  let rest = "";
  let data: string[] = [];
  for await (const chunk of bytes) {
    rest += decoder.decode(chunk, { stream: true });
    // A carriage return at the end may be half of a line's end.
    for (let match; (match = /\r\n|\n|\r(?!$)/.exec(rest)); ) {
      const line = rest.slice(0, match.index);
      rest = rest.slice(match.index + match[0].length);
      if (line === "") {
        if (data.length > 0) yield data.join("\n");
        data = [];
      } else if (line.startsWith("data:")) {
        data.push(line.slice(line[5] === " " ? 6 : 5));
      }
    }
  }
}

/** The body of a response, chunk by chunk. Stops reading when the loop over it ends. */
export async function* chunks(body: ReadableStream<Uint8Array>): AsyncGenerator<Uint8Array> {
  const reader = body.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}
