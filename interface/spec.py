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

    With `sections` (t, h, w, e) a position has four components and the pairs take turns between them (interleaved
    M-RoPE): pair `j` turns by h when `j % 3 == 1` and `j < 3 h`, by w when `j % 3 == 2` and `j < 3 w`, by t when
    `j % 3 == 0` and `j < 3 t`, else by e, with `j` taken modulo t + h + w + e. A position of text has the same number
    in every component.
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
    sections: tuple[int, int, int, int] | None = None


@dataclass(frozen=True, kw_only=True)
class BlockSelector:
    """Index heads that choose, for each token and KV head, the blocks of cells its attention may read.

    KV head `a` has an index query of `head_dim`; all share one index key a cell. A block is `block` cells; its score is
    the largest product of the query with a key in it. The `n_chosen` best are read, the `n_local` most recent ones
    always among them.
    """

    head_dim: int
    rope: Rope
    norm_eps: float
    block: int
    n_chosen: int
    n_local: int


@dataclass(frozen=True, kw_only=True)
class Gqa:
    """Causal grouped-query attention: query head `h` reads KV head `h // (n_head // n_head_kv)`.

    Queries and keys are `head_dim` wide, values `value_dim`. `scale` multiplies every query-key product. `qk_norm_eps`
    is the epsilon of the RMS norms over each query and key head before the rotation; None when the model has no such
    norms. `rope` None means that positions are not marked. `biases` are the projections that add one ("attn_q" ...).
    `window` is how many cells a token sees, its own included; None means all before it. `sinks`: each head has one more
    score in its softmax, without a value. `gated`: the query projection holds, after the query of each head, as many
    numbers whose sigmoid multiplies the head's output. `output_scale` multiplies what the layer adds.
    """

    n_head: int
    n_head_kv: int
    head_dim: int
    value_dim: int
    rope: Rope | None
    scale: float
    qk_norm_eps: float | None
    biases: frozenset[str] = frozenset()
    window: int | None = None
    sinks: bool = False
    gated: bool = False
    output_scale: float = 1.0
    selector: BlockSelector | None = None


@dataclass(frozen=True, kw_only=True)
class DeltaRule:
    """Gated delta rule (Yang et al. 2024, Gated DeltaNet) behind a short causal convolution.

    `n_head_v` value heads share `n_head_k` key heads in turn: value head `h` uses key head `h % n_head_k`. Keys and
    values are `head_dim` wide. The convolution sees `conv_kernel` inputs, the newest its own. `norm_eps` is the epsilon
    of the L2 norm of queries and keys and of the RMS norm over each head's output.
    """

    n_head_k: int
    n_head_v: int
    head_dim: int
    conv_kernel: int
    norm_eps: float


@dataclass(frozen=True, kw_only=True)
class Mamba2:
    """Selective state space with one decay a head (Dao & Gu 2024, Mamba-2) behind a short causal convolution.

    `n_head` heads of `head_dim` channels, each with `d_state` numbers of state; head `h` reads the input and output
    vectors of group `h // (n_head / n_group)`. The output is gated first and then normed over each group's channels.
    """

    n_head: int
    head_dim: int
    n_group: int
    d_state: int
    conv_kernel: int
    norm_eps: float


Activation = Literal["silu", "gelu", "oai", "relu2"]
"""What stands between a feed-forward's projections: `OpSet.swiglu`, `geglu`, `swiglu_oai`, or, without a gate
projection, `squared_relu`."""


@dataclass(frozen=True, kw_only=True)
class Dense:
    """Feed-forward of inner width `n_ff`: `down(activation(gate x, up x))`, or `down(relu(up x)^2)`.

    `biases` are the projections that add one ("ffn_up" ...).
    """

    n_ff: int
    activation: Activation = "silu"
    biases: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class SharedExpert:
    """An expert of inner width `n_ff` that every token uses; `gated`: times the sigmoid of a projection to a number."""

    n_ff: int
    gated: bool


@dataclass(frozen=True, kw_only=True)
class Moe:
    """Routed feed-forward: `n_expert` experts of inner width `n_ff`, of which the router picks `n_expert_used` a token.

    The router's probabilities are a `score` over its logits. The largest are picked, after a bias an expert where there
    is a `selection_bias`; the picked ones, without the bias, are `normalised` to sum to 1 and multiplied by
    `weights_scale`. `n_latent`: experts work on a projection of that width, and their sum is projected back; the router
    and the shared expert see the whole width.
    """

    n_expert: int
    n_expert_used: int
    n_ff: int
    activation: Activation = "silu"
    score: Literal["softmax", "sigmoid"] = "softmax"
    selection_bias: bool = False
    normalised: bool = True
    weights_scale: float = 1.0
    shared: SharedExpert | None = None
    n_latent: int | None = None


@dataclass(frozen=True, kw_only=True)
class Plain:
    """Pre-norm residual: `x += mixer(norm(x)); x += ffn(norm(x))`, both norms RMS with epsilon `norm_eps`."""

    norm_eps: float


@dataclass(frozen=True, kw_only=True)
class Sandwich:
    """Residual with norms on both sides: `x += post(mixer(norm(x))); x += post(ffn(norm(x)))`, four RMS norms."""

    norm_eps: float


Mixer = Gqa | DeltaRule | Mamba2
FeedForward = Dense | Moe
Residual = Plain | Sandwich


@dataclass(frozen=True, kw_only=True)
class LayerSpec:
    """One layer: what mixes positions, what transforms each position, and how both join the residual stream.

    Some models make a layer of either alone: the other is None, and its norm and its step are left out.
    """

    mixer: Mixer | None
    ffn: FeedForward | None
    residual: Residual


@dataclass(frozen=True, kw_only=True)
class NextN:
    """A layer that drafts (multi-token prediction): from the id of a position and the hidden row of the one before it,
    which is the row behind the output norm, it predicts the id after. Its own output row is the next step's hidden row.
    """

    layer: LayerSpec
    norm_eps: float


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """A whole model: `n_vocab` ids in, `n_embd` wide, `layers` in order, an RMS norm and `n_vocab` logits out.

    An id's embedding is multiplied by `embedding_scale` before the first layer. `nextn` is the model's own draft layer.
    """

    architecture: str
    n_vocab: int
    n_embd: int
    n_ctx_train: int
    norm_eps: float
    layers: tuple[LayerSpec, ...]
    embedding_scale: float = 1.0
    nextn: NextN | None = None


@dataclass(frozen=True, kw_only=True)
class WeightRef:
    """Where a program's weight lies in the file.

    `tensor` is the file's tensor name and `shape` the shape the program expects in NumPy order (rows = outputs).
    `rows` is the half-open row range of a tensor that holds several weights one after the other (a fused
    `attn_qkv`), within each expert where the weight is one of experts; None means the whole tensor.
    """

    tensor: str
    shape: tuple[int, ...]
    rows: tuple[int, int] | None = None


@dataclass(frozen=True, kw_only=True)
class ModelDescription:
    """What a family reader returns: the spec, and the table of named weights.

    Keys of `weights` are the programs' names: `token_embd`, `output_norm`, `output`, `blk.<i>.<weight>`, where
    `<weight>` is the name that the layer programs of layer `i` ask for, and `nextn.<weight>` for a draft layer. A tied
    head is `output` referring to the embedding's tensor. `unread` are tensors that the reader knows and that answer
    nothing here, such as draft layers that this version does not run; any other tensor without a reader is refused.
    """

    spec: ModelSpec
    weights: Mapping[str, WeightRef]
    unread: frozenset[str] = frozenset()
