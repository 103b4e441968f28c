"""Write Bud's checkpoint: Hugging Face bf16 form, and MLX 4-bit form. Read either back.

    python3 tools/bud/export.py --weights run/bud.pt --hf DIR      (bf16, HF names)
    python3 tools/bud/export.py --weights run/bud.pt --mlx models/bud   (4 bits, MLX names)

The quantiser and the safetensors files are written out here in plain numpy, as an independent check
of what the engine does.
"""
import argparse
import json
import os
import struct

import numpy as np

BITS8 = ("mlp.gate", "mlp.shared_expert_gate")

# ---------------------------------------------------------------------------------------- bf16 and safetensors


def to_bf16(x):
    """float32 -> the upper half of the bits, rounded to nearest even, as uint16."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(x):
    """uint16 bf16 bits -> float32."""
    return (np.ascontiguousarray(x).astype(np.uint32) << 16).view(np.float32)


def write_safetensors(path, tensors):
    """tensors: {name: (dtype, array)}; BF16 arrays are uint16 bits."""
    header, at = {"__metadata__": {"format": "mlx"}}, 0
    for name, (dtype, x) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(x.shape), "data_offsets": [at, at + x.nbytes]}
        at += x.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, x in tensors.values():
            f.write(np.ascontiguousarray(x).tobytes())
    return at


def read_safetensors(path):
    """{name: (dtype, array)}."""
    kinds = {"BF16": np.uint16, "U32": np.uint32, "F32": np.float32, "I64": np.int64, "I32": np.int32}
    with open(path, "rb") as f:
        data = f.read()
    n = struct.unpack("<Q", data[:8])[0]
    out = {}
    for name, t in json.loads(data[8:8 + n]).items():
        if name != "__metadata__":
            a, b = t["data_offsets"]
            out[name] = (t["dtype"], np.frombuffer(data[8 + n + a:8 + n + b], kinds[t["dtype"]]).reshape(t["shape"]))
    return out


# ---------------------------------------------------------------------------------------- quantisation

def quantise(w, bits, group=64):
    """MLX's affine rule: (packed uint32 codes, scales, biases), the last two as bf16 bits."""
    top = (1 << bits) - 1
    w = np.asarray(w, np.float32)
    g = w.reshape(*w.shape[:-1], -1, group)
    low, high = g.min(-1), g.max(-1)
    scale = np.maximum((high - low) / np.float32(top), np.float32(1e-7))
    from_low = np.abs(low) > np.abs(high)
    scale = np.where(from_low, scale, -scale)
    edge = np.where(from_low, low, high)
    q0 = np.round(edge / scale)
    scale = np.where(q0 != 0, edge / np.where(q0 != 0, q0, 1), scale).astype(np.float32)
    bias = np.where(q0 != 0, edge, 0).astype(np.float32)
    q = np.clip(np.round((g - bias[..., None]) / scale[..., None]), 0, top).astype(np.uint32).reshape(w.shape)
    per = 32 // bits
    q = q.reshape(*w.shape[:-1], -1, per)
    words = (q << (np.arange(per, dtype=np.uint32) * bits)).sum(-1, dtype=np.uint32)
    return words, to_bf16(scale), to_bf16(bias)


def dequantise(words, scales, biases, group=64):
    """float32 weights; the number of bits follows from the shapes."""
    n = scales.shape[-1] * group
    bits = words.shape[-1] * 32 // n
    per = 32 // bits
    q = (words[..., None] >> (np.arange(per, dtype=np.uint32) * bits)) & np.uint32((1 << bits) - 1)
    q = q.reshape(*words.shape[:-1], -1, group).astype(np.float32)
    return (from_bf16(scales)[..., None] * q + from_bf16(biases)[..., None]).reshape(*words.shape[:-1], n)


def fake_quantise(w, bits):
    """The same rule in PyTorch: weights rounded to what 4 (or 8) bits can hold."""
    import torch
    top = (1 << bits) - 1
    g = w.reshape(*w.shape[:-1], -1, 64)
    low, high = g.amin(-1, keepdim=True), g.amax(-1, keepdim=True)
    scale = ((high - low) / top).clamp(min=1e-7)
    from_low = low.abs() > high.abs()
    scale = torch.where(from_low, scale, -scale)
    edge = torch.where(from_low, low, high)
    q0 = torch.round(edge / scale)
    scale = torch.where(q0 != 0, edge / torch.where(q0 != 0, q0, torch.ones_like(q0)), scale)
    bias = torch.where(q0 != 0, edge, torch.zeros_like(edge))
    q = torch.round((g - bias) / scale).clamp(0, top)
    return (q * scale.bfloat16().float() + bias.bfloat16().float()).reshape(w.shape)


# ---------------------------------------------------------------------------------------- names and configuration

