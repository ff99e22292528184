"""An op set with a fault that no one overlooks."""

from __future__ import annotations

from bloomery.reference.ops import Floats, NumpyOps


class DoublingOps(NumpyOps):
    """Its SwiGLU is twice as large."""

    def swiglu(self, gate: Floats, up: Floats) -> Floats:
        return 2 * super().swiglu(gate, up)
