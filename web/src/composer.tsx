import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { chat, useChat } from "./chat";
import { Icon } from "./icons";

const maxHeight = 240; // pixels, then it scrolls

export function Composer() {
  const state = useChat();
  const [text, setText] = useState("");
  const area = useRef<HTMLTextAreaElement>(null);
  const running = chat.isRunning;
  const { id, settings } = state.current;
  useEffect(() => {
    // On a phone the keyboard would jump up.
    if (matchMedia("(pointer: fine)").matches) area.current?.focus();
  }, [id]);
  useLayoutEffect(() => {
    const element = area.current!;
    element.style.height = "auto";
    element.style.height = `${Math.min(element.scrollHeight, maxHeight)}px`;
  }, [text]);

  const send = () => {
    if (running || !text.trim()) return;
    setText("");
    void chat.ask(text);
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.isComposing) return; // Enter chooses a character then
    if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      send();
    } else if (event.key === "ArrowUp" && text === "") {
      const edits = document.querySelectorAll<HTMLButtonElement>(".edit-message");
      if (edits.length === 0) return;
      event.preventDefault();
      edits[edits.length - 1]!.click();
    }
  };
  const thinking = settings.thinking !== false;
  return (
    <form
      class="composer"
      onSubmit={(event) => {
        event.preventDefault();
        send();
      }}
    >
      <div class="box">
        <textarea
          ref={area}
          id="composer"
          rows={1}
          aria-label="Message"
          placeholder="Message"
          value={text}
          onInput={(event) => setText(event.currentTarget.value)}
          onKeyDown={onKeyDown}
        />
        <div class="row">
          <button
            type="button"
            class="toggle"
            aria-pressed={thinking}
            title="Whether the model thinks before it answers"
            onClick={() => chat.changeSettings({ ...settings, thinking: !thinking })}
          >
            Thinking
          </button>
          <span class="hint">Enter sends · Shift+Enter for a new line</span>
          {running ? (
            <button type="button" class="round" aria-label="Stop" title="Stop (Esc)" aria-keyshortcuts="Escape" onClick={() => chat.stop()}>
              <Icon name="stop" />
            </button>
          ) : (
            <button type="submit" class="round" aria-label="Send" title="Send (Enter)" disabled={!text.trim()}>
              <Icon name="send" />
            </button>
          )}
        </div>
      </div>
    </form>
  );
}