def hf_name(name):
    """Our state dict's name -> the name in a Hugging Face checkpoint."""
    if name.startswith("model."):
        name = "model.language_model." + name[len("model."):]
    return name.replace(".gate_up_proj.weight", ".gate_up_proj") if ".experts." not in name else name[:-len(".weight")]


def is_norm(name):
    """Norms whose weight is stored around zero by HF, and plus one by MLX."""
    return name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight") or "layernorm" in name or "pre_fc_norm" in name


def config(shape, first_added, mlx):
    """config.json for a shape (see model.Shape); `first_added` is the id of <|endoftext|>."""
    a = first_added
    text = {
        "attention_bias": False, "attention_dropout": 0.0, "attn_output_gate": True, "bos_token_id": a, "dtype": "bfloat16", "eos_token_id": a,
        "full_attention_interval": shape.period, "head_dim": shape.head_dim, "hidden_act": "silu", "hidden_size": shape.hidden, "initializer_range": 0.02,
        "layer_types": ["full_attention" if (i + 1) % shape.period == 0 else "linear_attention" for i in range(shape.layers)],
        "linear_conv_kernel_dim": 4, "linear_key_head_dim": shape.linear_dim, "linear_num_key_heads": shape.key_heads,
        "linear_num_value_heads": shape.value_heads, "linear_value_head_dim": shape.linear_dim, "mamba_ssm_dtype": "float32",
        "max_position_embeddings": 8192, "model_type": "qwen3_5_moe_text", "moe_intermediate_size": shape.width, "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False, "num_attention_heads": shape.heads, "num_experts": shape.experts, "num_experts_per_tok": shape.top,
        "num_hidden_layers": shape.layers, "num_key_value_heads": shape.kv_heads, "output_router_logits": False, "pad_token_id": None,
        "partial_rotary_factor": shape.rotary / shape.head_dim, "rms_norm_eps": shape.eps,
        "rope_parameters": {"mrope_interleaved": True, "mrope_section": [11, 11, 10], "partial_rotary_factor": shape.rotary / shape.head_dim,
                            "rope_theta": int(shape.theta), "rope_type": "default"},
        "router_aux_loss_coef": 0.001, "shared_expert_intermediate_size": shape.shared_width, "tie_word_embeddings": False, "use_cache": True,
        "vocab_size": shape.vocab}
    out = {"architectures": ["Qwen3_5MoeForConditionalGeneration"], "image_token_id": a + 12, "model_type": "qwen3_5_moe",
           "text_config": text, "tie_word_embeddings": False, "video_token_id": a + 13, "vision_end_token_id": a + 10, "vision_start_token_id": a + 9}
    if mlx:
        block = {"group_size": 64, "bits": 4, "mode": "affine"}
        for stem in [f"language_model.model.layers.{i}" for i in range(shape.layers)] + ["mtp.layers.0"]:
            for gate in BITS8:
                block[f"{stem}.{gate}"] = {"group_size": 64, "bits": 8}
        out.update(eos_token_id=[a + 2, a], quantization=block, quantization_config=block)
    return dict(sorted(out.items()))


def write_json(folder, name, value):
    with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
        json.dump(value, f, indent=1, ensure_ascii=False)
        f.write("\n")


# ---------------------------------------------------------------------------------------- the two forms

def write_hf(folder, weights, shape, first_added, shards=1, per_expert=False):
    """weights: {our name: bf16 bits}. The bf16 form; with `per_expert` the experts' tensors are apart."""
    os.makedirs(folder, exist_ok=True)
    tensors = {}
    for name, x in weights.items():
        hf = hf_name(name)
        if per_expert and ".experts." in hf and not hf.startswith("mtp."):
            stem, kind = hf.rsplit(".", 1)
            for e in range(x.shape[0]):
                if kind == "gate_up_proj":
                    half = x.shape[1] // 2
                    tensors[f"{stem}.{e}.gate_proj.weight"] = ("BF16", x[e, :half])
                    tensors[f"{stem}.{e}.up_proj.weight"] = ("BF16", x[e, half:])
                else:
                    tensors[f"{stem}.{e}.down_proj.weight"] = ("BF16", x[e])
        else:
            tensors[hf] = ("BF16", x)
    write_shards(folder, tensors, shards)
    write_json(folder, "config.json", config(shape, first_added, mlx=False))


