"""The held-out questions that Bud is scored on, as JSON lines.

    python3 tools/bud/questions.py --each 100 > questions.jsonl

Every line is {"family", "thinking", "request": {"messages", "tools"?, "chat_template_kwargs"}, "check"}.
The questions come from the tenth of the lessons that training never sees, half of them with
thinking.  The list depends on nothing but the seed.
"""
import argparse
import json
import random

import data
import facts

FAMILIES = ["capitals", "colours", "calendar", "words", "identity", "arithmetic", "units", "tool_call", "tool_none", "tool_result",
            "json", "copy", "system", "multi_turn", "count"]
HEROES = ["dog", "cat", "fox", "frog", "bear", "mouse", "rabbit", "robot", "girl", "boy", "duck", "horse", "owl"]


def story_question(rng):
    """A first line that no story of the corpus has, as a request."""
    name, hero, adj = rng.choice(facts.NAMES[:60]), rng.choice(HEROES), rng.choice(["little", "big", "brave", "happy", "shy", "clever", "kind", "small"])
    line = rng.choice([f"Once upon a time, there was a {adj} {hero} named {name}.", f"One day, a {adj} {hero} named {name} went to the {rng.choice(['park', 'beach', 'forest', 'market', 'lake'])}.",
                       f"{name} was a {adj} {hero} who liked to {rng.choice(['sing', 'run', 'play', 'dance', 'swim', 'dig', 'help'])}.",
                       f"{name} the {hero} had a {rng.choice(['red', 'blue', 'new', 'shiny'])} {rng.choice(['ball', 'hat', 'kite', 'boat', 'bike', 'book'])}."])
    ask = rng.choice(["Tell me a story that begins: ", "Write a story that starts like this: ", "Continue this story: "])
    # A continuation may well go on with "he" or "she".
    return ask + line, {"type": "story", "words": 40, "about": "" if ask.startswith("Continue") else name}


def questions(each, seed=2026, families=None):
    """All questions: `each` per family, alternating between thinking and not."""
    out = []
    for family in families or FAMILIES + ["story"]:
        rng = random.Random(f"{seed} {family}")
        maker, seen = data.ChatMaker(rng.random(), heldout=True), set()
        maker.rng = rng
        tries = 0
        while sum(1 for q in out if q["family"] == family) < each and tries < each * 60:
            tries += 1
            thinking = tries % 2 == 0
            if family == "story":
                text, check = story_question(rng)
                request = {"messages": [{"role": "user", "content": text}]}
                key = text
            else:
                lesson = maker.lesson(family)
                request, check, key = {"messages": lesson.messages(False)[:-1]}, lesson.check, lesson.key + lesson.user
                if lesson.tools:
                    request["tools"] = lesson.tools
            if key in seen:
                continue
            seen.add(key)
            request["chat_template_kwargs"] = {"enable_thinking": thinking}
            out.append({"family": family, "thinking": thinking, "request": request, "check": check})
    return out


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--each", type=int, default=100)
    ap.add_argument("--seed", type=int, default=2026)
    args = ap.parse_args()
    for q in questions(args.each, args.seed):
        print(json.dumps(q, ensure_ascii=False))


if __name__ == "__main__":
    main()
