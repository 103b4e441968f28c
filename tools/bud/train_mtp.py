"""Teach the MTP head alone, against the finished 4-bit model.

    python3 tools/bud/own.py --model models/bud --corpus DIR --out own.jsonl --seconds 60
    python3 tools/bud/train_mtp.py learn --weights RUN/bud.pt --model models/bud --corpus DIR --own own.jsonl --out RUN/bud-mtp.pt --seconds 200
    python3 tools/bud/train_mtp.py score --model models/bud --answers answers.jsonl          (of score.py --save)

During the main training the head learns to predict text.  What speeds up decoding is something
else: to agree with what the model itself will say, as it is stored.  So the head learns from the
model's own stories and from rows of everything what the frozen model expects at every place, and
sees its own weights as 4 bits store them.  No other weight changes.  Ends by the clock.
"""
import argparse
import json
import math
import random
import time

import numpy as np
import torch

import data
import export
import model as M
from tokenizer import Tokenizer
from train import Muon, quantisable, set_rounding

LENGTH, TOP = 512, 16
CHOICE = 0.3   # share of the loss that wants the model's own choice; the rest wants its distribution
NOISE = 0.05   # of the hidden state's size: the same stories come by several times


def pack(docs):
    """Documents (prompt ids, answer ids) in rows, each whole: ids, starts, and which were written by the model."""
    rows = []
    for prompt, answer in docs:
        ids = (prompt + answer)[:LENGTH]
        marks = ([0] * len(prompt) + [2] * len(answer))[:LENGTH]
        marks[0] |= 1
        for row in rows[-12:]:
            if len(row[0]) + len(ids) <= LENGTH:
                break
        else:
            rows.append(row := ([], []))
        row[0].extend(ids)
        row[1].extend(marks)
    for ids, marks in rows:
        fill = LENGTH - len(ids)
        ids += [0] * fill
        marks += [1] * fill
    ids, marks = (torch.tensor([row[i] for row in rows], dtype=torch.long) for i in (0, 1))
    return ids, (marks & 1) > 0, (marks & 2) > 0


def answers(path, tok):
    """{family: [(prompt ids, answer ids)]} of a file that score.py saved."""
    out, end = {}, tok.added["<|im_end|>"]
    with open(path, encoding="utf-8") as f:
        for line in f:
            item = json.loads(line)
            request = item["request"]
            parts = data.prompt(request["messages"], request.get("tools"), item["thinking"])
            prompt = [i for t, _ in parts for i in tok.encode(t)]
            out.setdefault(item["family"], []).append((prompt, tok.encode(item["output"]) + [end] * item["stopped"]))
    return out


