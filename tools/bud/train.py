"""Train Bud.

    torchrun --nproc-per-node N tools/bud/train.py --corpus DIR --tokenizer models/bud/tokenizer.json --out DIR --seconds 1000

Matrices learn by Muon, everything else by AdamW; the rate stays level for 42 % of the time and then
falls to nearly nothing.  In the last quarter the forward pass sees the weights as 4 bits will store
them.  Data is made on the fly by worker processes and never repeats (the corpus texts do).  The
schedule follows the clock, so that a run ends when its time is up, whatever the machine's speed.
"""
import argparse
import json
import math
import os
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F

import data
import model as M
import own
import questions
import score
from export import fake_quantise
from tokenizer import Tokenizer

WARMUP, LEVEL, QUANT = 0.012, 0.42, 0.75


class Stream(torch.utils.data.IterableDataset):
    """Batches of packed rows, a different stream in every worker."""

    def __init__(self, corpus, tok, own, batch, length, seed):
        self.args, self.own, self.batch, self.length, self.seed = (corpus, tok), own, batch, length, seed

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        rows = iter(data.Rows(*self.args, seed=self.seed * 1000 + (info.id if info else 0), length=self.length, own=self.own))
        while True:
            yield torch.from_numpy(np.stack([next(rows) for _ in range(self.batch)]).astype(np.int32))


def newton_schulz(g, steps=5):
    """The nearest semi-orthogonal matrix of each matrix of a batch, roughly."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g.bfloat16() if g.is_cuda else g
    flip = x.shape[-2] > x.shape[-1]
    if flip:
        x = x.transpose(-1, -2)
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        y = x @ x.transpose(-1, -2)
        x = a * x + (b * y + c * y @ y) @ x
    return x.transpose(-1, -2) if flip else x


class Muon:
    """Momentum, then orthogonalised steps; matrices of one shape go together."""

    def __init__(self, params, momentum=0.95, decay=0.1):
        groups = {}
        for p in params:
            groups.setdefault(p.shape, []).append(p)
        self.groups = [(ps, torch.zeros(len(ps), *shape, device=ps[0].device)) for shape, ps in groups.items()]
        self.momentum, self.decay = momentum, decay

    @torch.no_grad()
    def step(self, lr):
        for ps, buf in self.groups:
            g = torch.stack([p.grad for p in ps])
            buf.lerp_(g, 1 - self.momentum)
            u = newton_schulz(g.lerp(buf, self.momentum))
            torch._foreach_mul_(ps, 1 - lr * self.decay)
            torch._foreach_add_(ps, list((u.float() * (-lr * 0.2 * math.sqrt(max(u.shape[-2:])))).unbind()))


def token_loss(h, w, target, weight):
    """Weighted cross-entropy and the weighted number of hits."""
    logits = F.linear(h, w).float().flatten(0, 1)
    loss = F.cross_entropy(logits, target.flatten(), reduction="none")
    hit = (logits.detach().argmax(-1) == target.flatten()).float()
    weight = weight.flatten()
    n = weight.sum().clamp(min=1)
    return (loss * weight).sum() / n, (hit * weight).sum() / n


def targets(rows):
    """Ids, document starts, and (target, weight) one and two tokens ahead."""
    rows = rows.long()
    ids, starts, learn = rows & data.ID, (rows & data.START) != 0, (rows & data.LOSS) != 0
    t = rows.shape[1]
    at = torch.arange(t, device=rows.device)
    one = ids.roll(-1, 1), (learn & ~starts).roll(-1, 1) & (at < t - 1)
    two = ids.roll(-2, 1), (learn & ~starts).roll(-2, 1) & ~starts.roll(-1, 1) & (at < t - 2)
    return ids, starts, one, two


def compile_parts():
    """Compile the pieces that do the work; all layers share them."""
    torch._dynamo.config.cache_size_limit = 64
    for cls, names in ((M.DeltaNet, ["before", "after"]), (M.Attention, ["project"]), (M.Layer, ["feed"]), (M.Norm, ["forward"]), (M.MTP, ["join"])):
        for name in names:
            setattr(cls, name, torch.compile(getattr(cls, name), dynamic=False))


def flex_attention():
    """Attention under a block mask by document."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention as flex
    make = torch.compile(create_block_mask, dynamic=False)

    def mask(doc):
        b, t = doc.shape
        return make(lambda b, h, q, k: (doc[b, q] == doc[b, k]) & (q >= k), b, None, t, t, device=doc.device)

    return torch.compile(flex, dynamic=False), mask


