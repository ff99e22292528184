"""Sampling fields whose seeded ids are recorded, by the name of their case.

Every run is asked for with a few seeds, the default chain with fifty. Runs cover each sampler alone and in company.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SEEDS = (1, 42, 2**31 + 7)

# The edges of 32 bits, and seeds past them, which wrap; not -1, which asks for a random one.
_EDGES = (0, 2**31 - 1, 2**31, 2**32 - 2, 2**32, 2**32 + 5, 2**33 + 2**31, -2, -7, -(2**31))
FIFTY_SEEDS = (*SEEDS, *_EDGES, *range(1000, 1037))

DEFAULT = "default"
_OPEN: Mapping[str, Any] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}

RUNS: Mapping[str, Mapping[str, Any]] = {
    DEFAULT: {},
    "open": _OPEN,
    "hot": {**_OPEN, "temperature": 2.0},
    "cold": {"temperature": 0.3},
    "huge temperature": {"temperature": 1e30},
    "top_k 1": {"top_k": 1},
    "top_k 3": {**_OPEN, "top_k": 3, "temperature": 1.5},
    "top_k past the vocabulary": {**_OPEN, "top_k": 100000},
    "top_p": {**_OPEN, "top_p": 0.6, "temperature": 1.2},
    "top_p tiny": {**_OPEN, "top_p": 0.01},
    "top_p zero": {**_OPEN, "top_p": 0.0},
    "min_p": {**_OPEN, "min_p": 0.3, "temperature": 1.2},
    "min_p one": {**_OPEN, "min_p": 1.0},
    "min_keep": {**_OPEN, "top_p": 0.05, "min_p": 0.9, "min_keep": 4},
    "typical_p": {**_OPEN, "typical_p": 0.5, "temperature": 1.2},
    "repeat_penalty": {"repeat_penalty": 1.4, "repeat_last_n": 8},
    "repeat_penalty below one": {"repeat_penalty": 0.8, "repeat_last_n": 32},
    "repeat_last_n none": {"repeat_penalty": 1.5, "repeat_last_n": 0},
    "presence_penalty": {**_OPEN, "presence_penalty": 1.5},
    "presence_penalty negative": {"presence_penalty": -1.25},
    "frequency_penalty": {**_OPEN, "frequency_penalty": 0.9, "repeat_last_n": 64},
    "frequency_penalty negative": {**_OPEN, "frequency_penalty": -0.7},
    "all penalties": {"repeat_penalty": 1.2, "presence_penalty": 0.4, "frequency_penalty": 0.3, "repeat_last_n": 20},
    "logit_bias": {**_OPEN, "logit_bias": [[65, 14.5], [66, 13.25], [67, False]]},
    "ignore_eos": {**_OPEN, "ignore_eos": True, "temperature": 3.0},
    "temperature order": {"samplers": ["temperature", "top_p", "top_k"], "top_k": 4, "top_p": 0.8, "temperature": 1.8},
    "penalties last": {"samplers": ["top_k", "penalties", "temperature"], "top_k": 4, "repeat_penalty": 1.6},
    "n_probs beside a draw": {"n_probs": 3},
    "post_sampling_probs beside a draw": {"n_probs": 3, "post_sampling_probs": True},
    "temperature zero with penalties": {"temperature": 0.0, "repeat_penalty": 1.5},
    "temperature negative": {"temperature": -1.0},
    "dynatemp": {**_OPEN, "temperature": 1.0, "dynatemp_range": 0.7, "dynatemp_exponent": 1.4},
    "top_n_sigma": {**_OPEN, "top_n_sigma": 1.0, "temperature": 1.5},
    "xtc": {**_OPEN, "xtc_probability": 0.5, "xtc_threshold": 0.08},
    "dry": {**_OPEN, "dry_multiplier": 0.8, "dry_base": 1.75, "dry_allowed_length": 2},
    "mirostat": {"mirostat": 1, "mirostat_tau": 3.0, "mirostat_eta": 0.2},
    "mirostat 2": {"mirostat": 2, "mirostat_tau": 3.0, "mirostat_eta": 0.2},
}

# A random model's ids part for good once a draw falls on a cumulative edge, so it gets few runs, and the common ones.
FEW_RUNS = (DEFAULT, "hot", "cold", "top_p", "all penalties")
