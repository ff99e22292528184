"""The random numbers behind a draw: ``std::mt19937`` and the uniform double that libstdc++ makes of it.

llama.cpp draws with ``std::uniform_real_distribution<double>`` over ``std::mt19937`` (``src/llama-sampler.cpp``, its
``dist`` sampler). The twister is fixed by the C++ standard; how two of its 32-bit words become one double is
libstdc++'s ``generate_canonical`` (GCC up to 15): the first word is the low half of a 64-bit integer, which is divided
by 2**64 with one rounding.
"""

from __future__ import annotations

import copy
import math
from array import array

import numpy as np


class MersenneTwister:
    """``std::mt19937(seed)``, read two words at a time as a uniform double.

    NumPy's ``RandomState`` seeded with an integer is the same twister with the same seeding, and its stream is frozen
    for all NumPy versions; ``bytes`` hands out its words in little-endian order.

    A twister and its copies share the numbers made so far, so that a copy costs nothing. They belong to one thread.
    """

    def __init__(self, seed: int) -> None:
        """Start at ``seed``, 0 <= seed < 2**32."""
        self._words = np.random.RandomState(seed)
        self._made = array("d")
        self._next = 0

    def uniform(self) -> float:
        """The next number, 0 <= u < 1."""
        if self._next == len(self._made):
            numerator = int.from_bytes(self._words.bytes(8), "little")
            # The quotient of the largest numerators rounds to 1, which libstdc++ replaces by the double below it.
            self._made.append(min(numerator / 2**64, math.nextafter(1.0, 0.0)))
        self._next += 1
        return self._made[self._next - 1]

    def copy(self) -> MersenneTwister:
        """A twister that goes on from here independently of this one."""
        return copy.copy(self)
