// An answer as it grows from the chunks of a stream.

import type { Message, ToolCall } from "./types";

interface Delta {
  content?: string | null;
  reasoning_content?: string | null;
  tool_calls?: { index?: number; id?: string; function?: { name?: string; arguments?: string } }[] | null;
}

interface Chunk {
  error?: { message?: string } | string;
  choices?: { delta?: Delta; finish_reason?: string | null }[];
  usage?: Message["usage"] | null;
}

// Tokens of a shorter time may have come in one packet.
const minSeconds = 0.2;

export class StreamError extends Error {}

export class Answer {
  private firstToken = 0;
  private lastToken = 0;
  private tokens = 0; // deltas so far: near the number of tokens, until usage tells it
  private thinkingSince = 0;
  private sawDone = false;

  constructor(
    readonly message: Message,
    private readonly now: () => number = () => performance.now(),
  ) {}

  /** Takes the data of one event. Throws StreamError for an error that the server reports. */
  push(data: string): void {
    if (data === "[DONE]") {
      this.sawDone = true;
      return;
    }
    const chunk = JSON.parse(data) as Chunk;
    if (chunk.error) throw new StreamError(typeof chunk.error === "string" ? chunk.error : (chunk.error.message ?? "unknown error"));
    const choice = chunk.choices?.[0];
    if (choice?.delta) this.take(choice.delta);
    if (choice?.finish_reason) this.message.finish = choice.finish_reason;
    if (chunk.usage) {
      this.message.usage = chunk.usage;
      this.tokens = chunk.usage.completion_tokens;
    }
    this.measure();
  }

  /** Whether the stream ended as it should. */
  get complete(): boolean {
    return this.sawDone || this.message.finish !== undefined;
  }

  private take(delta: Delta): void {
    const m = this.message;
    const visible = Boolean(delta.content) || Boolean(delta.tool_calls?.length);
    if (!visible && !delta.reasoning_content) return;
    this.lastToken = this.now();
    if (this.firstToken === 0) this.firstToken = this.lastToken;
    ++this.tokens;
    if (delta.reasoning_content) {
      if (this.thinkingSince === 0) this.thinkingSince = this.lastToken;
      m.reasoning_content = (m.reasoning_content ?? "") + delta.reasoning_content;
    }
    if (this.thinkingSince > 0 && (m.content === "" || !visible)) m.thinking_ms = this.lastToken - this.thinkingSince;
    if (delta.content) m.content += delta.content;
    for (const piece of delta.tool_calls ?? []) this.takeCall(piece);
  }

  private takeCall(piece: NonNullable<Delta["tool_calls"]>[number]): void {
    const calls = (this.message.tool_calls ??= []);
    const index = piece.index ?? 0;
    while (calls.length <= index) calls.push({ id: "", type: "function", function: { name: "", arguments: "" } });
    const call = calls[index] as ToolCall;
    if (piece.id) call.id = piece.id;
    if (piece.function?.name) call.function.name += piece.function.name;
    if (piece.function?.arguments) call.function.arguments += piece.function.arguments;
  }

  private measure(): void {
    const seconds = (this.lastToken - this.firstToken) / 1000;
    if (seconds >= minSeconds && this.tokens > 1) this.message.speed = (this.tokens - 1) / seconds;
  }
}