def quantisable(net):
    """The matrices that are stored in 4 or 8 bits: (module, bits)."""
    return [(m, 8 if name.endswith(("mlp.gate", "shared_expert_gate")) else 4) for name, m in net.named_modules() if isinstance(m, M.Mat)]


@torch.no_grad()
def set_rounding(parts, on, quantise):
    """Renew (or clear) what quantisation would change in each matrix."""
    for m, bits in parts:
        m.delta.copy_(quantise(m.weight, bits) - m.weight) if on else m.delta.zero_()


def check(net, tok, asked, label):
    """Answer a few held-out questions of each family and print the scores."""
    t0 = time.time()
    net.eval()
    with torch.compiler.set_stance("force_eager"):
        results = score.ask_torch(asked, net, tok)
    print(f"--- {label}, {time.time() - t0:.1f} s", flush=True)
    score.table(asked, results, 0.95)
    wrong = [(q, r) for q, r in zip(asked, results) if not score.right(q, *r)]
    for q, r in wrong[::max(1, len(wrong) // 10)][:10]:
        print("   wrong:", q["family"], json.dumps(q["request"]["messages"][-1]["content"])[:100], "->", json.dumps(r[0])[:260])
    for q, r in list(zip(asked, results))[-2:]:
        print("   e.g.:", json.dumps(q["request"]["messages"][-1]["content"]), "->", json.dumps(r[0])[:700], flush=True)
    net.train()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--corpus", required=True)
    ap.add_argument("--tokenizer", required=True)
    ap.add_argument("--out", required=True)
    ap.add_argument("--seconds", type=float, default=1000)
    ap.add_argument("--batch", type=int, default=64, help="rows a step and process")
    ap.add_argument("--length", type=int, default=1024)
    ap.add_argument("--workers", type=int, default=10)
    ap.add_argument("--lr", type=float, default=4e-3)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--resume", help="checkpoint to go on from, with more stories")
    ap.add_argument("--own", help="with --resume: the model's own stories (own.py), to learn among the rest")
    ap.add_argument("--level", type=float, default=LEVEL, help="share of the time before the rate falls")
    ap.add_argument("--quant-from", type=float, default=QUANT)
    ap.add_argument("--checks", type=int, default=5)
    ap.add_argument("--attention", default="flex", choices=["flex", "mask"])
    args = ap.parse_args()
    begin = time.time()
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
    torch.cuda.set_device(device)
    if world > 1:
        dist.init_process_group("nccl")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    os.makedirs(args.out, exist_ok=True)
    tok = Tokenizer(args.tokenizer)
    own_stories = None if not args.resume else own.read(args.own) if args.own else []
    loader = torch.utils.data.DataLoader(Stream(data.read_corpus(args.corpus), tok, own_stories, args.batch, args.length, args.seed * 10 + rank),
                                         batch_size=None, num_workers=args.workers, prefetch_factor=4, multiprocessing_context="fork", pin_memory=False)
    rows = iter(loader)
    torch.manual_seed(args.seed)
    net = M.Bud().to(device)
    if args.resume:
        net.load_state_dict({k: v.float() for k, v in torch.load(args.resume, map_location="cpu").items()})
    named = dict(net.named_parameters())
    by_adam = [p for n, p in named.items() if p.dim() < 2 or any(s in n for s in ("embed_tokens", "lm_head", "mlp.gate.", "shared_expert_gate", "in_proj_a", "in_proj_b", "conv1d"))]
    chosen = set(map(id, by_adam))
    muon = Muon([p for p in named.values() if id(p) not in chosen])
    adam = torch.optim.AdamW(by_adam, lr=args.lr * 0.75, betas=(0.9, 0.97), weight_decay=0.0, fused=True)
    flat = torch.zeros(sum(p.numel() for p in named.values()), device=device)
    at = 0
    for p in named.values():
        p.grad = flat[at:at + p.numel()].view_as(p)
        at += p.numel()
    compile_parts()
    loss_of = torch.compile(token_loss, dynamic=False)
    quantise = torch.compile(fake_quantise, dynamic=False)
    flex = mask_maker = None
    if args.attention == "flex":
        flex, mask_maker = flex_attention()
    parts = quantisable(net)
    asked = questions.questions(24)
    clock, tokens, step, mean, next_check, next_save = torch.zeros(1, device=device), 0, 0, None, 1 / args.checks, 60.0
    print("ready after", round(time.time() - begin, 1), "s,", round(sum(p.numel() for p in named.values()) / 1e6, 2), "M parameters", flush=True)
    t_log = time.time()
    while True:
        clock.fill_((time.time() - begin) / args.seconds)
        if world > 1:
            dist.broadcast(clock, 0)
        p = float(clock)
        if p >= 1:
            break
        rate = min(1.0, p / WARMUP + 0.02, max(0.01, 1 - (p - args.level) / (1 - args.level)))
        ids, starts, one, two = targets(next(rows).to(device, non_blocking=True))
        if p > args.quant_from:
            set_rounding(parts, True, quantise)
        flat.zero_()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            ctx = M.Context(starts, flex=flex, mask_maker=mask_maker)
            h, balance = net.hidden(ids, ctx)
            w = net.lm_head.w()
            main_loss, hits = loss_of(h, w, *one)
            d, b = net.draft_hidden(ids, h, ctx)
            mtp_loss, mtp_hits = loss_of(d, w, *two)
        (main_loss + 0.3 * mtp_loss + 0.003 * (balance + b)).backward()
        if world > 1:
            dist.all_reduce(flat, op=dist.ReduceOp.AVG)
        torch.nn.utils.clip_grad_norm_([p for p in by_adam], 1.0)
        muon.step(args.lr * rate)
        for group in adam.param_groups:
            group["lr"] = args.lr * 0.75 * rate
        adam.step()
        step += 1
        tokens += ids.numel() * world
        stats = torch.stack([main_loss.detach(), mtp_loss.detach(), hits, mtp_hits, balance.detach() / net.s.layers])
        mean = stats if mean is None else mean.lerp(stats, 0.05)
        if step in (1, 10, 30) or step % 100 == 0:
            line = [round(x, 4) for x in mean.tolist()]
            if rank == 0:
                print(f"{p:.3f} step {step} loss {line[0]} mtp {line[1]} hits {line[2]} {line[3]} balance {line[4]} lr {rate:.3f} {tokens / 1e6:.0f}M tokens, "
                      f"{ids.numel() * world * (1 if step < 100 else 100) / (time.time() - t_log) / 1e3:.0f}k tok/s, {torch.cuda.max_memory_allocated() >> 30} GiB", flush=True)
            if step >= 100 or step == 30:
                t_log = time.time()
        if p > next_check and p < 0.97:
            if rank == 0:
                check(net, tok, asked, f"check at {p:.2f}")
                t_log = time.time()
            next_check += 1 / args.checks
        if rank == 0 and time.time() - begin > next_save:
            save(net, args.out)
            next_save += 60
    if rank == 0:
        save(net, args.out)
        print("trained on", tokens, "tokens in", step, "steps,", round(time.time() - begin, 1), "s", flush=True)
        open(os.path.join(args.out, "done"), "w").close()
    # Worker processes are of no more use.
    os._exit(0)


def save(net, folder):
    """The weights as bf16, put in place in one move."""
    path = os.path.join(folder, "bud.pt")
    torch.save({k: v.bfloat16() for k, v in net.state_dict().items()}, path + ".new")
    os.replace(path + ".new", path)


if __name__ == "__main__":
    main()
