#!/usr/bin/env python3
"""quantizer_study.py BUILD_DIR HF_DIR: what 4-bit quantisation costs, by MLX's rule and by our search, as a Markdown table.

HF_DIR is the bf16 checkpoint (Bud's, by tools/bud/export.py). Everything is computed by the f64 reference, so the
weights alone differ. Two texts: stories as the bf16 model tells them greedily, which it knows, and two pages of
documentation, which it does not.
"""

import json
import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
STORIES = [f"Once upon a time, {start}." for start in (
    "a bird named Tim lost his hat", "two frogs built a boat", "an old bear met a girl", "Mia had a red kite",
    "the moon came to the village", "a kind king had a garden")]


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    program, bf16 = os.path.join(sys.argv[1], "calla"), sys.argv[2]

    def calla(*args, text=None):
        done = subprocess.run([program, *args], input=text, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"calla {' '.join(args)} failed: {done.stderr}")
        return done.stdout

    with tempfile.TemporaryDirectory() as folder:
        path = lambda name: os.path.join(folder, name)
        forms = {"MLX's rule": path("mlx"), "`--search`": path("search")}
        calla("quantize", bf16, forms["MLX's rule"])
        calla("quantize", "--search", bf16, forms["`--search`"])

        stories = "".join(
            start + calla("run", "--model", bf16, "--raw", "--temperature", "0", "--max-tokens", "240", "--quiet", start)
            + "<|endoftext|>" for start in STORIES)
        pages = "".join(open(os.path.join(ROOT, "docs", page), encoding="utf-8").read()[:3000]
                        for page in ("hot-path.md", "add-a-kernel.md"))

        print("| text | weights | perplexity | NLL − bf16's | KL, mean | KL, 99th percentile | same likeliest token | top 8 |")
        print("|---|---|---|---|---|---|---|---|")
        for name, text in (("own stories", stories), ("documentation", pages)):
            ids, reference = path("ids.json"), path("reference.safetensors")
            with open(ids, "w", encoding="utf-8") as file:
                file.write(calla("tokenize", "--special", "--model", bf16, "-", text=text))
            calla("eval", "logits", "--model", bf16, "--device", "reference", "--chunk", "512", "--ids", ids, "--out", reference)
            for form, model in forms.items():
                s = json.loads(calla("eval", "compare", "--model", model, "--device", "reference", "--chunk", "512",
                                     "--reference", reference, "--json"))
                between = lambda key, digits, scale=1: (
                    f"{s[key]['value'] * scale:.{digits}f} [{s[key]['low'] * scale:.{digits}f}, {s[key]['high'] * scale:.{digits}f}]")
                if form == "MLX's rule":
                    print(f"| {name}, {s['positions']:,} positions | bf16 | {s['reference_perplexity']['value']:.3f} | | | | | |")
                print(f"| | {form} | {s['perplexity']['value']:.3f} | {between('nll_difference', 4)} | {between('kl', 4)} | "
                      f"{s['kl_p99']['value']:.3f} | {between('top1', 2, 100)} % | {between('top8', 2, 100)} % |")


if __name__ == "__main__":
    main()
