// A model's Markdown, as sanitised pieces of DOM. Nothing that a model writes reaches the page on another way.

import DOMPurify, { type Config } from "dompurify";
import { Marked, type Token, type TokensList, type Tokens } from "marked";

const escapes: Record<string, string> = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };
const escape = (text: string) => text.replace(/[&<>"']/g, (c) => escapes[c]!);

// Tags that people write by hand inside Markdown. Everything else in angle brackets is shown as it was written.
const plainTag = /^<\/?(?:b|br|del|em|i|ins|kbd|mark|s|strong|sub|sup|u)\s*\/?>$/i;

interface MathToken extends Tokens.Generic {
  type: "math";
  text: string;
  display: boolean;
}

const mathToken = (match: RegExpExecArray, display: boolean): MathToken => ({ type: "math", raw: match[0], text: match[1]!, display });
const renderMath = (token: Tokens.Generic) => {
  const kind = (token as MathToken).display ? "math display" : "math";
  return `<span class="${kind}">${escape((token as MathToken).text.trim())}</span>`;
};

const marked = new Marked({
  gfm: true,
  async: false,
  extensions: [
    {
      name: "math",
      level: "block",
      start: (source) => source.search(/^(?:\$\$|\\\[)/m),
      tokenizer(source) {
        const match = /^\$\$([^]+?)\$\$[ \t]*(?:\n+|$)/.exec(source) ?? /^\\\[([^]+?)\\\][ \t]*(?:\n+|$)/.exec(source);
        return match ? mathToken(match, true) : undefined;
      },
      renderer: (token) => `<p>${renderMath(token)}</p>`,
    },
    {
      name: "inlineMath",
      level: "inline",
      start: (source) => source.search(/\$|\\[([]/),
      tokenizer(source) {
        const display = /^\$\$([^$]+?)\$\$/.exec(source) ?? /^\\\[([^]+?)\\\]/.exec(source);
        if (display) return { ...mathToken(display, true), type: "inlineMath" };
        // As in Pandoc: no space inside the dollars and no digit after them, so that prices stay prices.
        const inline = /^\$(?![\s$])((?:\\.|[^$\\\n])*?(?:\\.|[^\s\\$]))\$(?!\d)/.exec(source) ?? /^\\\(([^]+?)\\\)/.exec(source);
        return inline ? { ...mathToken(inline, false), type: "inlineMath" } : undefined;
      },
      renderer: renderMath,
    },
  ],
  renderer: {
    html: (token) => {
      if (plainTag.test(token.text)) return token.text;
      const shown = escape(token.text.trimEnd()).replaceAll("\n", "<br>");
      return "block" in token && token.block ? `<p>${shown}</p>` : shown;
    },
    // An image would be a request to somebody's server; its address is a link.
    image: ({ href, text }) => `<a href="${escape(href)}">${escape(text || href)}</a>`,
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
  },
});

const allowed: Config = {
  ALLOWED_TAGS: (
    "a b blockquote br code del em h1 h2 h3 h4 h5 h6 hr i ins kbd li mark ol p pre s span strong sub sup table tbody td th thead tr u ul"
  ).split(" "),
  ALLOWED_ATTR: ["align", "class", "href", "start"],
  ADD_URI_SAFE_ATTR: ["align", "start"],
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i, // no relative ones: they would lead into this server
  ALLOW_ARIA_ATTR: false,
  ALLOW_DATA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};
// The classes that our own renderers and highlight.js give; others could dress text up as a part of the page.
const allowedClass = /^(?:math|display|language-[\w+#.-]+|hljs-[\w-]+|function_|class_|inherited__|constant_|built_in)$/;

DOMPurify.addHook("uponSanitizeAttribute", (_, data) => {
  if (data.attrName !== "class") return;
  data.attrValue = data.attrValue.split(/\s+/).filter((name) => allowedClass.test(name)).join(" ");
});
DOMPurify.addHook("afterSanitizeAttributes", (node) => {
  if (node.nodeName !== "A") return;
  node.setAttribute("target", "_blank");
  node.setAttribute("rel", "noopener noreferrer");
});

export function sanitise(html: string): DocumentFragment {
  return DOMPurify.sanitize(html, allowed) as unknown as DocumentFragment;
}

const definition = /^ {0,3}\[[^\]]+\]:/m;

/**
 * Cuts a growing text into blocks of HTML, not yet sanitised. What precedes the last two blocks is taken as settled and
 * not looked at again, so a long answer costs no more per token than a short one. The rare text whose end reaches further
 * back (a formula over several paragraphs) is right when its final form goes through a new object.
 */
export class Blocks {
  private text = "";
  private settled: string[] = [];
  private settledLength = 0;

  /** The blocks of `text`. Quick if it continues the text of the call before. */
  of(text: string): string[] {
    text = text.replace(/\r\n?/g, "\n");
    // A definition of a link works backwards: texts that hold one are read whole.
    const whole = definition.test(text);
    if (whole || !text.startsWith(this.text)) {
      this.settled = [];
      this.settledLength = 0;
    }
    this.text = text;
    const tokens = marked.lexer(text.slice(this.settledLength));
    const html = tokens.map((token) => (token.type === "space" ? "" : this.render(token, tokens.links)));
    const all = [...this.settled, ...html.filter((block) => block !== "")];
    const blocks = tokens.flatMap((token, i) => (token.type === "space" ? [] : [i]));
    const end = whole ? 0 : (blocks.at(-2) ?? 0);
    for (let i = 0; i < end; ++i) {
      if (html[i] !== "") this.settled.push(html[i]!);
      this.settledLength += tokens[i]!.raw.length;
    }
    return all;
  }

  private render(token: Token, links: TokensList["links"]): string {
    return marked.parser(Object.assign([token], { links }) as TokensList);
  }
}
