"""Tools for the tool-calling lessons.

A kind of tool (weather, notes, ...) comes under several names and with several names for its
parameters, so that Bud has to read the definitions in the prompt.  For each kind there are requests
with the arguments that they imply, and results with the answer that they lead to.

Every `kind(rng)` returns a `Call`: the tool's name, description, parameters, the request of the
user, the arguments, a result of the tool, the final answer and the parts that the answer must hold.
"""
from dataclasses import dataclass, field

from facts import (CITIES, COMPANIES, CURRENCIES, FOODS, LANGUAGES, NAMES, NOUNS, ADJECTIVES, ROOMS, TOPICS, DAYS)


@dataclass
class Call:
    kind: str
    name: str
    description: str
    params: dict          # name -> (type, description, required)
    request: str
    arguments: dict
    result: object        # a dict (sent as JSON) or a text
    answer: str
    must: list = field(default_factory=list)
    why: str = ""


def schema(call):
    """The tool in the form that chat APIs use."""
    props = {k: {"type": t, "description": d} for k, (t, d, _) in call.params.items()}
    need = [k for k, (_, _, r) in call.params.items() if r]
    return {"type": "function", "function": {"name": call.name, "description": call.description,
            "parameters": {"type": "object", "properties": props, "required": need}}}


def filename(rng):
    """A made-up file name, now and then with a folder."""
    stem = rng.choice([rng.choice(NOUNS), f"{rng.choice(ADJECTIVES)}_{rng.choice(NOUNS)}", f"{rng.choice(NOUNS)}{rng.randint(1, 99)}",
                       f"{rng.choice(NOUNS)}-{rng.randint(2001, 2030)}", rng.choice(NAMES).lower() + "_" + rng.choice(NOUNS)])
    name = stem + rng.choice([".txt", ".md", ".csv", ".json", ".py", ".log", ".cpp", ".html", ".toml"])
    return rng.choice(["", "", "", rng.choice(["src/", "docs/", "data/", "notes/", "tests/", "/tmp/", "home/"])]) + name


def phrase(rng, low=2, high=4):
    """A few words without meaning, to be copied."""
    return " ".join([rng.choice(ADJECTIVES)] * (rng.random() < 0.7) + [rng.choice(NOUNS) for _ in range(rng.randint(low, high) - 1)])


def sentence(rng):
    """A short plain sentence, to be copied."""
    return rng.choice([
        lambda: f"{rng.choice(NAMES)} has a {rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}",
        lambda: f"The {rng.choice(NOUNS)} is {rng.choice(ADJECTIVES)}",
        lambda: f"I will be late on {rng.choice(DAYS)}",
        lambda: f"Buy {rng.choice(FOODS)} and {rng.choice(FOODS)}",
        lambda: f"Meet {rng.choice(NAMES)} at the {rng.choice(NOUNS)}",
        lambda: f"The {rng.choice(ADJECTIVES)} {rng.choice(NOUNS)} is near the {rng.choice(NOUNS)}",
        lambda: f"Call {rng.choice(NAMES)} at {rng.randint(1, 12)} o'clock",
        lambda: f"The code is {rng.randint(100, 9999)}",
    ])()


def _pick(rng, names, descriptions):
    return rng.choice(names), rng.choice(descriptions)


def weather(rng):
    name, desc = _pick(rng, ["get_weather", "weather", "current_weather", "check_weather", "weather_lookup", "get_current_weather"],
                       ["Get the weather for a city.", "Returns the current weather in a place.", "Look up the weather report of a city."])
    p = rng.choice(["city", "location", "place"])
    city = rng.choice(CITIES)
    params, args = {p: ("string", rng.choice(["The city.", "Name of the city.", "Where to look, e.g. a city."]), True)}, {p: city}
    unit = ""
    if rng.random() < 0.4:
        params["unit"] = ("string", "celsius or fahrenheit", False)
        if rng.random() < 0.5:
            u = rng.choice(["celsius", "fahrenheit"])
            args["unit"] = u
            unit = f" in {u}" if rng.random() < 0.7 else f", in {u} please"
    request = rng.choice(["What is the weather in {c}{u}?", "What's the weather like in {c}{u}?", "How is the weather in {c} today{u}?",
                          "Tell me the weather in {c}{u}.", "Check the weather for {c}{u}.", "Weather in {c}{u}?",
                          "I am going to {c}. What is the weather there{u}?", "Do I need a coat in {c}{u}?", "Is it raining in {c}{u}?",
                          "How warm is it in {c}{u}?"]).format(c=city, u=unit)
    t, sky = rng.randint(-9, 38), rng.choice(["sunny", "cloudy", "rainy", "windy", "foggy", "snowy", "clear", "stormy"])
    result = rng.choice([{"temperature": t, "condition": sky}, {"city": city, "temp": t, "sky": sky}, {"condition": sky, "temperature": t},
                         f"{sky}, {t} degrees", f"{city}: {t} degrees and {sky}"])
    return Call("weather", name, desc, params, request, args, result, f"It is {t} degrees and {sky} in {city}.", [str(t), sky],
                f"The user wants the weather in {city}.")


