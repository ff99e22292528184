"""Reporting every op's output in program order, whatever the op set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from bloomery.interface.engine import Tap, TapSink
from bloomery.interface.ops import OpSet

# Ops that only move data between host and op set, or return nothing.
_SILENT = frozenset({"from_host", "to_host", "append"})
# Where each op that takes a weight has it among its positional arguments.
_WEIGHT_AT = {"embed": 0, "rms_norm": 1, "linear": 1, "expert_linear": 1, "causal_conv": 1}


class TappedOps:
    """An op set that runs `ops` and reports each output to `sink` before the program sees it.

    `layer` goes into every tap. Labels count from 0 within one instance: a fresh one is made for each layer and pass.
    """

    def __init__(self, ops: OpSet, layer: int | None, sink: TapSink) -> None:
        self._ops = ops
        self._layer = layer
        self._sink = sink
        self._seen: Counter[str] = Counter()

    def __getattr__(self, op: str) -> Callable[..., Any]:
        method: Callable[..., Any] = getattr(self._ops, op)
        if op in _SILENT:
            return method

        def tapped(*args: Any, **kwargs: Any) -> Any:
            result = method(*args, **kwargs)
            if op in _WEIGHT_AT:
                label = str(args[_WEIGHT_AT[op]].name)
            else:
                label = f"{op}.{self._seen[op]}"
                self._seen[op] += 1
            outputs = result if isinstance(result, tuple) else (result,)
            for i, output in enumerate(outputs):
                name = label if len(outputs) == 1 else f"{label}[{i}]"
                self._sink(Tap(layer=self._layer, op=op, label=name, output=self._ops.to_host(output)))
            return result

        return tapped
