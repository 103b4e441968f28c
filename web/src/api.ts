// The server's two faces: /v1 for answers, /api for conversations.

import { chunks, events } from "./sse";
import type { Conversation, Message, Model, Settings, Summary } from "./types";

export class ApiError extends Error {
  constructor(
    message: string,
    readonly status: number,
    readonly retryAfter: number | null = null, // seconds
  ) {
    super(message);
  }
}

const keyName = "calla.key";
export const apiKey = {
  get: () => sessionStorage.getItem(keyName) ?? "",
  set: (key: string) => sessionStorage.setItem(keyName, key),
};

async function request(path: string, init: RequestInit = {}): Promise<Response> {
  const headers = new Headers(init.headers);
  if (init.body) headers.set("Content-Type", "application/json");
  if (apiKey.get()) headers.set("Authorization", `Bearer ${apiKey.get()}`);
  let response: Response;
  try {
    response = await fetch(path, { ...init, headers });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError("The server cannot be reached. Is calla serve still running?", 0);
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => null);
  const message = body?.error?.message ?? `The server answered ${response.status}`;
  const after = Number(response.headers.get("Retry-After"));
  throw new ApiError(message, response.status, after > 0 ? after : null);
}

export async function models(): Promise<Model[]> {
  const body = await (await request("/v1/models")).json();
  return body.data.map((m: { id: string; context_length?: number; max_model_len?: number }) => ({
    id: m.id,
    context: m.context_length ?? m.max_model_len ?? null,
  }));
}

/** The body of a request for the next answer. Throws if the tools are not a JSON array. */
export function requestBody(model: string, settings: Settings, path: Message[]): object {
  const messages: object[] = [];
  if (settings.system?.trim()) messages.push({ role: "system", content: settings.system });
  for (const m of path) {
    if (m.role === "tool") {
      messages.push({ role: "tool", tool_call_id: m.tool_call_id, content: m.content });
    } else if (m.role === "user") {
      messages.push({ role: "user", content: m.content });
    } else if (m.content || m.reasoning_content || m.tool_calls) {
      messages.push({ role: "assistant", content: m.content, reasoning_content: m.reasoning_content, tool_calls: m.tool_calls });
    }
  }
  return {
    model,
    messages,
    stream: true,
    stream_options: { include_usage: true },
    temperature: settings.temperature,
    top_p: settings.top_p,
    top_k: settings.top_k,
    min_p: settings.min_p,
    max_tokens: settings.max_tokens,
    tools: parseTools(settings.tools),
    chat_template_kwargs: settings.thinking === undefined ? undefined : { enable_thinking: settings.thinking },
  };
}

/** Throws an Error that says what is wrong. */
export function parseTools(text: string | undefined): unknown[] | undefined {
  if (!text?.trim()) return undefined;
  let tools: unknown;
  try {
    tools = JSON.parse(text);
  } catch (error) {
    throw new Error(`The tools are not valid JSON: ${(error as Error).message}`);
  }
  if (!Array.isArray(tools)) throw new Error("The tools must be a JSON array of functions");
  return tools.length > 0 ? tools : undefined;
}

/** The data of the events of an answer. */
export async function* answer(body: object, signal: AbortSignal): AsyncGenerator<string> {
  const response = await request("/v1/chat/completions", { method: "POST", body: JSON.stringify(body), signal });
  yield* events(chunks(response.body!));
}

const conversation = (id: string) => `/api/conversations/${encodeURIComponent(id)}`;

export async function list(query: string, before?: number): Promise<{ conversations: Summary[]; more: boolean }> {
  const parameters = new URLSearchParams();
  if (query) parameters.set("q", query);
  if (before !== undefined) parameters.set("before", String(before));
  return (await request(`/api/conversations?${parameters}`)).json();
}

export async function load(id: string): Promise<Conversation> {
  return (await request(conversation(id))).json();
}

export type Change = Partial<Pick<Conversation, "title" | "leaf" | "settings" | "messages">>;

export async function put(id: string, change: Change): Promise<Summary> {
  return (await request(conversation(id), { method: "PUT", body: JSON.stringify(change) })).json();
}

export async function rename(id: string, title: string): Promise<Summary> {
  return (await request(conversation(id), { method: "PATCH", body: JSON.stringify({ title }) })).json();
}

export async function remove(id: string): Promise<void> {
  await request(conversation(id), { method: "DELETE" });
}

/** The exported file and the name that the server gives it. */
export async function exported(id: string, format: "markdown" | "json"): Promise<{ blob: Blob; name: string }> {
  const response = await request(`${conversation(id)}/export?format=${format}`);
  const name = /filename="([^"]+)"/.exec(response.headers.get("Content-Disposition") ?? "")?.[1];
  return { blob: await response.blob(), name: name ?? `conversation.${format === "json" ? "json" : "md"}` };
}
