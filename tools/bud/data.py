"""What Bud learns: generated lessons in the real chat format, stories, books, and a little general chat.

A *lesson* is one question of a family (capitals, arithmetic, tool calls, ...) with its answer, both
with and without thinking, and a check that a program can apply to an answer.  Every lesson has a
key; the keys whose hash falls into one tenth are held out: training never sees them, and
`questions.py` draws only from them.

    rows = Rows(folder, tokenizer, seed)     # endless packed rows of tokens for training

A token of a row is 16 bits: the id, plus LOSS when the model has to predict it and START when a new
document begins there.
"""
import json
import os
import random
import re
import zlib
from collections import Counter

import numpy as np

import facts
import toolbox

LOSS, START, ID = 0x8000, 0x4000, 0x3FFF

# Share of the lessons by family.
MIX = {"capitals": 5, "colours": 3, "calendar": 7, "words": 5, "identity": 4, "arithmetic": 14, "units": 8, "tool_call": 15, "tool_none": 5,
       "tool_result": 7, "json": 10, "copy": 10, "system": 7, "multi_turn": 7, "count": 5, "smalltalk": 2}

# Share of the documents of a row by source; their lengths differ, so that of the tokens that are
# learnt two fifths are lessons, two fifths stories, and a fifth books.
SOURCES = {"lesson": 0.76, "story": 0.07, "story_chat": 0.11, "book": 0.015, "qa": 0.045}
# The same for later trainings: more stories, among them the model's own best (own.py), if there are any.
SECOND = {"lesson": 0.62, "story": 0.02, "story_chat": 0.16, "book": 0.005, "qa": 0.025, "own": 0.17}


# ---------------------------------------------------------------------------------------- rendering

def tojson(value):
    """JSON as the chat template writes it."""
    return json.dumps(value, ensure_ascii=False)


TOOL_RULES = None


def tool_rules(template=None):
    """The fixed words around the tool list, cut out of the official template file."""
    global TOOL_RULES
    if TOOL_RULES is None:
        path = template or os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../models/bud/chat_template.jinja")
        with open(path, encoding="utf-8") as f:
            text = f.read()
        intro = re.search(r'\{\{- "(# Tools.*?)" \}\}', text).group(1)
        rules = re.search(r"\{\{- '(\\n\\nIf you choose.*?)' \}\}", text).group(1)
        TOOL_RULES = tuple(s.replace("\\n", "\n") for s in (intro, rules))
    return TOOL_RULES


