"""Teach the MTP head alone, against the finished 4-bit model.  Needs no GPU.

    python3 tools/bud/train_mtp.py write --calla build/release/calla --model models/bud --corpus DIR --out own.jsonl --seconds 600
    python3 tools/bud/train_mtp.py read --model models/bud --corpus DIR --own own.jsonl --out read.pt
    python3 tools/bud/train_mtp.py learn --weights run/bud.pt --model models/bud --read read.pt --out run/bud-mtp.pt --seconds 720
    python3 tools/bud/train_mtp.py score --model models/bud --answers answers.jsonl          (of score.py --save)

During the main training the head learns to predict text.  What speeds up decoding is something
else: to agree with what the model itself will say, as it is stored.  So the engine writes stories
(`write`); the frozen model reads them, stories of the corpus and lessons, and what it sees and
expects at every place is kept (`read`); and the head learns that, seeing its own weights as 4 bits
store them (`learn`).  No other weight changes.  Like the main training, it ends by the clock.

Two threads of Python each take half of a step's rows: set OMP_NUM_THREADS=1, and use a PyTorch with
a fast BLAS.
"""
import argparse
import json
import math
import random
import subprocess
import threading
import time

import numpy as np
import torch
import torch.nn.functional as F

import data
import export
import model as M
import questions
from tokenizer import Tokenizer
from train import Muon, quantisable, set_rounding

LENGTH, TOP, THREADS = 512, 16, 2
CHOICE, NOISE = 0.3, 0.1


# ---------------------------------------------------------------------------------------- a quicker form of the experts

class Permute(torch.autograd.Function):
    """x[to], for a permutation and its inverse: no scattered sums on the way back."""

    @staticmethod
    def forward(ctx, x, to, back):
        ctx.save_for_backward(back)
        return x.index_select(0, to)

    @staticmethod
    def backward(ctx, g):
        return g.index_select(0, ctx.saved_tensors[0]), None, None


def sparse_moe(self, x):
    """What MoE.forward computes, with the chosen experts only: on processors that is quicker."""
    s, lead = self.s, x.shape[:-1]
    x = x.reshape(-1, s.hidden)
    p = self.gate(x).softmax(-1)
    best, expert = p.topk(s.top, -1)
    best = best / best.sum(-1, keepdim=True)
    counts = expert.flatten().bincount(minlength=s.experts)
    balance = s.experts / s.top * (counts / len(x) * p.mean(0)).sum()
    to = expert.flatten().argsort()
    back = torch.empty_like(to)
    back[to] = torch.arange(len(to))
    rows = Permute.apply(x[:, None].expand(-1, s.top, -1).reshape(-1, s.hidden), to, back)
    out = []
    for r, gu, down in zip(rows.split(counts.tolist()), self.experts.gate_up_proj.w().unbind(0), self.experts.down_proj.w().unbind(0)):
        g, u = F.linear(r, gu).chunk(2, -1)
        out.append(F.linear(F.silu(g) * u, down))
    y = (Permute.apply(torch.cat(out), back, to).view(-1, s.top, s.hidden) * best[..., None]).sum(1)
    y = y + torch.sigmoid(self.shared_expert_gate(x)) * self.shared_expert(x)
    return y.view(*lead, s.hidden), balance


# ---------------------------------------------------------------------------------------- write