def clock(rng):
    name, desc = _pick(rng, ["get_time", "current_time", "get_current_time", "clock", "time_in_city"],
                       ["Get the current time in a city.", "Tells the local time of a place.", "Returns what time it is somewhere."])
    p = rng.choice(["city", "location", "place"])
    city = rng.choice(CITIES)
    request = rng.choice(["What time is it in {c}?", "What's the time in {c} now?", "Tell me the time in {c}.", "Current time in {c}?",
                          "How late is it in {c}?", "I want to call a friend in {c}. What time is it there?"]).format(c=city)
    t = f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}"
    result = rng.choice([{"time": t}, {"city": city, "time": t}, t, {"local_time": t}])
    return Call("clock", name, desc, {p: ("string", rng.choice(["The city.", "Name of the place."]), True)}, request, {p: city},
                result, f"It is {t} in {city}.", [t], f"The user wants the time in {city}.")


def calculator(rng):
    name, desc = _pick(rng, ["calculator", "calculate", "compute", "evaluate", "calc"],
                       ["Evaluate an arithmetic expression.", "Works out a sum.", "Calculates the value of an expression such as 2 + 3."])
    p = rng.choice(["expression", "formula", "input"])
    a, b = rng.randint(100, 9999), rng.randint(100, 999)
    op, words, value = rng.choice([("+", ["plus", "and", "+"], a + b), ("-", ["minus", "-"], a - b), ("*", ["times", "multiplied by", "*"], a * b)])
    word = rng.choice(words)
    if word == "and":
        request = rng.choice(["What is the sum of {a} and {b}?", "Add {a} and {b}."]).format(a=a, b=b)
    else:
        request = rng.choice(["What is {a} {w} {b}?", "Calculate {a} {w} {b}.", "How much is {a} {w} {b}?", "Work out {a} {w} {b} for me.",
                              "I need {a} {w} {b}."]).format(a=a, w=word, b=b)
    return Call("calculator", name, desc, {p: ("string", rng.choice(["The expression.", "What to work out."]), True)}, request,
                {p: f"{a} {op} {b}"}, rng.choice([{"result": value}, str(value), {"value": value}]), f"{a} {op} {b} = {value}.", [str(value)],
                f"The user wants {a} {op} {b}.")


def currency(rng):
    name, desc = _pick(rng, ["convert_currency", "currency_converter", "exchange"], ["Convert money from one currency to another.", "Exchange an amount of money."])
    f, t = rng.choice([("from", "to"), ("from_currency", "to_currency"), ("source", "target")])
    (fw, fc), (tw, tc) = rng.sample(list(CURRENCIES.items()), 2)
    n = rng.choice([rng.randint(2, 99), rng.randint(1, 40) * 50])
    request = rng.choice(["How much is {n} {a} in {b}?", "Convert {n} {a} to {b}.", "What are {n} {a} in {b}?", "Change {n} {a} into {b}, please.",
                          "I have {n} {a}. How many {b} is that?"]).format(n=n, a=fw, b=tw)
    v = rng.randint(2, 9000)
    return Call("currency", name, desc, {"amount": ("number", "How much money.", True), f: ("string", "Code of the currency, e.g. USD.", True),
                t: ("string", "Code of the wanted currency.", True)}, request, {"amount": n, f: fc, t: tc},
                rng.choice([{"amount": v, "currency": tc}, {"result": v}, f"{v} {tc}"]), f"{n} {fw} are {v} {tw}.", [str(v)],
                f"The user wants to change {n} {fw} into {tw}.")


