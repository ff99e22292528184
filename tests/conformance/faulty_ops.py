"""Op sets with one small fault each, for the bisection's own tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from bloomery.reference.ops import NumpyOps

Floats = npt.NDArray[np.float32]


class OneElementOfLayerOne(NumpyOps):
    """One element of the second layer's gate, by a hundred-thousandth."""

    def __init__(self) -> None:
        self._calls = 0

    def swiglu(self, gate: Floats, up: Floats) -> Floats:
        y = super().swiglu(gate, up)
        if self._calls == 1:
            y[2, 7] *= np.float32(1.00001)
        self._calls += 1
        return y


class LargerEpsilon(NumpyOps):
    def rms_norm(self, x: Floats, weight: Any, *, eps: float) -> Floats:
        return super().rms_norm(x, weight, eps=1000 * eps)


class PositionsFromOne(NumpyOps):
    def rope(self, x: Floats, positions: Any, rope: Any) -> Floats:
        return super().rope(x, positions + 1, rope)


class WindowOfOneMore(NumpyOps):
    def attention(self, *args: Any, window: int | None = None, **named: Any) -> Floats:
        return super().attention(*args, window=None if window is None else window + 1, **named)


class AppendsTheFirstTwice(NumpyOps):
    """The second cell gets the first one's row: nothing reports it but the op that reads the cache."""

    def append(self, cache: Floats, rows: Floats, slots: Any, cells: Any) -> None:
        rows = rows.copy()
        if len(rows) > 1:
            rows[1] = rows[0]
        super().append(cache, rows, slots, cells)


class SharesAreNotNormalised(NumpyOps):
    def route(self, logits: Floats, **named: Any) -> Any:
        return super().route(logits, **(named | {"normalised": False}))


class NextExpert(NumpyOps):
    """The last expert of each token is taken for the one behind it, by the down projection alone."""

    def expert_linear(self, x: Floats, weight: Any, experts: Any) -> Floats:
        if weight.name.endswith("ffn_down_exps"):
            experts = experts.copy()
            experts[:, -1] = (experts[:, -1] + 1) % weight.shape[0]
        return super().expert_linear(x, weight, experts)


class NextId(NumpyOps):
    def embed(self, table: Any, ids: Any) -> Floats:
        return super().embed(table, (ids + 1) % table.shape[0])


class NoBias(NumpyOps):
    def linear(self, x: Floats, weight: Any, bias: Any = None) -> Floats:
        return super().linear(x, weight)


class HalfTheGelu(NumpyOps):
    def geglu(self, gate: Floats, up: Floats) -> Floats:
        return np.maximum(gate, 0) * up


class LosesAResidual(NumpyOps):
    """The second addition of the first layer forgets what it adds to."""

    def __init__(self) -> None:
        self._calls = 0

    def add(self, a: Floats, b: Floats) -> Floats:
        self._calls += 1
        return b if self._calls == 2 else super().add(a, b)


class SwapsHeads(NumpyOps):
    def merge_heads(self, x: Floats) -> Floats:
        return super().merge_heads(x[:, ::-1])


class LastRowFirst(NumpyOps):
    def take_rows(self, x: Floats, rows: Any) -> Floats:
        return super().take_rows(x, rows[::-1])


class RoughHead(NumpyOps):
    """The head's product alone, in half precision."""

    def linear(self, x: Floats, weight: Any, bias: Any = None) -> Floats:
        y = super().linear(x, weight, bias)
        return y.astype(np.float16).astype(np.float32) if weight.name == "output" else y
