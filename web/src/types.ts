// What the page, the store and the API speak of.

export interface ToolCall {
  id: string;
  type: "function";
  function: { name: string; arguments: string };
}

export interface Usage {
  prompt_tokens: number;
  completion_tokens: number;
  prompt_tokens_details?: { cached_tokens?: number } | null;
  completion_tokens_details?: { reasoning_tokens?: number } | null;
}

/** A turn, as it is stored. Turns form a tree by `parent`. */
export interface Message {
  id: string;
  parent: string | null;
  role: "user" | "assistant" | "tool";
  content: string;
  created: number; // milliseconds since 1970
  reasoning_content?: string;
  thinking_ms?: number;
  tool_calls?: ToolCall[];
  tool_call_id?: string;
  usage?: Usage;
  speed?: number; // tokens a second, from the first token to the last
  finish?: string; // the API's finish_reason, or "stopped" by the user
  error?: string;
}

/** An empty field is the server's default. */
export interface Settings {
  system?: string;
  temperature?: number;
  top_p?: number;
  top_k?: number;
  min_p?: number;
  max_tokens?: number;
  thinking?: boolean;
  tools?: string; // JSON, as typed
}

export interface Summary {
  id: string;
  title: string;
  created: number;
  updated: number;
  snippet?: string;
}

export interface Conversation extends Summary {
  leaf: string | null;
  settings: Settings;
  messages: Message[];
}

export interface Model {
  id: string;
  context: number | null; // tokens
}