def search(rng):
    name, desc = _pick(rng, ["search_web", "web_search", "search", "search_internet", "find_pages"],
                       ["Search the web.", "Looks up pages on the internet.", "Find information on the web."])
    p = rng.choice(["query", "q", "text"])
    q = rng.choice([lambda: rng.choice(TOPICS) + " in " + rng.choice(CITIES), lambda: phrase(rng, 2, 3), lambda: "history of " + rng.choice(TOPICS),
                    lambda: "best " + rng.choice(NOUNS) + " shop in " + rng.choice(CITIES), lambda: "how to draw a " + rng.choice(NOUNS)])()
    request = rng.choice(["Search the web for {q}.", "Look up {q} on the internet.", "Find pages about {q}.", "Search for {q}.", "Can you look up {q}?",
                          "Do a web search for {q}."]).format(q=q)
    title = phrase(rng, 2, 3).capitalize()
    return Call("search", name, desc, {p: ("string", rng.choice(["What to search for.", "The search text."]), True)}, request, {p: q},
                rng.choice([{"title": title}, {"results": [{"title": title}]}, f"1. {title}"]), f"I found a page: {title}.", [title],
                f"The user wants a search for {q}.")


def read_file(rng):
    name, desc = _pick(rng, ["read_file", "open_file", "read", "cat_file", "load_file"], ["Read a file.", "Returns the contents of a file.", "Reads a text file from disk."])
    p = rng.choice(["path", "file", "filename", "file_path"])
    f = filename(rng)
    request = rng.choice(["What is in {f}?", "Read {f}.", "Show me the file {f}.", "Open {f} and tell me what it says.", "What does {f} say?",
                          "Please read the file {f}.", "Print the contents of {f}."]).format(f=f)
    s = sentence(rng)
    return Call("read_file", name, desc, {p: ("string", rng.choice(["Path of the file.", "The file to read."]), True)}, request, {p: f},
                rng.choice([s + ".", {"content": s + "."}]), f"The file says: {s}.", [s], f"The user wants to see the file {f}.")


def write_file(rng):
    name, desc = _pick(rng, ["write_file", "save_file", "write", "create_file"], ["Write text to a file.", "Saves a text in a file.", "Create a file with the given contents."])
    p, c = rng.choice(["path", "file", "filename", "file_path"]), rng.choice(["content", "text", "contents"])
    f, s = filename(rng), sentence(rng)
    request = rng.choice(['Write "{s}" to {f}.', 'Save the text "{s}" in {f}.', 'Create a file {f} that says "{s}".', 'Put "{s}" into the file {f}.',
                          'Make {f} with the text "{s}".']).format(s=s, f=f)
    return Call("write_file", name, desc, {p: ("string", "Path of the file.", True), c: ("string", "The text to write.", True)}, request, {p: f, c: s},
                rng.choice(["ok", {"status": "ok"}, "saved"]), f"I saved the text in {f}.", [f], f"The user wants a text saved in {f}.")


def list_files(rng):
    name, desc = _pick(rng, ["list_files", "list_dir", "ls", "list_directory"], ["List the files of a folder.", "Shows what is in a directory.", "Lists a folder."])
    p = rng.choice(["path", "directory", "folder", "dir"])
    d = rng.choice(["src", "docs", "data", "tests", "/tmp", "notes", "photos", "music", "letters", rng.choice(NOUNS), rng.choice(NOUNS) + "s"])
    request = rng.choice(["Which files are in {d}?", "List the files in {d}.", "What is in the folder {d}?", "Show me the directory {d}.",
                          "List {d}.", "What files does the folder {d} hold?"]).format(d=d)
    a, b = filename(rng).split("/")[-1], filename(rng).split("/")[-1]
    return Call("list_files", name, desc, {p: ("string", "The folder.", True)}, request, {p: d},
                rng.choice([f"{a}\n{b}", {"files": [a, b]}]), f"The folder {d} holds {a} and {b}.", [a, b], f"The user wants the files of {d}.")


