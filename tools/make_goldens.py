"""Reference results by transformers, for the engine's tests.

    python3 tools/make_goldens.py random --out tests/goldens          (small random checkpoints and their logits)
    python3 tools/make_goldens.py bud --model models/bud --out tests/goldens   (greedy runs of the built-in model)

Needs torch and a transformers with the qwen3_5_moe model.  Everything is computed in float32
without tf32.  The 4-bit checkpoints are dequantised first, so the reference sees the weights that
the engine sees.  transformers adds 1e-6 inside the L2 norm of q and k where the engine adds 128e-6:
with the vectors of these checkpoints that is below 1e-3 in the logits.

random: `rand-hf/` (bf16, Hugging Face names, two shards) and `rand-mlx4/` (4 bits, MLX names), each
with `reference.safetensors`:
    ids [300]            the token sequence
    logits [129, 256]    logits at every position of its first 129 tokens; rows 0..n-1 are also the
                         logits of the first n tokens (checked here for n = 1..5, 63..65, 127..129)
    logits_300 [256]     logits at the last of all 300 tokens
    greedy [24]          greedy continuation of the first 20 tokens
Some heads of the recurrent layers forget within a token (decay about 1e-12).

bud: `bud_greedy.json`, for each prompt the ids, 48 greedy ids, the log-probability of each and of
the five best, and the MTP head's drafts (by tools/bud/model.py, transformers has no such head).
"""
import argparse
import os
import sys

import numpy as np
import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "bud"))
import data  # noqa: E402
import export  # noqa: E402
import model as M  # noqa: E402

LENGTHS = [1, 2, 3, 4, 5, 63, 64, 65, 127, 128, 129]
RANDOM = M.Shape(vocab=256, hidden=64, layers=4, experts=12, width=64, shared_width=64)


def transformers_model(weights, shape, device):
    """transformers' text model with our weights ({our name: float32 array}), in float32."""
    from transformers.models.qwen3_5_moe.configuration_qwen3_5_moe import Qwen3_5MoeTextConfig
    from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeForCausalLM
    text = export.config(shape, shape.vocab - 64, mlx=False)["text_config"]
    text = {k: v for k, v in text.items() if k not in ("model_type", "dtype", "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings")}
    config = Qwen3_5MoeTextConfig(**text)
    config._attn_implementation = "eager"
    net = Qwen3_5MoeForCausalLM(config).float()
    state = {}
    for name, x in weights.items():
        if not name.startswith("mtp."):
            hf = export.hf_name(name).replace("model.language_model.", "model.")
            state[hf] = torch.from_numpy(np.array(x, np.float32))
    missing, unexpected = net.load_state_dict(state, strict=False)
    assert not unexpected and not missing, (missing, unexpected)
    return net.to(device).eval()


@torch.no_grad()
def logits_of(net, ids, device):
    return net(torch.tensor([ids], device=device), use_cache=False).logits[0].float()


def random_weights():
    """{our name: bf16 bits} of a random model whose numbers are of ordinary size."""
    torch.manual_seed(36)
    net = M.Bud(RANDOM)
    out = {}
    for name, p in net.named_parameters():
        if name.startswith("mtp."):
            continue
        x = p.detach().float()
        if "embed_tokens" in name:
            x = torch.randn_like(x)
        elif "lm_head" in name:
            x = torch.randn_like(x) * 0.3
        elif name.endswith("A_log"):
            x = torch.tensor([-3.0, 0.0, 2.0, 3.05])
        elif name.endswith("dt_bias"):
            x = torch.tensor([-4.0, 0.5, 0.0, 1.0])
        elif name.endswith("conv1d.weight"):
            x = torch.randn_like(x) * 0.5
        elif p.dim() == 1:
            x = torch.randn_like(x) * 0.1 + (1.0 if "linear_attn.norm" in name else 0.0)
        elif "in_proj_qkv" in name:
            x = torch.randn_like(x) * 0.2
        else:
            x = torch.randn_like(x) * x.shape[-1] ** -0.5
        out[name] = export.to_bf16(x.numpy())
    return out


