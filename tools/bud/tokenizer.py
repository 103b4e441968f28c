"""Byte-level BPE as Qwen3.6 uses it, in plain Python: read, encode, decode.

Text goes through four stages: split off the added tokens, NFC, cut into words with one regular
expression, then merge the bytes of each word by rank.  `tokenizer.json` holds everything needed.
"""
import json
import re
import sys
import unicodedata
from functools import lru_cache

# The pattern exactly as tokenizer.json states it (it needs \p{..} classes).
PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
           r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")

# name, special?  In the order of the ids that follow the BPE vocabulary.
ADDED = [("<|endoftext|>", True), ("<|im_start|>", True), ("<|im_end|>", True),
         ("<|object_ref_start|>", True), ("<|object_ref_end|>", True),
         ("<|box_start|>", True), ("<|box_end|>", True),
         ("<|quad_start|>", True), ("<|quad_end|>", True),
         ("<|vision_start|>", True), ("<|vision_end|>", True), ("<|vision_pad|>", True),
         ("<|image_pad|>", True), ("<|video_pad|>", True),
         ("<tool_call>", False), ("</tool_call>", False),
         ("<|fim_prefix|>", False), ("<|fim_middle|>", False), ("<|fim_suffix|>", False),
         ("<|fim_pad|>", False), ("<|repo_name|>", False), ("<|file_sep|>", False),
         ("<tool_response>", False), ("</tool_response>", False),
         ("<think>", False), ("</think>", False),
         ("<|audio_start|>", True), ("<|audio_end|>", True), ("<tts_pad>", True),
         ("<tts_text_bos>", True), ("<tts_text_eod>", True), ("<tts_text_bos_single>", True),
         ("<|audio_pad|>", True)]


def byte_alphabet():
    """The 256 printable stand-ins for bytes, in id order: (characters, byte of each)."""
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in keep]
    chars = [chr(b) for b in keep] + [chr(256 + i) for i in range(len(rest))]
    return chars, keep + rest


def _class(prefix):
    """The inside of a character class that holds every character of a general category."""
    out, start = [], None
    for c in range(sys.maxunicode + 2):
        inside = c <= sys.maxunicode and unicodedata.category(chr(c))[0] == prefix
        if inside and start is None:
            start = c
        elif not inside and start is not None:
            out.append(f"\\U{start:08x}-\\U{c - 1:08x}")
            start = None
    return "".join(out)


@lru_cache(None)
def word_pattern():
    """PATTERN for the standard `re` module: its \\p classes spelt out, and Unicode's white space."""
    space = r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
    text = PATTERN.replace(r"(?!\S)", "(?![^@S])").replace(r"\s*", "[@S]*").replace(r"\s+", "[@S]+")
    text = text.replace(r"[^\s", "[^@S").replace("@S", space)
    for prefix in "LMN":
        text = text.replace(r"[%s]" % (r"\p{%s}" % prefix), f"[{_class(prefix)}]")
        if r"|\p{%s}|" % prefix in text:
            text = text.replace(r"|\p{%s}|" % prefix, f"|[{_class(prefix)}]|")
        text = text.replace(r"\p{%s}" % prefix, _class(prefix))
    # `\p{N}` alone is an alternative of its own and needs brackets.
    return re.compile(text)


class Tokenizer:
    """Encoder and decoder over a `tokenizer.json`."""

    def __init__(self, path):
        with open(path, encoding="utf-8") as f:
            spec = json.load(f)
        chars, order = byte_alphabet()
        self.vocab = spec["model"]["vocab"]
        merges = [tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in spec["model"]["merges"]]
        self.ranks = {m: i for i, m in enumerate(merges)}
        self.byte_char = {b: c for c, b in zip(chars, order)}
        self.char_byte = {c: b for c, b in zip(chars, order)}
        self.added = {a["content"]: a["id"] for a in spec["added_tokens"]}
        self.piece = {i: t for t, i in self.vocab.items()}
        self.piece_added = {i: t for t, i in self.added.items()}
        longest_first = sorted(self.added, key=len, reverse=True)
        self.split_added = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")
        self.pattern = word_pattern()
        self.cache = {}
        self.text_cache = lru_cache(4096)(self._encode)

    def word(self, word):
        """Ids of one word: merge the pair of the lowest rank until none is left."""
        ids = self.cache.get(word)
        if ids is None:
            parts = [self.byte_char[b] for b in word.encode("utf-8")]
            while len(parts) > 1:
                rank, i = min((self.ranks.get(p, 1 << 30), i) for i, p in enumerate(zip(parts, parts[1:])))
                if rank == 1 << 30:
                    break
                parts[i:i + 2] = [parts[i] + parts[i + 1]]
            ids = self.cache[word] = [self.vocab[p] for p in parts]
        return ids

    def _encode(self, text):
        out = []
        for i, span in enumerate(self.split_added.split(text)):
            if i % 2:
                out.append(self.added[span])
            else:
                if not span.isascii():
                    span = unicodedata.normalize("NFC", span)
                for m in self.pattern.finditer(span):
                    out += self.word(m.group())
        return out

    def encode(self, text):
        """Ids of a text; added tokens written in it become their ids."""
        return self._encode(text)

    def decode(self, ids):
        """Text of ids; added tokens are kept, ids without a token are dropped."""
        out = bytearray()
        for i in ids:
            i = int(i)
            if i in self.piece:
                out += bytes(self.char_byte[c] for c in self.piece[i])
            elif i in self.piece_added:
                out += self.piece_added[i].encode()
        return out.decode("utf-8", "replace")