def shell(rng):
    name, desc = _pick(rng, ["bash", "run_command", "shell", "execute", "terminal"], ["Run a shell command.", "Executes a command in a terminal.", "Runs a bash command and returns its output."])
    p = rng.choice(["command", "cmd"])
    f, d, n = filename(rng), rng.choice(NOUNS), rng.randint(2, 20)
    request, cmd = rng.choice([
        (f"Run ls -l {d}.", f"ls -l {d}"), (f"Make a directory called {d}.", f"mkdir {d}"), (f"Delete the file {f}.", f"rm {f}"),
        (f"How many lines does {f} have?", f"wc -l {f}"), (f"Show the first {n} lines of {f}.", f"head -n {n} {f}"),
        (f"Show the last {n} lines of {f}.", f"tail -n {n} {f}"), (f"Find the word {d} in {f}.", f"grep {d} {f}"),
        ("Which folder are we in?", "pwd"), ("Run the tests with make.", "make test"), (f"Execute the command echo {d}.", f"echo {d}"),
        (f"Run the Python program {d}.py.", f"python3 {d}.py")])
    out = rng.choice([phrase(rng), str(n), sentence(rng)])
    return Call("shell", name, desc, {p: ("string", "The command.", True)}, request, {p: cmd}, out, f"The command printed: {out}", [out],
                f"The command for this is {cmd}.")


def note(rng):
    name, desc = _pick(rng, ["add_note", "create_note", "save_note", "take_note"], ["Save a note.", "Adds a note to the notebook.", "Keeps a note for later."])
    c = rng.choice(["text", "content", "body", "note"])
    s = sentence(rng)
    params, args = {c: ("string", "What the note says.", True)}, {c: s}
    title = ""
    if rng.random() < 0.4:
        t = phrase(rng, 1, 2)
        params, args = {"title": ("string", "Title of the note.", True), **params}, {"title": t, **args}
        title = f' with the title "{t}"'
    request = rng.choice(['Make a note{t}: {s}.', 'Save this note{t}: {s}.', 'Please write a note{t} that says: {s}.', 'Add a note{t}: {s}.',
                          'Note this down{t}: {s}.']).format(t=title, s=s)
    return Call("note", name, desc, params, request, args, rng.choice(["saved", {"status": "saved"}, {"ok": True}]), "I saved the note.", ["saved"],
                "The user wants a note.")


def todo(rng):
    name, desc = _pick(rng, ["add_todo", "add_task", "create_task", "add_to_list"], ["Add an item to the to-do list.", "Puts a task on the list.", "Creates a task."])
    c = rng.choice(["item", "task", "title"])
    s = rng.choice([lambda: "buy " + rng.choice(FOODS), lambda: "clean the " + rng.choice(ROOMS), lambda: "call " + rng.choice(NAMES),
                    lambda: "paint the " + rng.choice(NOUNS), lambda: "repair the " + rng.choice(ADJECTIVES) + " " + rng.choice(NOUNS)])()
    request = rng.choice(["Put {s} on my to-do list.", "Add {s} to my tasks.", "Add the task {s}.", "I have to {s}. Put it on my list.", "New task: {s}."]).format(s=s)
    return Call("todo", name, desc, {c: ("string", "What has to be done.", True)}, request, {c: s}, rng.choice(["added", {"status": "added"}]),
                f"I put it on your list: {s}.", [s], f"The user wants a task: {s}.")


def timer(rng):
    name, desc = _pick(rng, ["set_timer", "start_timer", "timer"], ["Start a timer.", "Sets a timer that rings after some minutes.", "Starts a countdown."])
    p = rng.choice(["minutes", "duration_minutes", "length"])
    n = rng.randint(1, 90)
    request = rng.choice(["Set a timer for {n} minutes.", "Start a timer of {n} minutes.", "Wake me in {n} minutes.", "Timer, {n} minutes.",
                          "Remind me in {n} minutes.", "Count down {n} minutes."]).format(n=n)
    return Call("timer", name, desc, {p: ("integer", "How many minutes.", True)}, request, {p: n}, rng.choice(["ok", {"status": "started"}]),
                f"The timer is set for {n} minutes.", [str(n)], f"The user wants a timer of {n} minutes.")