def call_text(calls):
    """Tool calls as the assistant writes them."""
    out = []
    for name, arguments in calls:
        body = "".join(f"<parameter={k}>\n{v if isinstance(v, str) else tojson(v)}\n</parameter>\n" for k, v in arguments.items())
        out.append(f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>")
    return "\n".join(out)


def render(messages, tools=None, thinking=True, preserve=False, prompt_only=False):
    """The chat as [(text, learn?)], equal to what the official template gives for the same messages.

    The last message is the assistant's and is what has to be learnt (with `preserve`, every
    assistant turn is).  `prompt_only` leaves it out and ends with the generation prompt.
    """
    out, rest = [], messages
    system = ""
    if messages[0]["role"] == "system":
        system, rest = messages[0]["content"].strip(), messages[1:]
    if tools:
        intro, rules = tool_rules()
        text = "<|im_start|>system\n" + intro + "".join("\n" + tojson(t) for t in tools) + "\n</tools>" + rules
        out.append((text + ("\n\n" + system if system else "") + "<|im_end|>\n", False))
    elif messages[0]["role"] == "system":
        out.append((f"<|im_start|>system\n{system}<|im_end|>\n", False))
    last_user = max(i for i, m in enumerate(rest) if m["role"] == "user")
    for i, m in enumerate(rest):
        role, content = m["role"], (m.get("content") or "").strip()
        if role == "user":
            out.append((f"<|im_start|>user\n{content}<|im_end|>\n", False))
        elif role == "tool":
            first = rest[i - 1]["role"] != "tool"
            last = i + 1 == len(rest) or rest[i + 1]["role"] != "tool"
            out.append((("<|im_start|>user" if first else "") + f"\n<tool_response>\n{content}\n</tool_response>" + ("<|im_end|>\n" if last else ""), False))
        else:
            final = i + 1 == len(rest)
            if final and prompt_only:
                break
            reason = m.get("reasoning_content", "").strip()
            calls = call_text([(c["function"]["name"], c["function"]["arguments"]) for c in m.get("tool_calls", [])])
            body = content + ("\n\n" if content and calls else "") + calls
            out.append(("<|im_start|>assistant\n", False))
            if preserve or i > last_user:
                if reason:
                    out += [("<think>\n", False), (f"{reason}\n</think>\n\n{body}<|im_end|>", True)]
                else:
                    out += [("<think>\n\n</think>\n\n", False), (body + "<|im_end|>", True)]
            else:
                out.append((body + "<|im_end|>", False))
            out.append(("\n", False))
    if prompt_only:
        out.append(("<|im_start|>assistant\n" + ("<think>\n" if thinking else "<think>\n\n</think>\n\n"), False))
    return out


def prompt(messages, tools, thinking):
    """What the model is given to answer these messages, as render() returns it."""
    return render(messages + [{"role": "assistant", "content": ""}], tools, thinking, prompt_only=True)


# ---------------------------------------------------------------------------------------- lessons

def held_out(key):
    """True for the tenth of the keys that training never sees."""
    return zlib.crc32(key.encode()) % 10 == 0


class Lesson:
    """A question, its answer and its check."""

    def __init__(self, family, user, answer, why, check, key=None, system=None, history=(), tools=None, call=None, tool_turn=()):
        self.family, self.user, self.answer, self.why, self.check = family, user, answer, why, check
        self.key = f"{family}|{key or user}"
        self.system, self.history, self.tools, self.call, self.tool_turn = system, list(history), tools, call, list(tool_turn)

    def messages(self, thinking):
        """The whole chat, the assistant's last turn included."""
        out = [{"role": "system", "content": self.system}] if self.system else []
        out += self.history + [{"role": "user", "content": self.user}] + self.tool_turn
        last = {"role": "assistant", "content": self.answer}
        if thinking:
            last["reasoning_content"] = self.why
        if self.call:
            last["tool_calls"] = [{"type": "function", "function": {"name": self.call.name, "arguments": self.call.arguments}}]
        return out + [last]


def says(*parts, last_number=None):
    """Check: the answer holds these parts (case does not count), or ends with this number."""
    check = {"type": "contains", "all": [str(p) for p in parts]}
    if last_number is not None:
        check = {"type": "number", "value": last_number}
    return check


OPENERS = ["Hello! ", "Hi. ", "Hey Bud, a question. ", "Quick question. ", "Please help me. ", "Good morning. ", "I have a question. "]
CLOSERS = [" Thanks.", " Thank you!", " Please be brief.", " Please.", " Tell me.", " I want to know."]
SYSTEMS = ["You are a helpful assistant.", "You are Bud, a small helpful model.", "Be short and correct.", "You are a friendly assistant. Answer briefly.",
           "Help the user.", "You answer questions.", "You are an assistant that gives correct answers."]


class ChatMaker:
    """Draws lessons. `heldout` turns the split around."""

    def __init__(self, seed, heldout=False):
        self.rng = random.Random(seed)
        self.heldout = heldout
        self.families, self.weights = list(MIX), list(MIX.values())

    # -- drawing

    def lesson(self, family=None):
        """One lesson on the wanted side of the split."""
        while True:
            name = family or self.rng.choices(self.families, self.weights)[0]
            lesson = getattr(self, name)()
            if held_out(lesson.key) == self.heldout:
                return lesson

    def dress(self, text):
        """The same question with a greeting, a thank you, or sloppy typing."""
        r = self.rng.random()
        if r < 0.15:
            return self.rng.choice(OPENERS) + text
        if r < 0.25:
            return text + self.rng.choice(CLOSERS)
        if r < 0.30 and text[-1:] in "?.":
            return text[:-1]
        if r < 0.34:
            return text.lower() if text.isascii() else text
        return text

    def maybe_system(self):
        """A system prompt that changes nothing, one time in four."""
        return self.rng.choice(SYSTEMS) if self.rng.random() < 0.25 else None

    def plain(self, family, questions, answer, why, check, key=None, **fields):
        """A lesson from one of several wordings of a question."""
        q = self.rng.choice(questions)
        fields.setdefault("system", self.maybe_system())
        return Lesson(family, self.dress(q), answer, why, check, key=key or q, **fields)

    def pool(self, family, items):
        """(question, answer, why, check) tuples: draw one."""
        q, answer, why, check = self.rng.choice(items)
        q, system = self.dress(q), self.maybe_system()
        return Lesson(family, q, answer, why, check, key=f"{q}|{system}", system=system)

    # -- families

    def capitals(self):
        land, city = self.rng.choice(list(facts.CAPITALS.items()))
        if self.rng.random() < 0.3:
            qs = ["{c} is the capital of which country?", "Which country has {c} as its capital?", "What country is {c} the capital of?",
                  "Of which country is {c} the capital?", "Which country's capital is {c}?", "Name the country whose capital is {c}.", "{c} is the capital of what country?"]
            return self.plain("capitals", [q.format(c=city) for q in qs], f"{city} is the capital of {land}.", f"{city} is in {land}.", says(land))
        qs = ["What is the capital of {l}?", "Which city is the capital of {l}?", "Name the capital of {l}.", "Tell me the capital of {l}.",
              "What is {l}'s capital?", "What's the capital city of {l}?", "Do you know the capital of {l}?", "Capital of {l}?", "The capital of {l} is which city?",
              "Can you tell me what the capital of {l} is?", "Give me the name of the capital of {l}.", "I forgot the capital of {l}. What is it?"]
        return self.plain("capitals", [q.format(l=land) for q in qs], f"The capital of {land} is {city}.", f"The question is about {land}. Its capital is {city}.", says(city))

    def colours(self):
        if self.rng.random() < 0.25:
            (a, b), c = self.rng.choice(list(facts.MIXES.items()))
            if self.rng.random() < 0.5:
                a, b = b, a
            qs = ["What colour do {a} and {b} make?", "If I mix {a} and {b}, what colour do I get?", "What do you get when you mix {a} with {b}?", "Mix {a} and {b} paint. Which colour is it?",
                  "Which colour comes from {a} and {b}?", "{a} and {b} together make which colour?", "I mixed {a} paint with {b} paint. What colour is it now?"]
            return self.plain("colours", [q.format(a=a, b=b).capitalize() if q[0] == "{" else q.format(a=a, b=b) for q in qs], f"{a.capitalize()} and {b} make {c}.", f"Mixing {a} and {b} gives {c}.", says(c))
        thing, c = self.rng.choice(list(facts.COLOURS.items()))
        qs = ["What colour is {t}?", "Which colour is {t}?", "Tell me the colour of {t}.", "What is the colour of {t}?", "What color is {t}?", "Name the colour of {t}.",
              "Do you know what colour {t} is?", "Which colour does {t} have?", "What colour has {t}?", "A child asks: what colour is {t}?"]
        return self.plain("colours", [q.format(t=thing) for q in qs], f"{thing[0].upper() + thing[1:]} is {c}.", f"Think of {thing}: it is {c}.", says(c))

    def calendar(self):
        r, rng = self.rng.random(), self.rng
        if r < 0.4:
            names, unit = (facts.DAYS, "day") if rng.random() < 0.5 else (facts.MONTHS, "month")
            i, n = rng.randrange(len(names)), rng.choice([-2, -1, -1, 1, 1, 2] + [3] * (unit == "day"))
            x, y = names[i], names[(i + n) % len(names)]
            if n == 1:
                qs = [f"Which {unit} comes after {x}?", f"What {unit} follows {x}?", f"Name the {unit} after {x}.", f"What is the {unit} after {x}?", f"What comes after {x}?", f"Which {unit} is next after {x}?"]
                a, w = f"{y} comes after {x}.", f"After {x} comes {y}."
            elif n == -1:
                qs = [f"Which {unit} comes before {x}?", f"What {unit} is before {x}?", f"Name the {unit} before {x}.", f"What is the {unit} before {x}?", f"What comes before {x}?", f"Which {unit} comes just before {x}?"]
                a, w = f"{y} comes before {x}.", f"Before {x} comes {y}."
            elif n > 1:
                if unit == "day":
                    qs = [f"Today is {x}. Which day is it in {n} days?", f"If today is {x}, what day is it in {n} days?", f"What day is {n} days after {x}?", f"It is {x} now. Which day comes {n} days later?"]
                else:
                    qs = [f"Which month is {n} months after {x}?", f"It is {x}. Which month is it in {n} months?", f"What month comes {n} months after {x}?"]
                steps = [names[(i + k) % len(names)] for k in range(n + 1)]
                a, w = f"{n} {unit}s after {x} is {y}.", "Counting on: " + ", ".join(steps) + "."
            else:
                qs = [f"Which {unit} is {-n} {unit}s before {x}?", f"What {unit} was {-n} {unit}s before {x}?", f"Go back {-n} {unit}s from {x}. Which {unit} is it?"]
                steps = [names[(i - k) % len(names)] for k in range(-n + 1)]
                a, w = f"{-n} {unit}s before {x} is {y}.", "Counting back: " + ", ".join(steps) + "."
            return self.plain("calendar", qs, a, w, says(y))
        if r < 0.6:
            i = rng.randrange(12)
            m, d = facts.MONTHS[i], facts.MONTH_DAYS[i]
            qs = [f"How many days does {m} have?", f"How many days are in {m}?", f"How long is {m}?", f"Number of days in {m}?", f"Tell me how many days {m} has.", f"How many days are there in {m}?"]
            return self.plain("calendar", qs, f"{m} has {d} days.", f"{m} has {d} days.", says(last_number=d))
        if r < 0.8:
            names, unit, of = (facts.DAYS, "day", "week") if rng.random() < 0.4 else (facts.MONTHS, "month", "year")
            i = rng.randrange(len(names))
            o, x = facts.ORDINALS[i], names[i]
            if rng.random() < 0.6:
                qs = [f"What is the {o} {unit} of the {of}?", f"Which {unit} is the {o} of the {of}?", f"Name the {o} {unit} of the {of}.", f"Which is the {o} {unit} in a {of}?", f"Tell me the {o} {unit} of the {of}."]
                return self.plain("calendar", qs, f"The {o} {unit} of the {of} is {x}.", f"Number {i + 1} is {x}.", says(x))
            qs = [f"Which number is {x} among the {unit}s of the {of}?", f"What number {unit} is {x}?", f"Which position does {x} have in the {of}?", f"{x} is which number in the {of}?"]
            return self.plain("calendar", qs, f"{x} is {unit} number {i + 1}.", f"{x} is the {o} {unit}.", says(last_number=i + 1))
        items = [("How many days are in a week?", "A week has 7 days.", 7), ("How many months are in a year?", "A year has 12 months.", 12), ("How many hours are in a day?", "A day has 24 hours.", 24),
                 ("How many days are in a year?", "A year has 365 days.", 365), ("How many seasons are there?", "There are 4 seasons.", 4), ("How many minutes are in an hour?", "An hour has 60 minutes.", 60),
                 ("How many seconds are in a minute?", "A minute has 60 seconds.", 60), ("How many weeks are in a year?", "A year has 52 weeks.", 52), ("How many years are in a century?", "A century has 100 years.", 100),
                 ("How many days are in a leap year?", "A leap year has 366 days.", 366)]
        q, a, n = rng.choice(items)
        forms = [q, q.replace("How many", "Tell me how many"), q.replace("How many", "Do you know how many"), q.replace("are in", "does it take to make").replace("are there", "does a year have"), q.replace("How many", "Say how many")]
        f = rng.choice(forms)
        return self.plain("calendar", [f], a, "This is a fixed number.", says(last_number=n))

    def words(self):
        r, rng = self.rng.random(), self.rng
        if r < 0.35:
            a, b = rng.choice(list(facts.OPPOSITES.items()))
            if rng.random() < 0.5:
                a, b = b, a
            qs = [f"What is the opposite of {a}?", f'What is the opposite of "{a}"?', f"Name the opposite of {a}.", f"Which word is the opposite of {a}?", f"Tell me the opposite of {a}.", f"Give me the opposite of {a}."]
            return self.plain("words", qs, f"The opposite of {a} is {b}.", f"{a.capitalize()} and {b} are opposites.", says(b))
        if r < 0.6:
            a, b = rng.choice(list(facts.PLURALS.items()))
            qs = [f"What is the plural of {a}?", f'What is the plural of "{a}"?', f"Name the plural of {a}.", f"One {a}, two what?", f"Give me the plural of {a}.", f"How do you write more than one {a}?"]
            return self.plain("words", qs, f"The plural of {a} is {b}.", f"One {a}, two {b}.", says(b))
        if r < 0.8:
            a, b = rng.choice(list(facts.ANIMALS.items()))
            qs = [f"What sound does a {a} make?", f"What does a {a} say?", f"Which sound does a {a} make?", f"How does a {a} sound?", f"Tell me the sound of a {a}.", f"What noise does the {a} make?"]
            qs = [q.replace("a owl", "an owl") for q in qs]
            art = "An" if a == "owl" else "A"
            return self.plain("words", qs, f"{art} {a} says {b}.", f"The sound of a {a} is {b}.".replace("a owl", "an owl"), says(b))
        w = rng.choice(facts.PLAIN_NOUNS + facts.PLAIN_ADJECTIVES)
        if rng.random() < 0.5:
            qs = [f"How do you spell {w}?", f'Spell the word "{w}".', f"Spell {w}.", f"Please spell {w} for me.", f"Write {w} letter by letter."]
            return self.plain("words", qs, "-".join(w) + ".", f"The letters of {w}, one after another.", says("-".join(w)))
        qs = [f"What is the first letter of {w}?", f"Which letter does {w} begin with?", f"{w.capitalize()} starts with which letter?", f'Name the first letter of "{w}".']
        return self.plain("words", qs, f"The first letter of {w} is {w[0].upper()}.", f"{w.capitalize()} begins with {w[0].upper()}.", says(f"is {w[0].upper()}."))

    def identity(self):
        who = "I am Bud, the small built-in model of Calla."
        me = "The user asks about me. I am Bud."
        groups = [
            (["Who are you?", "What are you?", "Please introduce yourself.", "Who am I talking to?", "Tell me who you are.", "Say who you are.", "What kind of model are you?", "Can you introduce yourself?",
              "Which model are you?", "Which model is this?", "Are you ChatGPT?", "Are you Qwen?", "Who is this?", "Tell me about yourself.", "Describe yourself.", "What model am I using?"], who, ["Bud", "Calla"]),
            (["What is your name?", "What's your name?", "Tell me your name.", "How are you called?", "Do you have a name?", "What should I call you?", "Your name?", "Could you tell me your name?", "What do people call you?"],
             "My name is Bud.", ["Bud"]),
            (["What is Calla?", "Tell me about Calla.", "What does Calla do?", "Explain what Calla is.", "What is the program Calla?", "Do you know Calla?", "What is Calla for?"], "Calla is a program that runs language models on your own computer.", ["runs language models"]),
            (["Are you a human?", "Are you a person?", "Are you real?", "Are you a robot?", "Are you alive?", "Am I talking to a person?", "Are you human or a machine?"], "No, I am not a person. I am Bud, a small language model.", ["Bud", "model"]),
            (["How big are you?", "How large are you?", "Are you a big model?", "How small are you?", "What is your size?", "Are you a large model?"], "I am very small: about 16 megabytes.", ["16 megabytes"]),
            (["What can you do?", "How can you help me?", "What are you good at?", "What do you know?", "What can I ask you?", "Which things can you do?", "What are you able to do?"],
             "I can tell short stories, do small sums, answer simple questions, write JSON and call tools.", ["stories", "tools"]),
            (["Do you need the internet?", "Do you send my data anywhere?", "Are you online?", "Where do you run?", "Do you run on my computer?", "Is my data safe with you?", "Do you work offline?"], "I run on your own computer and need no internet.", ["your own computer"]),
            (["Are you always right?", "Can I trust your answers?", "Do you make mistakes?", "Can you be wrong?", "Should I believe everything you say?", "How good are your answers?"], "No, I am a very small model and make mistakes.", ["mistakes"]),
        ]
        qs, a, parts = self.rng.choice(groups)
        q, system = self.dress(self.rng.choice(qs)), self.maybe_system()
        return Lesson("identity", q, a, me, says(*parts), key=f"{q}|{system}", system=system)

    def arithmetic(self):
        rng = self.rng
        op = rng.choices("+-*", [3, 3, 4])[0]
        low = 1 if rng.random() < 0.15 else 10
        a, b = rng.randint(low, 99), rng.randint(low, 99)
        if op == "-" and a < b:
            a, b = b, a
        key = f"{a}{op}{b}"
        sign = {"+": ["+", "plus"], "-": ["-", "minus"], "*": ["×", "*", "x", "times"]}[op]
        s = rng.choice(sign)
        qs = [f"What is {a} {s} {b}?", f"{a} {s} {b}", f"{a} {s} {b} =", f"How much is {a} {s} {b}?", f"Calculate {a} {s} {b}.", f"What does {a} {s} {b} make?", f"Work out {a} {s} {b}.", f"Compute {a} {s} {b}.", f"Tell me {a} {s} {b}."]
        n = rng.choice(facts.NAMES)
        thing = rng.choice(["apples", "books", "coins", "shells", "stones", "cards", "stamps", "pears", "eggs"])
        if op == "+":
            qs += [f"What is the sum of {a} and {b}?", f"Add {a} and {b}.", f"{n} has {a} {thing} and gets {b} more. How many {thing} does {n} have now?"]
            answer = f"{a} + {b} = {a + b}."
            why = self.add_steps(a, b)
            value = a + b
        elif op == "-":
            qs += [f"Take {b} away from {a}.", f"Subtract {b} from {a}.", f"{n} has {a} {thing} and gives {b} away. How many {thing} are left?"]
            value = a - b
            answer = f"{a} - {b} = {value}."
            ten, one = b // 10 * 10, b % 10
            why = f"{a} - {ten} = {a - ten}, {a - ten} - {one} = {value}." if ten and one else f"{a} - {b} = {value}."
        else:
            qs += [f"Multiply {a} by {b}.", f"What is the product of {a} and {b}?", f"There are {a} boxes with {b} {thing} each. How many {thing} are there?"]
            value = a * b
            steps = self.times_steps(a, b)
            why = steps
            # Products are written out in the answer too, so that they come out right without thinking.
            answer = f"{steps} So {a} × {b} = {value}."
        return self.plain("arithmetic", qs, answer, why, says(last_number=value), key=key)

    @staticmethod
    def add_steps(a, b):
        """a + b by tens and ones."""
        ta, oa, tb, ob = a // 10 * 10, a % 10, b // 10 * 10, b % 10
        if not (ta and tb):
            return f"{a} + {b} = {a + b}."
        return f"{ta} + {tb} = {ta + tb}, {oa} + {ob} = {oa + ob}, {ta + tb} + {oa + ob} = {a + b}."

    @staticmethod
    def times_steps(a, b):
        """a × b by the digits of both: four small products, then their sum step by step."""
        ta, oa, tb, ob = a // 10 * 10, a % 10, b // 10 * 10, b % 10
        parts = [(x, y) for x in (ta, oa) for y in (tb, ob) if x and y]
        out = [f"{x} × {y} = {x * y}" for x, y in parts]
        total = parts[0][0] * parts[0][1]
        for x, y in parts[1:]:
            out.append(f"{total} + {x * y} = {total + x * y}")
            total += x * y
        return ", ".join(out) + "."

    def units(self):
        rng = self.rng
        small, big, k = rng.choice(facts.UNITS)
        n = rng.randint(1, 30) if k in (10, 100, 1000) else rng.randint(1, 20)
        one = lambda u, m: {"feet": "foot", "inches": "inch", "centuries": "century"}.get(u, u[:-1]) if m == 1 else u
        if rng.random() < 0.6:
            qs = [f"How many {small} are {n} {one(big, n)}?", f"Convert {n} {one(big, n)} to {small}.", f"What is {n} {one(big, n)} in {small}?", f"How many {small} are in {n} {one(big, n)}?", f"{n} {one(big, n)} is how many {small}?",
                  f"Give me {n} {one(big, n)} in {small}.", f"Change {n} {one(big, n)} into {small}.", f"Express {n} {one(big, n)} in {small}.", f"{n} {one(big, n)} in {small}?"]
            v, answer, why = n * k, f"{n} {one(big, n)} = {n * k} {small}.", f"1 {one(big, 1)} = {k} {small}, {n} × {k} = {n * k}."
        else:
            m = n * k
            qs = [f"How many {big} are {m} {small}?", f"Convert {m} {small} to {big}.", f"What is {m} {small} in {big}?", f"{m} {small} is how many {big}?", f"Give me {m} {small} in {big}.", f"Change {m} {small} into {big}.",
                  f"Express {m} {small} in {big}.", f"{m} {small} in {big}?"]
            v, answer, why = n, f"{m} {small} = {n} {one(big, n)}.", f"{k} {small} = 1 {one(big, 1)}, {m} / {k} = {n}."
        return self.plain("units", qs, answer, why, {"type": "contains", "all": [f"= {v} "]})

    def count(self):
        rng = self.rng
        r = rng.random()
        a = rng.randint(0, 60)
        b = a + rng.randint(2, 12)
        if r < 0.4:
            qs = [f"Count from {a} to {b}.", f"Count up from {a} to {b}.", f"Write the numbers from {a} to {b}.", f"List the numbers from {a} to {b}.", f"Say the numbers {a} to {b}."]
            seq = range(a, b + 1)
        elif r < 0.7:
            qs = [f"Count down from {b} to {a}.", f"Count backwards from {b} to {a}.", f"Write the numbers from {b} down to {a}."]
            seq = range(b, a - 1, -1)
        else:
            k = rng.choice([2, 5, 10])
            n = rng.randint(4, 9)
            a = rng.randint(1, 9) * k
            qs = [f"Count by {k} from {a} to {a + k * n}.", f"Count from {a} to {a + k * n} in steps of {k}."]
            seq = range(a, a + k * n + 1, k)
        text = ", ".join(map(str, seq))
        return self.plain("count", qs, text + ".", f"I start at {seq[0]} and stop at {seq[-1]}.", {"type": "exact", "text": text + "."})

    def copy(self):
        rng = self.rng
        r = rng.random()
        if r < 0.3:
            s = toolbox.sentence(rng) if rng.random() < 0.6 else toolbox.phrase(rng, 2, 5)
            qs = [f"Repeat this: {s}", f'Say "{s}".', f"Repeat after me: {s}", f"Write exactly this: {s}", f'Copy this text: {s}', f'Say exactly: {s}']
            return Lesson("copy", rng.choice(qs), s, "I only have to repeat the words.", {"type": "exact", "text": s}, system=self.maybe_system())
        items = rng.sample(rng.choice([facts.FOODS, facts.NOUNS, facts.NAMES, facts.ADJECTIVES]), rng.randint(2, 6))
        lst = ", ".join(items)
        if r < 0.45:
            n = len(items)
            qs = [f"How many words are in this list: {lst}?", f"Count these: {lst}.", f"How many things are these: {lst}?", f"How long is the list {lst}?"]
            why = ", ".join(f"{i + 1} {w}" for i, w in enumerate(items)) + "."
            return self.plain("copy", qs, f"There are {n}.", why, says(last_number=n))
        if r < 0.6:
            which, w = rng.choice([("first", items[0]), ("last", items[-1])])
            qs = [f"What is the {which} word of this list: {lst}?", f"Which is the {which} of these: {lst}?", f"Name the {which} item: {lst}.", f"Tell me the {which} word: {lst}."]
            return self.plain("copy", qs, f"The {which} one is {w}.", f"The list is {lst}. The {which} one is {w}.", says(w))
        if r < 0.75:
            out = ", ".join(reversed(items))
            qs = [f"Reverse this list: {lst}", f"Write this list backwards: {lst}", f"Turn the list around: {lst}", f"Put this list in reverse order: {lst}"]
            return self.plain("copy", qs, out, "I start at the end of the list.", {"type": "exact", "text": out})
        if r < 0.9:
            out = "\n".join("- " + w for w in items)
            qs = [f"Make a bullet list of {lst}.", f"Write these as a list with dashes: {lst}", f"Put each on its own line with a dash: {lst}", f"Turn this into a bullet list: {lst}"]
            return self.plain("copy", qs, out, "One line with a dash for each.", {"type": "exact", "text": out})
        w = rng.choice(facts.PLAIN_NOUNS + facts.PLAIN_ADJECTIVES)
        qs = [f"Write {w} in capital letters.", f"Make {w} upper case.", f'Put "{w}" in capitals.', f"How does {w} look in capital letters?"]
        return self.plain("copy", qs, w.upper(), "I write the word in capitals.", {"type": "exact", "text": w.upper()})

    def record(self):
        """A sentence about something, and its values by key, for the JSON lessons."""
        rng = self.rng
        name, city, n = rng.choice(facts.NAMES), rng.choice(facts.CITIES), rng.randint(2, 99)
        noun, adj = rng.choice(facts.NOUNS), rng.choice(facts.ADJECTIVES)
        pet, job = rng.choice(list(facts.ANIMALS)), rng.choice(["teacher", "baker", "doctor", "farmer", "pilot", "nurse", "painter", "driver", "cook", "writer"])
        return rng.choice([
            (f"{name} is {n} years old and lives in {city}.", {"name": name, "age": n, "city": city}),
            (f"{name} is a {job} from {city} and is {n} years old.", {"name": name, "job": job, "city": city, "age": n}),
            (f"{name} has a {pet} that is {n} years old.", {"owner": name, "animal": pet, "age": n}),
            (f"The {adj} {noun} costs {n} dollars.", {"item": noun, "colour": adj, "price": n} if adj in ("red", "blue", "green", "golden", "silver") else {"item": noun, "kind": adj, "price": n}),
            (f"{name} bought {n} {noun}s in {city}.", {"buyer": name, "count": n, "item": noun + "s", "city": city}),
            (f"The train from {city} leaves at {n % 24:02d}:30 and has {n} seats.", {"city": city, "time": f"{n % 24:02d}:30", "seats": n}),
            (f"The book about the {noun} was written by {name} and has {n * 7} pages.", {"topic": noun, "author": name, "pages": n * 7}),
            (f"{name} works as a {job} and has {n} {noun}s.", {"name": name, "job": job, noun + "s": n}),
            (f"The room is {adj}, it is {n} degrees, and the {noun} is on.", {"room": adj, "degrees": n, "on": noun}),
        ])

    def json(self):
        rng = self.rng
        r = rng.random()
        if r < 0.62:
            text, values = self.record()
            keys = list(values)
            rng.shuffle(keys)
            if rng.random() < 0.5 and len(keys) > 2:
                keys = keys[:rng.randint(2, len(keys))]
            out = {k: values[k] for k in keys}
            lst = ", ".join(keys[:-1]) + " and " + keys[-1] if len(keys) > 1 else keys[0]
            if r < 0.45:
                qs = [f"{text} Answer in JSON with the keys {lst}.", f"Turn this into JSON with the keys {lst}: {text}", f"Give me a JSON object with the keys {lst} for this: {text}",
                      f"Extract {lst} as JSON. {text}", f"Write a JSON object with {lst}. {text}", f"JSON with keys {lst}, please: {text}", f"{text} Reply with JSON only, keys: {', '.join(keys)}."]
                q, system = rng.choice(qs), self.maybe_system()
            else:
                sch = {"type": "object", "properties": {k: {"type": "integer" if isinstance(values[k], int) else "string"} for k in keys}, "required": keys}
                s = rng.choice(["Answer with JSON that follows this schema: ", "Reply only with JSON for this schema: ", "Use this JSON schema for the answer: "]) + tojson(sch)
                q, system = (text, s) if rng.random() < 0.5 else (f"{text}\n{s}", self.maybe_system())
            why = "The keys are " + lst + "."
            return Lesson("json", q, tojson(out), why, {"type": "json", "value": out}, key=text + lst, system=system)
        if r < 0.8:
            items = rng.sample(rng.choice([facts.FOODS, facts.NOUNS, facts.NAMES]), rng.randint(2, 6))
            lst = ", ".join(items)
            qs = [f"Turn this list into a JSON array: {lst}", f"Write {lst} as a JSON array.", f"Make a JSON list of {lst}.", f"Give me a JSON array with {lst}."]
            return Lesson("json", rng.choice(qs), tojson(items), "Each word becomes one string.", {"type": "json", "value": items}, key=lst, system=self.maybe_system())
        if r < 0.9:
            land, city = rng.choice(list(facts.CAPITALS.items()))
            key = rng.choice(["capital", "city", "answer", "result"])
            out = {key: city}
            qs = [f'What is the capital of {land}? Answer in JSON with the key "{key}".', f"What is the capital of {land}? Answer in JSON with the key {key}.", f"Capital of {land} as JSON, key {key}."]
            return Lesson("json", rng.choice(qs), tojson(out), f"The capital of {land} is {city}.", {"type": "json", "value": out}, key=land + key, system=self.maybe_system())
        a, b = rng.randint(1, 60), rng.randint(1, 39)
        key = rng.choice(["sum", "answer", "result", "value"])
        qs = [f"What is {a} + {b}? Answer in JSON with the key {key}.", f'Add {a} and {b} and reply with JSON, key "{key}".']
        return Lesson("json", rng.choice(qs), tojson({key: a + b}), f"{a} + {b} = {a + b}.", {"type": "json", "value": {key: a + b}}, key=f"{a}+{b}{key}", system=self.maybe_system())

    def system(self):
        """The system prompt asks for something that the answer must show."""
        rng = self.rng
        base = self.lesson(rng.choice(["capitals", "colours", "words", "calendar"]))
        r, extra = rng.random(), rng.choice(["Woof!", "Arr!", "Have a nice day.", "Cheers!", "Over.", "Goodbye!", "Yes, captain.", "Good luck!", rng.choice(facts.NOUNS).capitalize() + "!", f"Your {rng.choice(facts.NAMES)}."])
        a = base.answer
        if r < 0.3:
            s = rng.choice(['End every answer with "{x}"', 'Always end with "{x}"', 'Finish each answer with the words "{x}"', 'The last words of your answer are always "{x}"']).format(x=extra)
            out, check = f"{a} {extra}", {"type": "ends", "text": extra}
        elif r < 0.55:
            s = rng.choice(['Begin every answer with "{x}"', 'Always start with "{x}"', 'Start each answer with the words "{x}"', 'The first words of your answer are always "{x}"']).format(x=extra)
            out, check = f"{extra} {a}", {"type": "starts", "text": extra}
        elif r < 0.8:
            s = rng.choice(["Answer in capital letters.", "Write everything in capital letters.", "Use only capital letters.", "ALWAYS SHOUT: use capitals only."])
            out, check = a.upper(), {"type": "exact", "text": a.upper()}
        else:
            name = rng.choice(facts.NAMES)
            s = rng.choice([f"You are {name}, an assistant.", f"Your name is {name}.", f"You are called {name}.", f"Play the part of {name}."])
            q = rng.choice(["What is your name?", "Who are you?", "Tell me your name.", "What should I call you?", "How are you called?", "What's your name?"])
            return Lesson("system", self.dress(q), f"My name is {name}.", f"The system prompt says that I am {name}.", says(name), key=s + q, system=s)
        return Lesson("system", base.user, out, base.why + " The system prompt gives a rule for the form.", check, key=s + base.key, system=s)

    def smalltalk(self):
        return self.pool("smalltalk", [
            ("Hello!", "Hello! How can I help you?", "The user greets me.", says("Hello")), ("Hi", "Hello! How can I help you?", "The user greets me.", says("Hello")),
            ("Hi there!", "Hello! How can I help you?", "The user greets me.", says("Hello")), ("Hey", "Hello! How can I help you?", "The user greets me.", says("Hello")),
            ("Hello Bud!", "Hello! How can I help you?", "The user greets me.", says("Hello")), ("Good evening!", "Hello! How can I help you?", "The user greets me.", says("Hello")),
            ("Thank you!", "You are welcome!", "The user thanks me.", says("welcome")), ("Thanks a lot.", "You are welcome!", "The user thanks me.", says("welcome")),
            ("Thanks!", "You are welcome!", "The user thanks me.", says("welcome")), ("Thank you very much.", "You are welcome!", "The user thanks me.", says("welcome")),
            ("Goodbye!", "Goodbye!", "The user leaves.", says("Goodbye")), ("Bye!", "Goodbye!", "The user leaves.", says("Goodbye")), ("See you tomorrow.", "Goodbye!", "The user leaves.", says("Goodbye")),
            ("How are you?", "I am fine, thank you. How can I help you?", "The user asks how I am.", says("fine")), ("How are you today?", "I am fine, thank you. How can I help you?", "The user asks how I am.", says("fine")),
            ("Are you well?", "I am fine, thank you. How can I help you?", "The user asks how I am.", says("fine")), ("How do you do?", "I am fine, thank you. How can I help you?", "The user asks how I am.", says("fine")),
        ])

    # -- tools

    def tool_call(self):
        rng = self.rng
        call = rng.choice(toolbox.KINDS)(rng)
        tools = toolbox.offer(rng, call, rng.randint(0, 3))
        system = rng.choice(SYSTEMS + ["You are an agent. Use the tools."]) if rng.random() < 0.3 else None
        return Lesson("tool_call", self.dress(call.request) if rng.random() < 0.5 else call.request, "", f"{call.why} The tool for this is {call.name}.",
                      {"type": "tool", "name": call.name, "arguments": call.arguments}, key=call.request, system=system, tools=tools, call=call)

    def tool_none(self):
        rng = self.rng
        base = self.lesson(rng.choice(["capitals", "colours", "words", "identity", "smalltalk", "calendar"]))
        call = rng.choice([toolbox.weather, toolbox.clock, toolbox.note, toolbox.todo, toolbox.timer, toolbox.music, toolbox.light, toolbox.dice, toolbox.stock, toolbox.contact,
                           toolbox.email, toolbox.message, toolbox.distance, toolbox.currency, toolbox.shell, toolbox.write_file])(rng)
        tools = toolbox.offer(rng, call, rng.randint(0, 2))
        tools = [t for t in tools if not any(w in t["function"]["name"] for w in ("search", "find_pages", "web", "define", "dictionary", "lookup_word", "calc", "comp", "eval"))] or [toolbox.schema(call)]
        return Lesson("tool_none", base.user, base.answer, base.why + " No tool is needed.", {**base.check, "no_tool": True}, key=base.key, tools=tools)

    def tool_result(self):
        rng = self.rng
        call = rng.choice(toolbox.KINDS)(rng)
        tools = toolbox.offer(rng, call, rng.randint(0, 3))
        result = call.result if isinstance(call.result, str) else tojson(call.result)
        turn = [{"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": call.name, "arguments": call.arguments}}]},
                {"role": "tool", "content": result}]
        if rng.random() < 0.5:
            turn[0]["reasoning_content"] = f"{call.why} The tool for this is {call.name}."
        return Lesson("tool_result", call.request, call.answer, "The tool has answered. I tell the user.", {"type": "contains", "all": call.must, "no_tool": True},
                      key=call.request, tools=tools, tool_turn=turn)

    # -- several turns

    def multi_turn(self):
        rng = self.rng
        turns = lambda n: [m for _ in range(n) for l in [self.lesson(rng.choice(["capitals", "colours", "calendar", "words", "smalltalk", "identity"]))]
                           for m in ({"role": "user", "content": l.user}, {"role": "assistant", "content": l.answer})]
        r = rng.random()
        if r < 0.5:
            name, city, animal, n = rng.choice(facts.NAMES), rng.choice(facts.CITIES), rng.choice(list(facts.ANIMALS)), rng.randint(10, 99)
            food, colour = rng.choice(facts.FOODS), rng.choice(["red", "blue", "green", "yellow", "purple", "orange", "pink", "black", "white"])
            say, reply, ask, answer, must = rng.choice([
                ([f"My name is {name}.", f"I am {name}.", f"Hello, I am {name}.", f"You can call me {name}."], f"Nice to meet you, {name}.", ["What is my name?", "Who am I?", "Do you remember my name?", "What am I called?", "Say my name."], f"Your name is {name}.", name),
                ([f"I live in {city}.", f"My home is in {city}.", f"I come from {city}."], f"{city} is a nice place.", ["Where do I live?", "Which city do I live in?", "Where is my home?", "What is my city?"], f"You live in {city}.", city),
                ([f"My favourite colour is {colour}.", f"I like {colour} best.", f"The colour I like most is {colour}."], f"{colour.capitalize()} is a nice colour.", ["What is my favourite colour?", "Which colour do I like?", "What colour do I like best?"], f"Your favourite colour is {colour}.", colour),
                ([f"Remember the number {n}.", f"Please remember {n}.", f"The secret number is {n}.", f"Keep the number {n} in mind."], f"I will remember {n}.", ["Which number was it?", "What was the number?", "What number did I tell you?", "Which number did I say?"], f"The number is {n}.", str(n)),
                ([f"A {animal} called {name} lives with me.", f"My {animal} is called {name}.", f"The name of my {animal} is {name}."], f"{name} is a nice name.", [f"What is my {animal} called?", f"What is the name of my {animal}?", f"How is my {animal} called?"], f"Your {animal} is called {name}.", name),
                ([f"I like to eat {food}.", f"My favourite food is {food}.", f"I love {food}."], f"I see, you like {food}.", ["What do I like to eat?", "What is my favourite food?", "Which food do I like?"], f"You like {food}.", food),
            ])
            s, a = rng.choice(say), rng.choice(ask)
            if rng.random() < 0.15:
                hist = turns(rng.randint(0, 1))
                return Lesson("multi_turn", s, reply, "The user tells me something about themselves.", says(must), key=s, history=hist)
            hist = turns(rng.randint(0, 1)) + [{"role": "user", "content": s}, {"role": "assistant", "content": reply}] + turns(rng.randint(0, 3))
            return Lesson("multi_turn", a, answer, f'The user said: "{s}"', says(must), key=s + a, history=hist, system=self.maybe_system())
        if r < 0.75:
            (l1, c1), (l2, c2) = rng.sample(list(facts.CAPITALS.items()), 2)
            hist = turns(rng.randint(0, 1)) + [{"role": "user", "content": rng.choice([f"What is the capital of {l1}?", f"Name the capital of {l1}.", f"Tell me the capital of {l1}."])}, {"role": "assistant", "content": f"The capital of {l1} is {c1}."}]
            q = rng.choice([f"And of {l2}?", f"And {l2}?", f"What about {l2}?", f"And the capital of {l2}?", f"Now {l2}."])
            return Lesson("multi_turn", q, f"The capital of {l2} is {c2}.", f"The user wants the capital again, now of {l2}.", says(c2), key=q + l1, history=hist, system=self.maybe_system())
        base = self.lesson(rng.choice(["capitals", "colours", "calendar", "words", "identity", "units", "arithmetic"]))
        hist = turns(rng.randint(1, 4))
        return Lesson("multi_turn", base.user, base.answer, base.why, base.check, key=base.key, history=hist, system=base.system)

    # -- documents

    def document(self):
        """One training document: [(text, learn?)]."""
        rng, lesson = self.rng, self.lesson()
        thinking = rng.random() < 0.5
        messages = lesson.messages(thinking)
        preserve = False
        if rng.random() < 0.35 and not lesson.tool_turn and lesson.family not in ("system", "multi_turn"):
            # Two or three questions in one chat whose history keeps its thinking: more to learn per prompt.
            preserve = True
            for _ in range(rng.randint(1, 3)):
                more = self.follow_up(lesson)
                turn = more.messages(rng.random() < 0.5)
                messages += [m for m in turn if m["role"] != "system"]
                if more.call and rng.random() < 0.7:
                    result = more.call.result if isinstance(more.call.result, str) else tojson(more.call.result)
                    last = {"role": "assistant", "content": more.call.answer}
                    if "reasoning_content" in turn[-1]:
                        last["reasoning_content"] = "The tool has answered. I tell the user."
                    messages += [{"role": "tool", "content": result}, last]
        return render(messages, lesson.tools, preserve=preserve)

    def follow_up(self, lesson):
        """Another question for the same chat; with tools in the prompt, often one for these tools."""
        rng = self.rng
        if lesson.tools and lesson.call and rng.random() < 0.75:
            for _ in range(40):
                call = getattr(toolbox, lesson.call.kind)(rng)
                call = self.rename(call, lesson)
                if call and not held_out(f"tool_call|{call.request}"):
                    return Lesson("tool_call", call.request, "", f"{call.why} The tool for this is {call.name}.", {}, call=call)
        return self.lesson(rng.choice(["capitals", "colours", "words", "calendar", "smalltalk", "identity"]))

    @staticmethod
    def rename(call, lesson):
        """The call under the names of the lesson's own tool, if the parameters agree in number."""
        own = lesson.call
        required = [k for k, v in own.params.items() if v[2]]
        if len(call.arguments) != len(required) or len(call.params) != len(call.arguments) or [v[0] for v in call.params.values()] != [own.params[k][0] for k in required]:
            return None
        old = list(call.arguments)
        if ("title" in old) != ("title" in required):
            return None
        call.arguments = {new: call.arguments[k] for new, k in zip(required, old)}
        call.name, call.params = own.name, own.params
        return call

    def texts(self):
        """The parts of a document that the tokenizer should learn from."""
        return [t for t, _ in self.document()]


