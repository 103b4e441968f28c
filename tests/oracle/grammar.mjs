// Compares Calla's grammars with ajv, which validates documents, on random schemas and documents.
//
//   npm install --no-package-lock --prefix tests/oracle
//   node tests/oracle/grammar.mjs build/release/grammar_probe models/bud [--schemas 400] [--seed 1]
//
// For each schema: every text of a random walk over the allowed tokens is a document that ajv accepts; of random documents in
// canonical form (JSON.stringify, properties in the schema's order), those that ajv accepts are allowed and those that it refuses are
// not. Exits with 1 and prints what differs, or with 77 (skipped) if a package is not installed.

import { parseArgs } from "node:util";
import { generator, installed, startProbe } from "./common.mjs";

const [{ default: Ajv }, { default: addFormats }] = await installed(import("ajv/dist/2020.js"), import("ajv-formats"));
const { values: options, positionals } = parseArgs({
  allowPositionals: true,
  options: { schemas: { type: "string", default: "400" }, seed: { type: "string", default: "1" } },
});
if (positionals.length !== 2) {
  console.error("usage: node grammar.mjs GRAMMAR_PROBE TOKENIZER_FOLDER [--schemas N] [--seed N]");
  process.exit(2);
}

const { random, pick } = generator(options.seed);
const chance = (percent) => random(100) < percent;

const probe = startProbe(positionals[0], positionals[1]);
const { ask } = probe;

// ---- Schemas, and documents that they may accept ----

const NAMES = ["a", "b", "id", "name", "items", "é", "x y", 'q"', "longer_name", "n1", "ab", "nam", "names"];
const WORDS = ["", "a", "ab", "abc", "hello", "Grüße", "日本", "😀", 'say "hi"', "a\\b", "line\nend", "\u0001", "x".repeat(12), "\u007f\u2028", "2024-02-29"];
const PATTERNS = ["^[a-z]+$", "^\\d{3}-\\d{4}$", "ab", "^(foo|bar)+$", "^\\w+@\\w+\\.com$", "^.{2,4}$", "^[^\"\\\\]*$", "x$", "^\\p{L}+$", "^(\\d+|[A-F]{2}:)*z?$"];
const MATCHING = ["abc", "123-4567", "xabx", "foobarfoo", "me@here.com", "abcd", "plain", "endx", "日é", "12AF:z"];
const FORMATS = ["date", "time", "date-time", "uuid", "email", "hostname", "ipv4", "ipv6", "duration"];
const FORMATTED = ["2024-02-29", "2023-02-29", "23:59:59Z", "24:00:00Z", "2024-01-31T12:00:00.5+01:00", "2023-04-31T12:00:00Z", "123e4567-e89b-12d3-a456-426614174000",
  "me@example.com", "no.dots..in@row", "www.example.com", "-bad-.example", "192.168.0.1", "256.1.1.1", "::1", "fe80::1:2", "1::2::3", "P1Y2M3DT4H", "PT", "P3W"];

function subset(list, percent) {
  return list.filter(() => chance(percent));
}
function number() {
  return pick([0, 1, -1, 2, 5, 10, 99, 100, 101, -12, 0.5, -0.25, 1.5, 3.14, 12.75, 1e3, 123456, -7.125, 2 ** 31, 0.1, 0.001]);
}

// A regular expression over few letters, so that random strings have a chance.
function pattern(depth) {
  const atom = () => {
    switch (random(depth > 0 ? 12 : 8)) {
      case 0: case 1: case 2: return pick(["a", "b", "1", "-", "é", "\\.", '"']);
      case 3: return pick([".", "\\d", "\\w", "\\s", "\\D", "\\W", "\\S", "\\p{L}", "\\P{N}"]);
      case 4: return pick(["[ab]", "[^a]", "[a-c1]", "[^\\d\\s]", "[\\w-]", "[é-ü]", "[\\u0061-\\u{63}]"]);
      case 5: return pick(["\\x61", "\\u00e9", "\\u{1f600}", "\\n", "\\cJ", "\\/"]);
      case 6: return pick(["^", "$"]);
      case 7: return pick(["a", "b"]);
      default: return pick(["(", "(?:", "(?<n>"]).replace("n", `n${random(2 ** 30)}`) + pattern(depth - 1) + ")";
    }
  };
  let out = "";
  for (let n = random(4); n >= 0; --n) {
    const a = atom();
    out += a + (a === "^" || a === "$" || chance(60) ? "" : pick(["*", "+", "?", "{2}", "{1,3}", "{0,}", "*?", "+?"]));
  }
  if (depth > 0 && chance(25)) out += "|" + pattern(depth - 1);
  return out;
}
const letters = () => Array.from({ length: random(6) }, () => pick(["a", "b", "c", "1", "-", "é", ".", '"', "\n", " ", "😀"])).join("");

