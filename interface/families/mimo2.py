"""`mimo2`: MiMo-V2-Flash and its successors. Layers with a window and layers without, each with heads of its own.

Keys are wider than values, a part of a head turns, and a sink joins the softmax where a layer has the tensor. A layer
is dense where it has no router.
"""

from __future__ import annotations

import math

from bloomery.interface.families.count import read_count
from bloomery.interface.families.heads import read_n_vocab
from bloomery.interface.families.per_layer import read_flags, read_per_layer
from bloomery.interface.families.positive import read_positive
from bloomery.interface.families.rope import read_rope
from bloomery.interface.families.unserved import refuse_unserved, unread_drafts
from bloomery.interface.families.weights import standard_weights
from bloomery.interface.files.gguf import GgufFile, ModelFileError
from bloomery.interface.spec import Dense, Gqa, LayerSpec, ModelDescription, ModelSpec, Moe, Plain, Rope

_MOST_BLOCKS = 4096
# The base of layers with a window in files without a key for it, whatever the other layers' base is.
_LOCAL_BASE = 10000.0
# `expert_gating_func` of a router that scores by sigmoid.
_SIGMOID = 2


def read(file: GgufFile) -> ModelDescription:
    """The spec and weight table of a `mimo2` file.

    The draft layers behind the trunk (`nextn_predict_layers`) are left unread. Raises ModelFileError naming a missing
    or impossible key, a missing head or trunk, or a tensor that scales another.

    Source: llama.cpp src/models/mimo2.cpp.
    """
    n_block = read_count(file, "mimo2.block_count", most=_MOST_BLOCKS)
    n_draft = file.get_u32("mimo2.nextn_predict_layers", 0)
    if n_draft >= n_block:
        raise _wrong(file, f"nextn_predict_layers {n_draft} leaves none of the {n_block} blocks of block_count")
    if n_draft and "blk.0.attn_norm.weight" not in file.tensors:
        raise ModelFileError(
            f"{file.path}: the file holds draft layers without their model (there is no blk.0.attn_norm.weight); serve"
            " a file that holds both"
        )
    if "output.weight" not in file.tensors:
        raise ModelFileError(f"{file.path}: the tensor output.weight is missing; a mimo2 head is never the embedding")
    unread = unread_drafts(file, n_block - n_draft, n_block)
    refuse_unserved(file, unread)
    layers = _Layers(file, n_block)
    spec = ModelSpec(
        architecture="mimo2",
        n_vocab=read_n_vocab(file),
        n_embd=layers.n_embd,
        n_ctx_train=layers.n_ctx_train,
        norm_eps=layers.eps,
        layers=tuple(layers.layer(i) for i in range(n_block - n_draft)),
    )
    return ModelDescription(spec=spec, weights=standard_weights(spec, file.tensors), unread=unread)