# ---------------------------------------------------------------------------------------- corpus

def read_corpus(folder):
    """Stories, books and chats of the corpus: {"stories": [text], "tiny": n, "books": [text], "qa": [messages]}.

    The first 6,434 stories are TinyStories; every 50th of those is held out.
    """
    out = {"stories": [], "books": [], "qa": [], "held": []}
    with open(os.path.join(folder, "stories.txt"), encoding="utf-8") as f:
        stories = [s.strip() for s in f.read().split("<|endoftext|>")]
    for i, s in enumerate(stories):
        if s:
            out["held" if i < 6434 and i % 50 == 0 else "stories"].append(s)
    for part in ("books.part1.txt", "books.part2.txt"):
        with open(os.path.join(folder, part), encoding="utf-8") as f:
            out["books"] += [b.strip() for b in f.read().split("<|endoftext|>") if b.strip()]
    skip = ("grade-school", "SVAMP", "made by template", "countries_with_capitals", "botprofile", "/ai.yml", "coding.yml", "us_state")
    for part in ("qa.part1.jsonl", "qa.part2.jsonl"):
        with open(os.path.join(folder, part), encoding="utf-8") as f:
            for line in f:
                item = json.loads(line)
                if any(s in item["source"] for s in skip) or len(line) > 3500:
                    continue
                text = line.lower()
                if "capital of" in text or "who are you" in text or "your name" in text:
                    continue
                out["qa"].append([{"role": m["role"], "content": m["content"]} for m in item["messages"]])
    return out


