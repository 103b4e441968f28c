// Compares Calla's token masks with those of @mlc-ai/web-xgrammar, at every token of a set of documents.
//
//   npm install --no-package-lock --prefix tests/oracle
//   node tests/oracle/grammar_masks.mjs build/release/grammar_probe models/bud
//
// First with grammars that were written by hand in its notation to say the same as the schema: there the masks must be
// equal. Then with its own reading of the schema, for one-line JSON: there what it allows must be allowed here too, but for the
// differences that are meant. Exits with 1 and prints what differs, or with 77 (skipped) if the package is not installed.

import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { skip, startProbe } from "./common.mjs";

const [probePath, folder] = process.argv.slice(2);
if (folder === undefined) {
  console.error("usage: node grammar_masks.mjs GRAMMAR_PROBE TOKENIZER_FOLDER");
  process.exit(2);
}

// The package calls itself a module, but is written as CommonJS.
function loadXgrammar() {
  let file;
  try {
    file = createRequire(import.meta.url).resolve("@mlc-ai/web-xgrammar");
  } catch {
    skip();
  }
  const dir = mkdtempSync(join(tmpdir(), "xgrammar-"));
  try {
    writeFileSync(join(dir, "index.cjs"), readFileSync(file));
    return createRequire(join(dir, "index.cjs"))("./index.cjs");
  } finally {
    rmSync(dir, { recursive: true });
  }
}
const xgrammar = loadXgrammar();

const probe = startProbe(probePath, folder);
const { ask } = probe;

// ---- The vocabulary ----

const json = JSON.parse(readFileSync(join(folder, "tokenizer.json"), "utf8"));
const tokens = [];
for (const [text, id] of Object.entries(json.model.vocab)) tokens[id] = text;
const controls = new Set();
let stop;
for (const { id, content } of json.added_tokens) {
  tokens[id] = content;
  controls.add(id);
  if (content === "<|im_end|>") stop = id;
}
for (let id = 0; id < tokens.length; ++id) tokens[id] ??= "";
const info = await xgrammar.TokenizerInfo.createTokenizerInfo(tokens, "byte_level", false, tokens.length, [stop]);
const compiler = await xgrammar.GrammarCompiler.createGrammarCompiler(info);

// The bytes of a token, from the letters that stand for them.
const byteOf = new Map();
for (let b = 0, next = 256; b < 256; ++b) {
  const printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
  byteOf.set(String.fromCodePoint(printable ? b : next++), b);
}
// xgrammar follows the form of UTF-8 only: it also lets bytes through that no character has.
const neverUtf8 = tokens.map((text, id) => !controls.has(id) && [...text].some((c) => [0xc0, 0xc1].includes(byteOf.get(c)) || byteOf.get(c) >= 0xf5));

// ---- Comparing ----

let positions = 0;
let wrong = 0;
// judge(ours, theirs, id) says whether the two answers for a token agree.
async function compare(name, request, compiled, judge) {
  const ours = await ask(request);
  if (ours.error) throw new Error(`${name}: ${ours.error}`);
  const matcher = await xgrammar.GrammarMatcher.createGrammarMatcher(compiled);
  for (let i = 0; i <= ours.ids.length; ++i) {
    const theirs = await matcher.getNextTokenBitmask();
    const mask = Buffer.from(ours.masks[i], "hex");
    ++positions;
    for (let id = 0; id < tokens.length; ++id) {
      if ((controls.has(id) && id !== stop) || neverUtf8[id]) continue;
      const [a, b] = [(mask[id >> 3] >> (id & 7)) & 1, (theirs[id >> 5] >>> (id & 31)) & 1];
      if (judge(a === 1, b === 1, id)) continue;
      if (++wrong <= 10) {
        console.error(`${name}, token ${i} of ${JSON.stringify(request.text)}: ${JSON.stringify(tokens[id])} is ${a ? "" : "not "}allowed here, ${b ? "" : "not "}there`);
      }
    }
    if (i < ours.ids.length && !matcher.acceptToken(ours.ids[i])) throw new Error(`${name}: xgrammar refuses token ${i} of ${JSON.stringify(request.text)}`);
  }
  matcher.dispose();
}

