"""`nemotron_h` and `nemotron_h_moe`: Mamba-2, attention without positions, and relu^2 feed-forwards, one a block.

Which of them a block is stands in two arrays: a width in `feed_forward_length` makes it a feed-forward, else a number
in `attention.head_count_kv` makes it attention, else it is Mamba-2.
"""

from __future__ import annotations

import math

from bloomery.interface.families.count import read_count
from bloomery.interface.families.heads import read_n_vocab
from bloomery.interface.families.per_layer import read_per_layer
from bloomery.interface.families.positive import read_positive
from bloomery.interface.families.unserved import refuse_unserved, unread_drafts
from bloomery.interface.families.weights import standard_weights
from bloomery.interface.files.gguf import GgufFile, ModelFileError
from bloomery.interface.spec import (
    Dense,
    FeedForward,
    Gqa,
    LayerSpec,
    Mamba2,
    Mixer,
    ModelDescription,
    ModelSpec,
    Moe,
    Plain,
    SharedExpert,
)

_MOST_BLOCKS = 4096


def read(file: GgufFile) -> ModelDescription:
    """The spec and weight table of a file of either architecture.

    The draft blocks behind the trunk (`nextn_predict_layers`) are left unread. Raises ModelFileError naming a missing
    or impossible key, or a tensor that scales another.

    Source: llama.cpp src/models/nemotron-h.cpp and mamba-base.cpp; NVIDIA Nemotron-H (arXiv:2504.03624).
    """
    keys = _Keys(file)
    unread = unread_drafts(file, keys.n_layer, keys.n_block)
    refuse_unserved(file, unread)
    spec = ModelSpec(
        architecture=keys.arch,
        n_vocab=read_n_vocab(file),
        n_embd=keys.n_embd,
        n_ctx_train=read_count(file, f"{keys.arch}.context_length"),
        norm_eps=keys.eps,
        layers=tuple(keys.layer(i) for i in range(keys.n_layer)),
    )
    # A block has one norm, whatever it holds.
    weights = standard_weights(spec, file.tensors, {"ffn_norm": "attn_norm"})
    return ModelDescription(spec=spec, weights=weights, unread=unread)