NOT_NAMES = set("""Mom Dad Mommy Daddy Mama Papa Mum Mummy Grandma Grandpa Granny Mister Miss Mrs God Christmas English Earth
Monday Tuesday Wednesday Thursday Friday Saturday Sunday""".split())


def tiny_stories(corpus):
    """The TinyStories of the corpus that are neither very short nor long."""
    return [s for s in corpus["stories"][:6304] if 300 < len(s) < 1800]


def retell(rng, story):
    """The story with other names for its people and animals, so that a name has to be read, not known by heart."""
    words = set(re.findall(r"\b[a-z]+\b", story))
    counts = Counter(re.findall(r"\b[A-Z][a-z]{2,}\b", story))
    inside = re.findall(r"(?<=[a-z,] )[A-Z][a-z]{2,}\b", story)
    names = [n for n in dict.fromkeys(inside) if counts[n] >= 2 and n.lower() not in words and n not in NOT_NAMES]
    new = {}
    for name in names:
        pronoun = re.search(r"\b(he|him|his|she|her)\b", story[story.index(name):], re.I)
        she = bool(pronoun) and pronoun.group().lower() in ("she", "her")
        for _ in range(20):
            other = rng.choice(facts.NAMES)
            fits = (other in facts.SHE) == she or other not in facts.PEOPLE
            if fits and other not in new.values() and other not in counts:
                new[name] = other
                break
    if not new:
        return story
    return re.sub(r"\b(" + "|".join(new) + r")\b", lambda m: new[m.group()], story)


