// Compares `calla tokenize` with @huggingface/tokenizers on random and hostile strings, and Calla's Unicode tables with Node's.
//
//   npm install --no-package-lock --prefix tests/oracle
//   node tests/oracle/tokenizer.mjs build/release/calla tests/text/data/tiny [--count 4000] [--seed 1]
//
// The second argument is a folder with a tokenizer.json. Every string is encoded twice: as plain text and with the control tokens that
// its text names. Exits with 1 and prints the first strings that differ, or with 77 (skipped) if the package is not installed.

import { spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { parseArgs } from "node:util";
import { generator, installed } from "./common.mjs";

const [{ Tokenizer }] = await installed(import("@huggingface/tokenizers"));
const { values: options, positionals } = parseArgs({
  allowPositionals: true,
  options: { count: { type: "string", default: "4000" }, seed: { type: "string", default: "1" } },
});
if (positionals.length !== 2) {
  console.error("usage: node tokenizer.mjs CALLA TOKENIZER_FOLDER [--count N] [--seed N]");
  process.exit(2);
}
const [calla, folder] = positionals;

const { random, pick } = generator(options.seed);

// src/text/unicode_tables.cc as one class for each code point: 0 other, 1 letter, 2 mark, 3 number, 4 space; +8: not an NFC boundary.
function ourTable() {
  const source = readFileSync(new URL("../../src/text/unicode_tables.cc", import.meta.url), "utf8");
  const [blockOf, blocks] = source.split("kBlocks[");
  const numbers = (text) => text.slice(text.indexOf("{")).match(/\d+/g).map(Number);
  const index = numbers(blockOf.slice(blockOf.indexOf("kBlockOf[")));
  const classes = numbers(blocks);
  return (c) => classes[index[c >> 7] * 128 + (c & 127)];
}

const isSurrogate = (c) => c >= 0xd800 && c < 0xe000;
const properties = [/\p{L}/u, /\p{M}/u, /\p{N}/u, /\p{White_Space}/u];
const node = (c) => 1 + properties.findIndex((p) => p.test(String.fromCodePoint(c)));

// Node's Unicode is newer, so it may know more characters; those that both know must be of the same class.
// Returns the code points on which both agree.
function compareTables() {
  const table = ourTable();
  const same = [];
  let newer = 0;
  for (let c = 0; c < 0x110000; ++c) {
    if (isSurrogate(c)) continue;
    const s = String.fromCodePoint(c);
    if (table(c) % 8 === node(c)) same.push(c);
    else if (table(c) === 0) ++newer;
    else throw new Error(`U+${c.toString(16)}: class ${table(c) % 8} here, ${node(c)} in Node`);
    if (s.normalize("NFC") !== s && table(c) < 8) throw new Error(`U+${c.toString(16)} is not NFC but marked as a boundary`);
  }
  if (newer > 15000) throw new Error(`${newer} characters are missing`);
  console.log(`Unicode tables agree with Unicode ${process.versions.unicode} but for ${newer} newer characters`);
  return same;
}

function makeStrings(json, codePoints) {
  const markers = (json.added_tokens ?? []).map((t) => t.content);
  const vocabulary = Object.keys(json.model.vocab);
  const fragments = [
    "'s", "'S", "'ll", "'LL", "'Re", "'ve", "'v", "'x", "''s", "don't", " I'm", "'\u0301", "'d'", "\u2019s",
    " ", "  ", "   ", "\t", "\n", "\r\n", "\n\n", " \n ", "\r", "\u00a0", "\u3000", "\u0085", "\u2028", "\ufeff", "\u180e", "\u200b",
    "0", "1234", "\u00bd", "\u0663", "\u2167", "a", "Z", "the", " token", "return", "Hello", "_", "__init__", "->", "!=", "...", "{}", ");\n",
    "e\u0301", "\u0301", "\u0316\u0301", "\u0301\u0316", "\u0345\u0300", "a\u0323\u0307", "\u1e9b\u0323", "\u0344", "\u0f73", "\u0f71\u0f80",
    "\u212b", "\u2126", "\u0958", "\u2adc", "\ufb1d", "\u1100\u1161", "\u1100\u1161\u11a8", "\uac00\u11a8", "\u11a8", "\u3099", "か\u3099",
    "中文", "今天天气很好", "。", "ไทย", "हिन्दी", "한국어", "שלום", "السلام", "Привет", "👩‍👩‍👧", "🙂", "\u{1d165}\u{1d16e}", "\u{10ffff}", "\u0000",
    "aaaaaaaa", "abababab", "=".repeat(70), "a".repeat(130), "中".repeat(40), "\u0301".repeat(90), " ".repeat(80), "<|im_", "|>", "</", "<<",
  ];
  const part = () => {
    switch (random(8)) {
      case 0: return String.fromCodePoint(pick(codePoints));
      case 1: return String.fromCodePoint(pick(codePoints.slice(0, 0x500)));
      case 2: return String.fromCharCode(32 + random(95));
      case 3: return markers.length > 0 ? pick(markers) : "";
      case 4: return markers.length > 0 ? pick(markers).slice(0, 1 + random(8)) : "";
      case 5: return pick(vocabulary);
      default: return pick(fragments);
    }
  };
  const strings = ["", ...fragments, ...markers];
  while (strings.length < Number(options.count)) {
    let s = "";
    for (let n = 1 + random(24); n > 0; --n) s += part();
    // The oracle folds only ASCII letters in (?i:'s); Oniguruma, and so Calla, also takes U+017F for an s.
    strings.push(s.toWellFormed().replaceAll("'\u017f", ""));
  }
  return strings;
}

function encodeWithCalla(strings, ...flags) {
  const input = strings.map((s) => JSON.stringify(s) + "\n").join("");
  const run = spawnSync(calla, ["tokenize", "--model", folder, "--jsonl", ...flags], { input, maxBuffer: 2 ** 30 });
  if (run.status !== 0) throw new Error(`${calla} failed: ${run.error ?? run.stderr}`);
  return run.stdout.toString().trimEnd().split("\n");
}

function compare(name, strings, ours, oracle) {
  let wrong = 0;
  strings.forEach((s, i) => {
    const ids = oracle.encode(s, { add_special_tokens: false }).ids;
    if (ours[i] === `[${ids.join(", ")}]`) return;
    if (++wrong <= 5) console.error(`${name}: ${JSON.stringify(s)}\n  calla  ${ours[i]}\n  oracle [${ids.join(", ")}]`);
  });
  console.log(`${name}: ${strings.length - wrong} of ${strings.length} strings equal (seed ${options.seed})`);
  if (ours.length !== strings.length || wrong > 0) process.exitCode = 1;
}

const json = JSON.parse(readFileSync(`${folder}/tokenizer.json`, "utf8"));
const strings = makeStrings(json, compareTables());
compare("plain text", strings, encodeWithCalla(strings), new Tokenizer({ ...json, added_tokens: [] }, {}));
compare("with control tokens", strings, encodeWithCalla(strings, "--special"), new Tokenizer(json, {}));
