"""Teach the MTP head alone, against the finished 4-bit model.

    python3 tools/bud/questions.py --each 400 > q.jsonl
    python3 tools/bud/score.py --questions q.jsonl --torch models/bud --save answers.jsonl
    python3 tools/bud/train_mtp.py --weights run/bud.pt --mlx models/bud --corpus DIR --answers answers.jsonl --out run/bud-mtp.pt

During the main training the head learns to predict text.  What speeds up decoding is something
else: to agree with what the model itself will say, as it is stored.  So the head learns the finished model's
distribution two tokens ahead, over stories that the model wrote, stories of the corpus, and
lessons, seeing its own weights as 4 bits store them.  Nothing else changes.  Needs no GPU.
"""
import argparse
import json
import random
import time

import numpy as np
import torch
import torch.nn.functional as F

import data
import export
import model as M
from tokenizer import Tokenizer
from train import quantisable, set_rounding

LENGTH = 512


def own_stories(paths, tok):
    """Documents (prompt ids, answer ids) of the stories in files that score.py saved."""
    docs, end = {}, tok.added["<|im_end|>"]
    for path in paths:
        with open(path, encoding="utf-8") as f:
            for line in f:
                item = json.loads(line)
                if item["family"] == "story":
                    messages = item["request"]["messages"]
                    parts = data.render(messages + [{"role": "assistant", "content": ""}], None, item["thinking"], prompt_only=True)
                    prompt = [i for t, _ in parts for i in tok.encode(t)]
                    answer = tok.encode(item["output"]) + [end] * item["stopped"]
                    docs.setdefault(messages[-1]["content"], []).append((prompt, answer))
    return docs


def pack(docs, length):
    """Rows of ids and of marks: 1 where a document starts, 2 where the model wrote."""
    stream, marks = [], []
    for prompt, answer in docs:
        stream += prompt + answer
        marks += [1] + [0] * (len(prompt) - 1) + [2] * len(answer)
    n = len(stream) // length * length
    rows, marks = torch.tensor(stream[:n]).view(-1, length), torch.tensor(marks[:n]).view(-1, length)
    starts = marks == 1
    starts[:, 0] = True
    return rows, starts, marks == 2


@torch.no_grad()
def read(net, rows, starts):
    """Final hidden states of the frozen model."""
    out = []
    for i in range(0, len(rows), 8):
        out.append(net.hidden(rows[i:i + 8], M.Context(starts[i:i + 8]))[0])
    return torch.cat(out)


@torch.no_grad()
def agreement(net, rows, starts, wrote, h):
    """How often the head's best guess is what the model says next, over the model's own words."""
    hit = total = 0
    for i in range(0, len(rows), 8):
        s = slice(i, i + 8)
        d = net.lm_head(net.draft_hidden(rows[s], h[s], M.Context(starts[s]))[0]).argmax(-1)[:, :-2]
        ok = wrote[s, 2:] & wrote[s, 1:-1]
        hit += int(((d == rows[s, 2:]) & ok).sum())
        total += int(ok.sum())
    return hit / total


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--weights", required=True)
    ap.add_argument("--mlx", required=True)
    ap.add_argument("--corpus", required=True)
    ap.add_argument("--out", required=True)
    ap.add_argument("--answers", nargs="+", required=True, help="files of score.py --save")
    ap.add_argument("--tiny", type=int, default=60, help="stories of the corpus to read")
    ap.add_argument("--rows", type=int, default=12, help="packed rows of corpus and lessons")
    ap.add_argument("--steps", type=int, default=120)
    ap.add_argument("--lr", type=float, default=1e-3)
    args = ap.parse_args()
    rng = random.Random(77)
    torch.manual_seed(7)
    tok = Tokenizer(args.mlx + "/tokenizer.json")
    net = export.load_torch(args.mlx, "cpu")
    exact = torch.load(args.weights, map_location="cpu")
    net.load_state_dict({k: v.float() for k, v in exact.items() if k.startswith("mtp.")}, strict=False)
    for p in net.parameters():
        p.requires_grad_(False)
    parts = quantisable(net.mtp)
    set_rounding(parts, True, export.fake_quantise)

    t0 = time.time()
    # Every fifth prompt is kept for testing, with all the stories written for it.
    docs = list(own_stories(args.answers, tok).values())
    test = pack([d for i, ds in enumerate(docs) if i % 5 == 0 for d in ds], LENGTH)
    own = pack([d for i, ds in enumerate(docs) if i % 5 for d in ds], LENGTH)
    corpus = data.read_corpus(args.corpus)
    other = iter(data.Rows(corpus, tok, seed=99, length=LENGTH))
    tiny = [([], tok.encode(s)) for s in rng.sample(corpus["stories"][:6304], args.tiny)]
    more = pack([(a[:1], a[1:]) for _, a in tiny], LENGTH)
    lessons = torch.from_numpy(np.stack([next(other) for _ in range(args.rows)]).astype(np.int64))
    rows = torch.cat([own[0], more[0], lessons & data.ID])
    starts = torch.cat([own[1], more[1], (lessons & data.START) != 0])
    wrote = torch.cat([own[2], more[2], (lessons & data.LOSS) != 0])
    h, htest = read(net, rows, starts), read(net, test[0], test[1])
    print(f"{len(own[0])} rows of its own, {len(more[0])} of stories, {len(lessons)} mixed, ready after {time.time() - t0:.0f} s", flush=True)
    print("agreement before", agreement(net, *test, htest), flush=True)

    params = [p.requires_grad_(True) for p in net.mtp.parameters()]
    adam = torch.optim.AdamW(params, lr=args.lr, betas=(0.9, 0.98), weight_decay=0.01)
    batch, order = 4, []
    for step in range(args.steps):
        if len(order) < batch:
            order += torch.randperm(len(rows)).tolist()
        pick, order = order[:batch], order[batch:]
        for group in adam.param_groups:
            group["lr"] = args.lr * min(1.0, (step + 1) / 8, 1.02 - step / args.steps)
        set_rounding(parts, True, export.fake_quantise)
        ids, st, ok, hh = rows[pick], starts[pick], wrote[pick], h[pick]
        y, balance = net.draft_hidden(ids, hh, M.Context(st))
        use = (ok[:, 2:] & ~st[:, 1:-1] & ~st[:, 2:]).flatten()
        with torch.no_grad():
            goal = net.lm_head(hh[:, 1:-1]).flatten(0, 1)[use].softmax(-1)
        guess = net.lm_head(y[:, :-2]).flatten(0, 1)[use].log_softmax(-1)
        best = goal.argmax(-1)
        loss = -(goal * guess).sum(-1).mean() + 0.5 * F.nll_loss(guess, best)
        adam.zero_grad()
        (loss + 0.003 * balance).backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        adam.step()
        if step % 10 == 9:
            print(f"{time.time() - t0:.0f} s, step {step} loss {loss.item():.3f} hits {(guess.argmax(-1) == best).float().mean().item():.3f}", flush=True)
    for m, _ in parts:
        m.weight.data.copy_(m.weight.bfloat16().float())
    set_rounding(parts, True, export.fake_quantise)
    print("agreement after", agreement(net, *test, htest), flush=True)
    exact.update({k: v.bfloat16() for k, v in net.state_dict().items() if k.startswith("mtp.")})
    torch.save(exact, args.out)


if __name__ == "__main__":
    main()
