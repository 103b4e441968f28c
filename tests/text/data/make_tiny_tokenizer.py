#!/usr/bin/env python3
"""Writes tests/text/data/tiny/tokenizer.json: a real but tiny byte-level BPE tokenizer in the layout of Qwen3.6's.

It is trained on the sentences below, then given some entries that a trainer would not make but a file may hold: tokens that no merge
makes, a token that merging by rank never reaches from its own bytes, and control tokens listed in the vocabulary as well.
"""

import collections
import json
import pathlib
import re

TEXT = """
The engine reads the prompt, merges the bytes into tokens and writes the answer, one token at a time. It's what they're
asking for: we've seen that you'll want it, I'm sure he'd like it, don't you? The tokens of a word depend on the word alone.
THE NEXT TOKEN, THE LAST TOKEN. Numbers such as 12 and 2026 are split into digits; (brackets), [lists] and {braces} are not.
for (int i = 0; i < n; ++i) { sum += x[i] * y[i]; }    // the dot product
    if (x == nullptr) return -1;\n\n\n        else return x->next->next;\r\n\t\tdef main(self): return self.value ** 2
Der Zug fährt über die Brücke nach Köln. L'été, le garçon mange une crêpe à la crème. El niño comió mañana. Việt Nam tiếng Việt.
Съешь ещё этих мягких французских булок, да выпей чаю. Το γρήγορο σκυλί πηδάει. השועל החום המהיר קופץ. الثعلب البني السريع يقفز.
中文的词语没有空格，所以一个句子是一个片段。今天天气很好，我们去公园散步吧。日本語の文章もあります。한국어 문장도 있습니다.
हिन्दी में लिखा हुआ एक वाक्य। ภาษาไทยไม่มีช่องว่างระหว่างคำ 🙂🙂🙃 👩‍👩‍👧 ½ ² Ⅷ — “quotes” … → ≤ ∑
"""
MERGES = 450
CONTROLS = [("<|endoftext|>", True), ("<|im_start|>", True), ("<|im_end|>", True), ("<tool_call>", False),
            ("</tool_call>", False), ("<tool_response>", False), ("</tool_response>", False), ("<think>", False),
            ("</think>", False), ("<|im_end|>\n\n", True)]
PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+"
           r"|\s+(?!\S)|\s+")


def byte_chars():
    """GPT-2's printable character for each byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table, extra = {b: chr(b) for b in printable}, 0
    for b in range(256):
        if b not in table:
            table[b] = chr(0x100 + extra)
            extra += 1
    return printable + [b for b in range(256) if b not in printable], table


def train(chars):
    words = collections.Counter(re.findall(r" ?[^\W\d_]+|\d| ?[^\w\s]+|\s+", TEXT))
    pieces = {word: [chars[b] for b in word.encode()] for word in words}
    merges = []
    while len(merges) < MERGES:
        pairs = collections.Counter()
        for word, piece in pieces.items():
            for pair in zip(piece, piece[1:]):
                pairs[pair] += words[word]
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(best)
        for piece in pieces.values():
            i = 0
            while i + 1 < len(piece):
                if (piece[i], piece[i + 1]) == best:
                    piece[i : i + 2] = [best[0] + best[1]]
                i += 1
    return merges


def main():
    order, chars = byte_chars()
    merges = train(chars)
    # "qj" merges before "jz", so the bytes q j z never become the token qjz.
    merges += [("q", "j"), ("j", "z"), ("q", "jz")]
    vocab = {chars[b]: i for i, b in enumerate(order)}
    for left, right in merges:
        vocab.setdefault(left + right, len(vocab))
    for unreachable in ("zxq", "Ġunreachable"):
        vocab[unreachable] = len(vocab)
    first = len(vocab) + 5  # a gap in the ids
    added = [{"id": first + i, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": special} for i, (text, special) in enumerate(CONTROLS)]
    for token in added[:3]:
        vocab[token["content"]] = token["id"]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": False}
    out = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": {"type": "NFC"},
           "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]}, "post_processor": level, "decoder": level,
           "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": "",
                     "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": vocab,
                     "merges": [f"{a} {b}" for a, b in merges]}}
    path = pathlib.Path(__file__).parent / "tiny" / "tokenizer.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(out, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
