import { useState } from "preact/hooks";
import { parseTools } from "./api";
import { chat, useChat } from "./chat";
import { Dialog } from "./dialog";
import type { Settings } from "./types";

type NumberName = "temperature" | "top_p" | "top_k" | "min_p" | "max_tokens";

const numbers: { name: NumberName; label: string; min: number; max: number; step: number; hint: string }[] = [
  { name: "temperature", label: "Temperature", min: 0, max: 2, step: 0.05, hint: "0 always takes the likeliest token" },
  { name: "top_p", label: "Top p", min: 0, max: 1, step: 0.01, hint: "the likeliest tokens that make up this share" },
  { name: "top_k", label: "Top k", min: 0, max: 1000, step: 1, hint: "this many of the likeliest; 0 for all" },
  { name: "min_p", label: "Min p", min: 0, max: 1, step: 0.01, hint: "at least this share of the likeliest one's" },
  { name: "max_tokens", label: "Maximum tokens", min: 1, max: 1_000_000, step: 1, hint: "of an answer, thinking included" },
];

/** How answers of this conversation are made; new ones begin with the same. */
export function SettingsDialog({ onClose }: { onClose: () => void }) {
  const { current } = useChat();
  const settings = current.settings;
  const [tools, setTools] = useState(settings.tools ?? "");
  const [toolsError, setToolsError] = useState("");
  const change = (part: Settings) => {
    const next = Object.fromEntries(Object.entries({ ...settings, ...part }).filter(([, value]) => value !== undefined && value !== ""));
    chat.changeSettings(next);
  };
  const changeNumber = (name: NumberName, text: string, valid: boolean) => {
    if (valid) change({ [name]: text === "" ? undefined : Number(text) });
  };
  const changeTools = () => {
    try {
      parseTools(tools);
      setToolsError("");
      change({ tools });
    } catch (error) {
      setToolsError((error as Error).message);
    }
  };
  return (
    <Dialog title="Settings" onClose={onClose} side>
      <label class="field">
        System prompt
        <textarea rows={5} value={settings.system ?? ""} placeholder="None" onChange={(event) => change({ system: event.currentTarget.value })} />
      </label>
      <fieldset class="choice">
        <legend>Thinking before the answer</legend>
        {(
          [
            ["Default", undefined],
            ["On", true],
            ["Off", false],
          ] as const
        ).map(([label, value]) => (
          <label key={label}>
            <input type="radio" name="thinking" checked={settings.thinking === value} onChange={() => change({ thinking: value })} />
            <span>{label}</span>
          </label>
        ))}
      </fieldset>
      <div class="numbers">
        {numbers.map(({ name, label, hint, ...limits }) => (
          <label key={name} class="field">
            {label}
            <input
              type="number"
              inputMode="decimal"
              {...limits}
              placeholder="default"
              aria-describedby={`${name}-hint`}
              value={settings[name] ?? ""}
              onChange={(event) => changeNumber(name, event.currentTarget.value, event.currentTarget.checkValidity())}
            />
            <small id={`${name}-hint`}>{hint}</small>
          </label>
        ))}
      </div>
      <label class="field">
        Tools
        <textarea
          class="code-area"
          rows={5}
          spellcheck={false}
          value={tools}
          placeholder='[{"type": "function", "function": {"name": …}}]'
          aria-describedby="tools-hint"
          aria-invalid={toolsError !== ""}
          onInput={(event) => setTools(event.currentTarget.value)}
          onChange={changeTools}
        />
        <small id="tools-hint" class={toolsError ? "error" : undefined}>
          {toolsError || "Functions that the model may call, as in the API; you give the results by hand."}
        </small>
      </label>
    </Dialog>
  );
}
