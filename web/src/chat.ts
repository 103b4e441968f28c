// Everything the page knows, and what the user can do with it. Components read `chat.state` and call methods.

import { useEffect, useState } from "preact/hooks";
import { Answer, StreamError } from "./answer";
import * as api from "./api";
import { ApiError } from "./api";
import { branch, newestLeaf } from "./tree";
import type { Conversation, Message, Model, Settings, Summary } from "./types";

export interface State {
  models: Model[];
  model: string;
  list: Summary[];
  more: boolean; // older conversations than those in the list
  query: string;
  current: Conversation;
  running: ReadonlySet<string>; // conversations that are being answered
  waiting: string; // what the current answer waits for, in words
  problem: string; // one line about the server or the store; empty: all is well
  needsKey: boolean;
  announcement: string; // for screen readers
}

const publishMilliseconds = 40;
const saveMilliseconds = 10_000;
const maxRetries = 5;
const settingsName = "calla.settings";
const brokenOff = "The answer broke off: the connection to the server was lost";

// Not crypto.randomUUID: browsers keep that from pages on plain HTTP beyond loopback.
export function newId(): string {
  return [...crypto.getRandomValues(new Uint8Array(12))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** The first line of a question, cut between words. */
export function titleOf(text: string): string {
  const line = text.trim().split("\n")[0]!.replace(/\s+/g, " ").trim();
  if (line.length <= 60) return line || "New conversation";
  const space = line.lastIndexOf(" ", 60);
  return `${line.slice(0, space > 30 ? space : 60)}…`;
}

const sleep = (milliseconds: number, signal: AbortSignal) =>
  new Promise<void>((resolve, reject) => {
    const timer = setTimeout(resolve, milliseconds);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(new DOMException("stopped", "AbortError"));
    });
  });

class Chat {
  state: State = {
    models: [],
    model: "",
    list: [],
    more: false,
    query: "",
    current: this.emptyConversation(),
    running: new Set(),
    waiting: "",
    problem: "",
    needsKey: false,
    announcement: "",
  };
  private readonly listeners = new Set<() => void>();
  // What is being answered goes on when another conversation is shown.
  private readonly loaded = new Map<string, Conversation>();
  private readonly stops = new Map<string, AbortController>();
  private readonly unsaved = new Set<string>(); // conversations of which the server refused a part
  private readonly removed = new Set<string>(); // a late save must not bring them back
  private lastQuery = 0;
  private lastSave: Promise<void> = Promise.resolve(); // saves go out in their order: a parent before its child

