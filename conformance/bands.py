"""How far an engine may be from the oracle: one table, with the derivation beside each number.

Distances are absolute differences of log-probability. A row's distance is the largest over the oracle's ten best
tokens ("top ten"); percentiles are over the rows of a set. Everything here was measured on tiny models with
next-token logits of standard deviation 3 to 5 and prompts of up to 64 tokens, llama.cpp against a float64 forward
pass of the same equations.

What sets the sizes:

* F32 weights, strict: summation order alone, 1e-5 to 1e-4. The HTTP API adds about 1e-5 (a float32 softmax).
* F16 and BF16 weights: llama.cpp rounds activations to the weights' type before each product, to 11 and 8 significant
  bits. An engine that does not do so (`exact`) sees that noise: 1.3e-2 at the median for F16, eight times that for
  BF16.
* Quantised weights: llama.cpp rounds activations to 8-bit blocks. An `exact` engine sees it in full: 0.2 to 0.3 at the
  median. One that does the same (`ggml`) meets either the same integers (1e-6) or, once a value falls on the other
  side of a rounding edge, about 0.1.
* The default configuration: flash attention keeps keys and values in F16, and in passes of fewer than 64 ids queries
  and running sums too, 1e-2 on any weights. An engine that does the same (`ggml-fa-rows`) still meets edges of those
  sums, which every cell that is read rounds once: with noise of 1e-7 and steps of 5e-4, some of 32 cells times 256
  values in every layer.
* Routed models: where two experts nearly tie, noise swaps them and logits move by units, at that token and mildly
  after. That happens in 0.07 to 0.1 % of token-layers for F32 and F16, and 1 to 1.6 % for quantised weights. So
  maxima are not bounded there; outliers are counted.
* GELU: llama.cpp's CPU code looks it up by an argument of half precision, and the values are in half precision too. On
  F32 weights an `exact` engine sees those two roundings a gate, 3e-3 at the median. An engine with the same table
  (`ggml`) meets the same values until float32 noise, whoever's, carries an argument over an edge between two
  half-precision numbers. By estimate noise is 3e-7 of an argument and edges lie 7e-4 of it apart, so that is one gate
  in a thousand: some a token with 7 layers of 256 gates. Each moves what follows by 2e-5, which carries many more over
  their edges. So a llama-server that reads a prompt id by id is as far from itself as from `ggml`, 5e-4 at the median.
  Where gates lie past the table's ends (10 either way) none of this happens, and the bands are those of other models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bloomery.conformance.oracle import Configuration

# A row this far off is an outlier: a swapped expert, not noise.
OUTLIER = 2.5

# Behind the name of a model's weights when its feed-forward has GELU gates, or when prompts have up to 1,500 ids.
WITH_GELU = " with GELU"
LONG = " on long prompts"


@dataclass(frozen=True, kw_only=True)
class Band:
    """Upper bounds on the distances of a set's rows; None bounds nothing.

    p50, p90, p99, most: of the top ten, the last for every row.  whole: of every recorded token of every row.
    outliers: the share of rows whose top ten is past `OUTLIER`.  sure: a greedy choice with at least this lead must be
    the oracle's.  slips: the share of choices that may all the same be another.  why: where the numbers come from.
    """

    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    most: float | None = None
    whole: float | None = None
    outliers: float = 0.0
    sure: float
    slips: float = 0.0
    why: str


_QUANTISED = ("Q8_0", "Q4_K mix")

_F32_STRICT = Band(
    most=2e-4,
    whole=2e-4,
    sure=0.01,
    why="measured 7e-5 (top ten) and 1.1e-4 (whole vocabulary) over 1024 positions; about doubled",
)
_F32_LONG_STRICT = Band(
    most=1e-3,
    whole=1e-3,
    sure=0.02,
    why="measured 5e-4 (top ten) and 9e-4 (whole vocabulary) on a prompt of 1,000 ids: each id read adds its noise to "
    "the keys and values that later ones see",
)
_F32_DEFAULT = Band(
    p50=2e-2,
    p90=4e-2,
    p99=5e-2,
    outliers=0.01,
    sure=0.1,
    why="measured 9e-3, 2e-2, 3e-2; maximum 2.7 where experts swapped",
)
_F32_LONG_DEFAULT = Band(
    p50=2e-2,
    p90=4e-2,
    outliers=0.01,
    sure=0.1,
    slips=0.01,
    why="as on short prompts but for the p99: keys in half precision change 0.35 % of the choices of blocks "
    "(21 of 6,000 in one prompt of 1,500 ids), and attention carries each to some rows after it",
)
_F16_EXACT_STRICT = Band(
    p50=2.6e-2,
    p90=4.8e-2,
    outliers=0.01,
    sure=0.1,
    slips=0.01,
    why="measured 1.3e-2 and 2.4e-2 with activations not rounded; doubled. Experts swap in 0.1 % of token-layers, and "
    "attention carries each swap to some rows after it",
)
_F16_EXACT_DEFAULT = Band(
    p50=3.5e-2,
    p90=6.5e-2,
    outliers=0.01,
    sure=0.1,
    slips=0.01,
    why="the strict band's rounding of activations and the F32 default's rounding of keys and values, added in squares",
)
_BF16_EXACT_STRICT = Band(
    p50=0.21,
    p90=0.39,
    outliers=0.02,
    sure=0.8,
    slips=0.01,
    why="BF16 keeps 8 significant bits where F16 keeps 11: eight times the F16 band",
)
_F16_GGML_STRICT = Band(
    p50=7e-3,
    p90=1.2e-2,
    p99=1.8e-2,
    outliers=0.01,
    sure=0.1,
    slips=0.01,
    why="measured 3.5e-3, 6e-3, 9e-3 over 10,240 rows with activations rounded, doubled; rounding edges remain",
)
_BF16_GGML_STRICT = Band(
    p50=2.8e-2,
    p90=4.8e-2,
    p99=7.2e-2,
    outliers=0.01,
    sure=0.8,
    slips=0.01,
    why="a BF16 step is 2^(11 - 8) = 8 F16 steps: an edge moves a value eight times as far and, with the same noise "
    "before it, is met no more often, so distances are at most eight times the F16 ones as measured (3.5e-3, 6e-3, "
    "9e-3)",
)
_QUANTISED_EXACT_STRICT = Band(
    p50=0.4,
    p90=0.8,
    outliers=0.04,
    sure=1.0,
    slips=0.03,
    why="measured 0.18 to 0.25 and 0.49; experts swap in 1.6 % of token-layers, which is 3.2 % of rows with two layers "
    "before what attention passes on",
)
_QUANTISED_EXACT_DEFAULT = Band(
    p50=0.4,
    p90=0.8,
    outliers=0.02,
    sure=1.0,
    slips=0.03,
    why="measured 0.15 to 0.21 and 0.26 to 0.35 with activations quantised; without, as strict",
)
_QUANTISED_GGML_STRICT = Band(
    p50=1e-4,
    p90=0.3,
    p99=1.0,
    outliers=0.01,
    sure=1.0,
    slips=0.03,
    why="measured 2e-6, 0.15 and 0.29 on prompts of 64; longer prompts cross more rounding edges",
)

_F32_GELU_EXACT_STRICT = Band(
    p50=5.6e-3,
    p90=8.8e-3,
    p99=1.2e-2,
    sure=0.05,
    why="two values of a gate are rounded to half precision, where F16 weights have four products a layer with rounded "
    "activations: half the variance, so 1/sqrt(2) of the 7.8e-3, 1.2e-2 and 1.6e-2 that F16 weights were measured at "
    "on the same model; measured 3e-3, 4.8e-3, 6.4e-3",
)
_F32_GELU_GGML_STRICT = Band(
    p50=1.3e-3,
    p90=3e-3,
    p99=5.2e-3,
    most=7.6e-3,
    sure=0.02,
    why="a float64 forward pass with the table was measured at 6.7e-4, 1.5e-3, 2.6e-3 and 3.8e-3, a llama-server that "
    "reads id by id at 5e-4, 1.3e-3, 2.8e-3 and 3.1e-3 from itself; the first doubled",
)
_Q8_0_GELU_GGML_STRICT = Band(
    p50=0.15,
    p90=0.3,
    p99=1.0,
    outliers=0.01,
    sure=1.0,
    slips=0.03,
    why="most prompts meet an edge of GELU's table and then an edge of a code, so the p90 of models without GELU "
    "is the median here; measured 0.06, 0.17 and 0.25",
)

_F32_ROWS = Band(
    p50=4e-3,
    p90=8e-3,
    p99=5e-2,
    outliers=0.01,
    sure=0.1,
    slips=0.01,
    why="a running sum in half precision meets rounding edges in most rows: llama.cpp reading 64 ids in passes of 32 "
    "is 2e-3 and 4e-3 from itself reading them one by one, which is doubled. A pass of 64 has no such sums, so the p99 "
    "is that of the default configuration",
)
_F16_ROWS = Band(
    p50=1e-2,
    p90=1.7e-2,
    p99=5e-2,
    outliers=0.01,
    sure=0.1,
    slips=0.01,
    why="as with F32 weights; llama.cpp is 4.8e-3 and 8.3e-3 from itself, doubled",
)
_QUANTISED_ROWS = Band(
    p50=0.12,
    p90=0.5,
    outliers=0.02,
    sure=1.0,
    slips=0.03,
    why="most rows meet an edge of a running sum, and then one of a code. Were it every row, the median would be that "
    "of the rows past an edge in the strict configuration: 0.1, a fifth more for so few rows. One row in twelve is of "
    "a pass of 64 and as far as with `exact`, which the p90 and the outliers leave room for",
)
_F32_GELU_ROWS = Band(
    p50=9e-3,
    p90=1.5e-2,
    p99=5e-2,
    sure=0.1,
    slips=0.01,
    why="as without GELU; llama.cpp is 4.5e-3 and 7.3e-3 from itself on seven layers, doubled",
)
_F16_GELU_ROWS = Band(
    p50=1.5e-2,
    p90=2.2e-2,
    p99=5e-2,
    sure=0.1,
    slips=0.01,
    why="as without GELU; llama.cpp is 7.3e-3 and 1.1e-2 from itself on seven layers, doubled",
)
_QUANTISED_GELU_ROWS = Band(
    p50=0.2,
    p90=0.5,
    outliers=0.02,
    sure=1.0,
    slips=0.03,
    why="every row meets edges, on more layers; measured 0.12 and 0.16 over 512 rows, a quarter more",
)

# By weights, the oracle's configuration, and the engine's numerics. On F32 weights `ggml` rounds nothing, and on others
# it follows the strict configuration. The default one is recorded with a request for each length, so all its passes but
# those of the longest have fewer than 64 ids: `ggml-fa-rows` follows them, and `ggml-fa` has no band there.
_WITHOUT_GELU: Mapping[tuple[str, Configuration, str], Band] = {
    **{("F32", "strict", numerics): _F32_STRICT for numerics in ("exact", "ggml")},
    **{("F32" + LONG, "strict", numerics): _F32_LONG_STRICT for numerics in ("exact", "ggml")},
    **{("F32", "default", numerics): _F32_DEFAULT for numerics in ("exact", "ggml")},
    **{("F32" + LONG, "default", numerics): _F32_LONG_DEFAULT for numerics in ("exact", "ggml")},
    ("F16", "strict", "exact"): _F16_EXACT_STRICT,
    ("F16", "default", "exact"): _F16_EXACT_DEFAULT,
    ("BF16", "strict", "exact"): _BF16_EXACT_STRICT,
    ("F16", "strict", "ggml"): _F16_GGML_STRICT,
    ("BF16", "strict", "ggml"): _BF16_GGML_STRICT,
    **{(weights, "strict", "exact"): _QUANTISED_EXACT_STRICT for weights in _QUANTISED},
    **{(weights, "default", "exact"): _QUANTISED_EXACT_DEFAULT for weights in _QUANTISED},
    **{(weights, "strict", "ggml"): _QUANTISED_GGML_STRICT for weights in _QUANTISED},
    ("F32", "default", "ggml-fa-rows"): _F32_ROWS,
    ("F16", "default", "ggml-fa-rows"): _F16_ROWS,
    **{(weights, "default", "ggml-fa-rows"): _QUANTISED_ROWS for weights in _QUANTISED},
}

# Beside rounded activations the table hardly shows, and K formats add so little in float32 that no edge is met by it.
_FOR_GELU: Mapping[tuple[str, Configuration, str], Band] = {
    ("F32", "strict", "exact"): _F32_GELU_EXACT_STRICT,
    ("F32", "strict", "ggml"): _F32_GELU_GGML_STRICT,
    ("Q8_0", "strict", "ggml"): _Q8_0_GELU_GGML_STRICT,
    ("F32", "default", "ggml-fa-rows"): _F32_GELU_ROWS,
    ("F16", "default", "ggml-fa-rows"): _F16_GELU_ROWS,
    **{(weights, "default", "ggml-fa-rows"): _QUANTISED_GELU_ROWS for weights in _QUANTISED},
}
BANDS: Mapping[tuple[str, Configuration, str], Band] = {
    **_WITHOUT_GELU,
    **{(key[0] + WITH_GELU, *key[1:]): _FOR_GELU.get(key, band) for key, band in _WITHOUT_GELU.items()},
}


class NoBandError(LookupError):
    """No band was derived for a combination; the message names it and those there are."""


def band_of(weights: str, configuration: Configuration, numerics: str) -> Band:
    """The band of a combination.  Raises NoBandError: an engine is never judged by a guessed number."""
    try:
        return BANDS[weights, configuration, numerics]
    except KeyError:
        known = ", ".join("/".join(key) for key in BANDS)
        raise NoBandError(f"no band for {weights}/{configuration}/{numerics}; there are {known}") from None
