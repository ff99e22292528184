"""Models that come with the package, each under a word that `--model` takes."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path

_FILES = {"demo": "demo.gguf"}


def words() -> tuple[str, ...]:
    """The words of the catalog."""
    return tuple(_FILES)


@cache
def path(word: str) -> Path:
    """Where the model of a word lies on disk.  Raises KeyError for a word that is not in the catalog.

    Raises FileNotFoundError when the package was built without the file, or was not unpacked: a model is memory-mapped,
    so it cannot be served from inside an archive.
    """
    place = files(__name__) / _FILES[word]
    if not isinstance(place, Path) or not place.is_file():
        raise FileNotFoundError(f"the catalog's model {word} is not in this installation: {place} is missing")
    return place