  subscribe(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  private set(change: Partial<State>): void {
    this.state = { ...this.state, ...change };
    for (const listener of this.listeners) listener();
  }

  private emptyConversation(): Conversation {
    let settings: Settings = {};
    try {
      settings = JSON.parse(localStorage.getItem(settingsName) ?? "{}");
    } catch {
      // Settings that do not parse are no settings.
    }
    return { id: newId(), title: "", created: 0, updated: 0, leaf: null, settings, messages: [] };
  }

  get branch(): Message[] {
    return branch(this.state.current.messages, this.state.current.leaf);
  }

  get isRunning(): boolean {
    return this.state.running.has(this.state.current.id);
  }

  async start(): Promise<void> {
    await Promise.all([this.loadModels(), this.search("")]);
    window.addEventListener("hashchange", () => void this.followAddress());
    await this.followAddress();
  }

  async useKey(key: string): Promise<void> {
    api.apiKey.set(key);
    this.set({ needsKey: false, problem: "" });
    await Promise.all([this.loadModels(), this.search("")]);
    await this.followAddress();
  }

  private report(error: unknown): void {
    if (error instanceof ApiError && error.status === 401) return this.set({ needsKey: true });
    this.set({ problem: (error as Error).message });
  }

  dismissProblem(): void {
    this.set({ problem: "" });
  }

  /** Until the server refuses the next request. */
  dismissKey(): void {
    this.set({ needsKey: false });
  }

  private async loadModels(): Promise<void> {
    try {
      const models = await api.models();
      this.set({ models, model: models[0]?.id ?? "" });
    } catch (error) {
      this.report(error);
    }
  }

  // --- the list

  async search(query: string): Promise<void> {
    const number = ++this.lastQuery;
    this.set({ query });
    try {
      const { conversations, more } = await api.list(query);
      if (number === this.lastQuery) this.set({ list: conversations, more });
    } catch (error) {
      this.report(error);
    }
  }

  async loadMore(): Promise<void> {
    const number = this.lastQuery;
    try {
      const { conversations, more } = await api.list(this.state.query, this.state.list.at(-1)?.updated);
      if (number === this.lastQuery) this.set({ list: [...this.state.list, ...conversations], more });
    } catch (error) {
      this.report(error);
    }
  }

  async rename(id: string, title: string): Promise<void> {
    try {
      const summary = await api.rename(id, title);
      this.replace(id, (c) => ({ ...c, title: summary.title }));
      this.set({ list: this.state.list.map((s) => (s.id === id ? { ...s, title: summary.title } : s)) });
    } catch (error) {
      this.report(error);
    }
  }

  async remove(id: string): Promise<void> {
    this.removed.add(id);
    this.stop(id);
    try {
      await this.lastSave;
      await api.remove(id);
      this.loaded.delete(id);
      this.set({ list: this.state.list.filter((s) => s.id !== id), announcement: "Conversation deleted" });
      if (this.state.current.id === id) this.create();
    } catch (error) {
      this.removed.delete(id);
      this.report(error);
    }
  }

  async export(id: string, format: "markdown" | "json"): Promise<void> {
    try {
      const { blob, name } = await api.exported(id, format);
      const link = document.createElement("a");
      link.href = URL.createObjectURL(blob);
      link.download = name;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    } catch (error) {
      this.report(error);
    }
  }

  // --- the conversation that is shown

  create(): void {
    if (location.hash !== "") history.pushState(null, "", location.pathname);
    this.set({ current: this.emptyConversation(), waiting: "" });
  }

  private async followAddress(): Promise<void> {
    const id = /^#\/c\/([\w-]+)$/.exec(location.hash)?.[1];
    if (id === undefined) {
      if (this.state.current.messages.length > 0) this.create();
      return;
    }
    if (id === this.state.current.id) return;
    const known = this.stops.has(id) || this.unsaved.has(id) ? this.loaded.get(id) : undefined;
    if (known) return this.set({ current: known });
    try {
      const conversation = await api.load(id);
      if (location.hash !== `#/c/${id}`) return; // the user went elsewhere meanwhile
      this.loaded.set(id, conversation);
      this.set({ current: conversation, waiting: "" });
    } catch (error) {
      this.report(error);
    }
  }

  private replace(id: string, change: (c: Conversation) => Conversation): void {
    const known = this.loaded.get(id) ?? (this.state.current.id === id ? this.state.current : undefined);
    if (!known) return;
    const changed = change(known);
    this.loaded.set(id, changed);
    if (this.state.current.id === id) this.set({ current: changed });
  }

  changeSettings(settings: Settings): void {
    localStorage.setItem(settingsName, JSON.stringify(settings));
    const { id, messages } = this.state.current;
    this.replace(id, (c) => ({ ...c, settings }));
    if (messages.length > 0) void this.save(id, { settings });
  }

  /** Shows the newest branch through a turn. */
  show(message: Message): void {
    const { id, messages } = this.state.current;
    const leaf = newestLeaf(messages, message.id);
    this.replace(id, (c) => ({ ...c, leaf }));
    void this.save(id, { leaf });
  }

  private save(id: string, change: api.Change): Promise<void> {
    this.lastSave = this.lastSave.then(() => this.saveNow(id, change));
    return this.lastSave;
  }

  private async saveNow(id: string, change: api.Change): Promise<void> {
    if (this.removed.has(id)) return;
    // After a failure, all of it: what follows could not stand without what is missing.
    const whole = this.unsaved.has(id) ? this.loaded.get(id) : undefined;
    if (whole) change = { title: whole.title, leaf: whole.leaf, settings: whole.settings, messages: whole.messages };
    try {
      const summary = await api.put(id, change);
      this.unsaved.delete(id);
      const others = this.state.list.filter((s) => s.id !== id);
      if (this.state.query === "") this.set({ list: [summary, ...others], problem: "" });
    } catch (error) {
      this.unsaved.add(id);
      if (error instanceof ApiError && error.status === 401) return this.report(error);
      this.set({ problem: `Not saved: ${(error as Error).message}` });
    }
  }

  private add(id: string, messages: Message[]): void {
    this.replace(id, (c) => ({ ...c, messages: [...c.messages, ...messages], leaf: messages.at(-1)!.id }));
  }

  // --- questions and answers

  /** Asks a question at the end of the branch or, with `instead`, in the place of an earlier one. */
  async ask(content: string, instead?: Message): Promise<void> {
    const { id, messages } = this.state.current;
    const parent = instead ? instead.parent : (this.branch.at(-1)?.id ?? null);
    const question: Message = { id: newId(), parent, role: "user", content, created: Date.now() };
    const title = messages.length === 0 ? titleOf(content) : undefined;
    const isNew = title !== undefined;
    this.add(id, [question]);
    if (isNew) {
      this.replace(id, (c) => ({ ...c, title }));
      history.pushState(null, "", `#/c/${id}`);
    }
    void this.save(id, { title, leaf: question.id, settings: isNew ? this.loaded.get(id)!.settings : undefined, messages: [question] });
    await this.answer(id);
  }

  /** Another answer in the place of this one. */
  async regenerate(message: Message): Promise<void> {
    const { id } = this.state.current;
    this.replace(id, (c) => ({ ...c, leaf: message.parent }));
    await this.answer(id);
  }

  /** Hands in the results of the calls at the end of the branch, by call id. */
  async giveResults(results: Map<string, string>): Promise<void> {
    const { id } = this.state.current;
    let parent = this.branch.at(-1)!.id;
    const messages: Message[] = [];
    for (const [call, content] of results) {
      const result: Message = { id: newId(), parent, role: "tool", content, tool_call_id: call, created: Date.now() };
      parent = result.id;
      messages.push(result);
    }
    this.add(id, messages);
    void this.save(id, { leaf: parent, messages });
    await this.answer(id);
  }

  stop(id = this.state.current.id): void {
    this.stops.get(id)?.abort();
  }

  private async answer(id: string): Promise<void> {
    const conversation = this.loaded.get(id)!;
    const path = branch(conversation.messages, conversation.leaf);
    const message: Message = { id: newId(), parent: path.at(-1)?.id ?? null, role: "assistant", content: "", created: Date.now() };
    this.add(id, [message]);
    const stop = new AbortController();
    this.stops.set(id, stop);
    this.set({ running: new Set(this.stops.keys()), announcement: "Answering", waiting: "Reading" });

    const publish = () => this.replace(id, (c) => ({ ...c, messages: c.messages.map((m) => (m.id === message.id ? { ...message } : m)) }));
    let timer: ReturnType<typeof setTimeout> | undefined;
    let saved = Date.now();
    try {
      const body = api.requestBody(this.state.model, conversation.settings, path);
      const answer = new Answer(message);
      for await (const data of this.eventsOf(body, stop.signal)) {
        answer.push(data);
        timer ??= setTimeout(() => {
          timer = undefined;
          publish();
        }, publishMilliseconds);
        if (Date.now() - saved > saveMilliseconds) {
          saved = Date.now();
          void this.save(id, { leaf: message.id, messages: [message] });
        }
      }
      if (!answer.complete) throw new StreamError(brokenOff);
    } catch (error) {
      if (stop.signal.aborted) message.finish = "stopped";
      else if (error instanceof ApiError && error.status === 401) this.set({ needsKey: true });
      else message.error = error instanceof TypeError ? brokenOff : (error as Error).message;
    }
    clearTimeout(timer);
    this.stops.delete(id);
    publish();
    this.set({ running: new Set(this.stops.keys()), waiting: "", announcement: this.spoken(message) });
    await this.save(id, { leaf: message.id, messages: [message] });
  }

  private spoken(message: Message): string {
    if (message.error) return `Error: ${message.error}`;
    if (message.finish === "stopped") return "Stopped";
    return `Answer: ${message.content.slice(0, 1000)}`;
  }

  // A server that is busy says when to try again.
  private async *eventsOf(body: object, signal: AbortSignal): AsyncGenerator<string> {
    for (let attempt = 0; ; ++attempt) {
      try {
        return yield* api.answer(body, signal);
      } catch (error) {
        if (!(error instanceof ApiError) || error.status !== 503 || attempt === maxRetries) throw error;
        this.set({ waiting: "The server is busy; waiting" });
        await sleep(Math.min(error.retryAfter ?? 2, 30) * 1000, signal);
        this.set({ waiting: "Reading" });
      }
    }
  }
}

export const chat = new Chat();

/** The state, and a new rendering whenever it changes. */
export function useChat(): State {
  const [state, setState] = useState(chat.state);
  useEffect(() => {
    setState(chat.state);
    return chat.subscribe(() => setState(chat.state));
  }, []);
  return state;
}