def write(args):
    """Stories by the engine, three quarters of them greedy, as JSON lines, until the time is up."""
    rng = random.Random(args.seed)
    first_line = lambda q: q.split(": ", 1)[-1]
    tests = {first_line(q["request"]["messages"][-1]["content"]) for q in questions.questions(100, families=["story"])}
    tiny = [s for s in data.read_corpus(args.corpus)["stories"][:6304] if 300 < len(s) < 1800]
    end = time.time() + args.seconds
    with open(args.out, "a", encoding="utf-8") as f:
        while time.time() < end:
            if rng.random() < 0.75:
                q = questions.story_question(rng)[0]
            else:
                q = data.story_chat(rng, rng.choice(tiny), False)[0][0][len("<|im_start|>user\n"):-len("<|im_end|>\n")]
            if first_line(q) in tests:
                continue
            thinking, temperature = rng.random() < 0.4, 0 if rng.random() < 0.75 else 0.6
            prompt = "".join(t for t, _ in data.render([{"role": "user", "content": q}, {"role": "assistant", "content": ""}], None, thinking, prompt_only=True))
            run = subprocess.run([args.calla, "run", "--model", args.model, "--threads", "1", "--json", "--raw", "--max-tokens", "420",
                                  "--temperature", str(temperature), "--seed", str(rng.randrange(1 << 30)), prompt], capture_output=True, text=True, check=True)
            answer = json.loads(run.stdout)
            f.write(json.dumps({"prompt": prompt, "text": answer["text"], "stopped": answer["finish_reason"] != "length"}, ensure_ascii=False) + "\n")


# ---------------------------------------------------------------------------------------- read

def pack(docs):
    """Documents (prompt ids, learnt ids) in rows, each whole: ids, starts, and what is learnt."""
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
            parts = data.render(request["messages"] + [{"role": "assistant", "content": ""}], request.get("tools"), item["thinking"], prompt_only=True)
            prompt = [i for t, _ in parts for i in tok.encode(t)]
            out.setdefault(item["family"], []).append((prompt, tok.encode(item["output"]) + [end] * item["stopped"]))
    return out


def documents(args, tok):
    """What the head learns from: the model's stories, stories of the corpus, and rows of everything."""
    rng = random.Random(5)
    corpus = data.read_corpus(args.corpus)
    end = tok.added["<|im_end|>"]
    docs = []
    for path in args.own:
        with open(path, encoding="utf-8") as f:
            docs += [(tok.encode(i["prompt"]), tok.encode(i["text"]) + [end] * i["stopped"]) for i in map(json.loads, f)]
    tiny = [s for s in corpus["stories"][:6304] if 300 < len(s) < 1800]
    for story in rng.sample(tiny, args.stories):
        if rng.random() < 0.3:
            parts = [(story[:1], False), (story[1:], True)]
        else:
            parts = data.story_chat(rng, story, rng.random() < 0.5)
        prompt, answer = ([i for t, learn in parts if learn == side for i in tok.encode(t)] for side in (False, True))
        docs.append((prompt, answer))
    rng.shuffle(docs)
    ids, starts, learn = pack(docs)
    if not args.rows:
        return ids, starts, learn
    mixed = iter(data.Rows(corpus, tok, seed=99, length=LENGTH))
    mixed = torch.from_numpy(np.stack([next(mixed) for _ in range(args.rows)]).astype(np.int64))
    return torch.cat([ids, mixed & data.ID]), torch.cat([starts, (mixed & data.START) != 0]), torch.cat([learn, (mixed & data.LOSS) != 0])