// What grammar.h says of the layout, of strings and of numbers.
const COMMON = String.raw`
lines ::= "" | "\n" | "\n\n"
ws ::= "" | " " | "\n" sp{0,32} | "\n" [\t]{0,8}
sp ::= " "
colon ::= ":" " "?
comma ::= "," ws
char ::= [^"\\\x00-\x1f] | "\\" (["\\/bfnrt] | "u" plain | "u" [dD] [89abAB] hex hex "\\u" [dD] [c-fC-F] hex hex)
plain ::= [0-9a-cA-CeEfF] hex hex hex | [dD] [0-7] hex hex
hex ::= [0-9a-fA-F]
string ::= "\"" char* "\""
integer ::= "0" | "-"? [1-9] [0-9]{0,18}
number ::= "-"? ("0" | [1-9] [0-9]{0,20}) ("." [0-9]{1,24})? ([eE] [+-]? ([0-9]{1,2} | "0" [0-9] [0-9] | "1" [0-9] [0-9] | "2" [0-8] [0-9]))?
`;

const HAND_WRITTEN = [
  {
    name: "object",
    schema: { type: "object", properties: { name: { type: "string" }, age: { type: "integer" }, ok: { type: ["boolean", "null"] } }, required: ["age"], additionalProperties: false },
    ebnf: String.raw`root ::= lines "{" ws ("\"name\"" colon string comma)? "\"age\"" colon integer (comma "\"ok\"" colon ("true" | "false" | "null"))? ws "}"`,
    texts: ['{"age":5}', '\n\n{\n  "name": "Bob \\"B\\" Grüße 日本\\u00e9\\ud83d\\ude00",\n  "age": -120,\n  "ok": null\n}', '{"name": "a", "age": 0, "ok": true}'],
  },
  {
    name: "array of bounded strings",
    schema: { type: "array", items: { type: "string", minLength: 2, maxLength: 6 }, minItems: 1, maxItems: 3 },
    ebnf: String.raw`item ::= "\"" char{2,6} "\""
root ::= lines "[" ws item (comma item){0,2} ws "]"`,
    texts: ['["hello","日本語"]', '[\n\t"ab",\n\t"s\\n\\u0041xyz",\n\t"the"\n]'],
  },
  {
    name: "recursion",
    schema: { $defs: { t: { type: "object", properties: { v: { type: "number" }, sub: { type: "array", items: { $ref: "#/$defs/t" } } }, required: ["v", "sub"], additionalProperties: false } }, $ref: "#/$defs/t" },
    ebnf: String.raw`t ::= "{" ws "\"v\"" colon number comma "\"sub\"" colon "[" (ws t (comma t)* ws)? "]" ws "}"
root ::= lines t`,
    texts: ['{"v":1,"sub":[]}', '{"v": -1.5e10, "sub": [{"v": 0.25, "sub": []}, {"v":12,"sub":[{"v":3E-7,"sub":[]}]}]}'],
  },
  {
    name: "enum and union",
    schema: { anyOf: [{ enum: ["red", "green", "reddish", 10, null] }, { type: "object", properties: { kind: { const: "x" } }, required: ["kind"], additionalProperties: false }] },
    ebnf: String.raw`root ::= lines ("\"red\"" | "\"green\"" | "\"reddish\"" | "10" | "null" | "{" ws "\"kind\"" colon "\"x\"" ws "}")`,
    texts: ['"reddish"', '"red"', "10", '{"kind": "x"}'],
  },
  {
    name: "pattern",
    schema: { type: "string", pattern: "^[a-z]{2,4}-(\\d+|[^\"\\\\\\x00-\\x1f]?)$" },
    ebnf: String.raw`root ::= lines "\"" [a-z]{2,4} "-" ([0-9]+ | [^"\\\x00-\x1f]?) "\""`,
    texts: ['"abc-1234"', '"th-é"', '"the-"'],
  },
  {
    name: "bounds",
    schema: { type: "integer", minimum: -15, maximum: 120 },
    ebnf: String.raw`root ::= lines ("0" | [1-9] [0-9]? | "1" ([0-1] [0-9] | "20") | "-" ([1-9] | "1" [0-5]))`,
    texts: ["-15", "120", "7", "99"],
  },
  {
    name: "date",
    schema: { type: "string", format: "date" },
    ebnf: String.raw`leap ::= [0-9] [0-9] ("0" [48] | [2468] [048] | [13579] [26]) | ([02468] [048] | [13579] [26]) "00"
root ::= lines "\"" ([0-9]{4} "-" (("0" [13578] | "1" [02]) "-" ("0" [1-9] | [12] [0-9] | "3" [01]) | ("0" [469] | "11") "-" ("0" [1-9] | [12] [0-9] | "30") | "02-" ("0" [1-9] | "1" [0-9] | "2" [0-8])) | leap "-02-29") "\""`,
    texts: ['"2024-02-29"', '"1999-12-31"'],
  },
  {
    name: "any JSON",
    schema: {},
    ebnf: String.raw`value ::= "{" (ws string colon value (comma string colon value)* ws)? "}" | "[" (ws value (comma value)* ws)? "]" | string | number | "true" | "false" | "null"
root ::= lines value`,
    texts: ['{"a": [1, 2.5, {"b": null}], "c": "d\\\\", "": []}', "[[[[]]]]", '"x"'],
  },
];
for (const { name, schema, ebnf, texts } of HAND_WRITTEN) {
  const compiled = await compiler.compileGrammar(ebnf + "\n" + COMMON);
  for (const text of texts) await compare(name, { schema, text }, compiled, (ours, theirs) => ours === theirs);
  compiled.dispose();
}
const equal = positions;