class _Keys:
    """The keys that more than one block reads."""

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        self.arch = file.get_str("general.architecture")
        self.n_block = read_count(file, f"{self.arch}.block_count", most=_MOST_BLOCKS)
        n_draft = file.get_u32(f"{self.arch}.nextn_predict_layers", 0)
        if n_draft >= self.n_block:
            raise ModelFileError(
                f"{file.path}: {self.arch}.nextn_predict_layers {n_draft} leaves none of the {self.n_block} blocks"
                f" of {self.arch}.block_count to the model"
            )
        self.n_layer = self.n_block - n_draft
        self.n_embd = read_count(file, f"{self.arch}.embedding_length")
        rms_eps, eps = (f"{self.arch}.attention.{name}_epsilon" for name in ("layer_norm_rms", "layer_norm"))
        self.eps = read_positive(file, rms_eps if rms_eps in file.metadata or eps not in file.metadata else eps)
        self._read: dict[str, tuple[int, ...]] = {}
        self.n_ff = self._per_block("feed_forward_length")
        self.n_head_kv = self._per_block("attention.head_count_kv")
        self.n_expert = file.get_u32(f"{self.arch}.expert_count", 0)

    def layer(self, i: int) -> LayerSpec:
        """Block `i`, which has either a mixer or a feed-forward."""
        mixer: Mixer | None = None
        ffn: FeedForward | None = None
        if self.n_ff[i]:
            ffn = self._experts(i) if self.n_expert else self._dense(i)
        else:
            mixer = self._attention(i) if self.n_head_kv[i] else self._mamba()
        return LayerSpec(mixer=mixer, ffn=ffn, residual=Plain(norm_eps=self.eps))

    def _mamba(self) -> Mamba2:
        n_inner, n_head, n_group = (
            read_count(self.file, f"{self.arch}.ssm.{name}") for name in ("inner_size", "time_step_rank", "group_count")
        )
        if n_inner % n_head:
            raise self._wrong(f"ssm.inner_size {n_inner} is not a multiple of ssm.time_step_rank {n_head}")
        if n_head % n_group:
            raise self._wrong(f"ssm.time_step_rank {n_head} is not a multiple of ssm.group_count {n_group}")
        return Mamba2(
            n_head=n_head,
            head_dim=n_inner // n_head,
            n_group=n_group,
            d_state=read_count(self.file, f"{self.arch}.ssm.state_size"),
            conv_kernel=read_count(self.file, f"{self.arch}.ssm.conv_kernel"),
            norm_eps=self.eps,
        )

    def _attention(self, i: int) -> Gqa:
        n_head, n_head_kv = self._per_block("attention.head_count")[i], self.n_head_kv[i]
        if not n_head or n_head % n_head_kv:
            raise self._wrong(
                f"attention.head_count {n_head} of block {i} is not a multiple of its head_count_kv {n_head_kv}"
            )
        head_dim = read_count(self.file, f"{self.arch}.attention.key_length", self.n_embd // n_head)
        if (size := read_count(self.file, f"{self.arch}.attention.value_length", head_dim)) != head_dim:
            raise self._wrong(f"attention.value_length is {size}, but a key is {head_dim} wide, and both must be equal")
        own_scale = 1.0 / math.sqrt(head_dim)
        told = self.file.get_float(f"{self.arch}.attention.scale", 0.0)
        if told and not math.isclose(told, own_scale, rel_tol=1e-6):
            # A file that says another is computed without it by a llama-server, so that nothing shows what it means.
            raise self._wrong(
                f"attention.scale is {told}; llama-server ignores it, so only 0 and {own_scale:g} are sure"
            )
        return Gqa(
            n_head=n_head,
            n_head_kv=n_head_kv,
            head_dim=head_dim,
            value_dim=head_dim,
            rope=None,
            scale=own_scale,
            qk_norm_eps=None,
            biases=self._biases(i, "attn_q", "attn_k", "attn_v", "attn_output"),
        )

    def _dense(self, i: int) -> Dense:
        return Dense(n_ff=self.n_ff[i], activation="relu2", biases=self._biases(i, "ffn_up", "ffn_down"))

    def _experts(self, i: int) -> Moe:
        n_used = self._per_block("expert_used_count")[i]
        if not 1 <= n_used <= self.n_expert:
            raise self._wrong(f"expert_used_count {n_used} of block {i} is not in 1..{self.n_expert}, the expert_count")
        if (n_group := self.file.get_u32(f"{self.arch}.expert_group_count", 0)) > 1:
            raise self._wrong(f"expert_group_count is {n_group}; this version chooses among all experts only")
        # Files older than the key for it say what all chosen experts have together.
        told = f"{self.arch}.expert_feed_forward_length" in self.file.metadata
        n_ff = self._per_block("expert_feed_forward_length")[i] if told else self.n_ff[i] // n_used
        n_shared = self._per_block("expert_shared_feed_forward_length")[i]
        if not (n_ff and n_shared):
            raise self._wrong(
                f"expert_feed_forward_length {n_ff} and expert_shared_feed_forward_length {n_shared} of block {i} must"
                " each be at least 1"
            )
        scale = self.file.get_float(f"{self.arch}.expert_weights_scale", 0.0)
        if not (scale >= 0 and math.isfinite(scale)):
            raise self._wrong(f"expert_weights_scale is {scale}; it must be 0 or a positive number")
        return Moe(
            n_expert=self.n_expert,
            n_expert_used=n_used,
            n_ff=n_ff,
            activation="relu2",
            score="sigmoid",
            selection_bias=True,
            normalised=self.file.get_bool(f"{self.arch}.expert_weights_norm", False),
            weights_scale=scale or 1.0,
            shared=SharedExpert(n_ff=n_shared, gated=False),
            n_latent=self.file.get_u32(f"{self.arch}.moe_latent_size", 0) or None,
        )

    def _per_block(self, name: str) -> tuple[int, ...]:
        """A key's number of every block, the draft blocks' included; read once."""
        if name not in self._read:
            self._read[name] = read_per_layer(self.file, f"{self.arch}.{name}", self.n_block)
        return self._read[name]

    def _biases(self, i: int, *names: str) -> frozenset[str]:
        return frozenset(name for name in names if f"blk.{i}.{name}.bias" in self.file.tensors)

    def _wrong(self, fact: str) -> ModelFileError:
        return ModelFileError(f"{self.file.path}: {self.arch}.{fact}")
