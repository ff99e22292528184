"""Block formats: what each decodes to and encodes to, bit for bit as ggml, and the rounding of activations.

ggml's bits are known as digests of fixed inputs. A digest cannot say where two decoders part; for the formats that the
gguf package decodes too, its weights do.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import partial

import gguf
import numpy as np
import numpy.typing as npt

from bloomery.conformance.finding import Check, Effort, Finding
from bloomery.conformance.parts.ggml_digests import (
    GGML_DECODED,
    GGML_ENCODED,
    GGML_ROUNDED,
    blocks_to_decode,
    decoded_digest,
    rows_to_round,
    uniform,
    weights_to_encode,
)
from bloomery.interface.files.quants import FORMATS, BlockFormat, by_name, decode, encode
from bloomery.interface.files.quants.activations import round_to

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

# What the gguf package encodes as ggml does.
_ENCODED_BY_GGUF = frozenset({"Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "BF16", "TQ1_0", "TQ2_0"})

DECODING, ENCODING, ROUNDING = "decoding", "encoding", "activations"


def checks() -> list[Check]:
    """A check a conversion of each format."""
    found = []
    for block_format in FORMATS.values():
        name, subject = block_format.name, f"format {block_format.name}"
        if block_format.decodable:
            found.append(Check(subject=subject, name=DECODING, run=partial(_decoding, name)))
        if name in GGML_ENCODED:
            found.append(Check(subject=subject, name=ENCODING, run=partial(_encoding, name)))
        if name in GGML_ROUNDED:
            found.append(Check(subject=subject, name=ROUNDING, run=partial(_rounding, name)))
    return found


def _decoding(name: str, _effort: Effort) -> Iterator[Finding]:
    block_format = by_name(name)
    raw = blocks_to_decode(block_format)
    ours = decode(raw, block_format, (len(raw), block_format.block_size))
    theirs = _second_opinion(raw, block_format)
    wrong = []
    if theirs is not None:
        same = (ours.view(np.uint32) == theirs.view(np.uint32)) | (np.isnan(ours) & np.isnan(theirs))
        if not same.all():
            block, at = (int(place) for place in np.argwhere(~same)[0])
            wrong.append(
                f"weight {at} of block {raw[block].tobytes().hex()} is {ours[block, at]!r}, and"
                f" {theirs[block, at]!r} by an independent decoder ({int((~same).sum())} of {same.size} differ)"
            )
    if name in GGML_DECODED and decoded_digest(ours) != GGML_DECODED[name]:
        wrong.append(f"the weights of {len(raw)} blocks have other bits than ggml decodes")
    measured = {"blocks": float(len(raw))}
    yield Finding(subject=f"format {name}", check=DECODING, measured=measured, wrong=tuple(wrong))


def _second_opinion(raw: Bytes, block_format: BlockFormat) -> Floats | None:
    """The weights by the gguf package, or by the layout alone where it says all; None where neither can tell."""
    with np.errstate(all="ignore"):
        if block_format.block_size == 1 and block_format.name != "BF16":
            plain = {"F32": "<f4", "F16": "<f2", "F64": "<f8"}[block_format.name]
            return np.ascontiguousarray(raw).view(plain).astype(np.float32)
        if block_format.name == "Q8_1":
            scales = np.ascontiguousarray(raw[:, :2]).view("<f2").astype(np.float32)
            return np.ascontiguousarray(raw[:, 4:]).view(np.int8).astype(np.float32) * scales
        if not hasattr(gguf.quants, block_format.name):
            return None
        weights = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[block_format.name])
    return np.asarray(weights, np.float32).reshape(len(raw), block_format.block_size)


def _encoding(name: str, _effort: Effort) -> Iterator[Finding]:
    wrong = []
    halves = _halfway()
    opinion = None if name not in _ENCODED_BY_GGUF else gguf.quants.quantize(halves, gguf.GGMLQuantizationType[name])
    if opinion is not None and not np.array_equal(encode(halves, name), opinion.reshape(len(halves), -1)):
        wrong.append("weights halfway between two codes are other bytes than an independent encoder makes of them")
    encoded = [encode(values, name).tobytes() for values in weights_to_encode().values()]
    if hashlib.sha256(b"".join(encoded)).hexdigest() != GGML_ENCODED[name]:
        wrong.append(f"the blocks of {len(encoded)} kinds of weights are other bytes than ggml makes of them")
    measured = {"kinds": float(len(encoded))}
    yield Finding(subject=f"format {name}", check=ENCODING, measured=measured, wrong=tuple(wrong))


def _halfway() -> Floats:
    """Weights halfway between the codes of Q8_0: 127 in each block makes the scale a power of two."""
    values = np.rint(uniform(37, 16, 1024) * 126) + np.float32(0.5)
    values[:, ::32] = 127
    return (values * np.float32(2.0**-9)).astype(np.float32)


def _rounding(name: str, _effort: Effort) -> Iterator[Finding]:
    rows = rows_to_round()
    same = decoded_digest(round_to(rows, name)) == GGML_ROUNDED[name]
    wrong = () if same else (f"{len(rows)} rows of activations are rounded to other values than ggml rounds them to",)
    yield Finding(subject=f"format {name}", check=ROUNDING, measured={"rows": float(len(rows))}, wrong=wrong)
