// Colours for code. The highlighter is loaded when the first block of code appears.

import type { HLJSApi } from "highlight.js";
import { sanitise } from "./markdown";

const maxCharacters = 100_000;
let highlighter: HLJSApi | undefined;
let loading: Promise<HLJSApi> | undefined;

/** Colours the text of `code`, now or once the highlighter is there. Unknown languages stay plain. */
export function highlight(code: HTMLElement, language: string): void {
  if (highlighter) return colour(highlighter, code, language);
  loading ??= import("./languages").then((module) => (highlighter = module.default));
  loading.then((loaded) => colour(loaded, code, language)).catch(() => (loading = undefined)); // plain text will do
}

function colour(loaded: HLJSApi, code: HTMLElement, language: string): void {
  const text = code.textContent ?? "";
  if (!loaded.getLanguage(language) || text.length > maxCharacters) return;
  code.replaceChildren(sanitise(loaded.highlight(text, { language, ignoreIllegals: true }).value));
}