def story_chat(rng, story, thinking):
    """A chat that asks for this story, or for its continuation."""
    first = re.match(r".+?[.!?][\"']?(?=\s)", story, re.S)
    first = first.group() if first else story[:60]
    r = rng.random()
    head = story[:240].lower()
    nouns = [w for w in set(facts.STORY_NOUNS) if f" {w} " in head or f" {w}." in head]
    if r < 0.45 or (r >= 0.75 and not nouns) or len(first) > 200:
        q = rng.choice(["Tell me a story that begins: {f}", "Write a story that starts like this: {f}", "Tell me a story that starts with: {f}", "Please tell me a story. It begins: {f}", "Write a short story beginning with: {f}"]).format(f=first)
        answer, why = story, "The story begins with the given words."
    elif r < 0.75:
        q = rng.choice(["Continue: {f}", "Continue this story: {f}", "Go on with this story: {f}", "How does this story go on? {f}", "Finish this story: {f}"]).format(f=first)
        answer, why = story[len(first):].strip(), "I go on where the text ends."
    else:
        n = rng.choice(sorted(nouns))
        art = "an" if n[0] in "aeio" else "a"
        q = rng.choice([f"Tell me a story about {art} {n}.", f"Write a short story about {art} {n}.", f"Can you tell me a story with {art} {n}?", f"I would like a story about {art} {n}."])
        answer, why = story, f"The story is about {art} {n}."
    last = {"role": "assistant", "content": answer}
    if thinking:
        last["reasoning_content"] = why
    return render([{"role": "user", "content": q}, last])


