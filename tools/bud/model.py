"""Bud's network in PyTorch, made for fast training: the architecture of Qwen3.6-35B-A3B, small.

Three Gated DeltaNet layers, then one of full attention, and so on; after each a mixture of experts.
Names of modules follow the Hugging Face checkpoint, so that a state dict needs no translation.

Rows hold several documents.  A document's first token resets the recurrent state (its decay is
exp(-60)), the convolution looks no further back than that token, and attention is masked.

The experts are so narrow that all of them together are one ordinary matrix product: every expert is
computed for every token and scaled by its routing weight, which is zero for those not chosen.
"""
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

CHUNK = 64
RESET = -60.0


@dataclass
class Shape:
    vocab: int = 4096
    hidden: int = 256
    layers: int = 8
    period: int = 4            # every period-th layer has full attention
    heads: int = 2
    kv_heads: int = 1
    head_dim: int = 256
    rotary: int = 64
    theta: float = 1e7
    key_heads: int = 2
    value_heads: int = 4
    linear_dim: int = 128
    experts: int = 40
    top: int = 8
    width: int = 64
    shared_width: int = 128
    eps: float = 1e-6


class Mat(nn.Module):
    """A matrix (or one per expert) that can carry the rounding of its quantised form.

    `delta` is quantised minus exact: adding it makes the forward pass see the quantised weights
    while gradients reach the exact ones.
    """

    def __init__(self, *shape, std=None):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(*shape) * (std if std is not None else shape[-1] ** -0.5))
        self.register_buffer("delta", torch.zeros(*shape), persistent=False)

    def w(self):
        return self.weight + self.delta

    def forward(self, x):
        return F.linear(x, self.w())


class Norm(nn.Module):
    """RMS norm whose weight is stored around zero."""

    def __init__(self, n, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.zeros(n)), eps

    def forward(self, x):
        x = x.float()
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * (1 + self.weight)


class PlainNorm(nn.Module):
    """The weight of the gated norm: stored as it is."""

    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))


class Conv(nn.Module):
    """Weights of the depthwise convolution over four tokens."""

    def __init__(self, channels):
        super().__init__()
        self.weight = nn.Parameter((torch.rand(channels, 1, 4) - 0.5) * 0.6 + torch.tensor([0.0, 0.0, 0.1, 0.6]))


