"""The state arrays of all resident sequences, and who has which place in them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bloomery.interface.batch import PerSequence
from bloomery.interface.engine import EngineError
from bloomery.interface.layers.model import state_by_layer
from bloomery.interface.spec import ModelSpec

Floats = npt.NDArray[np.float32]


def lanes_for(n_trial: int) -> int:
    """How many lanes of a sequence's state that does not grow hold every state a pass may have to leave."""
    # A pass leaves the lane it started from as it was, for the case that it fails, and needs one for the state before
    # the inputs on trial and one for each of these.
    return n_trial + 2


class StatePool:
    """Every layer's state for `n_sequences` sequences of `n_ctx` cells.

    `arrays[layer][name]` is [n_sequences, n_ctx, *shape of a cell], or [n_sequences, n_lanes, *shape] of what does not
    grow by the cell. Memory that was never written to is not taken, so a large n_ctx costs what is used of it.
    `recurrent` says whether there is state of the second kind. `signature` says what a saved sequence must fit.
    """

    def __init__(self, spec: ModelSpec, *, numerics: str, n_sequences: int, n_ctx: int, n_trial: int) -> None:
        self.n_ctx = n_ctx
        self.n_vocab = spec.n_vocab
        self.signature = f"reference {numerics} {spec!r}"
        self.n_lanes = lanes_for(n_trial)
        states = state_by_layer(spec)
        self._lanes = {
            (layer, name)
            for layer, named in enumerate(states)
            for name, state in named.items()
            if isinstance(state, PerSequence)
        }
        self.recurrent = bool(self._lanes)
        self.arrays: list[dict[str, Floats]] = [
            {
                name: np.zeros(
                    (n_sequences, self.n_lanes if (layer, name) in self._lanes else n_ctx, *state.shape), np.float32
                )
                for name, state in named.items()
            }
            for layer, named in enumerate(states)
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

    def state(self, slot: int, n: int, lane: int) -> dict[str, Floats]:
        """A place's state after `n` inputs, as views under `<layer>.<name>`: its first n cells, and the lane."""
        return {
            f"{layer}.{name}": array[slot, lane] if (layer, name) in self._lanes else array[slot, :n]
            for layer, arrays in enumerate(self.arrays)
            for name, array in arrays.items()
        }

    def clear(self, slot: int, lane: int) -> None:
        """Make a lane of a place what it is before the first input."""
        for layer, name in self._lanes:
            self.arrays[layer][name][slot, lane] = 0
