"""A model as data: what its layers are, with every parameter a layer program needs and no array.

A family reader (`bloomery.interface.families`) turns a file's metadata into a `ModelDescription`; the layer programs
(`bloomery.interface.layers`) are chosen by the kinds named here. Everything is a frozen dataclass, so a spec can be
compared, printed and used as a key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Rope:
    """Rotary position embedding with linear or YaRN context scaling.

    The first `n_dims` dimensions of a head are rotated: pair `j` by `position * base**(-2j / n_dims)`, where style
    "neox" pairs `(j, j + n_dims/2)` and "norm" pairs `(2j, 2j + 1)`.

    `freq_scale` multiplies every angle (linear scaling: `1 / factor`). With `ext_factor` above 0 the angle is YaRN's
    mix of the scaled and the unscaled one (Peng et al. 2023, section 3.2), ramped between the correction dimensions of
    `beta_fast` and `beta_slow` over `n_ctx_orig` trained positions. Cosine and sine are multiplied by `magnitude`.
    """

    n_dims: int
    base: float
    style: Literal["neox", "norm"]
    freq_scale: float = 1.0
    ext_factor: float = 0.0
    magnitude: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    n_ctx_orig: int = 0


@dataclass(frozen=True, kw_only=True)
class Gqa:
    """Causal grouped-query attention: query head `h` reads KV head `h // (n_head // n_head_kv)`.

    `scale` multiplies every query-key product. `qk_norm_eps` is the epsilon of the RMS norms over each query and key
    head before the rotation; None when the model has no such norms. `bias` says that the query, key and value
    projections add a bias. `window` is how many cells a token sees, its own included; None means all before it.
    """

    n_head: int
    n_head_kv: int
    head_dim: int
    rope: Rope
    scale: float
    qk_norm_eps: float | None
    bias: bool = False
    window: int | None = None


@dataclass(frozen=True, kw_only=True)
class Dense:
    """Gated feed-forward of inner width `n_ff`: `down(activation(gate x) * up x)`."""

    n_ff: int
    activation: Literal["silu", "gelu"] = "silu"


@dataclass(frozen=True, kw_only=True)
class Moe:
    """Routed SwiGLU: `n_expert` experts of inner width `n_ff`, of which the router picks `n_expert_used` a token.

    The router is a softmax over all experts; the picked probabilities are renormalised to sum to 1.
    """

    n_expert: int
    n_expert_used: int
    n_ff: int


@dataclass(frozen=True, kw_only=True)
class Plain:
    """Pre-norm residual: `x += mixer(norm(x)); x += ffn(norm(x))`, both norms RMS with epsilon `norm_eps`."""

    norm_eps: float


@dataclass(frozen=True, kw_only=True)
class Sandwich:
    """Residual with norms on both sides: `x += post(mixer(norm(x))); x += post(ffn(norm(x)))`, four RMS norms."""

    norm_eps: float


Mixer = Gqa
FeedForward = Dense | Moe
Residual = Plain | Sandwich


@dataclass(frozen=True, kw_only=True)
class LayerSpec:
    """One layer: what mixes positions, what transforms each position, and how both join the residual stream."""

    mixer: Mixer
    ffn: FeedForward
    residual: Residual


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """A whole model: `n_vocab` ids in, `n_embd` wide, `layers` in order, an RMS norm and `n_vocab` logits out.

    An id's embedding is multiplied by `embedding_scale` before the first layer.
    """

    architecture: str
    n_vocab: int
    n_embd: int
    n_ctx_train: int
    norm_eps: float
    layers: tuple[LayerSpec, ...]
    embedding_scale: float = 1.0


@dataclass(frozen=True, kw_only=True)
class WeightRef:
    """Where a program's weight lies in the file.

    `tensor` is the file's tensor name and `shape` the shape the program expects in NumPy order (rows = outputs).
    `rows` is the half-open row range of a tensor that holds several weights one after the other (a fused
    `attn_qkv`); None means the whole tensor.
    """

    tensor: str
    shape: tuple[int, ...]
    rows: tuple[int, int] | None = None


@dataclass(frozen=True, kw_only=True)
class ModelDescription:
    """What a family reader returns: the spec, and the table of named weights.

    Keys of `weights` are the programs' names: `token_embd`, `output_norm`, `output` and `blk.<i>.<weight>`, where
    `<weight>` is the name that the layer programs of layer `i` ask for. A tied head is `output` referring to the
    embedding's tensor.
    """

    spec: ModelSpec
    weights: Mapping[str, WeightRef]