def unit_lower_inverse(a):
    """(I + A)^-1 for strictly lower triangular A of size 64, by block substitution.

    If T inverts the diagonal blocks of size s, then T - T A' T, with A' the blocks just below the
    diagonal that join two of them, inverts the diagonal blocks of size 2s.
    """
    n = a.shape[-1]
    i = torch.arange(n, device=a.device)
    t = torch.eye(n, device=a.device, dtype=a.dtype)
    s = 1
    while s < n:
        row, col = i[:, None] // s, i[None, :] // s
        join = a * ((row // 2 == col // 2) & (row > col)).to(a.dtype)
        t = t - (join if s == 1 else t @ join @ t)
        s *= 2
    return t


class Scan(torch.autograd.Function):
    """The recurrent state from chunk to chunk: V_n = U_n - W_n S_n, S_{n+1} = c_n S_n + K_n' V_n.

    Inputs are [chunks, batch, ...]; returns all V, the state before each chunk, and the last state.
    """

    @staticmethod
    def forward(ctx, u, w, k, c):
        n = u.shape[0]
        s = torch.zeros(u.shape[1], k.shape[-1], u.shape[-1], device=u.device, dtype=u.dtype)
        v, states = torch.empty_like(u), torch.empty((n, *s.shape), device=u.device, dtype=u.dtype)
        for i in range(n):
            states[i] = s
            torch.baddbmm(u[i], w[i], s, alpha=-1, out=v[i])
            s = torch.baddbmm(s * c[i], k[i].transpose(1, 2), v[i])
        ctx.save_for_backward(w, k, c, v, states)
        return v, states, s

    @staticmethod
    def backward(ctx, dv, dstates, ds):
        w, k, c, v, states = ctx.saved_tensors
        dv = dv.contiguous().clone()
        dnext = torch.empty_like(states)
        for i in reversed(range(w.shape[0])):
            dnext[i] = ds
            dv[i].baddbmm_(k[i], ds)
            ds = torch.baddbmm(ds * c[i] + dstates[i], w[i].transpose(1, 2), dv[i], alpha=-1)
        return dv, -(dv @ states.transpose(-1, -2)), v @ dnext.transpose(-1, -2), (states * dnext).sum((-1, -2), keepdim=True)


def no_compile(f):
    return torch.compiler.disable(f) if hasattr(torch, "compiler") else f


scan = no_compile(Scan.apply)


class DeltaNet(nn.Module):
    """Gated DeltaNet: a linear-attention layer whose state is overwritten by the delta rule."""

    def __init__(self, s):
        super().__init__()
        self.s = s
        self.kd, self.vd = s.key_heads * s.linear_dim, s.value_heads * s.linear_dim
        self.in_proj_qkv = Mat(2 * self.kd + self.vd, s.hidden)
        self.in_proj_z = Mat(self.vd, s.hidden)
        self.in_proj_b = Mat(s.value_heads, s.hidden, std=0.02)
        self.in_proj_a = Mat(s.value_heads, s.hidden, std=0.02)
        self.conv1d = Conv(2 * self.kd + self.vd)
        self.A_log = nn.Parameter(torch.log(torch.empty(s.value_heads).uniform_(1, 16)))
        dt = torch.exp(torch.empty(s.value_heads).uniform_(math.log(1e-3), math.log(0.1)))
        self.dt_bias = nn.Parameter(dt + torch.log(-torch.expm1(-dt)))
        self.norm = PlainNorm(s.linear_dim)
        self.out_proj = Mat(s.hidden, self.vd, std=0.02)

    def heads(self, y):
        """Split the convolved channels into q, k (normed, one per value head) and v."""
        s, lead = self.s, y.shape[:-1]
        q, k, v = y.split([self.kd, self.kd, self.vd], -1)
        q, k = (t.reshape(*lead, s.key_heads, s.linear_dim) for t in (q, k))
        q, k = (t * torch.rsqrt(t.pow(2).sum(-1, keepdim=True) + s.linear_dim * 1e-6) for t in (q, k))
        q = q * s.linear_dim ** -0.5
        q, k = (t.repeat_interleave(s.value_heads // s.key_heads, -2) for t in (q, k))
        return q, k, v.reshape(*lead, s.value_heads, s.linear_dim)

    def gates(self, x):
        a, b = self.in_proj_a(x).float(), self.in_proj_b(x).float()
        return -self.A_log.exp() * F.softplus(a + self.dt_bias), torch.sigmoid(b)

    def before(self, x, pos):
        """Everything up to the scan, in chunked form.  pos: index of a token in its document."""
        u = self.in_proj_qkv(x).float()
        w = self.conv1d.weight[:, 0]
        y = u * w[:, 3]
        for d in (1, 2, 3):
            y = y + F.pad(u, (0, 0, d, 0))[:, :-d] * (w[:, 3 - d] * (pos >= d)[..., None])
        q, k, v = self.heads(F.silu(y))
        g, beta = self.gates(x)
        g = g + (pos == 0)[..., None] * RESET
        z = self.in_proj_z(x)
        b, t, h, d = q.shape
        # [batch, token, head, ...] -> [chunk, batch * head, token of the chunk, ...]
        cut = lambda m: m.reshape(b, t // CHUNK, CHUNK, h, -1).permute(1, 0, 3, 2, 4).reshape(t // CHUNK, b * h, CHUNK, -1)
        q, k, v, g, beta = (cut(m) for m in (q, k, v, g, beta))
        # tf32 products are precise enough here; bf16 would not be.
        with torch.autocast(x.device.type, enabled=False):
            g = g.cumsum(-2)
            i = torch.arange(CHUNK, device=x.device)
            keep = i[:, None] >= i[None, :]
            decay = torch.where(keep, torch.exp(torch.where(keep, g - g.transpose(-1, -2), 0.0)), 0.0)
            a = beta * (k @ k.transpose(-1, -2)) * decay * (i[:, None] > i[None, :])
            inv = unit_lower_inverse(a)
            up = inv @ (beta * v)
            wp = inv @ (beta * g.exp() * k)
            last = g[..., -1:, :]
            return up, wp, (last - g).exp() * k, last.exp(), q * g.exp(), q @ k.transpose(-1, -2) * decay, z

    def after(self, v, states, qg, attn, z, b):
        """Outputs from the scan's results, normed, gated and projected."""
        with torch.autocast(v.device.type, enabled=False):
            o = qg @ states + attn @ v
        n, _, c, d = o.shape
        o = o.reshape(n, b, -1, c, d).permute(1, 0, 3, 2, 4).reshape(b, n * c, -1, d)
        return self.finish(o, z)

    def finish(self, o, z):
        o = o * torch.rsqrt(o.pow(2).mean(-1, keepdim=True) + self.s.eps) * self.norm.weight
        return self.out_proj(o.flatten(-2) * F.silu(z.float()))

    def forward(self, x, ctx):
        up, wp, kd, c, qg, attn, z = self.before(x, ctx.pos)
        with torch.autocast(x.device.type, enabled=False):
            v, states, last = scan(up, wp, kd, c)
        if ctx.cache is not None:
            u = self.in_proj_qkv(x[:, -3:]).float() * (ctx.pos[:, -1:, None] >= torch.arange(2, -1, -1, device=x.device)[:, None])
            ctx.cache.append([last.reshape(x.shape[0], -1, *last.shape[1:]), u])
        return self.after(v, states, qg, attn, z, x.shape[0])

    def step(self, x, state):
        """One more token per row; x: [batch, 1, hidden]."""
        s, window = state
        u = torch.cat([window, self.in_proj_qkv(x).float()], 1)
        state[1] = u[:, 1:]
        y = F.silu((u * self.conv1d.weight[:, 0].t()).sum(1))
        q, k, v = self.heads(y)
        g, beta = self.gates(x[:, 0])
        with torch.autocast(x.device.type, enabled=False):
            s = s * g.exp()[..., None, None]
            add = beta[..., None] * (v - (s * k[..., None]).sum(-2))
            s = s + k[..., None] * add[..., None, :]
            state[0] = s
            o = (s * q[..., None]).sum(-2)
        return self.finish(o[:, None], self.in_proj_z(x))


class Attention(nn.Module):
    """Full attention with an output gate and rotary positions on a quarter of each head."""

    def __init__(self, s):
        super().__init__()
        self.s = s
        self.q_proj = Mat(s.heads * s.head_dim * 2, s.hidden)
        self.k_proj = Mat(s.kv_heads * s.head_dim, s.hidden)
        self.v_proj = Mat(s.kv_heads * s.head_dim, s.hidden)
        self.o_proj = Mat(s.hidden, s.heads * s.head_dim, std=0.02)
        self.q_norm, self.k_norm = Norm(s.head_dim, s.eps), Norm(s.head_dim, s.eps)

    def rope(self, x, at):
        """x: [batch, token, head, dim], at: positions [token] or [batch, token]."""
        half = self.s.rotary // 2
        freq = self.s.theta ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
        angle = (at[..., None].float() * freq)[..., None, :]
        cos, sin = angle.cos(), angle.sin()
        a, b = x[..., :half], x[..., half:2 * half]
        return torch.cat([a * cos - b * sin, b * cos + a * sin, x[..., 2 * half:]], -1)

    def project(self, x, at):
        s, lead = self.s, x.shape[:2]
        q, gate = self.q_proj(x).reshape(*lead, s.heads, 2, s.head_dim).unbind(-2)
        k = self.k_proj(x).reshape(*lead, s.kv_heads, s.head_dim)
        v = self.v_proj(x).reshape(*lead, s.kv_heads, s.head_dim)
        q, k = self.rope(self.q_norm(q), at), self.rope(self.k_norm(k), at)
        return q.to(v.dtype), k.to(v.dtype), v, gate.reshape(*lead, -1)

    def forward(self, x, ctx):
        q, k, v, gate = self.project(x, torch.arange(x.shape[1], device=x.device))
        if ctx.cache is not None:
            ctx.cache.append([k, v])
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        if ctx.flex is not None:
            o = ctx.flex(q, k, v, block_mask=ctx.mask, scale=self.s.head_dim ** -0.5, enable_gqa=True)
        else:
            o = attend(q, k.expand(-1, q.shape[1], -1, -1), v.expand(-1, q.shape[1], -1, -1), ctx.mask)
        o = o.transpose(1, 2).flatten(-2)
        return self.o_proj(o * torch.sigmoid(gate))

    def step(self, x, cache, at, valid):
        """One token; at: position [batch] counted in padded rows, valid: [batch, tokens so far + 1]."""
        q, k, v, gate = self.project(x, at)
        cache[0], cache[1] = torch.cat([cache[0], k], 1), torch.cat([cache[1], v], 1)
        k, v = cache
        scores = torch.einsum("bqhd,btd->bhqt", q, k[:, :, 0]).float() * self.s.head_dim ** -0.5
        p = scores.masked_fill(~valid[:, None, None], -1e30).softmax(-1).to(v.dtype)
        o = torch.einsum("bhqt,btd->bqhd", p, v[:, :, 0])
        return self.o_proj(o.flatten(-2) * torch.sigmoid(gate))


def attend(q, k, v, mask):
    """Attention under a boolean mask [batch, 1, query, key]."""
    if hasattr(F, "scaled_dot_product_attention"):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    scores = (q @ k.transpose(-1, -2)).float() * q.shape[-1] ** -0.5
    return scores.masked_fill(~mask, -1e30).softmax(-1).to(v.dtype) @ v


class Experts(nn.Module):
    """Weights of the routed experts: gate and up stacked by expert, and down."""

    def __init__(self, s):
        super().__init__()
        self.gate_up_proj = Mat(s.experts, 2 * s.width, s.hidden)
        self.down_proj = Mat(s.experts, s.hidden, s.width, std=0.02)


class SharedExpert(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.gate_proj, self.up_proj = Mat(s.shared_width, s.hidden), Mat(s.shared_width, s.hidden)
        self.down_proj = Mat(s.hidden, s.shared_width, std=0.02)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class MoE(nn.Module):
    """Top-8 of the experts by softmax, renormalised, plus a shared expert behind a sigmoid."""

    def __init__(self, s):
        super().__init__()
        self.s = s
        self.gate = Mat(s.experts, s.hidden)
        self.experts = Experts(s)
        self.shared_expert = SharedExpert(s)
        self.shared_expert_gate = Mat(1, s.hidden)

    def forward(self, x):
        """Returns the output and the balance term E * sum(share of tokens * mean probability)."""
        s = self.s
        with torch.autocast(x.device.type, enabled=False):
            p = self.gate(x.float()).softmax(-1)
        rank = (p[..., None, :] > p[..., :, None]).sum(-1)
        chosen = (rank < s.top).to(p.dtype)
        route = p * chosen
        route = route / route.sum(-1, keepdim=True)
        balance = s.experts / s.top * (chosen.flatten(0, -2).mean(0) * p.flatten(0, -2).mean(0)).sum()
        gu = F.linear(x, self.experts.gate_up_proj.w().flatten(0, 1))
        g, u = gu.reshape(*x.shape[:-1], s.experts, 2, s.width).unbind(-2)
        act = (F.silu(g.float()) * u.float() * route[..., None]).to(g.dtype).flatten(-2)
        y = F.linear(act, self.experts.down_proj.w().permute(1, 0, 2).flatten(1))
        return y + torch.sigmoid(self.shared_expert_gate(x).float()) * self.shared_expert(x), balance


class Layer(nn.Module):
    def __init__(self, s, full):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = Norm(s.hidden, s.eps), Norm(s.hidden, s.eps)
        if full:
            self.self_attn = Attention(s)
        else:
            self.linear_attn = DeltaNet(s)
        self.mlp = MoE(s)
        self.full = full

    def mix(self, h, ctx):
        mixer = self.self_attn if self.full else self.linear_attn
        return h + mixer(self.input_layernorm(h), ctx)

    def feed(self, h):
        y, balance = self.mlp(self.post_attention_layernorm(h))
        return h + y, balance

    def forward(self, h, ctx):
        return self.feed(self.mix(h, ctx))

    def step(self, h, state, at, valid):
        x = self.input_layernorm(h)
        h = h + (self.self_attn.step(x, state, at, valid) if self.full else self.linear_attn.step(x, state))
        return self.feed(h)[0]


class Context:
    """What the layers need to know about the rows: places in documents, mask, caches to fill."""

    def __init__(self, starts, cache=None, flex=None, mask_maker=None):
        b, t = starts.shape
        at = torch.arange(t, device=starts.device).expand(b, t)
        first = torch.where(starts, at, torch.zeros_like(at)).cummax(1).values
        self.pos = at - first
        self.cache, self.flex = cache, flex
        doc = starts.int().cumsum(1)
        if flex is not None:
            self.mask = mask_maker(doc)
        else:
            self.mask = ((doc[:, :, None] == doc[:, None, :]) & (at[0][:, None] >= at[0][None, :]))[:, None]


class MTP(nn.Module):
    """Predicts the token after next from the final hidden state and the next token."""

    def __init__(self, s):
        super().__init__()
        self.pre_fc_norm_embedding, self.pre_fc_norm_hidden = Norm(s.hidden, s.eps), Norm(s.hidden, s.eps)
        self.fc = Mat(s.hidden, 2 * s.hidden)
        self.layers = nn.ModuleList([Layer(s, True)])
        self.norm = Norm(s.hidden, s.eps)

    def join(self, e, h):
        return self.fc(torch.cat([self.pre_fc_norm_embedding(e), self.pre_fc_norm_hidden(h)], -1)).float()

    def forward(self, e, h, ctx):
        x, balance = self.layers[0](self.join(e, h), ctx)
        return self.norm(x), balance


class Body(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.embed_tokens = Mat(s.vocab, s.hidden, std=0.1)
        self.layers = nn.ModuleList([Layer(s, (i + 1) % s.period == 0) for i in range(s.layers)])
        self.norm = Norm(s.hidden, s.eps)


class Bud(nn.Module):
    def __init__(self, s=Shape()):
        super().__init__()
        self.s = s
        self.model = Body(s)
        self.lm_head = Mat(s.vocab, s.hidden, std=0.02)
        self.mtp = MTP(s)

    def embed(self, ids):
        return F.embedding(ids, self.model.embed_tokens.w())

    def hidden(self, ids, ctx):
        """Final normed hidden states and the sum of the balance terms."""
        h, balance = self.embed(ids), 0.0
        for layer in self.model.layers:
            h, b = layer(h, ctx)
            balance = balance + b
        return self.model.norm(h), balance

    def draft_hidden(self, ids, h, ctx):
        """Hidden states of the MTP head for every pair (h_t, token t+1); the last place is void."""
        return self.mtp(self.embed(ids.roll(-1, 1)), h, ctx)

    # ---- generation

    @torch.no_grad()
    def generate(self, prompts, limit, stop, pad=0, dtype=torch.bfloat16, temperature=0.0):
        """Continuations of a batch of prompts (lists of ids), each cut before its stop token.

        Greedy without a temperature.

        Returns (ids, stopped?) for each prompt.
        """
        device = self.lm_head.weight.device
        t = -(-max(map(len, prompts)) // CHUNK) * CHUNK
        ids = torch.full((len(prompts), t), pad, dtype=torch.long)
        starts = torch.zeros(len(prompts), t, dtype=torch.bool)
        for i, p in enumerate(prompts):
            ids[i, t - len(p):] = torch.tensor(p)
            starts[i, t - len(p)] = True
        ids, starts = ids.to(device), starts.to(device)
        valid = starts.int().cumsum(1) > 0
        cache = []
        with torch.autocast(device.type, dtype=dtype, enabled=dtype is not None):
            h, _ = self.hidden(ids, Context(starts, cache))
            logits = self.lm_head(h[:, -1]).float()
            out, done = [], torch.zeros(len(prompts), dtype=torch.bool, device=device)
            stops = torch.tensor(stop, device=device)
            at = torch.full((len(prompts), 1), t, device=device)
            for n in range(limit):
                token = torch.multinomial((logits / temperature).softmax(-1), 1)[:, 0] if temperature else logits.argmax(-1)
                out.append(token)
                done |= (token[:, None] == stops).any(1)
                if n % 8 == 7 and bool(done.all()):
                    break
                valid = F.pad(valid, (0, 1), value=True)
                h = self.embed(token)[:, None]
                for layer, state in zip(self.model.layers, cache):
                    h = layer.step(h, state, at, valid)
                logits = self.lm_head(self.model.norm(h)[:, 0]).float()
                at = at + 1
        result = []
        for row in torch.stack(out, 1).tolist():
            end = next((i for i, x in enumerate(row) if x in stop), None)
            result.append((row if end is None else row[:end], end is not None))
        return result


def reference_logits(model, ids):
    """Logits of one sequence by the plain recurrence, token by token, in float32: slow and obvious."""
    s, h = model.s, model.embed(ids)[None]
    t = ids.shape[0]
    for layer in model.model.layers:
        x = layer.input_layernorm(h)
        if layer.full:
            m = layer.self_attn
            q, k, v, gate = m.project(x, torch.arange(t))
            q, k, v = (u.transpose(1, 2) for u in (q, k, v))
            scores = (q @ k.transpose(-1, -2)) * s.head_dim ** -0.5
            p = scores.masked_fill(~torch.ones(t, t).tril().bool(), -1e30).softmax(-1)
            y = m.o_proj((p @ v).transpose(1, 2).flatten(-2) * torch.sigmoid(gate))
        else:
            m, rows = layer.linear_attn, []
            state = [torch.zeros(1, s.value_heads, s.linear_dim, s.linear_dim), torch.zeros(1, 3, 2 * m.kd + m.vd)]
            for i in range(t):
                rows.append(m.step(x[:, i:i + 1], state))
            y = torch.cat(rows, 1)
        h = h + y
        x = layer.post_attention_layernorm(h)[0]
        r = layer.mlp.gate(x).softmax(-1)
        best = r.topk(s.top, -1)
        out = []
        for i in range(t):
            y = torch.sigmoid(layer.mlp.shared_expert_gate(x[i])) * layer.mlp.shared_expert(x[i])
            for e, weight in zip(best.indices[i], best.values[i] / best.values[i].sum()):
                g, u = (layer.mlp.experts.gate_up_proj.w()[e] @ x[i]).split(s.width)
                y = y + weight * (layer.mlp.experts.down_proj.w()[e] @ (F.silu(g) * u))
            out.append(y)
        h = h + torch.stack(out)[None]
    return model.lm_head(model.model.norm(h))[0]
