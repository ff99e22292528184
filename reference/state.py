"""The state arrays of all resident sequences, and who has which place in them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bloomery.interface.engine import EngineError
from bloomery.interface.layers.model import state_of
from bloomery.interface.spec import ModelSpec

Floats = npt.NDArray[np.float32]


class StatePool:
    """Every layer's state for `n_sequences` sequences of `n_ctx` cells.

    `arrays[layer][name]` is [n_sequences, n_ctx, *shape of a cell]. Memory that was never written to is not taken, so a
    large n_ctx costs what is used of it. `signature` says what a saved sequence must fit.
    """

    def __init__(self, spec: ModelSpec, *, numerics: str, n_sequences: int, n_ctx: int) -> None:
        self.n_ctx = n_ctx
        self.n_vocab = spec.n_vocab
        self.signature = f"reference {numerics} {spec!r}"
        self.arrays: list[dict[str, Floats]] = [
            {name: np.zeros((n_sequences, n_ctx, *state.shape), np.float32) for name, state in state_of(layer).items()}
            for layer in spec.layers
        ]
        self._n_sequences = n_sequences
        self._free = list(reversed(range(n_sequences)))

    def take(self) -> int:
        """A free place.  Raises EngineError when all are in use."""
        if not self._free:
            raise EngineError(f"all {self._n_sequences} sequences are in use")
        return self._free.pop()

    def give_back(self, slot: int) -> None:
        """A place that its sequence no longer needs."""
        self._free.append(slot)

    def cells(self, slot: int, n: int) -> dict[str, Floats]:
        """The first `n` cells of a place in every array, as views under `<layer>.<name>`."""
        return {
            f"{layer}.{name}": array[slot, :n]
            for layer, arrays in enumerate(self.arrays)
            for name, array in arrays.items()
        }