function schema(depth, refs) {
  const kinds = ["string", "string", "integer", "number", "boolean", "null", "enum", "const"];
  if (depth > 0) kinds.push("object", "object", "object", "array", "array", "anyOf", "types", "any");
  if (refs.length > 0) kinds.push("ref", "ref");
  const kind = pick(kinds);
  switch (kind) {
    case "string": {
      const s = { type: "string" };
      const form = random(6);
      if (form === 0) s.pattern = chance(40) ? pick(PATTERNS) : chance(50) ? `^${pattern(2)}$` : pattern(2);
      if (form === 1) s.format = pick(FORMATS);
      if (form === 2 || form === 3 || (form === 0 && chance(30))) {
        if (chance(50)) s.minLength = random(4);
        if (chance(70)) s.maxLength = (s.minLength ?? 0) + random(8);
      }
      return s;
    }
    case "integer":
    case "number": {
      const s = { type: kind };
      if (chance(40)) s[pick(["minimum", "exclusiveMinimum"])] = number();
      if (chance(40)) s[pick(["maximum", "exclusiveMaximum"])] = number() + random(50);
      if (chance(15)) s.multipleOf = kind === "integer" ? 1 + random(12) : pick([1, 2, 0.5, 0.25, 0.01, 2.5]);
      return s;
    }
    case "enum": {
      const s = { enum: Array.from({ length: 1 + random(5) }, () => constant(1)) };
      if (chance(20)) s.type = ["string", "number", "null"];
      return s;
    }
    case "const":
      return { const: constant(2) };
    case "object": {
      const names = subset(NAMES, 25);
      const s = { type: "object", properties: {} };
      for (const n of names) s.properties[n] = schema(depth - 1, refs);
      const required = subset(names, 50);
      if (required.length > 0) s.required = required;
      if (chance(60)) s.additionalProperties = false;
      else if (chance(50)) s.additionalProperties = schema(depth - 1, refs);
      else s.additionalProperties = true;
      if (chance(20)) s.title = "An object";
      return s;
    }
    case "array": {
      const s = { type: "array" };
      if (chance(85)) s.items = schema(depth - 1, refs);
      if (chance(20)) s.prefixItems = [schema(depth - 1, refs), schema(depth - 1, refs)];
      if (chance(40)) s.minItems = random(4);
      if (chance(40)) s.maxItems = (s.minItems ?? 0) + random(4);
      return s;
    }
    case "anyOf":
      return { anyOf: Array.from({ length: 1 + random(3) }, () => schema(depth - 1, refs)) };
    case "types":
      return { type: pick([["string", "null"], ["integer", "boolean"], ["number", "array", "null"], ["object", "string"]]), maxLength: 4, minimum: 0 };
    case "any":
      return pick([{}, true, { description: "anything" }]);
    case "ref":
      return { $ref: pick(refs) };
    default:
      return { type: kind };
  }
}

function rootSchema() {
  const refs = chance(50) ? ["#/$defs/one", "#/$defs/t~1wo"] : [];
  const s = schema(3, refs);
  if (typeof s !== "object" || refs.length === 0) return s;
  // Behind a container, so that references may be circular.
  s.$defs = { one: { type: "array", items: schema(1, refs) }, "t/wo": { type: "object", properties: { v: schema(1, refs) }, additionalProperties: false } };
  return s;
}

function constant(depth) {
  switch (random(depth > 0 ? 7 : 5)) {
    case 0: return pick(WORDS);
    case 1: return number();
    case 2: return chance(50);
    case 3: return null;
    case 4: return pick(WORDS);
    case 5: return Array.from({ length: random(3) }, () => constant(depth - 1));
    default: return Object.fromEntries(subset(NAMES, 15).map((n) => [n, constant(depth - 1)]));
  }
}

