"""Train Bud's byte-level BPE and write tokenizer.json and tokenizer_config.json.

    python3 tools/bud/train_bpe.py --corpus DIR --out models/bud [--bpe 4032]

Classic BPE over counted words: repeatedly join the most frequent neighbouring pair.  Pair counts
are kept up to date through an index from pairs to the words that hold them, and the best pair comes
from a heap whose stale entries are dropped when they surface, so a run takes about a minute.
"""
import argparse
import heapq
import json
import os
import unicodedata
from collections import Counter, defaultdict

import data
from tokenizer import ADDED, PATTERN, byte_alphabet, word_pattern


def count_words(texts, weight, into, pattern):
    """Add `weight` for every word of the texts."""
    counts = Counter()
    for text in texts:
        counts.update(pattern.findall(unicodedata.normalize("NFC", text)))
    for word, n in counts.items():
        into[word] += n * weight


def train(words, size):
    """Merges, in order, that bring the vocabulary from 256 bytes to `size` tokens."""
    chars, order = byte_alphabet()
    of_byte = dict(zip(order, chars))
    seqs, freq = [], []
    for word, n in words.items():
        seqs.append([of_byte[b] for b in word.encode("utf-8")])
        freq.append(n)
    pairs, where = Counter(), defaultdict(set)
    for i, s in enumerate(seqs):
        for p in zip(s, s[1:]):
            pairs[p] += freq[i]
            where[p].add(i)
    heap = [(-n, p) for p, n in pairs.items()]
    heapq.heapify(heap)
    merges, seen = [], set(chars)
    while len(merges) + 256 < size:
        n, pair = heapq.heappop(heap)
        if pairs.get(pair, 0) != -n:
            continue
        joined = pair[0] + pair[1]
        touched = Counter()
        for i in where.pop(pair):
            s, out, k = seqs[i], [], 0
            while k < len(s):
                if k + 1 < len(s) and s[k] == pair[0] and s[k + 1] == pair[1]:
                    out.append(joined)
                    k += 2
                else:
                    out.append(s[k])
                    k += 1
            for p in zip(s, s[1:]):
                touched[p] -= freq[i]
            for p in zip(out, out[1:]):
                touched[p] += freq[i]
                where[p].add(i)
            seqs[i] = out
        for p, change in touched.items():
            pairs[p] += change
            if pairs[p] > 0:
                heapq.heappush(heap, (-pairs[p], p))
        pairs.pop(pair, None)
        if joined not in seen:
            seen.add(joined)
            merges.append(pair)
    return merges


def tokenizer_json(merges):
    """The file's contents, in the layout of the original model."""
    chars, _ = byte_alphabet()
    vocab = {c: i for i, c in enumerate(chars)}
    for a, b in merges:
        vocab[a + b] = len(vocab)
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [{"id": len(vocab) + i, "content": name, **flags, "special": special}
             for i, (name, special) in enumerate(ADDED)]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
            "normalizer": {"type": "NFC"},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": False}, level]},
            "post_processor": level, "decoder": level,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
                      "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False,
                      "ignore_merges": False, "vocab": vocab, "merges": [list(m) for m in merges]}}


def tokenizer_config(spec, max_length):
    """The companion file that names the special tokens."""
    special = [t for t, s in ADDED if s]
    return {"add_bos_token": False, "add_prefix_space": False,
            "added_tokens_decoder": {str(a["id"]): {k: v for k, v in a.items() if k != "id"} for a in spec["added_tokens"]},
            "additional_special_tokens": special[1:14], "bos_token": None,
            "clean_up_tokenization_spaces": False, "eos_token": "<|im_end|>", "errors": "replace",
            "model_max_length": max_length, "pad_token": "<|endoftext|>", "pretokenize_regex": PATTERN,
            "split_special_tokens": False, "tokenizer_class": "Qwen2Tokenizer", "unk_token": None}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--corpus", required=True)
    ap.add_argument("--out", required=True)
    ap.add_argument("--bpe", type=int, default=4032, help="vocabulary before the 33 added tokens")
    ap.add_argument("--chats", type=int, default=12000, help="synthetic chats to count")
    args = ap.parse_args()
    pattern, words = word_pattern(), Counter()
    docs = data.read_corpus(args.corpus)
    count_words(docs["stories"], 2, words, pattern)
    count_words((d[:120000] for d in docs["books"]), 1, words, pattern)
    count_words((m["content"] for chat in docs["qa"][::2] for m in chat), 1, words, pattern)
    # Of a chat only what the model has to write, and the user's words, count.
    chats = data.ChatMaker(seed=7)
    count_words((s for _ in range(args.chats) for s in chats.texts()), 1, words, pattern)
    words = Counter({w: n for w, n in words.items() if n > 1 or len(w) == 1})
    spec = tokenizer_json(train(words, args.bpe))
    os.makedirs(args.out, exist_ok=True)
    with open(os.path.join(args.out, "tokenizer.json"), "w", encoding="utf-8") as f:
        json.dump(spec, f, ensure_ascii=False, separators=(",", ":"))
    with open(os.path.join(args.out, "tokenizer_config.json"), "w", encoding="utf-8") as f:
        json.dump(tokenizer_config(spec, 8192), f, ensure_ascii=False, indent=1)
    print(len(spec["model"]["vocab"]), "tokens,", len(words), "distinct words")


if __name__ == "__main__":
    main()
