import { useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { highlight } from "./highlight";
import { Blocks, sanitise } from "./markdown";
import { setMath } from "./math";

/** Markdown that may still grow. Blocks that stay the same keep their DOM, and with it the user's selection. */
export function Markdown({ text, growing = false }: { text: string; growing?: boolean }) {
  const blocks = useMemo(() => new Blocks(), [growing]);
  // The same element again tells Preact that nothing below it has changed.
  return useMemo(
    () => (
      <div class="prose">
        {blocks.of(text).map((html, i) => (
          <Block key={i} html={html} />
        ))}
      </div>
    ),
    [text, blocks],
  );
}

function Block({ html }: { html: string }) {
  const element = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    const fragment = sanitise(html);
    dress(fragment);
    element.current!.replaceChildren(fragment);
  }, [html]);
  return <div class="block" ref={element} />;
}

// Adds to sanitised content what only the page may make: buttons, colours, formulas.
function dress(fragment: DocumentFragment): void {
  for (const code of fragment.querySelectorAll<HTMLElement>("pre > code")) {
    const language = /language-(\S+)/.exec(code.className)?.[1] ?? "";
    const copy = document.createElement("button");
    copy.type = "button";
    copy.className = "copy-code";
    copy.textContent = "Copy";
    const head = document.createElement("div");
    head.className = "code-head";
    head.append(Object.assign(document.createElement("span"), { textContent: language }), copy);
    const pre = code.parentElement!;
    scrollable(pre, language ? `Code, ${language}` : "Code");
    const box = document.createElement("div");
    box.className = "code";
    pre.replaceWith(box);
    box.append(head, pre);
    if (language) highlight(code, language.toLowerCase());
  }
  for (const table of fragment.querySelectorAll("table")) {
    const box = document.createElement("div");
    box.className = "table";
    scrollable(box, "Table");
    table.replaceWith(box);
    box.append(table);
  }
  for (const math of fragment.querySelectorAll<HTMLElement>("span.math")) {
    if (math.classList.contains("display")) scrollable(math, "Formula");
    setMath(math);
  }
}

// What scrolls sideways must be reachable by keyboard.
function scrollable(element: HTMLElement, label: string): void {
  element.tabIndex = 0;
  element.setAttribute("role", "group");
  element.setAttribute("aria-label", label);
}

/** For the click of a container of Markdown: copies the code whose button was pressed. */
export function copyCode(event: MouseEvent): void {
  const button = (event.target as Element).closest<HTMLButtonElement>(".copy-code");
  if (!button) return;
  void copyText(button.closest(".code")!.querySelector("code")!.textContent ?? "").then((copied) => {
    button.textContent = copied ? "Copied" : "Not copied";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
}

/** Whether it worked. Browsers offer the clipboard only to secure pages; loopback is one, another host on HTTP is not. */
export async function copyText(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = Object.assign(document.createElement("textarea"), { value: text, className: "visually-hidden" });
    document.body.append(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    return copied;
  }
}
