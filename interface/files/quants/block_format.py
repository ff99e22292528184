"""What one block format is: its name, its sizes, the fields of a block, and the two conversions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Bytes: TypeAlias = npt.NDArray[np.uint8]
Floats: TypeAlias = npt.NDArray[np.float32]

DecodeBlocks: TypeAlias = Callable[[npt.NDArray[Any], Floats], None]
"""`(blocks [n] of the format's layout, out [n, block_size] float32)`: fills `out`."""

EncodeBlocks: TypeAlias = Callable[[Floats], npt.NDArray[Any]]
"""`(values [n, block_size] float32, all finite)` -> blocks `[n]` of the format's layout.

Both run with NumPy's floating-point warnings off: overflows and divisions by zero are dealt with by their results.
"""


class UnsupportedFormat(ValueError):  # noqa: N818 - it is what is unsupported, not an error of ours.
    """A block format that is known by name and size but that this build cannot decode or encode."""


@dataclass(frozen=True, eq=False)
class BlockFormat:
    """One ggml tensor type.

    `block_size` counts weights and `type_size` counts bytes, both for one block. `layout` names the fields of a block
    with their offsets (little-endian, packed); it is None for a format known only by its size.
    """

    name: str
    ggml_type: int
    block_size: int
    type_size: int
    layout: np.dtype[Any] | None = None
    decode_blocks: DecodeBlocks | None = None
    encode_blocks: EncodeBlocks | None = None

    def __post_init__(self) -> None:
        if self.layout is not None and self.layout.itemsize != self.type_size:
            raise ValueError(f"the fields of {self.name} take {self.layout.itemsize} bytes, not {self.type_size}")

    @property
    def decodable(self) -> bool:
        """Whether this build can turn blocks of this format into float32."""
        return self.decode_blocks is not None

    @property
    def encodable(self) -> bool:
        """Whether this build can turn float32 into blocks of this format."""
        return self.encode_blocks is not None

    def row_bytes(self, n_weights: int) -> int:
        """Bytes of a row of `n_weights` weights; ValueError unless that is a whole number of blocks."""
        n_blocks, rest = divmod(n_weights, self.block_size)
        if rest or n_weights < 0:
            raise ValueError(f"{n_weights} weights a row are not whole {self.name} blocks of {self.block_size}")
        return n_blocks * self.type_size

    def __repr__(self) -> str:
        return f"BlockFormat({self.name})"
