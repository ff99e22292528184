"""A float64 forward pass of `mimo2`, straight from the published equations: the second opinion of `forward64`, for a
family with windows, sinks, keys wider than values, and a scale on what attention adds.

Equations: MiMo-V2-Flash technical report (layers with a window and a sink beside layers without; Su et al. 2021 on a
part of each head); gpt-oss (OpenAI 2025) for the sink, a key of a fixed score whose value is zero; router by sigmoid
with a bias for the choice alone, renormalised (DeepSeek-V3, arXiv:2412.19437, eqs. 13 to 16).
"""

from __future__ import annotations

import math

import numpy as np

from tests.conformance.forward64 import Doubles, Forward64, Outcome, rms, softmax


def logistic(x: Doubles) -> Doubles:
    """1 / (1 + exp(-x))."""
    return np.asarray(1.0 / (1.0 + np.exp(-x)))


def gated(gate: Doubles, up: Doubles) -> Doubles:
    """SwiGLU."""
    return np.asarray(gate * logistic(gate) * up)


class Mimo2Forward64(Forward64):
    """One file's model. Router gaps are differences of the scores that are compared."""

    def _heads(self, h: Doubles, at: str, n_head_kv: int) -> list[Doubles]:
        """Queries, keys and values of a layer, [tokens, heads, width] each."""
        n_head, key_dim = int(self._field("attention.head_count")), int(self._field("attention.key_length"))
        if f"{at}.attn_qkv.weight" in self._tensors:
            ends = np.cumsum([n_head * key_dim, n_head_kv * key_dim])
            rows = np.split(self._linear(h, f"{at}.attn_qkv"), ends, axis=1)
        else:
            rows = [self._linear(h, f"{at}.attn_{name}") for name in "qkv"]
        return [row.reshape(len(h), n, -1) for row, n in zip(rows, (n_head, n_head_kv, n_head_kv), strict=True)]

    def _turned(self, x: Doubles, base: float) -> Doubles:
        """x: [tokens, heads, width]; of the first n_rot numbers each pair (j, j + n_rot / 2) as a complex one."""
        half = int(self._field("rope.dimension_count")) // 2
        angle = np.arange(len(x))[:, None] * base ** (-np.arange(half) / half)
        turned = (x[..., :half] + 1j * x[..., half : 2 * half]) * np.exp(1j * angle)[:, None]
        return np.concatenate([turned.real, turned.imag, x[..., 2 * half :]], axis=-1)

    def _mixed(self, h: Doubles, layer: int) -> Doubles:
        at, n = f"blk.{layer}", len(h)
        window, base = n, float(self._field("rope.freq_base"))
        if self._field("attention.sliding_window_pattern")[layer]:
            window, base = int(self._field("attention.sliding_window")), float(self._field("rope.freq_base_swa", 1e4))
        q, k, v = self._heads(h, at, int(self._field("attention.head_count_kv")[layer]))
        q, k = self._turned(q, base), self._turned(k, base)
        distance = np.subtract.outer(np.arange(n), np.arange(n))
        hidden = (distance < 0) | (distance >= window)
        sinks = self._tensors.get(f"{at}.attn_sinks.weight")
        mixed = np.empty((*q.shape[:2], v.shape[2]))
        for head in range(q.shape[1]):
            kv = head * k.shape[1] // q.shape[1]
            scores = np.where(hidden, -np.inf, q[:, head] @ k[:, kv].T / math.sqrt(q.shape[2]))
            # A sink is one more key, of a fixed score, whose value is zero.
            sink = np.full((n, 1), -np.inf if sinks is None else sinks[head])
            mixed[:, head] = softmax(np.concatenate([scores, sink], axis=1))[:, :n] @ v[:, kv]
        scale = float(self._field("attention.value_scale", 1.0))
        return scale * self._linear(mixed.reshape(n, -1), f"{at}.attn_output")

    def _experts(self, h: Doubles, at: str) -> tuple[Doubles, Doubles]:
        n_used = int(self._field("expert_used_count"))
        score = logistic(self._linear(h, f"{at}.ffn_gate_inp"))
        compared = score + self._tensors[f"{at}.exp_probs_b.bias"]
        order = np.argsort(-compared, axis=-1, kind="stable")
        ranked = np.take_along_axis(compared, order, axis=-1)
        gate, up, down = (self._tensors[f"{at}.ffn_{name}_exps.weight"] for name in ("gate", "up", "down"))
        y = np.zeros_like(h)
        for t, chosen in enumerate(order[:, :n_used]):
            shares = score[t, chosen] / max(score[t, chosen].sum(), 2.0**-14)
            y[t] = sum(w * (down[e] @ gated(gate[e] @ h[t], up[e] @ h[t])) for w, e in zip(shares, chosen, strict=True))
        return y, ranked[:, n_used - 1] - ranked[:, n_used]

    def run(self, ids: list[int]) -> Outcome:
        """The whole prompt in one pass."""
        x = self._tensors["token_embd.weight"][ids]
        gaps: list[Doubles] = []
        for layer in range(int(self._field("block_count")) - int(self._field("nextn_predict_layers", 0))):
            at = f"blk.{layer}"
            x = x + self._mixed(rms(x, self._tensors[f"{at}.attn_norm.weight"], self._eps), layer)
            h = rms(x, self._tensors[f"{at}.ffn_norm.weight"], self._eps)
            if f"{at}.ffn_gate_inp.weight" in self._tensors:
                y, gap = self._experts(h, at)
                gaps.append(gap)
            else:
                inner = gated(self._linear(h, f"{at}.ffn_gate"), self._linear(h, f"{at}.ffn_up"))
                y = self._linear(inner, f"{at}.ffn_down")
            x = x + y
        logits = rms(x, self._tensors["output_norm.weight"], self._eps) @ self._tensors["output.weight"].T
        return Outcome(logits, np.array(gaps).reshape(-1, len(ids)))
