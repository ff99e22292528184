"""A float64 forward pass of `minimax-m3`, straight from the equations: the second opinion of `forward64`, for a family
whose attention reads chosen blocks.

Equations: llama.cpp src/models/minimax-m3.cpp. A block's score is the largest product of an index head's query with
the block's index keys, unscaled; the last blocks score 1e30 more, and KV head a reads what index head a likes best.
Gates: gpt-oss (OpenAI 2025). Router by sigmoid with a bias for the choice alone (DeepSeek-V3, arXiv:2412.19437).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tests.conformance.forward64 import Doubles, Forward64, Outcome, rms, softmax

_FORCED = 1e30


@dataclass(frozen=True)
class SparseOutcome(Outcome):
    """`Outcome`, and block_gaps: [layers that choose, tokens], by how much the last block taken beat the first one left
    out, of the index head where that is least; infinite where none was left out."""

    block_gaps: Doubles = field(default_factory=lambda: np.empty((0, 0)))


def logistic(x: Doubles) -> Doubles:
    """1 / (1 + exp(-x))."""
    return np.asarray(1.0 / (1.0 + np.exp(-x)))


def oai(gate: Doubles, up: Doubles) -> Doubles:
    """The limited, shifted gate of gpt-oss."""
    g = np.minimum(gate, 7.0)
    return np.asarray(g * logistic(1.702 * g) * (np.clip(up, -7.0, 7.0) + 1.0))


class MinimaxM3Forward64(Forward64):
    """One file's model; `dense` reads every block. Router gaps are differences of the scores that are compared."""

    def __init__(self, path: Path, *, dense: bool = False) -> None:
        super().__init__(path)
        self._dense_attention = dense
        self._n_rot = int(self._field("rope.dimension_count"))
        self._block = int(self._field("attention.indexer.block_size"))

    def _rows_of(self, h: Doubles, at: str) -> list[Doubles]:
        """Queries, keys and values, [tokens, heads, head_dim] each."""
        n_head, n_head_kv = int(self._field("attention.head_count")), int(self._field("attention.head_count_kv"))
        if f"{at}.attn_qkv.weight" in self._tensors:
            joined = self._linear(h, f"{at}.attn_qkv").reshape(len(h), n_head + 2 * n_head_kv, -1)
            return np.split(joined, [n_head, n_head + n_head_kv], axis=1)
        sizes = (("q", n_head), ("k", n_head_kv), ("v", n_head_kv))
        return [self._linear(h, f"{at}.attn_{name}").reshape(len(h), n, -1) for name, n in sizes]

    def _turned(self, x: Doubles, norm: str) -> Doubles:
        """Each head normed, and its first n_rot numbers turned."""
        normed = rms(x, self._tensors[f"{norm}.weight"], self._eps)
        return np.concatenate([self._rotate(normed[..., : self._n_rot]), normed[..., self._n_rot :]], axis=-1)

    def _visible(self, h: Doubles, at: str) -> tuple[npt.NDArray[np.bool_], Doubles]:
        """Which keys each query of each KV head may read besides the causal limit, [KV heads, tokens, tokens], and the
        tokens' gaps."""
        n, n_index = len(h), int(self._field("attention.indexer.head_count"))
        n_chosen, n_local = (int(self._field(f"attention.indexer.{name}")) for name in ("top_k", "local_blocks"))
        q = self._turned(self._linear(h, f"{at}.indexer.q_proj").reshape(n, n_index, -1), f"{at}.indexer.q_norm")
        k = self._turned(self._linear(h, f"{at}.indexer.k_proj").reshape(n, 1, -1), f"{at}.indexer.k_norm")[:, 0]
        n_block = -(-n // self._block)
        by_cell = np.full((n_index, n, n_block * self._block), -np.inf)
        by_cell[:, :, :n] = np.where(np.tril(np.ones((n, n), bool)), q.transpose(1, 0, 2) @ k.T, -np.inf)
        back = np.arange(n)[:, None] // self._block - np.arange(n_block)
        forced = np.where((back >= 0) & (back < n_local), _FORCED, 0.0)
        scores = by_cell.reshape(n_index, n, n_block, self._block).max(axis=-1) + forced
        order = np.argsort(-scores, axis=-1, kind="stable")
        chosen = np.zeros(scores.shape, bool)
        np.put_along_axis(chosen, order[..., :n_chosen], True, axis=-1)
        gaps = np.full((n_index, n), np.inf)
        if n_chosen < n_block:
            ranked = np.take_along_axis(scores, order, axis=-1)
            last, first = ranked[..., n_chosen - 1], ranked[..., n_chosen]
            np.subtract(last, first, out=gaps, where=np.isfinite(first))
        return np.repeat(chosen, self._block, axis=-1)[:, :, :n], gaps.min(axis=0)

    def _mixed(self, h: Doubles, at: str, visible: npt.NDArray[np.bool_] | None) -> Doubles:
        n = len(h)
        q, k, v = self._rows_of(h, at)
        q, k = self._turned(q, f"{at}.attn_q_norm"), self._turned(k, f"{at}.attn_k_norm")
        causal = np.tril(np.ones((n, n), bool))
        mixed = np.empty_like(q)
        for head in range(q.shape[1]):
            kv = head * k.shape[1] // q.shape[1]
            seen = causal if visible is None else causal & visible[kv]
            scores = np.where(seen, q[:, head] @ k[:, kv].T / math.sqrt(q.shape[-1]), -np.inf)
            mixed[:, head] = softmax(scores) @ v[:, kv]
        return self._linear(mixed.reshape(n, -1), f"{at}.attn_output")

    def _gated(self, h: Doubles, at: str, suffix: str = "") -> Doubles:
        gate, up = (self._linear(h, f"{at}.ffn_{name}{suffix}") for name in ("gate", "up"))
        return self._linear(oai(gate, up), f"{at}.ffn_down{suffix}")

    def _experts(self, h: Doubles, at: str) -> tuple[Doubles, Doubles]:
        n_used = int(self._field("expert_used_count"))
        score = logistic(self._linear(h, f"{at}.ffn_gate_inp"))
        compared = score + self._tensors[f"{at}.exp_probs_b.bias"]
        order = np.argsort(-compared, axis=-1, kind="stable")
        ranked = np.take_along_axis(compared, order, axis=-1)
        gate, up, down = (self._tensors[f"{at}.ffn_{name}_exps.weight"] for name in ("gate", "up", "down"))
        y = self._gated(h, at, "_shexp")
        for t, chosen in enumerate(order[:, :n_used]):
            shares = score[t, chosen]
            if self._field("expert_weights_norm", False):
                shares = shares / max(shares.sum(), 2.0**-14)
            shares = shares * (float(self._field("expert_weights_scale", 0.0)) or 1.0)
            y[t] += sum(w * (down[e] @ oai(gate[e] @ h[t], up[e] @ h[t])) for w, e in zip(shares, chosen, strict=True))
        return y, ranked[:, n_used - 1] - ranked[:, n_used]

    def run(self, ids: list[int]) -> SparseOutcome:
        """The whole prompt in one pass."""
        x = self._tensors["token_embd.weight"][ids]
        router_gaps: list[Doubles] = []
        block_gaps: list[Doubles] = []
        for layer in range(int(self._field("block_count"))):
            at = f"blk.{layer}"
            leading = layer < int(self._field("leading_dense_block_count", 0))
            h = rms(x, self._tensors[f"{at}.attn_norm.weight"], self._eps)
            visible = None
            if not (leading or self._dense_attention):
                visible, gap = self._visible(h, at)
                block_gaps.append(gap)
            x = x + self._mixed(h, at, visible)
            h = rms(x, self._tensors[f"{at}.ffn_norm.weight"], self._eps)
            if leading:
                x = x + self._gated(h, at)
                continue
            y, gap = self._experts(h, at)
            router_gaps.append(gap)
            x = x + y
        logits = rms(x, self._tensors["output_norm.weight"], self._eps) @ self._tensors["output.weight"].T
        return SparseOutcome(logits, *(np.array(gaps).reshape(-1, len(ids)) for gaps in (router_gaps, block_gaps)))
