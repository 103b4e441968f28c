#!/usr/bin/env python3
"""Compares `calla render` with the official chat templates, run by Jinja2, on random conversations.

Each conversation is rendered with every template in tests/text/data/templates, under the official and the lenient rules, and
compared byte for byte: the text, the places of the control tokens, and whether there is an error. What is compared with:

  official rules  the official template, with Jinja2 set up as the transformers library does
  lenient rules   the same template after canonical(), a second writing of the rules in src/text/chat_request.h, and with its
                  two complaints about the order of messages replaced by what src/text/chat_template.h promises;
                  and wherever the official template accepts the conversation and no rule of ours touches it, the official text

Needs the Debian package python3-jinja2; without it the check is skipped (exit code 77).

  tests/oracle_jinja/check_template.py --calla build/release/calla [--count 1500] [--seed 1]
"""

import argparse
import copy
import json
import pathlib
import random
import re
import subprocess
import sys

try:
    import jinja2
    import jinja2.sandbox
except ImportError:
    print("SKIPPED: the chat template is not compared with Jinja2: install python3-jinja2")
    sys.exit(77)

DATA = pathlib.Path(__file__).resolve().parent.parent / "text" / "data"
TEMPLATES = ["qwen3.6", "qwen3.5", "qwen3.5-small"]
MARKERS = ["<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>",
           "</tool_response>", "<|vision_start|>", "<|image_pad|>", "<|video_pad|>", "<|vision_end|>"]
MAX_DEPTH = 64


# --- the official side -------------------------------------------------------------------------------------------------

class Refused(Exception):
    """The template, or a rule of ours, does not accept the conversation."""


def environment():
    def raise_exception(message):
        raise Refused(message)

    env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    env.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    env.globals["raise_exception"] = raise_exception
    return env


OPEN, CLOSE = "\ue000", "\ue001"  # never generated


def with_marked_controls(source):
    """Puts OPEN and CLOSE around each marker that the template itself prints (not around those it looks for)."""
    def mark(block):
        return re.sub("|".join(map(re.escape, MARKERS)), lambda m: OPEN + m.group() + CLOSE, block.group())
    return re.sub(r"\{\{-.*?\}\}", mark, source, flags=re.S)


def lenient(source):
    replacements = [
        ("{{- raise_exception('System message must be at the beginning.') }}",
         "{{- '<|im_start|>system\\n' + content + '<|im_end|>\\n' }}"),
        ("{{- raise_exception('No user query found in messages.') }}", "{%- set ns.last_query_index = -1 %}"),
    ]
    for old, new in replacements:
        assert source.count(old) == 1
        source = source.replace(old, new)
    return source


class Official:
    def __init__(self, source):
        env = environment()
        self.plain = env.from_string(source)
        self.marked = env.from_string(with_marked_controls(source))

    def render(self, request):
        """(text, controls as byte ranges), or Refused."""
        context = {k: request[k] for k in ("enable_thinking", "preserve_thinking", "add_vision_id") if k in request}
        context.update({k: v for k, v in (request.get("chat_template_kwargs") or {}).items() if v is not None})
        generate = request.get("add_generation_prompt")
        context.update(messages=request.get("messages"), tools=request.get("tools"),
                       add_generation_prompt=True if generate is None else generate)
        try:
            text = self.plain.render(**context)
            marked = self.marked.render(**context)
        except (Refused, jinja2.TemplateError, TypeError, AttributeError) as e:
            raise Refused(str(e)) from e
        controls, length = [], 0
        for i, piece in enumerate(re.split(f"[{OPEN}{CLOSE}]", marked)):
            if i % 2 == 1:
                controls.append([length, len(piece.encode())])
            length += len(piece.encode())
        assert marked.replace(OPEN, "").replace(CLOSE, "") == text
        return text, controls


# --- our rules, written a second time ----------------------------------------------------------------------------------

def depth(value):
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(depth, value), default=0)
    return 0


def is_media(part):
    return "image" in part or "image_url" in part or "video" in part or part.get("type") in ("image", "video")


