import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { chat } from "./chat";
import { Icon } from "./icons";
import { copyText, Markdown } from "./markdown-view";
import { siblings } from "./tree";
import type { Message, ToolCall } from "./types";

export const number = (value: number) => value.toLocaleString("en");

export function duration(milliseconds: number): string {
  const seconds = Math.round(milliseconds / 1000);
  if (seconds < 1) return "less than a second";
  return seconds < 60 ? `${seconds} s` : `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
}

interface Props {
  message: Message;
  all: Message[]; // of the conversation, for the branches
  running: boolean; // this message is being written
  busy: boolean; // some message of the conversation is
  waiting: string;
  results: Map<string, Message>; // of calls, by call id
}

export function MessageView({ message, all, running, busy, waiting, results }: Props) {
  const [editing, setEditing] = useState(false);
  if (message.role === "tool") return null; // shown in the card of its call
  const isUser = message.role === "user";
  return (
    <article class={`message ${message.role}`} aria-label={isUser ? "You" : "Answer"} aria-busy={running}>
      {editing ? (
        <Edit message={message} onClose={() => setEditing(false)} />
      ) : isUser ? (
        <div class="bubble">{message.content}</div>
      ) : (
        <AnswerBody message={message} running={running} waiting={waiting} results={results} />
      )}
      {!editing && !running && <Actions message={message} all={all} busy={busy} onEdit={() => setEditing(true)} />}
    </article>
  );
}

function AnswerBody({ message, running, waiting, results }: Pick<Props, "message" | "running" | "waiting" | "results">) {
  const empty = !message.content && !message.reasoning_content && !message.tool_calls;
  return (
    <div class="answer">
      {running && empty && <Waiting since={message.created} what={waiting} />}
      {message.reasoning_content && <Thinking message={message} running={running && !message.content && !message.tool_calls} />}
      {message.content && <Markdown text={message.content} growing={running} />}
      {message.tool_calls?.map((call, i) => <Call key={i} call={call} result={results.get(call.id)} />)}
      {message.error && (
        <p class="error" role="alert">
          {message.error}
        </p>
      )}
      {message.finish === "length" && <p class="note">The answer ended at its limit of tokens.</p>}
      {message.finish === "stopped" && <p class="note">Stopped.</p>}
    </div>
  );
}

function useSeconds(since: number, runs: boolean): number {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    if (!runs) return;
    const timer = setInterval(() => setNow(Date.now()), 1000);
    return () => clearInterval(timer);
  }, [runs]);
  return Math.max(0, Math.round((now - since) / 1000));
}

function Waiting({ since, what }: { since: number; what: string }) {
  const seconds = useSeconds(since, true);
  return (
    <p class="waiting">
      {what || "Reading"}…{seconds >= 2 && ` ${seconds} s`}
    </p>
  );
}

function Thinking({ message, running }: { message: Message; running: boolean }) {
  return (
    <details class={running ? "thinking running" : "thinking"}>
      <summary>{running ? `Thinking… ${Math.round((message.thinking_ms ?? 0) / 1000)} s` : `Thought for ${duration(message.thinking_ms ?? 0)}`}</summary>
      <Markdown text={message.reasoning_content ?? ""} growing={running} />
    </details>
  );
}

function pretty(json: string): string {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json; // still growing
  }
}

function Call({ call, result }: { call: ToolCall; result: Message | undefined }) {
  return (
    <section class="call" aria-label={`Call of ${call.function.name}`}>
      <h3>
        <Icon name="tool" /> {call.function.name}
      </h3>
      <pre tabIndex={0} role="region" aria-label="Arguments">
        {pretty(call.function.arguments)}
      </pre>
      {result && (
        <>
          <h4>Result</h4>
          <pre tabIndex={0} role="region" aria-label="Result">
            {result.content}
          </pre>
        </>
      )}
    </section>
  );
}

/** Where the results of the last turn's calls are typed in. */
export function Results({ calls }: { calls: ToolCall[] }) {
  const [texts, setTexts] = useState<string[]>(() => calls.map(() => ""));
  return (
    <form
      class="results"
      onSubmit={(event) => {
        event.preventDefault();
        void chat.giveResults(new Map(calls.map((call, i) => [call.id, texts[i] ?? ""])));
      }}
    >
      {calls.map((call, i) => (
        <label key={call.id} class="field">
          Result of {call.function.name}
          <textarea
            rows={2}
            value={texts[i]}
            onInput={(event) => {
              const { value } = event.currentTarget;
              setTexts((old) => old.map((text, at) => (at === i ? value : text)));
            }}
          />
        </label>
      ))}
      <div class="buttons">
        <button type="submit" class="primary">
          Continue
        </button>
      </div>
    </form>
  );
}

function Edit({ message, onClose }: { message: Message; onClose: () => void }) {
  const [text, setText] = useState(message.content);
  const area = useRef<HTMLTextAreaElement>(null);
  useLayoutEffect(() => {
    area.current!.focus();
    area.current!.setSelectionRange(text.length, text.length);
  }, []);
  const send = () => {
    if (!text.trim()) return;
    onClose();
    void chat.ask(text, message);
  };
  return (
    <form
      class="edit"
      onSubmit={(event) => {
        event.preventDefault();
        send();
      }}
    >
      <textarea
        ref={area}
        aria-label="Edit your message"
        rows={Math.min(12, text.split("\n").length + 1)}
        value={text}
        onInput={(event) => setText(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key === "Escape") onClose();
          else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send();
          else return;
          event.preventDefault();
          event.stopPropagation();
        }}
      />
      <div class="buttons">
        <button type="button" onClick={onClose}>
          Cancel
        </button>
        <button type="submit" class="primary">
          Send
        </button>
      </div>
    </form>
  );
}

function Actions({ message, all, busy, onEdit }: { message: Message; all: Message[]; busy: boolean; onEdit: () => void }) {
  const [copied, setCopied] = useState(false);
  const others = siblings(all, message);
  const at = others.findIndex((m) => m.id === message.id);
  const isUser = message.role === "user";
  const copy = async () => {
    if (!(await copyText(message.content))) return;
    setCopied(true);
    setTimeout(() => setCopied(false), 1500);
  };
  return (
    <div class="actions">
      {others.length > 1 && (
        <span class="branches" role="group" aria-label="Versions">
          <button type="button" class="icon-button" aria-label="Earlier version" disabled={busy || at === 0} onClick={() => chat.show(others[at - 1]!)}>
            <Icon name="left" />
          </button>
          <span>
            {at + 1}/{others.length}
          </span>
          <button type="button" class="icon-button" aria-label="Later version" disabled={busy || at === others.length - 1} onClick={() => chat.show(others[at + 1]!)}>
            <Icon name="right" />
          </button>
        </span>
      )}
      <button type="button" class="icon-button" aria-label={copied ? "Copied" : "Copy"} title="Copy" onClick={() => void copy()}>
        <Icon name={copied ? "check" : "copy"} />
      </button>
      {isUser && (
        <button type="button" class="icon-button edit-message" aria-label="Edit" title="Edit" disabled={busy} onClick={onEdit}>
          <Icon name="edit" />
        </button>
      )}
      {!isUser && (
        <button type="button" class="icon-button" aria-label="Regenerate" title="Regenerate" disabled={busy} onClick={() => void chat.regenerate(message)}>
          <Icon name="redo" />
        </button>
      )}
      {message.usage && <Figures message={message} />}
    </div>
  );
}

function Figures({ message }: { message: Message }) {
  const usage = message.usage!;
  const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
  return (
    <span class="figures">
      {number(usage.completion_tokens)} tokens
      {message.speed !== undefined && ` · ${message.speed.toFixed(message.speed < 100 ? 1 : 0)} tokens/s`}
      {` · ${number(cached)} of ${number(usage.prompt_tokens)} prompt tokens cached`}
    </span>
  );
}
