"""How a server drives a model: spans in, rows out.

`Engine.run` is the one way to compute. A prompt chunk, a decode step of several slots and a draft's verify window are
all spans; one call is one pass. An engine knows ids and positions only: no text, no sampling, no request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from bloomery.interface.spec import ModelDescription, ModelSpec

if TYPE_CHECKING:
    from bloomery.interface.files.gguf import GgufFile

Floats = npt.NDArray[np.float32]


class EngineError(RuntimeError):
    """An engine was asked for something it cannot do; the message is a sentence that names it."""


@dataclass(frozen=True, kw_only=True)
class Tap:
    """One op's output, reported in program order.

    `layer` is the layer's index (None outside the layers), `op` the OpSet method, `label` the weight's name or, for an
    op without one, the op's name and its place among its like in the layer (`rope.1`). `output` is a host copy.
    """

    layer: int | None
    op: str
    label: str
    output: npt.NDArray[np.generic]


TapSink = Callable[[Tap], None]


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """What a start chooses of an engine.

    n_ctx: cells of each sequence.  n_sequences: how many may be resident at once.  n_ubatch: the most rows one pass of
    a long prompt computes together.  numerics: the named arithmetic ("exact").  weight_budget: bytes of decoded
    weights the engine may keep; None lets it choose from the machine's memory.  threads: what products of matrices
    run on; None lets it choose.  n_trial: the most inputs of a span that may be on trial.  draft: let the model's own
    draft layer see what the model sees, so that it can propose (`bloomery.interface.draft`).
    """

    n_ctx: int
    n_sequences: int = 1
    n_ubatch: int = 512
    numerics: str = "exact"
    weight_budget: int | None = None
    threads: int | None = None
    n_trial: int = 16
    draft: bool = False


@dataclass(frozen=True, kw_only=True)
class SavedSequence:
    """A whole sequence as one unit: its ids, and every state array cut to its length.

    `engine` names what wrote it (engine, numerics, architecture and shapes); another engine refuses it.
    """

    engine: str
    ids: tuple[int, ...]
    arrays: Mapping[str, npt.NDArray[np.generic]]


class Sequence(Protocol):
    """One resident sequence: the ids computed so far and the state they left."""

    @property
    def ids(self) -> tuple[int, ...]:
        """The ids that are in the state, oldest first."""

    @property
    def n_past(self) -> int:
        """How many inputs are in the state; the next input's cell."""

    def commit(self, kept: int) -> None:
        """After a span with `trial` inputs: keep the first `kept` of them, exactly as if the others never came.

        Raises EngineError when no trial is pending or `kept` is not in 0..trial.
        """

    def keep(self, n: int) -> int:
        """Cut back to the largest restorable prefix of at most `n` inputs, and return its length.

        State that grows by the cell restores any prefix; a recurrence only the whole, or nothing.

        Raises EngineError when n is negative or a trial is pending.
        """

    def save(self) -> SavedSequence:
        """A copy of the whole sequence, independent of what follows.  Raises EngineError when a trial is pending."""

    def load(self, saved: SavedSequence) -> None:
        """Replace this sequence's content.  Raises EngineError, changing nothing, when `saved` is not of this engine or
        is longer than n_ctx."""

    def release(self) -> None:
        """Give the sequence's place back; using it afterwards is an EngineError."""


@dataclass(frozen=True, kw_only=True)
class Span:
    """The next inputs of one sequence.

    ids: the inputs, at least one.  wanted: which of them need logits, as indices into `ids` (negative counts from the
    end), in the order `Rows` has them.  trial: how many of the last inputs may be taken back with `Sequence.commit`.
    """

    sequence: Sequence
    ids: Items[int]
    wanted: Items[int] = (-1,)
    trial: int = 0


class Rows(Protocol):
    """A span's wanted rows. A backend copies back only what is asked."""

    def __len__(self) -> int: ...

    def logits(self, row: int) -> Floats:
        """The whole row: [n_vocab] float32."""

    def best(self, row: int, k: int) -> tuple[npt.NDArray[np.int32], Floats]:
        """The k largest logits, largest first, the lower id first among equals: (ids [k], logits [k])."""


class Engine(Protocol):
    """A loaded model. Not thread-safe: one thread drives it."""

    @property
    def spec(self) -> ModelSpec: ...

    @property
    def options(self) -> EngineOptions:
        """The options it runs with, every choice made."""

    @property
    def name(self) -> str:
        """The engine's word: "reference" or "accelerated"."""

    def sequence(self) -> Sequence:
        """Open an empty sequence.  Raises EngineError when `n_sequences` are resident."""

    def run(self, spans: Items[Span], *, taps: TapSink | None = None) -> list[Rows]:
        """One pass over all the spans; returns their rows in the same order.

        A span longer than the engine's ubatch is computed in several passes inside the call. When it raises, no
        sequence has changed. Raises EngineError when a span is empty, names a released sequence, one sequence twice or
        one with a pending trial, holds an id outside the vocabulary, passes n_ctx or has more on trial than n_trial;
        the message names which.
        """

    def close(self) -> None:
        """Release everything; idempotent."""


class EngineProvider(Protocol):
    """What an entry point of the group `bloomery.engines` names: one engine, before a model is loaded."""

    @property
    def name(self) -> str: ...

    @property
    def preference(self) -> int:
        """`--engine auto` takes the usable engine of highest preference."""

    def unusable(self, description: ModelDescription, file: GgufFile) -> str | None:
        """Why this machine or this file cannot use the engine, in one sentence; None when it can."""

    def bytes_per_cell(self, spec: ModelSpec) -> int:
        """State bytes one position of one sequence takes, to size a context before the load."""

    def bytes_per_sequence(self, spec: ModelSpec, n_trial: int) -> int:
        """State bytes one sequence takes besides, whatever its length, when up to `n_trial` inputs may be on trial."""

    def open(self, file: GgufFile, description: ModelDescription, options: EngineOptions) -> Engine:
        """Load the model.  Raises EngineError naming an option the engine does not take."""