class _Layers:
    """The keys that more than one layer reads, and the layers they make."""

    def __init__(self, file: GgufFile, n_block: int) -> None:
        self._file = file
        self.n_embd = read_count(file, "mimo2.embedding_length")
        self.n_ctx_train = read_count(file, "mimo2.context_length")
        self.eps = read_positive(file, "mimo2.attention.layer_norm_rms_epsilon")
        self._n_head = self._by_layer("attention.head_count", n_block)
        has_own = "mimo2.attention.head_count_kv" in file.metadata
        self._n_head_kv = self._by_layer("attention.head_count_kv", n_block) if has_own else self._n_head
        self._n_ff = self._by_layer("feed_forward_length", n_block)
        self._windowed = read_flags(file, "mimo2.attention.sliding_window_pattern", n_block)
        self._window = read_count(file, "mimo2.attention.sliding_window")
        share = self.n_embd // self._at(0, "attention.head_count", self._n_head)
        self._key_dim = self._width("attention.key_length", share)
        self._value_dim = self._width("attention.value_length", share)
        self._output_scale = read_positive(file, "mimo2.attention.value_scale", 1.0)
        self._rope, self._local_rope = self._ropes()
        self._n_ff_exp: tuple[int, ...] = ()
        if any(self._is_routed(i) for i in range(n_block)):
            self._n_ff_exp = self._by_layer("expert_feed_forward_length", n_block)

    def layer(self, i: int) -> LayerSpec:
        """Attention, and routed experts where block `i` has a router."""
        ffn = self._experts(i) if self._is_routed(i) else Dense(n_ff=self._at(i, "feed_forward_length", self._n_ff))
        return LayerSpec(mixer=self._attention(i), ffn=ffn, residual=Plain(norm_eps=self.eps))

    def _attention(self, i: int) -> Gqa:
        n_head = self._at(i, "attention.head_count", self._n_head)
        n_head_kv = self._at(i, "attention.head_count_kv", self._n_head_kv)
        if n_head % n_head_kv:
            raise _wrong(
                self._file,
                f"attention.head_count {n_head} of layer {i} is not a multiple of its head_count_kv {n_head_kv}",
            )
        return Gqa(
            n_head=n_head,
            n_head_kv=n_head_kv,
            head_dim=self._key_dim,
            value_dim=self._value_dim,
            rope=self._local_rope if self._windowed[i] else self._rope,
            scale=1.0 / math.sqrt(self._key_dim),
            qk_norm_eps=None,
            window=self._window if self._windowed[i] else None,
            sinks=f"blk.{i}.attn_sinks.weight" in self._file.tensors,
            output_scale=self._output_scale,
        )

    def _experts(self, i: int) -> Moe:
        n_expert, n_used = (read_count(self._file, f"mimo2.expert_{name}") for name in ("count", "used_count"))
        if n_used > n_expert:
            raise _wrong(self._file, f"expert_used_count {n_used} is more than mimo2.expert_count {n_expert}")
        if (scale := self._file.get_float("mimo2.expert_weights_scale", 0.0)) not in (0.0, 1.0):
            # The key's meaning is a factor, which llama.cpp leaves out in this family.
            raise _wrong(
                self._file, f"expert_weights_scale is {scale}; llama-server ignores it, so only 0 and 1 are sure"
            )
        if (score := self._file.get_u32("mimo2.expert_gating_func", _SIGMOID)) != _SIGMOID:
            raise _wrong(self._file, f"expert_gating_func is {score}; this version computes {_SIGMOID}, the sigmoid")
        if not self._file.get_bool("mimo2.expert_weights_norm", True):
            raise _wrong(self._file, "expert_weights_norm is false; this version normalises what the router picks")
        if (n_group := self._file.get_u32("mimo2.expert_group_count", 0)) > 1:
            raise _wrong(self._file, f"expert_group_count is {n_group}; this version chooses among all experts only")
        return Moe(
            n_expert=n_expert,
            n_expert_used=n_used,
            n_ff=self._at(i, "expert_feed_forward_length", self._n_ff_exp),
            score="sigmoid",
            selection_bias=f"blk.{i}.exp_probs_b.bias" in self._file.tensors,
        )

    def _ropes(self) -> tuple[Rope, Rope]:
        """Of layers that see all cells, whose context may be scaled, and of those with a window."""
        n_dims = self._width("rope.dimension_count", self._key_dim)
        if n_dims > self._key_dim:
            raise _wrong(self._file, f"rope.dimension_count {n_dims} is more than a head's {self._key_dim}")
        rope = read_rope(self._file, n_dims=n_dims, style="neox", n_ctx_train=self.n_ctx_train)
        if rope.ext_factor or rope.magnitude != 1.0:
            raise _wrong(
                self._file, "rope.scaling is YaRN's or has an attn_factor; this version scales contexts linearly only"
            )
        base = read_positive(self._file, "mimo2.rope.freq_base_swa", _LOCAL_BASE)
        return rope, Rope(n_dims=n_dims, base=base, style="neox")

    def _width(self, name: str, default: int) -> int:
        """A width that layers with a window and layers without must have in common."""
        width = read_count(self._file, f"mimo2.{name}", default)
        if (local := read_count(self._file, f"mimo2.{name}_swa", width)) != width:
            raise _wrong(self._file, f"{name}_swa is {local}, but {name} is {width}, and both must be equal")
        return width

    def _by_layer(self, name: str, n_block: int) -> tuple[int, ...]:
        return read_per_layer(self._file, f"mimo2.{name}", n_block)

    def _at(self, i: int, name: str, numbers: tuple[int, ...]) -> int:
        if not numbers[i]:
            raise _wrong(self._file, f"{name} of layer {i} is 0; it must be at least 1")
        return numbers[i]

    def _is_routed(self, i: int) -> bool:
        return f"blk.{i}.ffn_gate_inp.weight" in self._file.tensors


def _wrong(file: GgufFile, fact: str) -> ModelFileError:
    return ModelFileError(f"{file.path}: mimo2.{fact}")
