"""The one event stream: what the scheduler says of a generation, in order, to whoever renders it.

A stream is any number of `PromptProgress`, then `Token`s, then exactly one `Finish` or `Failure`, which ends it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

StopType: TypeAlias = Literal["eos", "word", "limit"]


@dataclass(frozen=True, kw_only=True)
class Probability:
    """An id, its text as bytes, and its probability, as a `Token` has it."""

    id: int
    piece: bytes
    value: float


@dataclass(frozen=True, kw_only=True)
class PromptProgress:
    """The prompt so far: `total` ids, `cache` of them reused and `processed` done; `time_ms` since it began."""

    total: int
    cache: int
    processed: int
    time_ms: float


@dataclass(frozen=True, kw_only=True)
class Token:
    """One generated id and the text it released.

    `text` holds complete characters only and nothing that could still become a stop string; it may be empty, and it
    may release what earlier ids held back. `special` says that the id is one special token of the vocabulary and
    `text` ends with its spelling, so that a parser can tell markup from the same characters in ordinary ids. `own` and
    `best` are the id's own probability and the best ones, when the generation asked for probabilities: logarithms in
    the model's own row, before bias, penalties and temperature, or, `after_sampling`, the plain probabilities that the
    id was drawn by.
    """

    id: int
    text: str
    special: bool = False
    own: Probability | None = None
    best: tuple[Probability, ...] = ()
    after_sampling: bool = False


@dataclass(frozen=True, kw_only=True)
class Timings:
    """llama-server's timings of a generation, milliseconds; `cache_ms` is the prompt cache's work before the prompt."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    predicted_n: int
    predicted_ms: float
    cache_ms: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Finish:
    """The end of a generation.

    text: what was held back and is released at the end.  stopping_word: the stop string that ended it, or "".
    n_prompt: the prompt's ids.  n_decoded: the generated ids, the ending one included.  n_past: ids in the slot's
    sequence now.  truncated: whether the context ended it.  has_new_line: whether the text holds a newline.
    """

    stop_type: StopType
    text: str
    stopping_word: str
    id_slot: int
    n_prompt: int
    n_decoded: int
    n_past: int
    truncated: bool
    has_new_line: bool
    timings: Timings


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A generation that ended in an error, as llama-server's error object has it."""

    code: int
    type: str
    message: str


Event: TypeAlias = PromptProgress | Token | Finish | Failure