def alarm(rng):
    name, desc = _pick(rng, ["set_alarm", "create_alarm", "alarm"], ["Set an alarm.", "Sets an alarm for a time of day."])
    p = rng.choice(["time", "at"])
    t = f"{rng.randint(4, 11):02d}:{rng.choice(['00', '10', '15', '20', '30', '40', '45', '50'])}"
    request = rng.choice(["Set an alarm for {t}.", "Wake me at {t}.", "I have to get up at {t}. Set an alarm.", "Alarm at {t}, please."]).format(t=t)
    return Call("alarm", name, desc, {p: ("string", "Time of day, HH:MM.", True)}, request, {p: t}, rng.choice(["ok", {"status": "set"}]),
                f"The alarm is set for {t}.", [t], f"The user wants an alarm at {t}.")


def message(rng):
    name, desc = _pick(rng, ["send_message", "send_text", "message", "send_sms"], ["Send a message to a person.", "Sends a short text to someone."])
    to, c = rng.choice(["to", "recipient", "name", "contact"]), rng.choice(["text", "message", "body"])
    who, s = rng.choice(NAMES), sentence(rng)
    request = rng.choice(['Send {w} a message: {s}.', 'Tell {w} this: {s}.', 'Write to {w}: {s}.', 'Text {w}: {s}.', 'Send the message "{s}" to {w}.']).format(w=who, s=s)
    return Call("message", name, desc, {to: ("string", "Who gets it.", True), c: ("string", "What to say.", True)}, request, {to: who, c: s},
                rng.choice(["sent", {"status": "sent"}]), f"I sent the message to {who}.", [who], f"The user wants to write to {who}.")


def email(rng):
    name, desc = _pick(rng, ["send_email", "email", "write_email", "send_mail"], ["Send an e-mail.", "Writes and sends an e-mail."])
    to, c = rng.choice(["to", "recipient", "address"]), rng.choice(["body", "text", "content"])
    who = rng.choice(NAMES).lower() + "@" + rng.choice(NOUNS) + rng.choice([".com", ".org", ".net"])
    sub, s = phrase(rng, 1, 3), sentence(rng)
    request = rng.choice(['Send an e-mail to {w} with the subject "{u}" and the text "{s}".', 'E-mail {w}, subject "{u}": {s}.',
                          'Write to {w}. Subject: {u}. Text: {s}.']).format(w=who, u=sub, s=s)
    return Call("email", name, desc, {to: ("string", "Address.", True), "subject": ("string", "Subject line.", True), c: ("string", "The text.", True)},
                request, {to: who, "subject": sub, c: s}, rng.choice(["sent", {"status": "sent"}]), f"I sent the e-mail to {who}.", [who],
                f"The user wants an e-mail to {who}.")


def event(rng):
    name, desc = _pick(rng, ["add_event", "create_event", "calendar_add", "schedule"], ["Add an event to the calendar.", "Puts a date into the calendar."])
    c, d = rng.choice(["title", "name", "event"]), rng.choice(["day", "date"])
    t, day = rng.choice([lambda: "lunch with " + rng.choice(NAMES), lambda: rng.choice(TOPICS) + " club", lambda: "meeting with " + rng.choice(NAMES), lambda: "visit to " + rng.choice(CITIES)])(), rng.choice(DAYS)
    h = f"{rng.randint(8, 20):02d}:{rng.choice(['00', '15', '30', '45'])}"
    request = rng.choice(["Put {t} on {d} at {h} in my calendar.", "Schedule {t} for {d} at {h}.", "Add {t} to my calendar on {d} at {h}.",
                          "I have {t} on {d} at {h}. Add it to the calendar."]).format(t=t, d=day, h=h)
    return Call("event", name, desc, {c: ("string", "What it is.", True), d: ("string", "The day.", True), "time": ("string", "Time of day.", True)},
                request, {c: t, d: day, "time": h}, rng.choice(["ok", {"status": "added"}]), f"I added {t} on {day} at {h}.", [t, day, h],
                f"The user wants {t} in the calendar.")


def translate(rng):
    name, desc = _pick(rng, ["translate", "translate_text", "translator"], ["Translate a text.", "Translates text into another language."])
    c, to = rng.choice(["text", "input"]), rng.choice(["language", "target_language", "to"])
    s, lang = sentence(rng), rng.choice(LANGUAGES)
    request = rng.choice(['Translate "{s}" into {l}.', 'How do you say "{s}" in {l}?', 'Put "{s}" into {l}, please.', 'What is "{s}" in {l}?']).format(s=s, l=lang)
    out = " ".join(rng.choice(["lo", "mi", "ra", "ke", "tu", "san", "vel", "dor", "ami", "sel"]) + rng.choice(["na", "to", "ri", "es", "um", "ka"]) for _ in range(rng.randint(2, 4)))
    return Call("translate", name, desc, {c: ("string", "The text.", True), to: ("string", "The wanted language.", True)}, request, {c: s, to: lang},
                rng.choice([out, {"translation": out}]), f"In {lang} it is: {out}.", [out], f"The user wants a text in {lang}.")