@torch.no_grad()
def look(net, ids, starts):
    """The frozen model's final hidden states, and the likeliest next tokens with their probabilities."""
    parts = [None] * -(-len(ids) // 4)

    def work(first):
        torch.set_flush_denormal(True)
        with torch.no_grad():
            for n in range(first, len(parts), THREADS):
                h = net.hidden(ids[n * 4:n * 4 + 4], M.Context(starts[n * 4:n * 4 + 4]))[0]
                p, token = net.lm_head(h).softmax(-1).topk(TOP, -1)
                parts[n] = (h, p, token.to(torch.int16))
    together(work)
    return [torch.cat(x) for x in zip(*parts)]


def together(work):
    """work(i) for every thread i."""
    threads = [threading.Thread(target=work, args=(i,)) for i in range(THREADS)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


def read(args):
    tok, net = Tokenizer(args.model + "/tokenizer.json"), export.load_torch(args.model, "cpu")
    begin = time.time()
    ids, starts, learn = documents(args, tok)
    print(f"{len(ids)} rows of {LENGTH}, {int(learn.sum())} tokens to learn", flush=True)
    torch.save((ids, starts, learn, *look(net, ids, starts)), args.out)
    print(f"read in {time.time() - begin:.0f} s", flush=True)


# ---------------------------------------------------------------------------------------- score

@torch.no_grad()
def agreement(net, ids, starts, wrote, h, token):
    """(hits, places): how often the head's best guess is what the model says next, over the model's own words."""
    totals = [[0, 0, 0] for _ in range(THREADS)]

    def work(first):
        with torch.no_grad():
            for i in range(4 * first, len(ids), 4 * THREADS):
                s = slice(i, i + 4)
                d = net.draft_hidden(ids[s], h[s], M.Context(starts[s]))[0][:, :-2]
                ok = wrote[s, 2:] & wrote[s, 1:-1]
                guess = net.lm_head(d[ok]).argmax(-1)
                for n, x in enumerate((guess == ids[s, 2:][ok], guess == token[s, 1:-1, 0][ok], ok)):
                    totals[first][n] += int(x.sum())
    together(work)
    return [sum(x) for x in zip(*totals)]


def score(args):
    """Agreement by family, on the answers in a file, and before that how far they are the model's own."""
    tok, net = Tokenizer(args.model + "/tokenizer.json"), export.load_torch(args.model, "cpu")
    for family, docs in answers(args.answers, tok).items():
        ids, starts, wrote = pack(docs)
        h, _, token = look(net, ids, starts)
        text, own, n = agreement(net, ids, starts, wrote, h, token)
        print(f"{family:<14} {100 * text / n:6.1f} % of {n} tokens are what the text says next, {100 * own / n:6.1f} % what the model says next", flush=True)


# ---------------------------------------------------------------------------------------- learn

def step_loss(net, ids, starts, learn, h, p, token):
    """Loss of the head on these rows: a part for the model's choice, the rest for its distribution."""
    y, balance = net.draft_hidden(ids, h, M.Context(starts))
    use = learn[:, 2:] & ~starts[:, 1:-1] & ~starts[:, 2:]
    guess = net.lm_head(y[:, :-2][use])
    p, token = p[:, 1:-1][use], token[:, 1:-1][use].long()
    goal = (1 - CHOICE) * p / p.sum(-1, keepdim=True)
    goal[:, 0] += CHOICE
    loss = guess.logsumexp(-1) - (goal * guess.gather(1, token)).sum(-1)
    hits = (guess.detach().argmax(-1) == token[:, 0]).sum()
    return loss.sum(), balance, int(use.sum()), int(hits)


def learn(args):
    torch.manual_seed(7)
    tok = Tokenizer(args.model + "/tokenizer.json")
    net = export.load_torch(args.model, "cpu")
    exact = torch.load(args.weights, map_location="cpu")
    net.load_state_dict({k: v.float() for k, v in exact.items() if k.startswith("mtp.")}, strict=False)
    for p in net.parameters():
        p.requires_grad_(False)
    rows = [torch.cat(x) for x in zip(*map(torch.load, args.read))]
    test = None
    if args.answers:
        test = pack(answers(args.answers, tok)["story"][:40])
        h, _, token = look(net, test[0], test[1])
        test = (*test, h, token)
    named = dict(net.mtp.named_parameters())
    for p in named.values():
        p.requires_grad_(True)
    # Every thread has its own gradients for the same weights.
    copies = [net]
    for _ in range(THREADS - 1):
        other = M.Bud()
        for (_, m), (_, o) in zip(net.named_modules(), other.named_modules()):
            for name, p in m._parameters.items():
                o._parameters[name] = torch.nn.Parameter(p.data, requires_grad=p.requires_grad)
            for name, b in m._buffers.items():
                o._buffers[name] = b
        copies.append(other)
    by_adam = [p for n, p in named.items() if p.dim() < 2 or "mlp.gate." in n or "shared_expert_gate" in n]
    muon = Muon([p for p in named.values() if not any(p is q for q in by_adam)])
    adam = torch.optim.AdamW(by_adam, lr=args.lr / 2, betas=(0.9, 0.98), weight_decay=0.0)
    parts = quantisable(net.mtp)
    set_rounding(parts, True, export.fake_quantise)
    if test:
        print("before:", agreement(net, *test), flush=True)
    order, begin, step, mean, seen = [], time.time(), 0, None, 0
    while (at := (time.time() - begin) / args.seconds) < 1:
        if len(order) < args.batch:
            order += torch.randperm(len(rows[0])).tolist()
        pick, order = order[:args.batch], order[args.batch:]
        rate = min(1.0, (step + 1) / 10) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * at)))
        set_rounding(parts, True, export.fake_quantise)
        ids, starts, wrote, h, p, token = (x[pick] for x in rows)
        # The same stories come by several times: a little noise keeps the head from knowing them by heart.
        h = h + NOISE * h.std(-1, keepdim=True) * torch.randn_like(h)
        done = [None] * THREADS

        def work(i):
            torch.set_flush_denormal(True)
            loss, balance, n, hits = step_loss(copies[i], *(x[i::THREADS] for x in (ids, starts, wrote, h, p, token)))
            (loss / (args.batch * LENGTH / 2) + 0.003 * balance / THREADS).backward()
            done[i] = (float(loss), n, hits)
        together(work)
        for ps in zip(*(c.mtp.parameters() for c in copies)):
            for q in ps[1:]:
                ps[0].grad.add_(q.grad)
                q.grad = None
        torch.nn.utils.clip_grad_norm_(by_adam, 1.0)
        muon.step(args.lr * rate)
        for group in adam.param_groups:
            group["lr"] = args.lr / 2 * rate
        adam.step()
        for p in named.values():
            p.grad = None
        step += 1
        loss, n, hits = (sum(x) for x in zip(*done))
        seen += n
        now = torch.tensor([loss / n, hits / n])
        mean = now if mean is None else mean.lerp(now, 0.1)
        if step % 10 == 0:
            print(f"{time.time() - begin:.0f} s, step {step}, {seen} tokens, loss {mean[0]:.3f} hits {mean[1]:.3f} rate {rate:.2f}", flush=True)
        if test and step % 60 == 0:
            print("test:", agreement(net, *test), flush=True)
    for m, _ in parts:
        m.weight.data.copy_(m.weight.bfloat16().float())
    set_rounding(parts, True, export.fake_quantise)
    if test:
        print("after:", agreement(net, *test), flush=True)
    exact.update({k: v.bfloat16() for k, v in net.state_dict().items() if k.startswith("mtp.")})
    torch.save(exact, args.out)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("what", choices=["write", "read", "learn", "score"])
    ap.add_argument("--model", default="models/bud", help="the 4-bit folder")
    ap.add_argument("--calla", help="write: path of the engine")
    ap.add_argument("--corpus", help="write, read: folder of the texts")
    ap.add_argument("--own", nargs="*", default=[], help="read: files that `write` made")
    ap.add_argument("--stories", type=int, default=0, help="read: stories of the corpus; the model knows them by heart, so they teach little")
    ap.add_argument("--rows", type=int, default=70, help="read: rows of everything the model was trained on")
    ap.add_argument("--read", nargs="+", help="learn: files that `read` made")
    ap.add_argument("--weights", help="learn: the training checkpoint that the 4-bit folder was made from")
    ap.add_argument("--answers", help="score: file of score.py --save; learn: the same, to test on while learning")
    ap.add_argument("--out", help="write, read, learn: file to make")
    ap.add_argument("--seconds", type=float, default=600, help="write, learn")
    ap.add_argument("--batch", type=int, default=16, help="learn: rows a step")
    ap.add_argument("--lr", type=float, default=1.2e-3, help="learn: Muon's highest rate; AdamW's is half of it")
    ap.add_argument("--seed", type=int, default=1, help="write")
    args = ap.parse_args()
    # The reset of the recurrent state leaves numbers that processors are slow at unless they count as zero.
    torch.set_flush_denormal(True)
    M.MoE.forward = sparse_moe
    globals()[args.what](args)


if __name__ == "__main__":
    main()
