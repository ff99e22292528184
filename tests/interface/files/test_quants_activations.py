"""Activations rounded as llama.cpp's CPU code rounds them before a product with quantised weights."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bloomery.conformance.parts.ggml_digests import GGML_ROUNDED, decoded_digest, rows_to_round, uniform
from bloomery.interface.files.quants import FORMATS, UnsupportedFormat, by_name, decode, encode
from bloomery.interface.files.quants.activations import ACTIVATION_FORMATS, codes_and_scales, round_to


@pytest.mark.parametrize("name", GGML_ROUNDED)
def test_rounding_gives_ggmls_bits(name: str) -> None:
    assert decoded_digest(round_to(rows_to_round(), name)) == GGML_ROUNDED[name]


def test_every_format_of_weights_names_the_one_of_its_activations() -> None:
    weights = {block_format.name for block_format in FORMATS.values() if block_format.decodable}
    assert set(ACTIVATION_FORMATS) == weights - {"F64", "Q8_1", "Q8_K"}
    assert all(by_name(name).encodable for name in ACTIVATION_FORMATS.values())


def test_halves_go_to_the_even_code_where_the_quantiser_of_weights_goes_away_from_zero() -> None:
    values = np.zeros((1, 32), np.float32)
    values[0, :5] = [127, 0.5, 1.5, -2.5, 3.5]
    codes, scales = codes_and_scales(values, "Q8_0")
    assert codes[0, :5].tolist() == [127, 0, 2, -2, 4]
    assert scales.tolist() == [[1.0]]
    assert decode(encode(values, "Q8_0"), by_name("Q8_0"), (1, 32))[0, :5].tolist() == [127, 1, 2, -3, 4]


def test_the_value_of_largest_magnitude_gets_code_minus_127_in_q8_k() -> None:
    values = np.zeros((1, 256), np.float32)
    values[0, :3] = [2.0, -1.0, 0.5]
    codes, scales = codes_and_scales(values, "Q8_K")
    assert codes[0, :3].tolist() == [-127, 64, -32]
    np.testing.assert_allclose(scales, [[-2 / 127]], rtol=1e-6)


def test_the_scale_of_q8_0_is_rounded_to_half_precision_after_the_codes_are_chosen() -> None:
    values = np.full((1, 32), np.float32(0.1))
    codes, scales = codes_and_scales(values, "Q8_0")
    assert (codes == 127).all()
    assert scales[0, 0] == np.float32(np.float16(np.float32(0.1) / np.float32(127)))
    assert round_to(values, "Q8_0")[0, 0] == scales[0, 0] * np.float32(127) != values[0, 0]


@given(name=st.sampled_from(sorted(set(ACTIVATION_FORMATS.values()))), seed=st.integers(0, 999), rows=st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_a_row_is_rounded_alike_alone_and_among_others_and_stays_near(name: str, seed: int, rows: int) -> None:
    values = uniform(seed, rows, 2, 512)
    together = round_to(values, name)
    assert together.shape == values.shape
    assert all(
        round_to(row, name).tobytes() == rounded.tobytes() for row, rounded in zip(values, together, strict=True)
    )
    assert np.abs(together - values).max() <= 0.5 / 127 + 2**-11


@pytest.mark.parametrize("name", ["Q8_0", "Q8_1", "Q8_K", "F16", "BF16", "F32"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_visible(name: str, value: float) -> None:
    values = uniform(41, 2, 256)
    values[1, 7] = value
    rounded = round_to(values, name)
    assert np.isfinite(rounded[0]).all()
    assert not np.isfinite(rounded[1]).all()


def test_rounding_to_float32_makes_a_copy() -> None:
    values = uniform(43, 2, 32)
    rounded = round_to(values, "F32")
    assert rounded.tobytes() == values.tobytes()
    assert not np.shares_memory(rounded, values)


def test_refusals_name_the_format_and_the_numbers() -> None:
    with pytest.raises(UnsupportedFormat, match="codes of Q4_K, only of Q8_0, Q8_1 and Q8_K"):
        round_to(np.zeros((1, 256), np.float32), "Q4_K")
    with pytest.raises(ValueError, match="48 weights a row are not whole Q8_0 blocks of 32"):
        round_to(np.zeros((1, 48), np.float32), "Q8_0")
    with pytest.raises(ValueError, match="not float64"):
        round_to(np.zeros((1, 32)), "Q8_0")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least one axis"):
        round_to(np.float32(1).reshape(()), "F16")