def music(rng):
    name, desc = _pick(rng, ["play_music", "play_song", "music_player"], ["Play music.", "Plays a song."])
    c = rng.choice(["song", "title", "track"])
    t = " ".join(w.capitalize() for w in phrase(rng, 2, 3).split())
    request = rng.choice(["Play {t}.", "Play the song {t}.", "I want to hear {t}.", "Put on {t}, please."]).format(t=t)
    return Call("music", name, desc, {c: ("string", "The song.", True)}, request, {c: t}, rng.choice(["playing", {"status": "playing"}]),
                f"Now playing {t}.", [t], f"The user wants to hear {t}.")


def stock(rng):
    name, desc = _pick(rng, ["get_stock_price", "stock_price", "quote"], ["Get the price of a share.", "Returns the current stock price."])
    p = rng.choice(["symbol", "ticker"])
    co, sym = rng.choice(list(COMPANIES.items()))
    request = rng.choice(["What is the stock price of {c}?", "How much is a share of {c}?", "Price of {c} shares?", "What does {c} stock cost?"]).format(c=co)
    v = rng.randint(10, 900)
    return Call("stock", name, desc, {p: ("string", "The stock symbol, e.g. AAPL.", True)}, request, {p: sym}, rng.choice([{"price": v}, str(v)]),
                f"A share of {co} costs {v} dollars.", [str(v)], f"The user wants the price of {co}.")


def define(rng):
    name, desc = _pick(rng, ["define_word", "dictionary", "lookup_word", "define"], ["Look up a word in the dictionary.", "Returns the meaning of a word."])
    p = rng.choice(["word", "term"])
    w = rng.choice(NOUNS + ADJECTIVES * 20 + TOPICS)
    request = rng.choice(['Look up the word "{w}".', 'What does "{w}" mean?', 'Define "{w}".', "Find {w} in the dictionary.", "Give me the meaning of {w}."]).format(w=w)
    m = "a " + phrase(rng, 2, 3)
    return Call("define", name, desc, {p: ("string", "The word.", True)}, request, {p: w}, rng.choice([m, {"meaning": m}, {"definition": m}]),
                f'The word "{w}" means {m}.', [m], f"The user wants the meaning of {w}.")


def dice(rng):
    name, desc = _pick(rng, ["roll_dice", "dice", "throw_dice"], ["Roll dice.", "Throws dice and returns the sum."])
    n, s = rng.randint(1, 6), rng.choice([4, 6, 8, 10, 12, 20])
    a, b = rng.choice([("count", "sides"), ("number", "sides"), ("dice", "faces")])
    request = rng.choice(["Roll {n} dice with {s} sides.", "Throw {n} dice of {s} sides.", "Please roll {n} dice, {s} sides each."]).format(n=n, s=s)
    v = rng.randint(n, n * s)
    return Call("dice", name, desc, {a: ("integer", "How many dice.", True), b: ("integer", "Sides of each.", True)}, request, {a: n, b: s},
                rng.choice([{"sum": v}, str(v), {"result": v}]), f"The dice show {v}.", [str(v)], f"The user wants to roll {n} dice.")


def light(rng):
    name, desc = _pick(rng, ["set_light", "switch_light", "light"], ["Switch a light on or off.", "Controls the lights of the house."])
    p, q = rng.choice(["room", "place"]), rng.choice(["on", "state"])
    room, on = rng.choice(ROOMS), rng.random() < 0.5
    word = "on" if on else "off"
    request = rng.choice(["Turn {w} the light in the {r}.", "Switch the {r} light {w}.", "Light {w} in the {r}.", "Turn the {r} light {w}, please."]).format(w=word, r=room)
    return Call("light", name, desc, {p: ("string", "Which room.", True), q: ("boolean", "true for on, false for off.", True)}, request,
                {p: room, q: on}, rng.choice(["ok", {"status": "ok"}]), f"The light in the {room} is {word}.", [room, word],
                f"The user wants the {room} light {word}.")


