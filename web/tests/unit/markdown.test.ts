import { expect, test } from "vitest";
import { Blocks, sanitise } from "../../src/markdown";
import { hostile } from "../hostile";

const html = (text: string) => new Blocks().of(text).join("\n");
function dom(text: string): HTMLElement {
  const div = document.createElement("div");
  for (const block of new Blocks().of(text)) div.append(sanitise(block));
  return div;
}

// What a sanitised tree may hold: no element, attribute or address beyond these.
const elements = new Set("A B BLOCKQUOTE BR CODE DEL EM H1 H2 H3 H4 H5 H6 HR I INS KBD LI MARK OL P PRE S SPAN STRONG SUB SUP TABLE TBODY TD TH THEAD TR U UL".split(" "));
function offences(root: HTMLElement): string[] {
  const found: string[] = [];
  for (const element of root.querySelectorAll("*")) {
    if (!elements.has(element.tagName)) found.push(`<${element.tagName}>`);
    for (const { name, value } of element.attributes) {
      const good =
        (name === "href" && /^(https?|mailto):/i.test(value)) ||
        (name === "class" && /^(|math( display)?|language-[\w+#.-]+|hljs-[\w-]+)$/.test(value)) ||
        (name === "align" && /^(left|right|center)$/.test(value)) ||
        (name === "start" && /^\d+$/.test(value)) ||
        (element.tagName === "A" && ((name === "target" && value === "_blank") || (name === "rel" && value === "noopener noreferrer")));
      if (!good) found.push(`${element.tagName} ${name}="${value}"`);
    }
  }
  return found;
}

test.each(hostile)("is inert: %s", (text) => {
  expect(offences(dom(text))).toEqual([]);
  // Half of it, as while it streams, and inside other Markdown.
  for (let end = 1; end < Math.min(text.length, 300); ++end) expect(offences(dom(text.slice(0, end)))).toEqual([]);
  expect(offences(dom(`- item\n\n  > ${text}\n\n| a |\n|---|\n| ${text} |`))).toEqual([]);
  expect(offences(dom(`$${text}$ and \`\`\`html\n${text}\n\`\`\``))).toEqual([]);
  // And as HTML, should Markdown ever let it through.
  const div = document.createElement("div");
  div.append(sanitise(text));
  expect(offences(div)).toEqual([]);
});

test("tags are shown as they were written", () => {
  expect(dom("Use <div class='x'> and <think>.").textContent?.trim()).toBe("Use <div class='x'> and <think>.");
  expect(dom("<script>alert(1)</script>").textContent).toBe("<script>alert(1)</script>");
  expect(dom("H<sub>2</sub>O<br>x").querySelectorAll("sub, br")).toHaveLength(2);
});

test("an image becomes a link", () => {
  const link = dom("![a cat](https://example.org/cat.png)").querySelector("a")!;
  expect([link.textContent, link.getAttribute("href"), link.rel]).toEqual(["a cat", "https://example.org/cat.png", "noopener noreferrer"]);
  expect(dom("![a cat](/v1/models)").querySelector("a")!.hasAttribute("href")).toBe(false);
});

test("formulas", () => {
  const maths = (text: string) => [...dom(text).querySelectorAll(".math")].map((m) => [m.textContent, m.className]);
  expect(maths("of $x^2$ and \\(a<b\\)")).toEqual([["x^2", "math"], ["a<b", "math"]]);
  expect(maths("$$\na_1 * b * c\n$$")).toEqual([["a_1 * b * c", "math display"]]);
  expect(maths("\\[\n\\frac12\n\\]")).toEqual([["\\frac12", "math display"]]);
  expect(maths("so $$x$$ it is")).toEqual([["x", "math display"]]);
  expect(maths("$5 and $10, or 5 $ and 6 $")).toEqual([]);
  expect(maths("`$x$` and\n\n    $y$")).toEqual([]);
  expect(maths("$\\$5$ and \\$x$")).toEqual([["\\$5", "math"]]);
});

test("code, tables and lists keep what they need", () => {
  expect(dom("```c++\nint x;\n```").querySelector("code")!.className).toBe("language-c++");
  expect(dom("  code:\n\n```\n  indented\n```").querySelector("pre")!.textContent).toBe("  indented\n");
  expect(dom("|a|\n|-:|\n|1|").querySelector("td")!.getAttribute("align")).toBe("right");
  expect(dom("3. three").querySelector("ol")!.start).toBe(3);
  expect(dom("- [x] done\n- [ ] not").textContent).toMatch(/☑\s+done\s+☐\s+not/);
});

const sample = `# Title

Some *text* with [a link](https://example.org) that
goes on.

- one
- two

  more of two
- three

1. first

2. second

\`\`\`js
const a = 1;

- not a list
\`\`\`

> quote
> more

| a | b |
|---|---|
| 1 | 2 |

Last line, with $x$ and
===

$$
y
$$

the end`;

test("a growing text ends as the whole text does, however it is cut", () => {
  const whole = new Blocks().of(sample);
  let seed = 1;
  const random = (n: number) => (seed = (seed * 48271) % 2147483647) % n;
  for (let round = 0; round < 60; ++round) {
    const blocks = new Blocks();
    for (let at = 0; at < sample.length; at += 1 + random(round < 3 ? 1 : 40)) blocks.of(sample.slice(0, at));
    expect(blocks.of(sample)).toEqual(whole);
  }
});

test("settled blocks are the same strings again", () => {
  const blocks = new Blocks();
  const before = blocks.of("one\n\ntwo\n\nthree\n\nfour");
  const after = blocks.of("one\n\ntwo\n\nthree\n\nfour and more");
  expect(after.slice(0, 3)).toEqual(before.slice(0, 3));
  expect(after[3]).not.toBe(before[3]);
  expect(blocks.of("another")).toEqual(new Blocks().of("another"));
});

test("definitions of links work from the end", () => {
  expect(html("[see][1]\n\nx\n\ny\n\n[1]: https://example.org")).toContain('href="https://example.org"');
});