def ill_typed(request):
    """Whether a field has a type that we refuse by name, whatever Jinja would make of it."""
    if not isinstance(request, dict) or depth(request) > MAX_DEPTH:
        return True
    none = type(None)
    kwargs = request.get("chat_template_kwargs")
    if not isinstance(kwargs, (dict, none)):
        return True
    for name in ("enable_thinking", "preserve_thinking", "add_vision_id", "add_generation_prompt"):
        inner = (kwargs or {}).get(name)
        if not isinstance(request.get(name) if inner is None else inner, (bool, none)):
            return True
    tools = request.get("tools")
    if not isinstance(tools, (list, none)) or any(not isinstance(t, dict) for t in tools or []):
        return True
    messages = request.get("messages")
    if not isinstance(messages, (list, none)):
        return True
    for m in messages or []:
        if not isinstance(m, dict):
            return True
        content = m.get("content")
        for part in content if isinstance(content, list) else []:
            if not isinstance(part, dict):
                return True
            if not is_media(part) and "text" in part and not isinstance(part["text"], str):
                return True
        if m.get("role") == "assistant" and not isinstance(m.get("tool_calls"), (list, none)):
            return True
    return False


def parse_arguments(text):
    """The object in a string of arguments; {"arguments": text} if there is none."""
    def refuse(*_):
        raise ValueError
    if not text.strip(" \t\r\n"):
        return {}
    try:
        value = json.loads(text, parse_constant=refuse)
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()  # not beyond a double, no half of a surrogate pair
        if depth(value) > MAX_DEPTH:
            raise ValueError
    except ValueError:
        return {"arguments": text}
    if value is None:
        return {}
    return value if isinstance(value, dict) else {"arguments": text}


def canonical(request):
    """The conversation that the lenient rules make of a request."""
    if ill_typed(request):
        raise Refused("ill-typed")
    request = copy.deepcopy(request)
    kwargs = request.setdefault("chat_template_kwargs", {}) or {}
    request["chat_template_kwargs"] = kwargs
    if request.get("reasoning_effort") == "none" and request.get("enable_thinking") is None and \
            kwargs.get("enable_thinking") is None:
        kwargs["enable_thinking"] = False
    request["tools"] = [t for t in request.get("tools") or [] if t.get("type") in (None, "function")]
    messages = []
    for m in request.get("messages") or []:
        if m.get("role") == "developer":
            m["role"] = "system"
        if isinstance(m.get("content"), list):
            m["content"] = list(map(canonical_part, m["content"]))
        if m.get("role") == "system":
            if m.get("content") is not None and not isinstance(m["content"], (str, list)):
                raise Refused("type of content")
            parts = [{"text": m["content"]}] if isinstance(m.get("content"), str) else m.get("content") or []
            if any("text" not in p or is_media(p) for p in parts):
                raise Refused("image in system")
            kept = [p for p in parts if not p["text"].startswith("x-anthropic-")]
            if parts and not kept:
                continue
            m["content"] = "".join(p["text"] for p in kept)
        if m.get("role") == "assistant":
            if not isinstance(m.get("reasoning_content"), str) and isinstance(m.get("reasoning"), str) and m["reasoning"]:
                m["reasoning_content"] = m["reasoning"]
            for call in m.get("tool_calls") or []:
                inner = call.get("function", call) if isinstance(call, dict) else None
                if isinstance(inner, dict) and "arguments" in inner:
                    a = inner["arguments"]
                    if isinstance(a, str):
                        inner["arguments"] = parse_arguments(a)
                    elif a is None:
                        inner["arguments"] = {}
                    elif not isinstance(a, dict):
                        inner["arguments"] = {"arguments": json.dumps(a, ensure_ascii=False)}
        messages.append(m)
    leading = 0
    while leading < len(messages) and messages[leading].get("role") == "system":
        leading += 1
    if leading > 1:
        texts = [m["content"].strip() for m in messages[:leading]]
        messages[:leading] = [{"role": "system", "content": "\n\n".join(t for t in texts if t)}]
    request["messages"] = messages
    return request


def canonical_part(part):
    if is_media(part) or "text" in part:
        return part
    kind = part.get("type")
    if kind in ("image_url", "input_image"):
        return {"type": "image"}
    if kind in ("video_url", "input_video"):
        return {"type": "video"}
    if kind == "refusal" and "refusal" in part:
        if not isinstance(part["refusal"], str):
            raise Refused("type of refusal")
        return {"text": part["refusal"]}
    return part


def touched(request):
    """Whether a lenient rule changes what the official template would print of a request it accepts."""
    if any(t.get("type") not in (None, "function") for t in request.get("tools") or []):
        return True
    if request.get("reasoning_effort") == "none":
        return True
    for m in request.get("messages") or []:
        if m.get("role") == "assistant" and m.get("reasoning") and not isinstance(m.get("reasoning_content"), str):
            return True
        if m.get("role") == "system" and "x-anthropic-" in json.dumps(m):
            return True
    return False


