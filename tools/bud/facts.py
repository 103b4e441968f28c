"""The small tables that Bud learns by heart, and the word lists that questions are made from."""
import random

CAPITALS = {
    "France": "Paris", "Germany": "Berlin", "Italy": "Rome", "Spain": "Madrid", "Portugal": "Lisbon",
    "England": "London", "Ireland": "Dublin", "Scotland": "Edinburgh", "Norway": "Oslo",
    "Sweden": "Stockholm", "Finland": "Helsinki", "Denmark": "Copenhagen", "Iceland": "Reykjavik",
    "Poland": "Warsaw", "Austria": "Vienna", "Hungary": "Budapest", "Greece": "Athens",
    "Turkey": "Ankara", "Russia": "Moscow", "Ukraine": "Kyiv", "Romania": "Bucharest",
    "Bulgaria": "Sofia", "Serbia": "Belgrade", "Croatia": "Zagreb", "Belgium": "Brussels",
    "Switzerland": "Bern", "Canada": "Ottawa", "Mexico": "Mexico City", "Cuba": "Havana",
    "Brazil": "Brasilia", "Argentina": "Buenos Aires", "Chile": "Santiago", "Peru": "Lima",
    "Colombia": "Bogota", "Ecuador": "Quito", "Uruguay": "Montevideo", "Japan": "Tokyo",
    "China": "Beijing", "India": "New Delhi", "Nepal": "Kathmandu", "Thailand": "Bangkok",
    "Vietnam": "Hanoi", "Mongolia": "Ulaanbaatar", "Iran": "Tehran", "Iraq": "Baghdad",
    "Egypt": "Cairo", "Kenya": "Nairobi", "Ethiopia": "Addis Ababa", "Ghana": "Accra",
    "Nigeria": "Abuja", "Morocco": "Rabat", "Senegal": "Dakar", "Australia": "Canberra",
    "New Zealand": "Wellington",
}

COLOURS = {
    "the sky on a clear day": "blue", "grass": "green", "a ripe banana": "yellow", "snow": "white",
    "coal": "black", "a ripe tomato": "red", "a carrot": "orange", "milk": "white", "blood": "red",
    "a lemon": "yellow", "chocolate": "brown", "an elephant": "grey", "a flamingo": "pink",
    "a polar bear": "white", "a crow": "black", "a fire engine": "red", "an aubergine": "purple",
    "a pumpkin": "orange", "the sun in a child's drawing": "yellow", "a frog": "green",
    "a strawberry": "red", "a leaf in spring": "green", "soil": "brown", "the sea": "blue",
    "a mouse": "grey", "salt": "white", "spinach": "green", "a pig": "pink", "a ruby": "red",
    "an emerald": "green", "a sapphire": "blue", "gold": "yellow", "ash": "grey", "a lime": "green",
}

MIXES = {("blue", "yellow"): "green", ("red", "yellow"): "orange", ("red", "blue"): "purple",
         ("black", "white"): "grey", ("red", "white"): "pink"}

DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August", "September",
          "October", "November", "December"]
MONTH_DAYS = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
ORDINALS = ["first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth",
            "tenth", "eleventh", "twelfth"]

ANIMALS = {"dog": "woof", "cat": "meow", "cow": "moo", "sheep": "baa", "duck": "quack",
           "lion": "roar", "pig": "oink", "horse": "neigh", "bee": "buzz", "snake": "hiss",
           "owl": "hoot", "mouse": "squeak"}

OPPOSITES = {"hot": "cold", "big": "small", "fast": "slow", "up": "down", "left": "right",
             "day": "night", "happy": "sad", "open": "closed", "full": "empty", "light": "dark",
             "hard": "soft", "old": "young", "rich": "poor", "wet": "dry", "high": "low",
             "early": "late", "long": "short", "strong": "weak", "clean": "dirty", "loud": "quiet"}

PLURALS = {"mouse": "mice", "child": "children", "foot": "feet", "tooth": "teeth", "man": "men",
           "woman": "women", "goose": "geese", "leaf": "leaves", "knife": "knives", "box": "boxes",
           "city": "cities", "fish": "fish", "sheep": "sheep", "dog": "dogs", "house": "houses",
           "person": "people", "potato": "potatoes", "wolf": "wolves", "baby": "babies", "bus": "buses"}

# (small unit, big unit, how many small ones make a big one)
UNITS = [("metres", "kilometres", 1000), ("centimetres", "metres", 100), ("millimetres", "centimetres", 10),
         ("grams", "kilograms", 1000), ("millilitres", "litres", 1000), ("minutes", "hours", 60),
         ("seconds", "minutes", 60), ("hours", "days", 24), ("days", "weeks", 7), ("inches", "feet", 12),
         ("months", "years", 12), ("cents", "dollars", 100), ("feet", "yards", 3)]

NAMES = """Anna Ben Clara David Ella Finn Grace Hugo Ida Jack Kate Leo Mia Noah Olga Paul Quinn Rosa Sam Tom
Uma Vera Will Yara Zoe Amir Bella Carlos Dina Emil Fatima George Hana Ivan Julia Karl Lina Max Nora Omar
Priya Ravi Sofia Theo Lucy Peter Maria James Emma Oliver Sara Daniel Laura Simon Alice Robert Helen Martin
Chen Aiko Kofi Ines Marco Elena Jonas Freya Tariq Leila Bruno Greta""".split()