// Its own reading. Meant differences, where it allows more: the second half of a surrogate pair without the first, which our parser
// of JSON refuses; in strings with a length, control characters as they are, which no parser of JSON accepts; in dates, days that
// the month does not have, and the second 60.
function meant(id, schema) {
  if (/u[dD][c-fC-F]/.test(tokens[id])) return true;
  if (schema.maxLength !== undefined && [...tokens[id]].some((c) => byteOf.get(c) < 0x20)) return true;
  return schema.format === "date-time" && /^[36]/.test(tokens[id]);
}
const OWN_READING = [
  { schema: { type: "object", properties: { a: { type: "string" }, b: { type: "array", items: { type: "boolean" } }, c: { enum: ["x", 1] } }, required: ["a", "b"] }, texts: ['{"a": "the \\"cat\\"", "b": [true, false], "c": "x"}', '{"a": "", "b": []}'] },
  { schema: { anyOf: [{ type: "null" }, { type: "object", properties: { n: { $ref: "#" } }, required: ["n"] }] }, texts: ['{"n": {"n": null}}'] },
  { schema: { type: "string", maxLength: 5 }, texts: ['"héllo"'] },
  { schema: { type: "object", additionalProperties: { type: "null" } }, texts: ['{"some key": null, "other": null}'] },
  { schema: { type: "integer", minimum: 1, maximum: 12 }, texts: ["12", "3"] },
  { schema: { type: "string", format: "uuid" }, texts: ['"123e4567-e89b-12d3-a456-426614174000"'] },
  { schema: { type: "string", format: "date-time" }, texts: ['"2024-02-28T23:59:59Z"'] },
];
for (const { schema, texts } of OWN_READING) {
  const compiled = await compiler.compileJSONSchema(JSON.stringify(schema), false, -1, [", ", ": "], true);
  for (const text of texts) {
    await compare(JSON.stringify(schema), { schema, text }, compiled, (ours, theirs, id) => ours || !theirs || meant(id, schema));
  }
  compiled.dispose();
}
probe.end();
console.log(`${equal} masks equal, ${positions - equal} include xgrammar's, ${wrong} tokens differ`);
if (wrong > 0) process.exitCode = 1;