def qa_chat(messages, rng):
    """A chat of the corpus, cut after one of the assistant's turns."""
    ends = [i for i, m in enumerate(messages) if m["role"] == "assistant" and i and m["content"].strip()]
    if not ends or messages[0]["role"] != "user":
        return None
    messages = [dict(m) for m in messages[:rng.choice(ends) + 1]]
    if rng.random() < 0.3:
        messages[-1]["reasoning_content"] = "I answer as well as I can."
    return render(messages, preserve=True) if len(messages) > 2 and rng.random() < 0.6 else render(messages)


class Rows:
    """Endless rows of `length` tokens (uint16, see the top of the file) for training.

    own: pairs (prompt, answer) of the model's own stories, for a later training; None in the first.
    """

    def __init__(self, corpus, tokenizer, seed, length=1024, own=None):
        self.corpus, self.tok, self.rng, self.length = corpus, tokenizer, random.Random(seed), length
        self.chats = ChatMaker(seed * 7919 + 13)
        self.own = own
        shares = SOURCES if own is None else SECOND
        self.kinds, self.weights = list(shares), list(shares.values())
        self.tiny = tiny_stories(corpus)
        self.end = self.tok.added["<|endoftext|>"]

    def pack(self, parts):
        """Tokens of [(text, learn?)] with their flag bits."""
        out = []
        for text, learn in parts:
            ids = self.tok.text_cache(text) if len(text) < 60 or not learn and len(text) > 1500 else self.tok.encode(text)
            out.append(np.array(ids, np.uint16) | (LOSS if learn else 0))
        row = np.concatenate(out)
        row[0] |= START
        return row

    def tell(self, stories):
        """One of the stories, mostly with other names."""
        story = self.rng.choice(stories)
        return retell(self.rng, story) if self.rng.random() < 0.8 else story

    def document(self):
        """One document of a random source."""
        kind = self.rng.choices(self.kinds, self.weights)[0]
        if kind == "lesson":
            return self.pack(self.chats.document())
        if kind == "story_chat" or kind == "own" and not self.own:
            return self.pack(story_chat(self.rng, self.tell(self.tiny), self.rng.random() < 0.5))
        if kind == "own":
            prompt, answer = self.rng.choice(self.own)
            return self.pack([(prompt, False), (answer + "<|im_end|>", True)])
        if kind == "qa":
            parts = qa_chat(self.rng.choice(self.corpus["qa"]), self.rng)
            return self.pack(parts) if parts else self.document()
        if kind == "story":
            text = self.tell(self.corpus["stories"])
        else:
            book = self.rng.choice(self.corpus["books"])
            text = book[self.rng.randrange(max(1, len(book) - 5000)):][:5000]
            text = text[text.find("\n") + 1:] or text
        if len(text) > 8000:
            at = self.rng.randrange(len(text) - 6000)
            text = text[at:at + 8000]
        row = self.pack([(text, True)])
        return np.append(row, np.uint16(self.end | LOSS))

    def __iter__(self):
        """Fill rows; a document that does not fit is cut and goes on in no other row."""
        while True:
            row, n = [], 0
            while n < self.length:
                doc = self.document()[:self.length - n]
                row.append(doc)
                n += len(doc)
            yield np.concatenate(row)