PEOPLE = set(NAMES)
# Those of them that a story calls "she".
SHE = set("""Anna Clara Ella Grace Ida Kate Mia Olga Rosa Uma Vera Yara Zoe Bella Dina Fatima Hana Julia Lina Nora Priya
Sofia Lucy Maria Emma Sara Laura Alice Helen Aiko Ines Elena Freya Leila Greta""".split())

CITIES = """Paris London Berlin Madrid Rome Vienna Prague Oslo Dublin Lisbon Athens Warsaw Tokyo Osaka Seoul
Beijing Shanghai Delhi Mumbai Cairo Lagos Nairobi Sydney Melbourne Toronto Montreal Chicago Boston Seattle
Denver Dallas Miami Houston Lima Bogota Santiago Havana Helsinki Stockholm Copenhagen Brussels Amsterdam Zurich
Geneva Milan Naples Munich Hamburg Cologne Lyon Nice Porto Seville Valencia Krakow Budapest Istanbul Dubai
Bangkok Hanoi Singapore Manila Jakarta Perth Auckland Wellington Vancouver Leeds York Bristol Glasgow Cardiff
Phoenix Atlanta Portland Austin Nashville Orlando Detroit Kyoto Accra Tunis Riga Tallinn""".split()
CITIES += ["New York", "San Francisco", "Cape Town", "Hong Kong", "Los Angeles", "Buenos Aires", "Tel Aviv", "New Delhi"]

NOUNS = """apple bread chair table lamp river garden window book letter candle basket bottle bridge button camera
castle cloud coat corner crown cup desk door dress drum farm feather fence flower forest fork glass hammer
hat hill horse island jacket kettle key kitchen kite ladder lake leaf map market mirror moon mountain
needle nest ocean orange paint paper pencil piano picture pillow plate pocket rabbit road rocket roof rope
school shell ship shoe shop song spoon square star stone story street sugar sun sword tent ticket tiger
tower toy train tree truck tunnel umbrella valley village violin wagon wall watch water wheel whistle wind wolf""".split()

ADJECTIVES = """red blue green small large old new quiet bright dark soft heavy light round tiny golden silver
wooden warm cold quick slow happy sleepy brave gentle strange plain clever famous empty narrow early""".split()

FOODS = """bread milk eggs cheese butter rice pasta apples pears bananas tomatoes onions potatoes carrots beans
tea coffee sugar flour honey salt soup fish chicken yoghurt oranges grapes lettuce mushrooms""".split()

LANGUAGES = ["French", "German", "Spanish", "Italian", "Portuguese", "Polish", "Dutch", "Swedish", "Greek",
             "Japanese", "Chinese", "Korean", "Arabic", "Hindi", "Turkish", "Finnish"]
CURRENCIES = {"dollars": "USD", "euros": "EUR", "pounds": "GBP", "yen": "JPY", "francs": "CHF", "rupees": "INR", "kronor": "SEK"}
COMPANIES = {"Apple": "AAPL", "Microsoft": "MSFT", "Tesla": "TSLA", "Amazon": "AMZN", "Nvidia": "NVDA", "Intel": "INTC", "Toyota": "TM", "Sony": "SONY"}
ROOMS = ["kitchen", "bedroom", "living room", "bathroom", "hall", "garage", "office", "garden", "cellar", "attic"]
TOPICS = """football tennis chess climate energy space music art history cooking gardening medicine robots trains
volcanoes whales birds bees coffee chocolate bicycles elections markets films painting poetry dinosaurs planets""".split()


def made_up_words(count, seed=5):
    """Words that do not exist: who can copy these has learnt to copy, not to recall."""
    rng, out = random.Random(seed), []
    starts, vowels, ends = "b br c d dr f fl g gr h j k kl l m n p pl qu r s st t tr v w z th sh".split(), "a e i o u ea oo ai".split(), ["", "", "n", "r", "l", "s", "t", "m", "k", "nd", "x"]
    for _ in range(count):
        out.append("".join(rng.choice(starts) + rng.choice(vowels) for _ in range(rng.choice([1, 2, 2]))) + rng.choice(ends))
    return out


PLAIN_NOUNS, PLAIN_ADJECTIVES = list(NOUNS), list(ADJECTIVES)
MADE_UP = made_up_words(1600)
# About a quarter of these lists, by weight, is made up.
NAMES = NAMES * 25 + [w.capitalize() for w in MADE_UP[:600]]
CITIES = CITIES * 20 + [w.capitalize() for w in MADE_UP[600:1200]]
NOUNS = NOUNS * 20 + MADE_UP[:600]
TOPICS = TOPICS * 20 + MADE_UP[1200:1350]
FOODS = FOODS * 12 + MADE_UP[1350:1450]

STORY_NOUNS = """dog cat bird bear rabbit fox frog fish mouse duck lion elephant monkey turtle bee butterfly horse cow
pig owl tree flower park garden beach river lake forest farm house castle boat car train truck ball doll kite book
toy hat cake cookie apple ice snow rain sun moon star princess king queen dragon fairy robot dinosaur teacher
school friend sister brother mom dad grandma baby box bike swing slide balloon garden picture""".split()