def documents(args, tok, device):
    """What the head learns from, on the device: the model's stories, and rows of everything."""
    end, docs = tok.added["<|im_end|>"], []
    for path in args.own:
        with open(path, encoding="utf-8") as f:
            docs += [(tok.encode(i["prompt"]), tok.encode(i["text"]) + [end] * i["stopped"]) for i in map(json.loads, f)]
    random.Random(5).shuffle(docs)
    stories = pack(docs)
    mixed = iter(data.Rows(data.read_corpus(args.corpus), tok, seed=99, length=LENGTH))
    mixed = torch.from_numpy(np.stack([next(mixed) for _ in range(len(stories[0]) // 6)]).astype(np.int64))
    return [torch.cat(x).to(device) for x in zip(stories, (mixed & data.ID, (mixed & data.START) != 0, (mixed & data.LOSS) != 0))]


@torch.no_grad()
def agreement(net, ids, starts, wrote, batch=32):
    """Over the model's own words: places, how often the head's best guess is what the text says next, and what the model says next."""
    total = torch.zeros(3, dtype=torch.long, device=ids.device)
    for at in range(0, len(ids), batch):
        i, s, w = (x[at:at + batch] for x in (ids, starts, wrote))
        with torch.autocast(ids.device.type, dtype=torch.bfloat16):
            ctx = M.Context(s)
            h = net.hidden(i, ctx)[0]
            d = net.draft_hidden(i, h, ctx)[0][:, :-2]
            ok = w[:, 2:] & w[:, 1:-1]
            guess, says = net.lm_head(d[ok]).argmax(-1), net.lm_head(h[:, 1:-1][ok]).argmax(-1)
        total += torch.stack([ok.sum(), (guess == i[:, 2:][ok]).sum(), (guess == says).sum()])
    return total.tolist()


def score(args):
    """Agreement by family, on the answers in a file."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tok, net = Tokenizer(args.model + "/tokenizer.json"), export.load_torch(args.model, device)
    for family, docs in answers(args.answers, tok).items():
        n, text, own = agreement(net, *(x.to(device) for x in pack(docs)))
        print(f"{family:<14} {100 * text / n:6.1f} % of {n} tokens are what the text says next, {100 * own / n:6.1f} % what the model says next", flush=True)


def step_loss(net, ids, starts, learn):
    """Mean loss of the head on these rows, the balance term, and the share of places where it agrees with the model."""
    ctx = M.Context(starts)
    with torch.no_grad():
        h = net.hidden(ids, ctx)[0]
        p, token = net.lm_head(h).float().softmax(-1).topk(TOP, -1)
        h = h + NOISE * h.std(-1, keepdim=True) * torch.randn_like(h)
    y, balance = net.draft_hidden(ids, h, ctx)
    use = learn[:, 2:] & ~starts[:, 1:-1] & ~starts[:, 2:]
    guess = net.lm_head(y[:, :-2][use]).float()
    p, token = p[:, 1:-1][use], token[:, 1:-1][use]
    goal = (1 - CHOICE) * p / p.sum(-1, keepdim=True)
    goal[:, 0] += CHOICE
    loss = guess.logsumexp(-1) - (goal * guess.gather(1, token)).sum(-1)
    return loss.mean(), balance, (guess.detach().argmax(-1) == token[:, 0]).float().mean()


def learn(args):
    torch.manual_seed(7)
    device = torch.device("cuda")
    torch.backends.cuda.matmul.allow_tf32 = True
    tok = Tokenizer(args.model + "/tokenizer.json")
    net = export.load_torch(args.model, device)
    exact = torch.load(args.weights, map_location="cpu")
    net.load_state_dict({k: v.float() for k, v in exact.items() if k.startswith("mtp.")}, strict=False)
    for name, p in net.named_parameters():
        p.requires_grad_(name.startswith("mtp."))
    named = dict(net.mtp.named_parameters())
    rows = documents(args, tok, device)
    print(len(rows[0]), "rows of", LENGTH, flush=True)
    by_adam = [p for n, p in named.items() if p.dim() < 2 or "mlp.gate." in n or "shared_expert_gate" in n]
    muon = Muon([p for p in named.values() if not any(p is q for q in by_adam)])
    adam = torch.optim.AdamW(by_adam, lr=args.lr / 2, betas=(0.9, 0.98), weight_decay=0.0)
    parts = quantisable(net.mtp)
    set_rounding(parts, True, export.fake_quantise)
    test = None
    if args.answers:
        test = [x.to(device) for x in pack(answers(args.answers, tok)["story"])]
        print("before:", agreement(net, *test), flush=True)
    order, begin, step, mean = [], time.time(), 0, None
    while (at := (time.time() - begin) / args.seconds) < 1:
        if not order:
            order = list(torch.randperm(len(rows[0]), device=device).split(args.batch))
        pick = order.pop()
        rate = min(1.0, (step + 1) / 20) * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * at)))
        set_rounding(parts, True, export.fake_quantise)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss, balance, hits = step_loss(net, *(x[pick] for x in rows))
        (loss + 0.003 * balance).backward()
        torch.nn.utils.clip_grad_norm_(by_adam, 1.0)
        muon.step(args.lr * rate)
        for group in adam.param_groups:
            group["lr"] = args.lr / 2 * rate
        adam.step()
        for p in named.values():
            p.grad = None
        step += 1
        now = torch.stack([loss.detach(), hits])
        mean = now if mean is None else mean.lerp(now, 0.05)
        if step % 50 == 0:
            print(f"{time.time() - begin:.0f} s, step {step}, loss {mean[0]:.3f} hits {mean[1]:.3f} rate {rate:.2f}", flush=True)
    for m, _ in parts:
        m.weight.data.copy_(m.weight.bfloat16().float())
    set_rounding(parts, True, export.fake_quantise)
    if test:
        print("after:", agreement(net, *test), flush=True)
    exact.update({k: v.bfloat16() for k, v in net.state_dict().items() if k.startswith("mtp.")})
    torch.save(exact, args.out)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("what", choices=["learn", "score"])
    ap.add_argument("--model", default="models/bud", help="the 4-bit folder")
    ap.add_argument("--corpus", help="learn: folder of the texts")
    ap.add_argument("--own", nargs="*", default=[], help="learn: files of own.py")
    ap.add_argument("--weights", help="learn: the training checkpoint that the 4-bit folder was made from")
    ap.add_argument("--answers", help="file of score.py --save; learn: the same, to test on before and after")
    ap.add_argument("--out", help="learn: checkpoint to write")
    ap.add_argument("--seconds", type=float, default=200, help="learn")
    ap.add_argument("--batch", type=int, default=64, help="learn: rows a step")
    ap.add_argument("--lr", type=float, default=2e-3, help="learn: Muon's highest rate; AdamW's is half of it")
    args = ap.parse_args()
    globals()[args.what](args)


if __name__ == "__main__":
    main()
