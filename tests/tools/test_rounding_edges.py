"""Every far row of `ggml` numerics beside the oracle's own tensors: something of float32's size decided it."""

from __future__ import annotations

import pytest

from tools.bench.rounding_edges import account_of

pytestmark = pytest.mark.oracle


@pytest.mark.parametrize("shape", ["qwen3-a", "qwen3moe-a"])
@pytest.mark.parametrize("recipe", ["q8_0", "q4km"])
def test_far_rows_and_flips_come_from_rounding_edges(shape: str, recipe: str) -> None:
    found = account_of(shape, recipe, range(101, 102), n_prompts=6)
    assert found.rows == 6 * 64
    assert found.far > 0
    assert found.unexplained == 0
    assert found.farthest_untouched < 1e-5
    assert found.flips_touched == found.flips
    # Codes go to 127, and sums of a few hundred float32 terms are some 1e-7 of their size apart: 1e-4 of a code. Scales
    # are compared at the last of a half's 11 bits, and router scores have a size of a few units.
    assert max(found.edges, default=0.0) < 1e-3
    assert max(found.scales, default=0.0) < 1e-2
    assert max(found.ties, default=0.0) < 1e-5
