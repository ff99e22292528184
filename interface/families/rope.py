"""Rotary embedding from the metadata keys every architecture shares."""

from __future__ import annotations

import math
from typing import Literal

from bloomery.interface.families.count import read_count
from bloomery.interface.families.positive import read_positive
from bloomery.interface.files.gguf import GgufFile, ModelFileError
from bloomery.interface.quoted import quoted
from bloomery.interface.spec import Rope


def read_rope(file: GgufFile, *, n_dims: int, style: Literal["neox", "norm"], n_ctx_train: int) -> Rope:
    """`<arch>.rope.*` as llama.cpp reads it (llama-model.cpp, llama-context.cpp).

    The scaling type is "none", "linear" (also when absent) or "yarn"; a factor of 0 or none means 1. YaRN multiplies
    cosine and sine by `attn_factor * (1 + 0.1 ln factor)` (Peng et al. 2023, section 3.4).  Raises ModelFileError.
    """
    prefix = f"{file.get_str('general.architecture')}.rope"
    if n_dims % 2:
        raise ModelFileError(f"{file.path}: {prefix}.dimension_count {n_dims} is odd, and rope turns pairs")
    base = read_positive(file, f"{prefix}.freq_base", 10000.0)
    kind = file.get_str(f"{prefix}.scaling.type", "linear")
    factor_key = f"{prefix}.scaling.factor"
    if factor_key not in file.metadata and f"{prefix}.scale_linear" in file.metadata:
        factor_key = f"{prefix}.scale_linear"
    factor = file.get_float(factor_key, 0.0)
    if not (factor >= 0 and math.isfinite(factor)):
        raise ModelFileError(f"{file.path}: {factor_key} is {factor}; it must be 0 or a positive number")
    factor = factor or 1.0
    magnitude = read_positive(file, f"{prefix}.scaling.attn_factor", 1.0)
    if kind == "yarn" and base <= 1.0:
        # YaRN divides by the base's logarithm.
        raise ModelFileError(f"{file.path}: {prefix}.freq_base is {base}; with yarn scaling it must be above 1")
    if kind == "none":
        return Rope(n_dims=n_dims, base=base, style=style, magnitude=magnitude)
    if kind == "linear":
        return Rope(n_dims=n_dims, base=base, style=style, freq_scale=1.0 / factor, magnitude=magnitude)
    if kind == "yarn":
        return Rope(
            n_dims=n_dims,
            base=base,
            style=style,
            freq_scale=1.0 / factor,
            ext_factor=1.0,
            magnitude=magnitude * (1.0 + 0.1 * math.log(max(1.0, factor))),
            n_ctx_orig=read_count(file, f"{prefix}.scaling.original_context_length", n_ctx_train),
        )
    raise ModelFileError(f"{file.path}: {prefix}.scaling.type {quoted(kind)} is none of none, linear, yarn")
