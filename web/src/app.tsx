import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { chat, useChat } from "./chat";
import { Composer } from "./composer";
import { Dialog } from "./dialog";
import iconUrl from "./icon.svg";
import { Icon } from "./icons";
import { copyCode } from "./markdown-view";
import { MessageView, number, Results } from "./message";
import { SettingsDialog } from "./settings";
import { Sidebar } from "./sidebar";

const narrow = matchMedia("(max-width: 48rem)");
const nearEnd = 80; // pixels from the end that count as being there

/** Whether it worked. */
function focusSearch(): boolean {
  const box = document.getElementById("search")!;
  box.focus();
  return document.activeElement === box;
}

export function App() {
  const state = useChat();
  const [sidebar, setSidebar] = useState(!narrow.matches);
  const [dialog, setDialog] = useState<"settings" | "help" | null>(null);
  // In a hidden sidebar the box takes no focus before it is shown.
  const wantsSearch = useRef(false);
  useLayoutEffect(() => {
    if (wantsSearch.current) wantsSearch.current = !focusSearch();
  }, [sidebar]);
  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      if (event.defaultPrevented || event.isComposing || document.querySelector("dialog[open]")) return;
      if (event.key === "Escape" && chat.isRunning) return chat.stop();
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if ((event.target as Element).closest("input, textarea, select, [contenteditable]")) return;
      if (event.key === "/") {
        setSidebar(true);
        wantsSearch.current = !focusSearch();
      } else if (event.key === "n") chat.create();
      else if (event.key === "i") document.getElementById("composer")?.focus();
      else if (event.key === "b") setSidebar((open) => !open);
      else if (event.key === ",") setDialog("settings");
      else if (event.key === "?") setDialog("help");
      else return;
      event.preventDefault();
    };
    document.addEventListener("keydown", onKey);
    const onWidth = () => setSidebar(!narrow.matches);
    narrow.addEventListener("change", onWidth);
    return () => {
      document.removeEventListener("keydown", onKey);
      narrow.removeEventListener("change", onWidth);
    };
  }, []);
  useEffect(() => {
    document.title = state.current.title ? `${state.current.title} · Calla` : "Calla";
  }, [state.current.title]);
  const closeIfNarrow = () => {
    if (narrow.matches) setSidebar(false);
  };
  return (
    <div class={sidebar ? "app" : "app alone"}>
      <a class="skip" href="#composer" onClick={(event) => (event.preventDefault(), document.getElementById("composer")?.focus())}>
        Skip to the message
      </a>
      <Sidebar hidden={!sidebar} onNavigate={closeIfNarrow} onHelp={() => setDialog("help")} />
      <div class="shade" onClick={() => setSidebar(false)} />
      <main>
        <header class="top">
          <button type="button" class="icon-button" aria-label="Conversations" aria-expanded={sidebar} onClick={() => setSidebar(!sidebar)}>
            <Icon name="menu" />
          </button>
          <h1>{state.current.title || "New conversation"}</h1>
          <Context />
          <button type="button" class="icon-button" aria-label="Settings" title="Settings (,)" onClick={() => setDialog("settings")}>
            <Icon name="settings" />
          </button>
        </header>
        {state.problem && (
          <div class="problem" role="alert">
            <span>{state.problem}</span>
            <button type="button" class="icon-button" aria-label="Dismiss" onClick={() => chat.dismissProblem()}>
              <Icon name="close" />
            </button>
          </div>
        )}
        <Thread />
        <Composer />
      </main>
      <div role="status" class="visually-hidden">
        {state.announcement}
      </div>
      {dialog === "settings" && <SettingsDialog onClose={() => setDialog(null)} />}
      {dialog === "help" && <Help onClose={() => setDialog(null)} />}
      {state.needsKey && <Key />}
    </div>
  );
}