# --- random conversations ----------------------------------------------------------------------------------------------

SPACES = ["\t", "\n", "\n\n", "\v", "\f", "\r", "\r\n", "\x1c", "\x1d", "\x1e", "\x1f", " ", "  ", "\x85", "\xa0", "\u1680", "\u2000",
          "\u2007", "\u200a", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000"]
NOT_SPACES = ["\x00", "\x01", "\x1b", "\x7f", "\x84", "\x86", "\u180e", "\u200b", "\u200d", "\u2060", "\ufeff"]
WORDS = ["a", "Hi", "weather", "Köln", "später", "日本", "🙂", "👩‍👩‍👧", "e\u0301", "<b>", "&amp;", "'", '"', "\\", "\\n", "/", "{{ x }}", "{% if %}",
         "0", "-1", "true", "None", "{", "}", "image", "text", "video", "x-anthropic-", "im_start", "<", ">", "|>", "think>", "</"]


def dumps(value, **style):
    """JSON text in which "@number:1E5" is the number 1E5: numbers that json.dumps would write otherwise."""
    return re.sub(r'"@number:([^"\\]+)"', r"\1", json.dumps(value, **style))


class Generator:
    def __init__(self, seed):
        self.r = random.Random(seed)

    def chance(self, p):
        return self.r.random() < p

    def text(self):
        r = self.r
        pools = [SPACES, WORDS, WORDS, WORDS, MARKERS, NOT_SPACES, ["<think>", "</think>", "</think>", "\n"]]
        pieces = [r.choice(r.choice(pools)) for _ in range(r.choice([0, 1, 1, 2, 3, 5, 8]))]
        if self.chance(0.1):
            pieces = ["<tool_response>", *pieces, "</tool_response>"]
            if self.chance(0.3):
                pieces.insert(self.r.choice([0, len(pieces)]), r.choice(SPACES + WORDS))
        if self.chance(0.1):
            pieces = ["<think>", *pieces, "</think>", r.choice(SPACES), r.choice(WORDS)]
        return "".join(pieces)

    def number(self):
        r = self.r
        return r.choice([
            lambda: r.randint(-10, 10), lambda: r.randint(-2**70, 2**70), lambda: r.choice([2**63 - 1, 2**63, -2**63, -2**63 - 1, 2**64 - 1, 2**64]),
            lambda: r.random(), lambda: r.uniform(-1, 1) * 10.0 ** r.randint(-320, 308),
            lambda: float(r.choice([0.0, -0.0, 1.0, 1e15, 1e16, 1e17, 123456789012345680.0, 9999999999999998.0, 1e-4, 1e-5, 9.999e-5, 1e-7,
                                    5e-324, 2.2250738585072014e-308, 1.7976931348623157e308, 0.1, 1 / 3, 1e22, 1e23, 100.0])),
            lambda: "@number:" + r.choice(["1E5", "1e+2", "1.50", "-0", "-0.0", "0e0", "1E-9", "0.00001", "12345678901234567890123",
                                           "-98765432109876543210", "1.0e16", "2e308", "-1e999", "1" + "0" * 400]),
        ])()

    def value(self, level=0):
        r = self.r
        kind = r.choice(["string", "string", "number", "constant", "array", "object"] if level < 4 else ["string", "number", "constant"])
        if kind == "string":
            return self.text()
        if kind == "number":
            return self.number()
        if kind == "constant":
            return r.choice([True, False, None])
        if kind == "array":
            return [self.value(level + 1) for _ in range(r.randint(0, 3))]
        return self.object(level)

    def object(self, level=0):
        if level == 0 and self.chance(0.01):  # about as deep as is allowed
            value = {}
            for _ in range(self.r.randint(48, 66)):
                value = [value]
            return {"deep": value}
        return {self.r.choice([self.text(), "city", "days", "a", "b"]): self.value(level + 1) for _ in range(self.r.randint(0, 3))}

    def odd(self):
        return self.r.choice([None, True, False, 0, 1, 5, 2.5, "", "abc", "an image", "some text", [], ["x"], ["a text"], {}, {"a": 1}])

    def part(self, wild):
        r = self.r
        if self.chance(0.7):
            return {"type": r.choice(["text", "input_text", "output_text"]), "text": self.text()}
        parts = [{"type": "image_url", "image_url": {"url": "data:"}}, {"type": "image"}, {"image": "x"}, {"type": "video", "video": "x"},
                 {"video": None}, {"text": self.text()}, {"type": "video"}]
        if wild:
            parts += [{"type": "text", "text": self.odd()}, {"type": "audio"}, {"type": "input_image", "file_id": "f"},
                      {"type": "video_url", "video_url": {"url": "x"}}, {"type": "image_url", "text": "t"}, {"type": "refusal", "refusal": self.text()},
                      {"type": "refusal", "refusal": self.odd()}, {"text": "t", "image": 1}, {}, {"type": 5, "text": "x"}, {"type": None}, self.odd()]
        return r.choice(parts)

    def content(self, wild):
        if wild and self.chance(0.05):
            return self.odd()
        kind = self.r.choice(["string", "string", "string", "parts", "null"])
        if kind == "string":
            return self.text()
        return None if kind == "null" else [self.part(wild and self.chance(0.2)) for _ in range(self.r.randint(0, 3))]

    def arguments(self, wild):
        if not wild or self.chance(0.3):
            return self.object()
        if self.chance(0.3):
            return self.odd()
        text = dumps(self.value() if self.chance(0.3) else self.object(), ensure_ascii=self.chance(0.5))
        if self.chance(0.2):
            text = text[: self.r.randint(0, len(text))]
        return text

    def call(self, wild):
        call = {"name": self.r.choice(["get_weather", "f", self.text()])}
        if self.chance(0.85):
            call["arguments"] = self.arguments(wild and self.chance(0.5))
        if wild and self.chance(0.05):
            call = self.r.choice([{}, {"name": None}, {"name": 5}, {"arguments": {}}, self.odd()])
        if self.chance(0.7):
            call = {"id": "1", "type": "function", "function": call}
        return call

    def message(self, role, wild):
        m = {"role": role}
        if role == "system":
            if self.chance(0.95):
                m["content"] = self.text() if self.chance(0.6) else [{"type": "text", "text": self.text()} for _ in range(self.r.randint(0, 2))]
            if wild and self.chance(0.1):
                m["content"] = self.content(wild)
        elif self.chance(0.95):
            m["content"] = self.content(wild)
        if self.chance(0.3 if role == "assistant" else 0.05):
            m["reasoning_content"] = self.odd() if wild and self.chance(0.2) else self.text()
        if wild and self.chance(0.1):
            m["reasoning"] = self.odd() if self.chance(0.2) else self.text()
        if self.chance(0.4 if role == "assistant" else 0.05):
            m["tool_calls"] = self.odd() if wild and self.chance(0.1) else [self.call(wild) for _ in range(self.r.randint(0, 3))]
        if wild and self.chance(0.01):
            return self.odd()
        return dict(self.r.sample(list(m.items()), len(m)))

    def request(self):
        r = self.r
        wild = self.chance(0.5)
        roles = ["system"] if self.chance(0.4) else []
        if wild and self.chance(0.3):
            roles += r.choices(["system", "developer"], k=r.randint(1, 2))
        if self.chance(0.97):
            for _ in range(r.choice([1, 1, 1, 2, 3])):
                roles += ["user"] * r.choice([1, 1, 1, 1, 2])
                for _ in range(r.choice([0, 1, 1, 2])):
                    roles += ["assistant"] + ["tool"] * r.choice([0, 0, 1, 2, 3])
                    if wild and self.chance(0.1):
                        roles.append("system")
        if self.chance(0.05):
            roles.insert(0, "tool")
        if wild and self.chance(0.1):
            r.shuffle(roles)
        if wild and self.chance(0.03) and roles:
            roles[r.randrange(len(roles))] = r.choice(["function", "", "System", None, 5, ["user"]])
        request = {"messages": [self.message(role, wild) for role in roles]}
        if self.chance(0.4):
            request["tools"] = [{"type": "function", "function": self.object()} for _ in range(r.randint(0, 3))]
            if wild and self.chance(0.2):
                request["tools"].append(r.choice([{"type": "web_search"}, {"name": "x"}, {"type": None}, {"type": 5}, self.odd()]))
        if wild and self.chance(0.02):
            request[r.choice(["messages", "tools"])] = self.odd()
        flags = {}
        for name in ("enable_thinking", "preserve_thinking", "add_vision_id"):
            if self.chance(0.4):
                where = flags if self.chance(0.7) else request
                where[name] = self.odd() if wild and self.chance(0.05) else r.choice([True, False])
        if flags or self.chance(0.1):
            request["chat_template_kwargs"] = flags
        if wild and self.chance(0.02):
            request["chat_template_kwargs"] = self.odd()
        if self.chance(0.5):
            request["add_generation_prompt"] = r.choice([True, False])
        if wild and self.chance(0.1):
            request["reasoning_effort"] = r.choice(["none", "high", None, 5])
        return request

    def line(self):
        """One request as JSON text."""
        separators = self.r.choice([(", ", ": "), (",", ":")])
        return dumps(self.request(), ensure_ascii=self.chance(0.5), separators=separators)


# --- the comparison ----------------------------------------------------------------------------------------------------

def ours(calla, template, rules, lines):
    flags = ["--strict"] if rules == "official" else []
    run = subprocess.run([calla, "render", "--template", template, "--jsonl", *flags, "-"], input="\n".join(lines).encode(),
                         stdout=subprocess.PIPE, check=True)
    answers = [json.loads(line) for line in run.stdout.decode().split("\n") if line]
    assert len(answers) == len(lines), f"{len(lines)} requests, {len(answers)} answers"
    return answers


def load(line):
    """The request, unless a number in it is beyond a double, which json.loads accepts and we refuse."""
    def finite(kind):
        def convert(digits):
            if abs(float(digits)) == float("inf"):
                raise Refused("number out of range")
            return kind(digits)
        return convert
    return json.loads(line, parse_int=finite(int), parse_float=finite(float))


def expected(official, patched, rules, request):
    """(text, controls), or Refused."""
    if ill_typed(request):
        raise Refused("ill-typed")
    if rules == "official":
        return official.render(request)
    answer = patched.render(canonical(request))
    if not touched(request):
        try:
            assert official.render(request) == answer, "the lenient rules change a conversation that the official template accepts"
        except Refused:
            pass
    return answer


# For each of the template's own complaints, what our message must speak of.
MEANING = {
    "No messages provided.": r"^messages is empty",
    "No user query found in messages.": r"no user query",
    "System message must be at the beginning.": r"must be at the beginning",
    "System message cannot contain images.": r"cannot contain images",
    "System message cannot contain videos.": r"cannot contain .*videos",
    "Unexpected message role.": r"\.role is",
    "Unexpected item type in content.": r"\.content\[\d+\]\.(type|text|refusal)",
    "Unexpected content type.": r"\.content must be",
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calla", required=True)
    parser.add_argument("--count", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    official = {name: Official((DATA / "templates" / f"{name}.jinja").read_text()) for name in TEMPLATES}
    patched = {name: Official(lenient((DATA / "templates" / f"{name}.jinja").read_text())) for name in TEMPLATES}
    generator = Generator(args.seed)
    lines = [generator.line() for _ in range(args.count)]

    for case in json.loads((DATA / "chat_cases.json").read_text())["cases"]:
        try:
            assert official["qwen3.6"].render(case["input"])[0] == case["text"], case["name"]
        except Refused as e:
            assert str(e) == case["error"], case["name"]
        lines.append(json.dumps(case["input"]))

    rendered = refused = same_meaning = other_meaning = failures = 0
    for template in TEMPLATES:
        for rules in ("official", "lenient"):
            for line, answer in zip(lines, ours(args.calla, template, rules, lines)):
                try:
                    text, controls = expected(official[template], patched[template], rules, load(line))
                    want = {"text": text, "controls": controls}
                    rendered += 1
                except Refused as e:
                    want = {"error": answer.get("error", str(e))}
                    refused += 1
                    if str(e) in MEANING and "error" in answer:
                        if re.search(MEANING[str(e)], answer["error"]):
                            same_meaning += 1
                        else:
                            other_meaning += 1
                if answer != want:
                    failures += 1
                    if failures <= 5:
                        print(f"--- {template}, {rules} rules\nrequest  {line}\nexpected {want}\ngot      {answer}")
    print(f"seed {args.seed}: {len(lines)} conversations x {len(TEMPLATES)} templates x 2 rules: {rendered} rendered, {refused} refused "
          f"({same_meaning} with the template's own complaint, {other_meaning} with another one of several), {failures} failures")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