def write_shards(folder, tensors, shards):
    """model.safetensors (or several) and its index."""
    names, total, where = list(tensors), sum(x.nbytes for _, x in tensors.values()), {}
    at, n = 0, 1
    parts = {}
    for name in names:
        n = min(shards, 1 + at * shards // total)
        file = "model.safetensors" if shards == 1 else f"model-{n:05d}-of-{shards:05d}.safetensors"
        parts.setdefault(file, {})[name] = tensors[name]
        where[name] = file
        at += tensors[name][1].nbytes
    for file, part in parts.items():
        write_safetensors(os.path.join(folder, file), part)
    with open(os.path.join(folder, "model.safetensors.index.json"), "w", encoding="utf-8") as f:
        json.dump({"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))}, f, indent=0)


def mlx_tensors(weights):
    """The tensors of the 4-bit form: (body, MTP head), {name: (dtype, array)}."""
    body, mtp = {}, {}
    for name, x in weights.items():
        out = mtp if name.startswith("mtp.") else body
        full = name if name.startswith("mtp.") else "language_model." + name
        stem = full[:-len(".weight")] if full.endswith(".weight") else full
        if is_norm(name):
            out[full] = ("BF16", to_bf16(1 + from_bf16(x)))
        elif name.endswith("conv1d.weight"):
            out[full] = ("BF16", x.reshape(x.shape[0], 4, 1))
        elif x.ndim < 2:
            out[full] = ("BF16", x)
        else:
            pieces = {stem: x}
            if ".experts." in stem:
                root = stem.replace(".experts.", ".switch_mlp.")
                if root.endswith("gate_up_proj"):
                    half = x.shape[1] // 2
                    pieces = {root.replace("gate_up_proj", "gate_proj"): x[:, :half], root.replace("gate_up_proj", "up_proj"): x[:, half:]}
                else:
                    pieces = {root: x}
            for s, piece in pieces.items():
                words, scales, biases = quantise(from_bf16(piece), 8 if s.endswith(BITS8) else 4)
                out[s + ".weight"], out[s + ".scales"], out[s + ".biases"] = ("U32", words), ("BF16", scales), ("BF16", biases)
    return body, mtp


def write_mlx(folder, weights, shape, first_added, shards=1):
    """The 4-bit form, with the MTP head in a file of its own."""
    os.makedirs(folder, exist_ok=True)
    body, mtp = mlx_tensors(weights)
    write_shards(folder, body, shards)
    if mtp:
        write_safetensors(os.path.join(folder, "mtp.safetensors"), mtp)
    write_json(folder, "config.json", config(shape, first_added, mlx=True))


def read_mlx(folder):
    """{our name: float32} of a 4-bit folder: dequantised, norms around zero again."""
    tensors = {}
    for file in sorted(os.listdir(folder)):
        if file.endswith(".safetensors"):
            tensors.update(read_safetensors(os.path.join(folder, file)))
    flat = {}
    for name, (dtype, x) in tensors.items():
        if name.endswith((".scales", ".biases")):
            continue
        ours = name[len("language_model."):] if name.startswith("language_model.") else name
        if dtype == "U32":
            stem = name[:-len(".weight")]
            flat[ours] = dequantise(x, tensors[stem + ".scales"][1], tensors[stem + ".biases"][1])
        else:
            flat[ours] = from_bf16(x) if dtype == "BF16" else x
            if is_norm(ours):
                flat[ours] = flat[ours] - 1
            if ours.endswith("conv1d.weight"):
                flat[ours] = flat[ours].reshape(-1, 1, 4)
    out = {}
    for name, x in flat.items():
        if ".switch_mlp.gate_proj" in name:
            up = flat[name.replace("gate_proj", "up_proj")]
            out[name.replace("switch_mlp.gate_proj", "experts.gate_up_proj")] = np.concatenate([x, up], 1)
        elif ".switch_mlp.down_proj" in name:
            out[name.replace("switch_mlp", "experts")] = x
        elif ".switch_mlp." not in name:
            out[name] = x
    return out


def load_weights(path):
    """{our name: bf16 bits} of a training checkpoint."""
    import torch
    return {k: v.contiguous().view(torch.int16).numpy().view(np.uint16) for k, v in torch.load(path, map_location="cpu").items()}


def load_torch(folder, device=None):
    """A model.Bud with the weights of a 4-bit folder."""
    import torch
    import model
    net = model.Bud()
    net.load_state_dict({k: torch.from_numpy(np.array(v)) for k, v in read_mlx(folder).items()})
    return net.to(device or ("cuda" if torch.cuda.is_available() else "cpu")).eval()


def main():
    import model
    ap = argparse.ArgumentParser()
    ap.add_argument("--weights", required=True)
    ap.add_argument("--hf")
    ap.add_argument("--mlx")
    ap.add_argument("--first-added", type=int, default=4032, help="id of <|endoftext|>")
    args = ap.parse_args()
    weights, shape = load_weights(args.weights), model.Shape()
    end = args.first_added
    generation = {"bos_token_id": end, "do_sample": True, "eos_token_id": [end + 2, end], "pad_token_id": end, "temperature": 0.6, "top_k": 20, "top_p": 0.95}
    if args.hf:
        write_hf(args.hf, weights, shape, end)
        write_json(args.hf, "generation_config.json", generation)
    if args.mlx:
        write_mlx(args.mlx, weights, shape, end)
        write_json(args.mlx, "generation_config.json", generation)


if __name__ == "__main__":
    main()