def random_goldens(out, device):
    import transformers
    weights = random_weights()
    ids = torch.randint(0, RANDOM.vocab, (300,), generator=torch.Generator().manual_seed(3)).tolist()
    for form in ("rand-hf", "rand-mlx4"):
        folder = os.path.join(out, form)
        if form == "rand-hf":
            export.write_hf(folder, weights, RANDOM, RANDOM.vocab - 64, shards=2)
            exact = {k: export.from_bf16(v) for k, v in weights.items()}
        else:
            export.write_mlx(folder, weights, RANDOM, RANDOM.vocab - 64)
            exact = export.read_mlx(folder)
        net = transformers_model(exact, RANDOM, device)
        whole = logits_of(net, ids, device)
        worst = 0.0
        for n in LENGTHS:
            worst = max(worst, (logits_of(net, ids[:n], device) - whole[:n]).abs().max().item())
        run = ids[:20]
        for _ in range(24):
            run.append(int(logits_of(net, run, device)[-1].argmax()))
        ours = torch.nn.Module.to(M.Bud(RANDOM), "cpu")
        ours.load_state_dict({k: torch.from_numpy(np.array(v, np.float32)) for k, v in exact.items()}, strict=False)
        with torch.no_grad():
            recurrence = M.reference_logits(ours, torch.tensor(ids[:129]))
        gap = (recurrence - whole[:129].cpu()).abs().max().item()
        print(form, "largest logit", whole.abs().max().item(), "| between lengths", worst, "| our recurrence against transformers", gap)
        export.write_safetensors(os.path.join(folder, "reference.safetensors"), {
            "ids": ("I32", np.array(ids, np.int32)), "logits": ("F32", whole[:129].cpu().numpy()),
            "logits_300": ("F32", whole[-1].cpu().numpy()), "greedy": ("I32", np.array(run[20:], np.int32))})
        export.write_json(folder, "reference.json", {
            "made_by": f"python3 tools/make_goldens.py random --out tests/goldens, transformers {transformers.__version__}, torch {torch.__version__}, float32",
            "lengths_checked": LENGTHS, "largest_difference_between_lengths": worst, "largest_difference_to_plain_recurrence": gap,
            "largest_logit": whole.abs().max().item()})



WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "Get the weather for a city.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "description": "The city."}}, "required": ["city"]}}}
TIMER = {"type": "function", "function": {"name": "set_timer", "description": "Start a timer.", "parameters": {
    "type": "object", "properties": {"minutes": {"type": "integer", "description": "How many minutes."}}, "required": ["minutes"]}}}


def prompts():
    """(name, messages, tools, thinking) of the golden runs."""
    user = lambda text: {"role": "user", "content": text}
    return [
        ("story", [user("Tell me a story that begins: One day, a little fox named Nora went to the lake.")], None, False),
        ("sum", [user("What is 58 + 27?")], None, False),
        ("product_thinking", [user("What is 34 × 27?")], None, True),
        ("tool_call", [user("What is the weather in Oslo?")], [WEATHER, TIMER], True),
        ("json", [user("Lina is 31 years old and lives in Porto. Answer in JSON with the keys name, age and city.")], None, False),
        ("multi_turn", [user("My name is Vera."), {"role": "assistant", "content": "Nice to meet you, Vera."}, user("What is the capital of Norway?"),
                        {"role": "assistant", "content": "The capital of Norway is Oslo."}, user("What is my name?")], None, False),
    ]


@torch.no_grad()
def drafts(ours, ids, run, device):
    """The MTP head's guesses along a run that began with `ids`."""
    padded = torch.tensor([run + [0] * (-len(run) % M.CHUNK)], device=device)
    starts = torch.zeros_like(padded, dtype=torch.bool)
    starts[0, 0] = True
    ctx = M.Context(starts)
    h, _ = ours.hidden(padded, ctx)
    best = ours.lm_head(ours.draft_hidden(padded, h, ctx)[0]).argmax(-1)[0].tolist()
    # The one at place t is a guess at token t + 2.
    return best[len(ids) - 1:len(run) - 2]


def bud_goldens(folder, out, device):
    import transformers
    from tokenizer import Tokenizer
    tok = Tokenizer(os.path.join(folder, "tokenizer.json"))
    weights, shape = export.read_mlx(folder), M.Shape()
    net = transformers_model(weights, shape, device)
    ours = export.load_torch(folder, device)
    runs = []
    for name, messages, tools, thinking in prompts():
        parts = data.prompt(messages, tools, thinking)
        text = "".join(t for t, _ in parts)
        ids, steps = tok.encode(text), []
        run = list(ids)
        for _ in range(48):
            lp = logits_of(net, run, device)[-1].log_softmax(-1)
            top = lp.topk(5)
            run.append(int(top.indices[0]))
            steps.append({"id": run[-1], "logprob": round(float(top.values[0]), 5), "top5": [[int(i), round(float(v), 5)] for i, v in zip(top.indices, top.values)]})
        mtp = drafts(ours, ids, run, device)
        hits = sum(a == b for a, b in zip(mtp, run[len(ids) + 1:]))
        runs.append({"name": name, "text": text, "prompt": ids, "steps": steps, "mtp_drafts": mtp, "answer": tok.decode(run[len(ids):])})
        print(name, len(ids), "MTP", hits, "of", len(mtp), repr(runs[-1]["answer"]))
    export.write_json(out, "bud_greedy.json", {
        "made_by": f"python3 tools/make_goldens.py bud --model models/bud --out tests/goldens, transformers {transformers.__version__}, torch {torch.__version__}, "
                   "float32, weights dequantised from models/bud", "note": "mtp_drafts[i] is the MTP head's guess at step i + 1, made from the hidden state before step i and the token of step i; stop tokens are not acted on",
        "runs": runs})


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("what", choices=["random", "bud"])
    ap.add_argument("--model", default="models/bud")
    ap.add_argument("--out", default="tests/goldens")
    args = ap.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    device = "cuda" if torch.cuda.is_available() else "cpu"
    os.makedirs(args.out, exist_ok=True)
    if args.what == "random":
        random_goldens(args.out, device)
    else:
        bud_goldens(args.model, args.out, device)


if __name__ == "__main__":
    main()
