"""Stories by the model itself, as JSON lines: {"prompt", "text", "stopped"}.

    python3 tools/bud/own.py --model RUN/mlx --corpus DIR --out own.jsonl --seconds 60 --temperature 0.7 --best

A second training goes on with the best of them (train.py --own), and the MTP head learns from all
of them (train_mtp.py).  The first lines of the held-out questions never occur.
"""
import argparse
import json
import random
import re
import time

import torch

import data
import export
import facts
import questions
import score
from tokenizer import Tokenizer


def read(path):
    """[(prompt, text)] of the finished stories in a file."""
    with open(path, encoding="utf-8") as f:
        return [(item["prompt"], item["text"]) for item in map(json.loads, f) if item["stopped"]]


def requests(rng, tiny):
    """Endless (question, check, thinking): made-up first lines, and things to tell a story about."""
    first_line = lambda q: q.split(": ", 1)[-1]
    tests = {first_line(q["request"]["messages"][-1]["content"]) for q in questions.questions(100, families=["story"])}
    while True:
        thinking = rng.random() < 0.45
        if rng.random() < 0.85:
            text, check = questions.story_question(rng)
        else:
            text = data.story_chat(rng, data.retell(rng, rng.choice(tiny)), False)[0][0][len("<|im_start|>user\n"):-len("<|im_end|>\n")]
            check = {"type": "story", "words": 40, "about": ""}
        if first_line(text) not in tests:
            yield text, check, thinking


def good(question, check, thinking, text, vocabulary):
    """Is this one of the best: right by the check, in known words, neither short nor long, with few names and no repetition?"""
    if not score.right({"check": check, "thinking": thinking, "request": {}}, text):
        return False
    answer = score.split_thinking(text, thinking)[1]
    words = answer.split()
    threes = [tuple(words[i:i + 3]) for i in range(len(words) - 2)]
    names = set(re.findall(r"(?<=[a-z,] )[A-Z][a-z]{2,}\b", answer))
    if not 60 <= len(words) <= 260 or len(set(threes)) < 0.9 * len(threes) or len(names - data.NOT_NAMES) > 4:
        return False
    if not question.startswith("Continue") and ": " in question and not answer.startswith(question.split(": ", 1)[1]):
        return False
    heroes = [w for w in re.findall(r"[A-Z][a-z]+", question) if w in facts.PEOPLE]
    if any(answer.count(h) < 2 for h in heroes):
        return False
    known = vocabulary | set(re.findall(r"[a-z']+", question.lower()))
    return all(w in known for w in re.findall(r"[a-z']+", answer.lower()))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--model", default="models/bud", help="4-bit folder")
    ap.add_argument("--corpus", required=True)
    ap.add_argument("--out", required=True)
    ap.add_argument("--seconds", type=float, default=60)
    ap.add_argument("--batch", type=int, default=2048)
    ap.add_argument("--temperature", type=float, default=0.0)
    ap.add_argument("--best", action="store_true", help="keep the best only")
    ap.add_argument("--seed", type=int, default=1)
    args = ap.parse_args()
    rng = random.Random(args.seed)
    torch.manual_seed(args.seed)
    tok, net = Tokenizer(args.model + "/tokenizer.json"), export.load_torch(args.model)
    corpus = data.read_corpus(args.corpus)
    vocabulary = set(re.findall(r"[a-z']+", " ".join(corpus["stories"]).lower()))
    stop = [tok.added["<|im_end|>"], tok.added["<|endoftext|>"]]
    source, end, kept, asked = requests(rng, data.tiny_stories(corpus)), time.time() + args.seconds, 0, 0
    with open(args.out, "w", encoding="utf-8") as f:
        while time.time() < end:
            batch = [next(source) for _ in range(args.batch)]
            prompts = ["".join(t for t, _ in data.prompt([{"role": "user", "content": q}], None, thinking)) for q, _, thinking in batch]
            answers = net.generate([tok.encode(p) for p in prompts], 420, stop, temperature=args.temperature)
            for (question, check, thinking), prompt, (ids, stopped) in zip(batch, prompts, answers):
                text = tok.decode(ids)
                asked += 1
                if not args.best or stopped and good(question, check, thinking, text, vocabulary):
                    kept += 1
                    f.write(json.dumps({"prompt": prompt, "text": text, "stopped": stopped}, ensure_ascii=False) + "\n")
    print(f"kept {kept} of {asked} stories", flush=True)


if __name__ == "__main__":
    main()
