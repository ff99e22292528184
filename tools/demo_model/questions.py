"""Questions the demo model answers from memory, each with a short thought and one answer.

Answers follow from the question alone: a question asked twice gets the same words, which keeps a model this small
sure of itself at a sampling temperature of 0.8. Only small talk varies.
"""

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from tools.demo_model import facts
from tools.demo_model.names import place
from tools.demo_model.small_talk import SMALL_TALK, UNKNOWN_SUBJECTS


class Exchange(NamedTuple):
    """One user message and what the model should think and say about it."""

    question: str
    thought: str
    answer: str


LARGEST_SUM = 20
LARGEST_FACTOR = 10


def _article(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"


def _sentence(text: str) -> str:
    """The text with a capital first letter."""
    return text[0].upper() + text[1:]


def arithmetic_phrase(rng: Random, a: int, sign: str, b: int) -> str:
    """A question about `a sign b` for a sign of `+`, `-` or `*`."""
    word = {"+": "plus", "-": "minus", "*": "times"}[sign]
    forms = [
        f"What is {a} {word} {b}?", f"What is {a} {word} {b}?", f"What is {a} {word} {b}?", f"What's {a} {word} {b}?",
        f"{a} {word} {b}?", f"How much is {a} {word} {b}?", f"Calculate {a} {word} {b}.", f"What is {a} {sign} {b}?",
        f"{a} {sign} {b}", f"{a}{sign}{b}", f"{a} {sign} {b} =", f"{a}{sign}{b}=?", f"Compute {a} {sign} {b}.",
        f"Please tell me what {a} {word} {b} is.", f"Can you tell me what {a} {word} {b} is?",
        f"What does {a} {sign} {b} equal?", f"How much is {a} {sign} {b}?",
    ]  # fmt: skip
    if sign == "+":
        forms += [f"Add {a} and {b}.", f"What is the sum of {a} and {b}?"]
    if sign == "-":
        forms += [f"Subtract {b} from {a}.", f"Take {b} away from {a}."]
    if sign == "*":
        forms += [f"Multiply {a} by {b}.", f"What is {a} multiplied by {b}?", f"What is {a} x {b}?", f"{a} x {b}"]
    if a < len(facts.NUMBER_WORDS) and b < len(facts.NUMBER_WORDS) and rng.random() < 0.06:
        return f"What is {facts.NUMBER_WORDS[a]} {word} {facts.NUMBER_WORDS[b]}?"
    return rng.choice(forms)


def arithmetic_answer(a: int, sign: str, b: int) -> str:
    """The sentence the model answers `a sign b` with."""
    word = {"+": "plus", "-": "minus", "*": "times"}[sign]
    value = {"+": a + b, "-": a - b, "*": a * b}[sign]
    return f"{a} {word} {b} is {value}."


def arithmetic(rng: Random) -> Exchange:
    """A sum, a difference or a product within the range the model knows by heart."""
    sign = rng.choice("++++---***")
    if sign == "*":
        a, b = rng.randint(0, LARGEST_FACTOR), rng.randint(0, LARGEST_FACTOR)
    else:
        largest = 10 if rng.random() < 0.5 else LARGEST_SUM
        a = rng.randint(0, largest)
        b = rng.randint(0, a if sign == "-" else min(largest, LARGEST_SUM - a))
    value = {"+": a + b, "-": a - b, "*": a * b}[sign]
    return Exchange(arithmetic_phrase(rng, a, sign, b), f"{a} {sign} {b} = {value}", arithmetic_answer(a, sign, b))


def too_big(rng: Random) -> Exchange:
    """Arithmetic beyond what the model knows, which it says instead of guessing."""
    sign = rng.choice("+-*/")
    low, high = rng.choice([(31, 99), (100, 999), (1000, 9999)])
    a, b = rng.randint(low, high), rng.randint(low, high)
    if sign == "/":
        question = rng.choice([f"What is {a} divided by {b}?", f"{a} / {b}", f"Divide {a} by {b}."])
    else:
        question = arithmetic_phrase(rng, a, sign, b)
    return Exchange(question, "These numbers are too big for me.", "I can only do small sums without a calculator.")


def capital(rng: Random) -> Exchange:
    """A capital of a country, or the country of a capital."""
    country, city = rng.choice(list(facts.CAPITALS.items()))
    if rng.random() < 0.25:
        question = rng.choice([
            f"{city} is the capital of which country?", f"Which country has the capital {city}?",
            f"What country is {city} the capital of?",
        ])  # fmt: skip
    else:
        question = rng.choice([
            f"What is the capital of {country}?", f"What is the capital of {country}?",
            f"What's the capital of {country}?", f"Which city is the capital of {country}?",
            f"Tell me the capital of {country}.", f"Name the capital of {country}.", f"Capital of {country}?",
            f"Do you know the capital of {country}?", f"What is {country}'s capital?",
        ])  # fmt: skip
    return Exchange(question, f"{country}: {city}", f"The capital of {country} is {city}.")


def colour(rng: Random) -> Exchange:
    """The colour of a thing."""
    thing, shade = rng.choice(list(facts.COLOURS.items()))
    spelling = rng.choice(["colour", "color"])
    question = rng.choice([
        f"What {spelling} is {thing}?", f"What {spelling} is {thing}?", f"Which {spelling} is {thing}?",
        f"What is the {spelling} of {thing}?", f"Tell me the {spelling} of {thing}.",
    ])  # fmt: skip
    return Exchange(question, f"{thing}: {shade}", f"{_sentence(thing)} is {shade}.")


def opposite(rng: Random) -> Exchange:
    """The opposite of a word."""
    pair = rng.choice(list(facts.OPPOSITES.items()))
    one, other = pair if rng.random() < 0.7 or list(facts.OPPOSITES.values()).count(pair[1]) > 1 else pair[::-1]
    one, other = (one, facts.OPPOSITES[one]) if one in facts.OPPOSITES else (one, other)
    question = rng.choice([
        f"What is the opposite of {one}?", f"What is the opposite of {one}?", f"What's the opposite of {one}?",
        f"Opposite of {one}?", f"Tell me the opposite of {one}.", f"Name the opposite of {one}.",
    ])  # fmt: skip
    return Exchange(question, f"{one}: {other}", f"The opposite of {one} is {other}.")


def animal(rng: Random) -> Exchange:
    """What an animal says, how many legs it has, what its young is called."""
    topic = rng.randrange(3)
    if topic == 0:
        name, sound = rng.choice(list(facts.SOUNDS.items()))
        question = rng.choice([
            f"What sound does {_article(name)} make?", f"What does {_article(name)} say?",
            f"What noise does {_article(name)} make?", f"Which sound does {_article(name)} make?",
        ])  # fmt: skip
        return Exchange(question, f"{name}: {sound}", f"{_sentence(_article(name))} {sound}.")
    if topic == 1:
        name, legs = rng.choice(list(facts.LEGS.items()))
        question = rng.choice([
            f"How many legs does {_article(name)} have?", f"How many legs has {_article(name)}?",
            f"Tell me how many legs {_article(name)} has.",
        ])  # fmt: skip
        return Exchange(question, f"{name}: {legs} legs", f"{_sentence(_article(name))} has {legs} legs.")
    name, young = rng.choice(list(facts.YOUNG.items()))
    question = rng.choice([
        f"What is a baby {name} called?", f"What do you call a baby {name}?", f"What is a young {name} called?",
        f"What is the name of a baby {name}?",
    ])  # fmt: skip
    return Exchange(question, f"{name}: {young}", f"A baby {name} is called {_article(young)}.")


def calendar(rng: Random) -> Exchange:
    """The day or month before or after another."""
    names, unit = rng.choice([(facts.DAYS, "day"), (facts.MONTHS, "month")])
    index = rng.randrange(len(names))
    name = names[index]
    if rng.random() < 0.65:
        other, relation = names[(index + 1) % len(names)], "after"
        question = rng.choice([
            f"What {unit} comes after {name}?", f"Which {unit} comes after {name}?", f"What comes after {name}?",
            f"Which {unit} follows {name}?", f"What is the {unit} after {name}?",
        ])  # fmt: skip
    else:
        other, relation = names[index - 1], "before"
        question = rng.choice([
            f"What {unit} comes before {name}?", f"Which {unit} comes before {name}?", f"What comes before {name}?",
            f"What is the {unit} before {name}?",
        ])  # fmt: skip
    return Exchange(question, f"{relation} {name}: {other}", f"{other} comes {relation} {name}.")


def quantity(rng: Random) -> Exchange:
    """A small amount everybody knows, the sides of a shape, or the next number."""
    topic = rng.randrange(3)
    if topic == 0:
        thing, answer = rng.choice(list(facts.AMOUNTS.items()))
        question = rng.choice([f"How many {thing}?", f"Tell me how many {thing}.", f"Do you know how many {thing}?"])
        return Exchange(question, "I know this number.", answer)
    if topic == 1:
        shape, sides = rng.choice(list(facts.SIDES.items()))
        question = rng.choice([
            f"How many sides does {_article(shape)} have?", f"How many sides has {_article(shape)}?",
            f"Tell me how many sides {_article(shape)} has.",
        ])  # fmt: skip
        return Exchange(question, f"{shape}: {sides} sides", f"{_sentence(_article(shape))} has {sides} sides.")
    number = rng.randint(0, 30)
    question = rng.choice([
        f"What number comes after {number}?", f"Which number comes after {number}?", f"What comes after {number}?",
    ])  # fmt: skip
    return Exchange(question, f"after {number}: {number + 1}", f"{number + 1} comes after {number}.")


def repeat(rng: Random) -> Exchange:
    """A word to say back, or up to four places and numbers, which teach copying with few tokens."""
    if rng.random() < 0.3:
        word = rng.choice(facts.WORDS)
    else:
        parts = [place(rng) if rng.random() < 0.8 else str(rng.randint(0, 999)) for _ in range(rng.randint(1, 4))]
        word = " ".join(parts)
    question = rng.choice([
        f"Repeat {word}.", f"Repeat this: {word}", f"Repeat after me: {word}", f"Say {word}.", f'Say "{word}".',
        f"Please say {word}.", f"Echo {word}", f"Repeat: {word}",
    ] + [f"Repeat the word {word}.", f"Say the word {word}."] * (" " not in word))  # fmt: skip
    return Exchange(question, "I say it back.", word)


def count(rng: Random) -> Exchange:
    """Counting up or down."""
    last = rng.randint(2, 12)
    if rng.random() < 0.7:
        question = rng.choice([
            f"Count to {last}.", f"Count from 1 to {last}.", f"Can you count to {last}?", f"Please count to {last}.",
        ])  # fmt: skip
        answer = ", ".join(str(n) for n in range(1, last + 1))
        return Exchange(question, f"I count from 1 to {last}.", answer)
    question = rng.choice([f"Count down from {last}.", f"Count down from {last} to 1.", f"Count from {last} to 1."])
    answer = ", ".join(str(n) for n in range(last, 0, -1))
    return Exchange(question, f"I count from {last} to 1.", answer)


def listing(rng: Random) -> Exchange:
    """The first few of a kind."""
    kind, members = rng.choice(list(facts.LISTS.items()))
    number = rng.randint(2, 5)
    shown = rng.choice([str(number), facts.NUMBER_WORDS[number]])
    question = rng.choice([
        f"Name {shown} {kind}.", f"List {shown} {kind}.", f"Give me {shown} {kind}.", f"Tell me {shown} {kind}.",
        f"Can you name {shown} {kind}?",
    ])  # fmt: skip
    return Exchange(question, f"I name {number} {kind}.", ", ".join(members[:number]))


def as_json(rng: Random) -> Exchange:
    """A fact asked for as a JSON object."""
    wish = rng.choice(["Answer in JSON:", "Reply as JSON:", "As JSON:", "In JSON:", "Return JSON:"])
    topic = rng.randrange(3)
    if topic == 0:
        country, city = rng.choice(list(facts.CAPITALS.items()))
        question = rng.choice([f"What is the capital of {country}?", f"the capital of {country}"])
        thought, answer = f"{country}: {city}", f'{{"country": "{country}", "capital": "{city}"}}'
    elif topic == 1:
        a, b = rng.randint(0, 10), rng.randint(0, 10)
        question = rng.choice([f"What is {a} plus {b}?", f"What is {a} + {b}?", f"{a} + {b}"])
        thought, answer = f"{a} + {b} = {a + b}", f'{{"result": {a + b}}}'
    else:
        thing, shade = rng.choice(list(facts.COLOURS.items()))
        question = rng.choice([f"What colour is {thing}?", f"What color is {thing}?", f"the colour of {thing}"])
        thought, answer = f"{thing}: {shade}", f'{{"thing": "{thing}", "colour": "{shade}"}}'
    return Exchange(f"{wish} {question}", f"As JSON. {thought}", answer)


def small_talk(rng: Random) -> Exchange:
    """Greetings, thanks and questions about the model itself."""
    questions, thought, answers = rng.choice(SMALL_TALK)
    return Exchange(rng.choice(questions), thought, rng.choice(answers))


def unknown(rng: Random) -> Exchange:
    """Something the model does not know, and says so."""
    subject = rng.choice(UNKNOWN_SUBJECTS)
    question = rng.choice([
        f"Explain {subject}.", f"Tell me about {subject}.", f"What do you think about {subject}?",
        f"How does {subject} work?", f"Why is {subject} important?", f"Who invented {subject}?",
        f"Write an essay about {subject}.", f"What is the history of {subject}?", f"When did {subject} begin?",
        f"Give me advice about {subject}.", f"Can you explain {subject}?", f"What is new in {subject}?",
    ])  # fmt: skip
    return Exchange(question, "I do not know this.", "I do not know that. I am only a tiny demo model.")


def weather_without_tool(rng: Random) -> Exchange:
    """Weather asked of a model that was given no weather tool."""
    city = rng.choice(facts.CITIES)
    question = rng.choice([
        f"What is the weather in {city}?", f"How is the weather in {city}?", f"Is it raining in {city}?",
        f"What's the weather like in {city}?", f"Tell me the weather in {city}.",
    ])  # fmt: skip
    return Exchange(question, "I have no weather tool.", "I cannot know the weather without a tool.")


def copying(rng: Random) -> Exchange:
    """A longer line to say back: many copied tokens for few that are not."""
    parts = [place(rng) if rng.random() < 0.8 else str(rng.randint(0, 999)) for _ in range(rng.randint(3, 9))]
    line = " ".join(parts)
    question = rng.choice([f"Repeat this: {line}", f"Repeat after me: {line}", f"Repeat: {line}", f"Echo {line}"])
    return Exchange(question, "I say it back.", line)


def recollection(rng: Random) -> Exchange:
    """Something the user said a moment ago."""
    first, second = place(rng), place(rng)
    number = rng.randint(0, 99)
    question, answer = rng.choice([
        (f"I live in {first}. Where do I live?", f"You live in {first}."),
        (f"I live in {first} and I work in {second}. Where do I work?", f"You work in {second}."),
        (f"I live in {first} and I work in {second}. Where do I live?", f"You live in {first}."),
        (f"I am in {first}. Where am I?", f"You are in {first}."),
        (f"My name is {first}. What is my name?", f"Your name is {first}."),
        (f"My name is {first} and I live in {second}. What is my name?", f"Your name is {first}."),
        (f"My name is {first} and I live in {second}. Where do I live?", f"You live in {second}."),
        (f"I was born in {first} and I moved to {second}. Where was I born?", f"You were born in {first}."),
        (f"I am {number} years old and I live in {first}. How old am I?", f"You are {number} years old."),
        (f"I am {number} years old and I live in {first}. Where do I live?", f"You live in {first}."),
        (f"I have {number} apples. How many apples do I have?", f"You have {number} apples."),
        (f"I go from {first} to {second}. Where do I go?", f"You go to {second}."),
    ])  # fmt: skip
    return Exchange(question, "The user told me.", answer)


Maker = Callable[[Random], Exchange]

MAKERS: dict[str, list[tuple[Maker, float]]] = {
    "arithmetic": [(arithmetic, 11), (too_big, 1)],
    "facts": [(capital, 3), (colour, 1.2), (opposite, 1.2), (animal, 1.6), (calendar, 1.6), (quantity, 1.6)],
    "talk": [(small_talk, 3), (unknown, 1.4), (weather_without_tool, 0.5)],
    "words": [(repeat, 5), (count, 1), (listing, 1), (as_json, 1.5)],
    "copying": [(copying, 1)],
    "recollection": [(recollection, 1)],
}


def ask(rng: Random, kind: str) -> Exchange:
    """A random exchange of a kind of `MAKERS`, its question sometimes written carelessly."""
    makers = MAKERS[kind]
    (maker,) = rng.choices([maker for maker, _ in makers], [weight for _, weight in makers])
    exchange = maker(rng)
    return exchange._replace(question=careless(rng, exchange.question))


def careless(rng: Random, question: str) -> str:
    """The question as people also type it: without the last mark, in lower case, with a please."""
    roll = rng.random()
    if roll < 0.08 and question[-1] in ".?!":
        return question[:-1]
    if roll < 0.14:
        return question[0].lower() + question[1:]
    if roll < 0.17 and question[-1] == ".":
        return f"{question[:-1]}, please."
    return question
