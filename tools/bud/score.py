"""Score answers to the held-out questions.

    python3 tools/bud/questions.py > questions.jsonl
    python3 tools/bud/score.py --questions questions.jsonl --calla build/calla --model models/bud
    python3 tools/bud/score.py --questions questions.jsonl --torch models/bud        (needs PyTorch)

Prints the share of right answers by family, with and without thinking, and exits with 1 if a family
is below the bar.  An answer counts only if the model stopped by itself, and if it thought exactly
when it was asked to.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict

COMMAND = "{calla} run --model {model} --request {request} --temperature 0 --json"


def split_thinking(text, thinking):
    """(reasoning, answer, well formed?) of a raw output."""
    if not thinking:
        return "", text.strip(), "</think>" not in text and "<think>" not in text
    if text.startswith("<think>"):
        text = text[len("<think>"):]
    reason, mark, answer = text.partition("</think>")
    return reason.strip(), answer.strip(), bool(mark and reason.strip()) and "think>" not in answer


def parse_calls(text, tools):
    """Tool calls in an output: [(name, arguments)], arguments typed by the tools' schemas."""
    types = {t["function"]["name"]: t["function"]["parameters"]["properties"] for t in tools or []}
    calls = []
    for block in re.findall(r"<tool_call>\n(.*?)</tool_call>", text, re.S):
        m = re.match(r"<function=([^>\n]+)>\n(.*)</function>", block, re.S)
        if not m:
            return None
        args = {}
        for key, value in re.findall(r"<parameter=([^>\n]+)>\n(.*?)\n</parameter>", m.group(2), re.S):
            kind = types.get(m.group(1), {}).get(key, {}).get("type", "string")
            try:
                args[key] = value if kind == "string" else json.loads(value)
            except ValueError:
                args[key] = value
        calls.append((m.group(1), args))
    return calls


def right(question, text, stopped=True):
    """Does this raw output answer the question?"""
    check = question["check"]
    _, answer, formed = split_thinking(text, question["thinking"])
    if not (formed and stopped):
        return False
    calls = parse_calls(answer, question["request"].get("tools"))
    kind = check["type"]
    if kind == "tool":
        return calls == [(check["name"], check["arguments"])]
    if calls or "<tool_call>" in answer:
        return False
    if kind == "contains":
        return all(p.lower() in answer.lower() for p in check["all"])
    if kind == "number":
        numbers = re.findall(r"-?\d+", answer.replace(",", ""))
        return bool(numbers) and int(numbers[-1]) == check["value"]
    if kind == "exact":
        return answer == check["text"]
    if kind == "starts":
        return answer.startswith(check["text"]) and len(answer) > len(check["text"])
    if kind == "ends":
        return answer.endswith(check["text"]) and len(answer) > len(check["text"])
    if kind == "json":
        try:
            return json.loads(answer) == check["value"]
        except ValueError:
            return False
    if kind == "story":
        words = answer.split()
        grams = [tuple(words[i:i + 4]) for i in range(len(words) - 3)]
        return len(words) >= check["words"] and check["about"] in answer and len(set(grams)) >= 0.8 * len(grams) and answer[-1] in ".!?\""
    raise ValueError(kind)


def table(questions, results, bar):
    """Print the scores; returns True if every family reaches the bar."""
    count = defaultdict(lambda: [0, 0])
    form = [0, 0]
    for q, (text, stopped) in zip(questions, results):
        ok = right(q, text, stopped)
        for key in ((q["family"], "all"), (q["family"], q["thinking"]), ("TOTAL", "all"), ("TOTAL", q["thinking"])):
            count[key][0] += ok
            count[key][1] += 1
        form[0] += split_thinking(text, q["thinking"])[2] and stopped
        form[1] += 1
    share = lambda k: f"{100 * count[k][0] / count[k][1]:6.1f}" if count[k][1] else "     -"
    families = list(dict.fromkeys(q["family"] for q in questions))
    print(f"{'family':<14}{'all':>7}{'direct':>8}{'think':>7}{'n':>6}")
    good = True
    for f in families + ["TOTAL"]:
        n = count[f, "all"]
        low = n[0] < bar * n[1]
        good &= not low
        print(f"{f:<14} {share((f, 'all'))}  {share((f, False))} {share((f, True))} {n[1]:>5}{'  below the bar' if low else ''}")
    print(f"thinks exactly when asked, and stops by itself: {100 * form[0] / max(1, form[1]):.1f} %")
    return good


def ask_calla(questions, calla, model):
    """Outputs of the engine, one process a question."""
    out = []
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "request.json")
        for q in questions:
            with open(path, "w", encoding="utf-8") as f:
                json.dump({**q["request"], "max_tokens": 400}, f, ensure_ascii=False)
            run = subprocess.run(COMMAND.format(calla=calla, model=model, request=path).split(), capture_output=True, text=True)
            if run.returncode:
                sys.exit(f"calla failed: {run.stderr.strip()}")
            answer = json.loads(run.stdout)
            out.append((answer["text"], answer["finish_reason"] != "length"))
    return out


def ask_torch(questions, net, tok, limit=256, batch=256):
    """Outputs of the PyTorch model, batched by length."""
    import data
    ids = []
    for q in questions:
        request = q["request"]
        parts = data.prompt(request["messages"], request.get("tools"), q["thinking"])
        ids.append([i for text, _ in parts for i in tok.encode(text)])
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
    out = [None] * len(ids)
    stop = [tok.added["<|im_end|>"], tok.added["<|endoftext|>"]]
    # Long stories would hold up everything else.
    for story in (False, True):
        part = [i for i in order if (questions[i]["family"] == "story") == story]
        for at in range(0, len(part), batch):
            group = part[at:at + batch]
            for i, (o, stopped) in zip(group, net.generate([ids[i] for i in group], 500 if story else limit, stop)):
                out[i] = (tok.decode(o), stopped)
    return out


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--questions", required=True)
    ap.add_argument("--calla", help="path of the engine")
    ap.add_argument("--model", default="models/bud", help="folder for the engine")
    ap.add_argument("--torch", help="folder with an exported checkpoint to score with PyTorch")
    ap.add_argument("--bar", type=float, default=0.93)
    ap.add_argument("--save", help="write the questions with their outputs here, as JSON lines")
    ap.add_argument("--show", type=int, default=0, help="print this many wrong answers")
    args = ap.parse_args()
    with open(args.questions, encoding="utf-8") as f:
        questions = [json.loads(line) for line in f]
    if args.torch:
        import export
        from tokenizer import Tokenizer
        net, tok = export.load_torch(args.torch), Tokenizer(os.path.join(args.torch, "tokenizer.json"))
        results = ask_torch(questions, net, tok)
    else:
        results = ask_calla(questions, args.calla, args.model)
    if args.save:
        with open(args.save, "w", encoding="utf-8") as f:
            for q, (text, stopped) in zip(questions, results):
                f.write(json.dumps({**q, "output": text, "stopped": stopped}, ensure_ascii=False) + "\n")
    good = table(questions, results, args.bar)
    for q, (text, stopped) in zip(questions, results):
        if args.show and not right(q, text, stopped):
            args.show -= 1
            print(json.dumps([q["family"], q["request"]["messages"], text, stopped, q["check"]], ensure_ascii=False))
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
