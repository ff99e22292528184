"""Names of places: real ones, and endless made-up ones that can only be copied."""

from random import Random

from tools.demo_model import facts

_ONSETS = ["b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "v", "z"]
_VOWELS = ["a", "e", "i", "o", "u"]
_ENDINGS = ["n", "r", "l", "s", "ra", "to", "ville", "burg"]


def made_up_name(rng: Random) -> str:
    """A place name that is unlikely to have been seen before."""
    middle = "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(rng.randint(1, 2)))
    name = (middle + rng.choice(_ENDINGS)).capitalize()
    if rng.random() < 0.06:
        name = f"{rng.choice(['New', 'Port', 'San'])} {name}"
    return name


def place(rng: Random) -> str:
    """A city, real in three of five cases; now and then with its country behind it."""
    if rng.random() < 0.4:
        return made_up_name(rng)
    city = rng.choice(facts.CITIES)
    if city in facts.COUNTRIES_OF_CITIES and rng.random() < 0.1:
        return f"{city}, {facts.COUNTRIES_OF_CITIES[city]}"
    return city