/** How full the model's context is after the last answer of the branch. */
function Context() {
  const { models, model } = useChat();
  const total = models.find((m) => m.id === model)?.context;
  const usage = chat.branch.findLast((m) => m.usage)?.usage;
  const used = usage ? usage.prompt_tokens + usage.completion_tokens : 0;
  const cached = usage?.prompt_tokens_details?.cached_tokens ?? 0;
  return (
    <div class="context">
      <span class="model">{model}</span>
      {usage && total && (
        <span title={`${number(cached)} of the last ${number(usage.prompt_tokens)} prompt tokens were read from cache`}>
          <meter min={0} max={total} value={used} aria-label="Context in use" />
          <span class="count">
            {number(used)} of {number(total)}
          </span>
        </span>
      )}
    </div>
  );
}

function Thread() {
  const state = useChat();
  const box = useRef<HTMLDivElement>(null);
  const [atEnd, setAtEnd] = useState(true);
  const messages = chat.branch;
  const running = chat.isRunning;
  const last = messages.at(-1);
  const results = new Map(messages.flatMap((m) => (m.tool_call_id ? [[m.tool_call_id, m] as const] : [])));

  const scrollToEnd = () => box.current!.scrollTo({ top: box.current!.scrollHeight });
  useLayoutEffect(() => {
    setAtEnd(true);
    scrollToEnd();
  }, [state.current.id, running]);
  // Follows the answer as long as the reader is at its end; also when formulas and code take their final size.
  useLayoutEffect(() => {
    const observer = new ResizeObserver(() => atEnd && scrollToEnd());
    observer.observe(box.current!.firstElementChild!);
    return () => observer.disconnect();
  }, [atEnd]);
  const onScroll = () => {
    const { scrollTop, scrollHeight, clientHeight } = box.current!;
    setAtEnd(scrollHeight - scrollTop - clientHeight < nearEnd);
  };

  return (
    <div class="thread-frame">
      <div class="thread" ref={box} onScroll={onScroll} onClick={copyCode} role="region" aria-label="Conversation" tabIndex={0}>
        <div class="messages">
          {messages.length === 0 && (
            <div class="welcome">
              <img src={iconUrl} alt="" width="64" height="64" />
              <p>What would you like to know?</p>
            </div>
          )}
          {messages.map((message) => (
            <MessageView
              key={message.id}
              message={message}
              all={state.current.messages}
              running={running && message.id === last?.id && message.role === "assistant"}
              busy={running}
              waiting={state.waiting}
              results={results}
            />
          ))}
          {!running && last?.tool_calls && <Results key={last.id} calls={last.tool_calls} />}
        </div>
      </div>
      {!atEnd && (
        <button type="button" class="to-end" aria-label="To the end" onClick={scrollToEnd}>
          <Icon name="down" />
        </button>
      )}
    </div>
  );
}

const shortcuts = [
  ["Enter", "send the message"],
  ["Shift+Enter", "begin a new line"],
  ["Esc", "stop the answer"],
  ["↑", "edit the last message, in an empty box"],
  ["/", "search conversations"],
  ["n", "new conversation"],
  ["i", "go to the message box"],
  ["b", "show or hide the conversations"],
  [",", "settings"],
  ["?", "this list"],
];

function Help({ onClose }: { onClose: () => void }) {
  return (
    <Dialog title="Keyboard shortcuts" onClose={onClose}>
      <dl class="shortcuts">
        {shortcuts.map(([key, what]) => (
          <div key={key}>
            <dt>
              <kbd>{key}</kbd>
            </dt>
            <dd>{what}</dd>
          </div>
        ))}
      </dl>
    </Dialog>
  );
}

function Key() {
  const [key, setKey] = useState("");
  return (
    <Dialog title="This server wants a key" onClose={() => chat.dismissKey()}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          void chat.useKey(key);
        }}
      >
        <label class="field">
          The API key that calla serve was started with
          <input type="password" value={key} autocomplete="current-password" required onInput={(event) => setKey(event.currentTarget.value)} />
        </label>
        <div class="buttons">
          <button type="submit" class="primary">
            Continue
          </button>
        </div>
      </form>
    </Dialog>
  );
}
