"""A float64 forward pass of `gemma3`, straight from the published equations: the second opinion of `forward64`, for a
family with windows, norms on both sides, and GELU.

Equations: Gemma 3 technical report (arXiv:2503.19786): five layers that see a window for each that sees everything,
with a rope base each, query and key norms, GELU gates; Gemma 2 report (arXiv:2408.00118): norms before and behind each
block. A linear rope factor stretches positions of the layers that see everything alone (Chen et al. 2023).
"""

from __future__ import annotations

import math

import numpy as np

from tests.conformance.forward64 import Doubles, Forward64, Outcome, rms, softmax


def half_precision_gelu(x: Doubles) -> Doubles:
    """GELU as llama.cpp's CPU code has it: argument and value are half-precision numbers, except past 10 either way."""
    value = gelu(x.astype(np.float32).astype(np.float16).astype(np.float64)).astype(np.float16).astype(np.float64)
    value[x >= 10] = x[x >= 10]
    value[x <= -10] = 0
    return value


def gelu(x: Doubles) -> Doubles:
    """The form with tanh, exact."""
    return np.asarray(x * 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * x * (1 + 0.044715 * x * x))))


class Gemma3Forward64(Forward64):
    """One file's model. `gelu_of` is the activation, so that the oracle's own can be put in its place."""

    gelu_of = staticmethod(gelu)

    def _norm(self, x: Doubles, name: str) -> Doubles:
        return rms(x, self._tensors[f"{name}.weight"], self._eps)

    def _turned(self, x: Doubles, base: float, stretch: float) -> Doubles:
        """x: [tokens, heads, width], each pair (j, j + width / 2) as a complex number."""
        half = x.shape[-1] // 2
        angle = np.arange(len(x))[:, None] / stretch * base ** (-np.arange(half) / half)
        turned = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angle)[:, None]
        return np.concatenate([turned.real, turned.imag], axis=-1)

    def _mixed(self, x: Doubles, layer: int) -> Doubles:
        at, n = f"blk.{layer}", len(x)
        n_head, n_head_kv = int(self._field("attention.head_count")), int(self._field("attention.head_count_kv"))
        sees_all = (layer + 1) % 6 == 0
        if sees_all:
            window, base = n, float(self._field("rope.freq_base"))
            stretch = float(self._field("rope.scaling.factor", 1.0))
        else:
            window, base = int(self._field("attention.sliding_window")), float(self._field("rope.freq_base_swa", 1e4))
            stretch = 1.0
        q, k, v = (
            self._linear(x, f"{at}.attn_{name}").reshape(n, heads, -1)
            for name, heads in (("q", n_head), ("k", n_head_kv), ("v", n_head_kv))
        )
        q = self._turned(self._norm(q, f"{at}.attn_q_norm"), base, stretch)
        k = self._turned(self._norm(k, f"{at}.attn_k_norm"), base, stretch)
        distance = np.subtract.outer(np.arange(n), np.arange(n))
        hidden = (distance < 0) | (distance >= window)
        mixed = np.empty_like(q)
        for head in range(n_head):
            kv = head * n_head_kv // n_head
            scores = q[:, head] @ k[:, kv].T / math.sqrt(q.shape[-1])
            mixed[:, head] = softmax(np.where(hidden, -np.inf, scores)) @ v[:, kv]
        return self._linear(mixed.reshape(n, -1), f"{at}.attn_output")

    def _gated(self, x: Doubles, at: str) -> Doubles:
        gate = self.gelu_of(self._linear(x, f"{at}.ffn_gate"))
        return self._linear(gate * self._linear(x, f"{at}.ffn_up"), f"{at}.ffn_down")

    def run(self, ids: list[int]) -> Outcome:
        """The whole prompt in one pass."""
        table = self._tensors["token_embd.weight"]
        h = table[ids] * math.sqrt(table.shape[1])
        for layer in range(int(self._field("block_count"))):
            at = f"blk.{layer}"
            h = h + self._norm(self._mixed(self._norm(h, f"{at}.attn_norm"), layer), f"{at}.post_attention_norm")
            h = h + self._norm(self._gated(self._norm(h, f"{at}.ffn_norm"), at), f"{at}.post_ffw_norm")
        return Outcome(self._norm(h, "output_norm") @ table.T, np.empty((0, len(ids))))
