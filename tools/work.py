#!/usr/bin/env python3
"""work.py BUILD_DIR: fails where Bud takes more than 5 % more instructions than bench/work.tsv records.

Counted by Valgrind's cachegrind, with one thread and the AVX2 kernels, so that the machine does not matter: for more
rows of a prompt, and for a step of decoding. Each count is the difference of two runs that differ in that alone, so starting
and loading cancel. Whoever makes a count worse for a reason writes the new one into the record, with the reason, in the
same commit. Other weights for Bud move the pass by about a percent, since its rows meet other experts.
"""

import argparse
import concurrent.futures
import json
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TOLERANCE = 0.05
# Each is one token: in this order, which does not repeat, the rows of a pass spread over the experts as in a story.
WORDS = "the and a to was he she it of in said that his her they you with on for".split()
STORY = "Once upon a time, a little fox found a red kite."


def words(count):
    return "".join(" " + WORDS[(i * 2654435761 % 2**32) * len(WORDS) >> 32] for i in range(count))


# What is counted: (prompt, its tokens where they must be so many, tokens to generate), the same of the run that is
# taken off, and how many units lie between the two. Passes of more than 64 rows take other routes than shorter ones.
COUNTS = {
    "128 more rows of a pass": ((words(256), 256, 1), (words(128), 128, 1), 1),
    "step of decoding": ((STORY, None, 13), (STORY, None, 1), 12),
}


def instructions(build, run):
    """User instructions of one run of the program."""
    prompt, prompt_tokens, new_tokens = run
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(prompt)
        file.flush()
        command = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null",
                   os.path.join(build, "calla"), "run", "--raw", "--file", file.name, "--temperature", "0",
                   "--max-tokens", str(new_tokens), "--json", "--threads", "1", "--cpu-isa", "avx2", "--context", "2048"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    count = re.search(r"I\s+refs:\s+([\d,]+)", done.stderr)
    if done.returncode != 0 or not count:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    usage = json.loads(done.stdout)["usage"]
    if usage["completion_tokens"] != new_tokens or prompt_tokens not in (None, usage["prompt_tokens"]):
        sys.exit(f"the run was not the one to count: {usage}, wanted {prompt_tokens} and {new_tokens} tokens")
    return int(count.group(1).replace(",", ""))


def measure(build):
    runs = [run for more, less, _ in COUNTS.values() for run in (more, less)]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        counted = list(pool.map(lambda run: instructions(build, run), runs))
    return {name: (counted[2 * i] - counted[2 * i + 1]) // COUNTS[name][2] for i, name in enumerate(COUNTS)}


def read_record(path):
    record = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            if line.startswith("#") or not line.strip():
                continue
            fields = line.rstrip("\n").split("\t")
            if len(fields) != 3 or not fields[1].isdigit() or int(fields[1]) == 0 or not fields[2].strip():
                sys.exit(f"{path}: expected name, instructions and reason, with tabs between: {line!r}")
            record[fields[0]] = int(fields[1])
    return record


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", help="the folder of the program")
    parser.add_argument("--record", default=os.path.join(ROOT, "bench", "work.tsv"))
    parser.add_argument("--measured", help="JSON {name: instructions}: compare these, count nothing")
    args = parser.parse_args()
    record = read_record(args.record)
    measured = json.loads(args.measured) if args.measured else measure(args.build)
    worse = False
    for name in sorted(record.keys() | measured.keys()):
        if name not in record or name not in measured:
            sys.exit(f"{args.record}: {name} is {'measured' if name in measured else 'recorded'} only")
        change = measured[name] / record[name] - 1
        more = measured[name] > record[name] * (1 + TOLERANCE)
        worse = worse or more
        verdict = "MORE WORK" if more else "better: record it" if change < -TOLERANCE else "as recorded"
        print(f"{name}: {measured[name]:,} instructions, {change:+.1%} of {record[name]:,}: {verdict}")
    if worse:
        sys.exit(f"more than {TOLERANCE:.0%} more work than recorded: undo it, or change {args.record} in this commit and say why")


if __name__ == "__main__":
    main()