def news(rng):
    name, desc = _pick(rng, ["get_news", "news", "headlines"], ["Get the latest news about a topic.", "Returns headlines."])
    p = rng.choice(["topic", "subject", "about"])
    t = rng.choice(TOPICS)
    request = rng.choice(["What is the news about {t}?", "Any news on {t}?", "Show me headlines about {t}.", "What is new in {t}?"]).format(t=t)
    h = phrase(rng, 2, 4).capitalize()
    return Call("news", name, desc, {p: ("string", "The topic.", True)}, request, {p: t}, rng.choice([h, {"headline": h}]),
                f"The headline is: {h}.", [h], f"The user wants news about {t}.")


def contact(rng):
    name, desc = _pick(rng, ["find_contact", "lookup_contact", "get_phone_number", "phone_book"], ["Find the phone number of a person.", "Looks up a contact."])
    p = rng.choice(["name", "person", "contact"])
    w = rng.choice(NAMES)
    request = rng.choice(["What is the phone number of {w}?", "Find the number of {w}.", "I want to call {w}. What is the number?", "Look up {w} in my contacts."]).format(w=w)
    v = f"{rng.randint(100, 999)} {rng.randint(100, 999)}"
    return Call("contact", name, desc, {p: ("string", "Who.", True)}, request, {p: w}, rng.choice([v, {"phone": v}, {"name": w, "number": v}]),
                f"The number of {w} is {v}.", [v], f"The user wants the number of {w}.")


def distance(rng):
    name, desc = _pick(rng, ["get_distance", "distance", "route"], ["Distance between two cities.", "How far it is from one city to another."])
    a, b = rng.choice([("from", "to"), ("start", "end"), ("origin", "destination")])
    x, y = rng.sample(CITIES, 2)
    request = rng.choice(["How far is it from {x} to {y}?", "What is the distance from {x} to {y}?", "How many kilometres is it from {x} to {y}?",
                          "I travel from {x} to {y}. How far is that?"]).format(x=x, y=y)
    v = rng.randint(40, 9999)
    return Call("distance", name, desc, {a: ("string", "Start.", True), b: ("string", "Goal.", True)}, request, {a: x, b: y},
                rng.choice([{"km": v}, f"{v} km", {"distance": v, "unit": "km"}]), f"It is {v} kilometres from {x} to {y}.", [str(v)],
                f"The user wants the distance from {x} to {y}.")


def random_number(rng):
    name, desc = _pick(rng, ["random_number", "pick_number", "random"], ["Pick a random number.", "Returns a random number between two bounds."])
    a, b = rng.choice([("min", "max"), ("low", "high"), ("from", "to")])
    x = rng.randint(0, 50)
    y = x + rng.randint(5, 500)
    request = rng.choice(["Pick a random number between {x} and {y}.", "Give me a random number from {x} to {y}.", "Choose any number between {x} and {y}."]).format(x=x, y=y)
    v = rng.randint(x, y)
    return Call("random_number", name, desc, {a: ("integer", "Lowest.", True), b: ("integer", "Highest.", True)}, request, {a: x, b: y},
                rng.choice([str(v), {"number": v}]), f"The number is {v}.", [str(v)], f"The user wants a number between {x} and {y}.")


KINDS = [weather, clock, calculator, currency, search, read_file, write_file, list_files, shell, note, todo, timer, alarm, message, email,
         event, translate, music, stock, define, dice, light, news, contact, distance, random_number]
# Kinds that a request could be confused with are never offered together.
CLASH = [{"shell", "read_file", "list_files", "write_file"}, {"note", "todo", "write_file"}, {"timer", "alarm"}, {"search", "news", "define"},
         {"message", "email"}, {"shell", "calculator"}]


def offer(rng, call, count):
    """Definitions of the call's tool and of `count` others, shuffled."""
    tools, used = [schema(call)], {call.kind}
    names = {call.name}
    while len(tools) < count + 1:
        other = rng.choice(KINDS)(rng)
        if other.kind in used or other.name in names:
            continue
        if any(call.kind in c and other.kind in c for c in CLASH):
            continue
        used.add(other.kind)
        names.add(other.name)
        tools.append(schema(other))
    rng.shuffle(tools)
    return tools
