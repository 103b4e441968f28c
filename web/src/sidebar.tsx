import { useEffect, useRef, useState } from "preact/hooks";
import { chat, useChat } from "./chat";
import { Dialog } from "./dialog";
import { Icon } from "./icons";
import iconUrl from "./icon.svg";
import { Menu } from "./menu";
import { theme, useTheme } from "./theme";
import type { Summary } from "./types";

const dayMilliseconds = 24 * 3600 * 1000;

/** "Today", "Yesterday", "This week", then the month. */
export function ageOf(updated: number, now = Date.now()): string {
  const midnight = new Date(now).setHours(0, 0, 0, 0);
  if (updated >= midnight) return "Today";
  if (updated >= midnight - dayMilliseconds) return "Yesterday";
  if (updated >= midnight - 6 * dayMilliseconds) return "This week";
  return new Date(updated).toLocaleDateString("en", { month: "long", year: "numeric" });
}

function byAge(list: Summary[]): [string, Summary[]][] {
  const groups = new Map<string, Summary[]>();
  for (const summary of list) {
    const age = ageOf(summary.updated);
    groups.set(age, [...(groups.get(age) ?? []), summary]);
  }
  return [...groups];
}

export function Sidebar({ hidden, onNavigate, onHelp }: { hidden: boolean; onNavigate: () => void; onHelp: () => void }) {
  const state = useChat();
  const [renaming, setRenaming] = useState<Summary | null>(null);
  const [removing, setRemoving] = useState<Summary | null>(null);
  const currentTheme = useTheme();
  const themeName = { auto: "as the system", light: "light", dark: "dark" }[currentTheme];
  return (
    <aside class="sidebar" aria-label="Conversations" inert={hidden}>
      <div class="brand">
        <img src={iconUrl} alt="" width="28" height="28" />
        <span>Calla</span>
      </div>
      <button
        type="button"
        class="new"
        onClick={() => {
          chat.create();
          onNavigate();
        }}
      >
        <Icon name="plus" /> New conversation
      </button>
      <Search />
      <nav class="conversations" aria-label="Conversations">
        {byAge(state.list).map(([age, group]) => (
          <section key={age}>
            <h2>{age}</h2>
            <ul>
              {group.map((summary) => (
                <li key={summary.id} class={summary.id === state.current.id ? "current" : undefined}>
                  <a href={`#/c/${summary.id}`} aria-current={summary.id === state.current.id ? "page" : undefined} onClick={onNavigate}>
                    <span class="title">
                      {state.running.has(summary.id) && <span class="dot" role="img" aria-label="Answering" />}
                      {summary.title}
                    </span>
                    {summary.snippet && <span class="snippet">{summary.snippet}</span>}
                  </a>
                  <Menu
                    label={`Actions for ${summary.title}`}
                    items={[
                      { label: "Rename", run: () => setRenaming(summary) },
                      { label: "Export as Markdown", run: () => void chat.export(summary.id, "markdown") },
                      { label: "Export as JSON", run: () => void chat.export(summary.id, "json") },
                      { label: "Delete", run: () => setRemoving(summary), danger: true },
                    ]}
                  />
                </li>
              ))}
            </ul>
          </section>
        ))}
        {state.list.length === 0 && <p class="none">{state.query ? "Nothing found." : "Conversations will appear here."}</p>}
        {state.more && (
          <button type="button" class="more" onClick={() => void chat.loadMore()}>
            Older conversations
          </button>
        )}
      </nav>
      <div class="foot">
        <button type="button" class="icon-button" aria-label={`Colours: ${themeName}`} title={`Colours: ${themeName}`} onClick={() => theme.next()}>
          <Icon name={{ auto: "auto", light: "sun", dark: "moon" }[currentTheme] as "auto"} />
        </button>
        <button type="button" class="icon-button" aria-label="Keyboard shortcuts" title="Keyboard shortcuts" onClick={onHelp}>
          <Icon name="keys" />
        </button>
        <span class="local">Stays on this computer</span>
      </div>
      {renaming && <Rename summary={renaming} onClose={() => setRenaming(null)} />}
      {removing && (
        <Dialog title="Delete conversation" onClose={() => setRemoving(null)}>
          <p>“{removing.title}” and all its branches will be gone.</p>
          <div class="buttons">
            <button type="button" onClick={() => setRemoving(null)}>
              Keep
            </button>
            <button
              type="button"
              class="danger"
              onClick={() => {
                void chat.remove(removing.id);
                setRemoving(null);
              }}
            >
              Delete
            </button>
          </div>
        </Dialog>
      )}
    </aside>
  );
}

function Search() {
  const [text, setText] = useState("");
  const isFirst = useRef(true);
  useEffect(() => {
    if (isFirst.current) {
      isFirst.current = false;
      return;
    }
    const timer = setTimeout(() => void chat.search(text.trim()), 150);
    return () => clearTimeout(timer);
  }, [text]);
  return (
    <div class="search">
      <Icon name="search" />
      <input
        id="search"
        type="search"
        placeholder="Search"
        aria-label="Search conversations"
        aria-keyshortcuts="/"
        autocomplete="off"
        value={text}
        onInput={(event) => setText(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key !== "Escape") return;
          setText("");
          event.currentTarget.blur();
        }}
      />
      <kbd aria-hidden="true">/</kbd>
    </div>
  );
}

function Rename({ summary, onClose }: { summary: Summary; onClose: () => void }) {
  const [title, setTitle] = useState(summary.title);
  return (
    <Dialog title="Rename conversation" onClose={onClose}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          if (title.trim()) void chat.rename(summary.id, title.trim());
          onClose();
        }}
      >
        <label class="field">
          Title
          <input value={title} maxLength={200} required onInput={(event) => setTitle(event.currentTarget.value)} />
        </label>
        <div class="buttons">
          <button type="button" onClick={onClose}>
            Cancel
          </button>
          <button type="submit" class="primary">
            Rename
          </button>
        </div>
      </form>
    </Dialog>
  );
}