// A document that tends to be of the schema. Properties come in its order.
function document(s, root, depth) {
  if (depth <= 0 || chance(2)) return constant(0);
  if (typeof s !== "object") return constant(1);
  if (s.$ref) return document(s.$ref === "#/$defs/one" ? root.$defs.one : root.$defs["t/wo"], root, depth - 1);
  if (s.anyOf) return document(pick(s.anyOf), root, depth - 1);
  if (s.enum) return pick(s.enum);
  if ("const" in s) return s.const;
  switch (Array.isArray(s.type) ? pick(s.type) : s.type) {
    case "string":
      if (s.pattern) return PATTERNS.includes(s.pattern) && chance(70) ? MATCHING[PATTERNS.indexOf(s.pattern)] : chance(80) ? letters() : pick(MATCHING);
      if (s.format) return pick(FORMATTED);
      return pick(WORDS);
    case "integer": {
      const n = Math.round(s.minimum ?? s.exclusiveMinimum ?? s.maximum ?? s.exclusiveMaximum ?? 0) + random(30) - 8;
      return s.multipleOf && chance(80) ? Math.round(n / s.multipleOf) * s.multipleOf : n;
    }
    case "number": {
      const n = (s.minimum ?? s.exclusiveMinimum ?? s.maximum ?? s.exclusiveMaximum ?? 0) + pick([0, 0.5, 1, -1, 3.25, 0.001, -0.125, 12]);
      const r = Number(n.toFixed(6));
      return s.multipleOf && chance(80) ? Number((Math.round(r / s.multipleOf) * s.multipleOf).toFixed(6)) : r;
    }
    case "boolean": return chance(50);
    case "null": return null;
    case "array": {
      const length = (s.minItems ?? 0) + random(3) - (chance(10) ? 1 : 0);
      return Array.from({ length: Math.max(0, length) }, (_, i) => document(s.prefixItems?.[i] ?? s.items ?? true, root, depth - 1));
    }
    case "object": {
      const out = {};
      for (const [n, p] of Object.entries(s.properties ?? {})) {
        if (s.required?.includes(n) ? chance(97) : chance(60)) out[n] = document(p, root, depth - 1);
      }
      if (s.additionalProperties !== false && chance(50)) {
        for (const n of subset(["zz", "aa", "idx", "na", "\u00e9e"], 40)) out[n] = document(s.additionalProperties ?? true, root, depth - 1);
      } else if (chance(5)) out.zz = 1;
      return out;
    }
    default: return constant(2);
  }
}

// ---- Comparing ----

// ajv divides doubles, so that 0.07 is no multiple of 0.01. The decimals that the documents say are exact.
function scaled(x, digits) {
  const [whole, fraction = ""] = String(x).split(".");
  return BigInt(whole + fraction.padEnd(digits, "0"));
}
function isMultiple(of, x) {
  if (String(x).includes("e")) return false;
  const digits = Math.max(...[of, x].map((n) => (String(n).split(".")[1] ?? "").length));
  return scaled(x, digits) % scaled(of, digits) === 0n;
}
const ajv = new Ajv({ strict: false, validateSchema: false });
ajv.removeKeyword("multipleOf").addKeyword({ keyword: "multipleOf", type: "number", validate: isMultiple });
addFormats(ajv);

const seen = { schemas: 0, refused: 0, walks: 0, unfinished: 0, accepted: 0, rejected: 0 };
let wrong = 0;
function report(what, s, text) {
  if (++wrong <= 10) console.error(`${what}\n  schema ${JSON.stringify(s)}\n  text   ${JSON.stringify(text)}`);
}

for (let i = 0; i < Number(options.schemas); ++i) {
  const s = rootSchema();
  let validate;
  try {
    validate = ajv.compile(s);
  } catch (error) {
    if (error instanceof RangeError || /reference/.test(error.message)) continue;
    throw error;
  }
  const documents = Array.from({ length: 20 }, () => JSON.stringify(document(s, s, 12)));
  const result = await ask({ schema: s, walks: 10, seed: random(2 ** 30), documents });
  if (result.error) {
    // Refused schemas are those that no finite document satisfies.
    ++seen.refused;
    if (!/no document of finite depth|without end/.test(result.error)) report(result.error, s, "");
    const satisfied = documents.find((d) => validate(JSON.parse(d)));
    if (satisfied !== undefined) report("refused although a document satisfies it", s, satisfied);
    continue;
  }
  ++seen.schemas;
  for (const text of result.walks) {
    if (text === null) {
      ++seen.unfinished;
      continue;
    }
    ++seen.walks;
    let value;
    try {
      value = JSON.parse(text);
    } catch {
      report("a walk gave no JSON", s, text);
      continue;
    }
    if (!validate(value)) report(`a walk gave what ajv refuses: ${ajv.errorsText(validate.errors)}`, s, text);
  }
  documents.forEach((text, d) => {
    const valid = validate(JSON.parse(text));
    ++seen[valid ? "accepted" : "rejected"];
    if (valid !== result.accepted[d]) report(valid ? "ajv accepts, the grammar does not" : "the grammar accepts, ajv does not", s, text);
  });
}
probe.end();
console.log(`${JSON.stringify(seen)}, ${wrong} differences (seed ${options.seed})`);
if (wrong > 0 || seen.walks < 4 * seen.unfinished || seen.schemas < Number(options.schemas) / 2) process.exitCode = 1;
