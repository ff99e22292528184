"""A float64 forward pass of `qwen3` and `qwen3moe`, straight from the published equations.

It is the second opinion on both sides: on the recordings (is the oracle's file read as meant?) and on the engines.
So it shares nothing with them: no layer program, no op, no family reader, no GGUF reader of ours. It reads the file
with the gguf package and computes whole prompts at once.

Equations: Qwen3 technical report (arXiv:2505.09388) with QK-norm before NeoX rope; Su et al. 2021; Peng et al. 2023
(YaRN); router softmax before top-k, renormalised.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader
from gguf.quants import dequantize

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Outcome:
    """Logits and what the routers saw.

    logits: [tokens, n_vocab].  router_gaps: [layers, tokens], the log-ratio of the last expert taken to the first one
    left out (how near another choice was); no rows in a dense model.
    """

    logits: Doubles
    router_gaps: Doubles

    @property
    def logprobs(self) -> Doubles:
        """log softmax of the logits, [tokens, n_vocab]."""
        shifted = self.logits - self.logits.max(axis=-1, keepdims=True)
        return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def rms(x: Doubles, weight: Doubles, eps: float) -> Doubles:
    """RMS norm over the last axis."""
    return np.asarray(weight * x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps))


def _silu(x: Doubles) -> Doubles:
    return np.asarray(x / (1.0 + np.exp(-x)))


def softmax(x: Doubles) -> Doubles:
    """Over the last axis."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


class Forward64:
    """One file's model."""

    def __init__(self, path: Path) -> None:
        reader = GGUFReader(path)
        self._fields: dict[str, Any] = {
            key: field.contents() for key, field in reader.fields.items() if not key.startswith("tokenizer.")
        }
        self._tensors: dict[str, Doubles] = {
            tensor.name: dequantize(tensor.data, tensor.tensor_type).astype(np.float64) for tensor in reader.tensors
        }
        self._prefix = self._fields["general.architecture"]
        self._eps = float(self._field("attention.layer_norm_rms_epsilon"))

    @property
    def n_vocab(self) -> int:
        return len(self._tensors["token_embd.weight"])

    def _field(self, name: str, default: Any = None) -> Any:
        return self._fields.get(f"{self._prefix}.{name}", default)

    def _linear(self, x: Doubles, name: str) -> Doubles:
        y = x @ self._tensors[f"{name}.weight"].T
        bias = self._tensors.get(f"{name}.bias")
        return y if bias is None else y + bias

    def _angles(self, n_tokens: int, width: int) -> tuple[Doubles, float]:
        """Angles [tokens, width / 2] and the factor of cosine and sine."""
        base = float(self._field("rope.freq_base", 10000.0))
        pair = np.arange(width // 2, dtype=np.float64)
        extrapolated = base ** (-2.0 * pair / width)
        if self._field("rope.scaling.type") != "yarn":
            return np.outer(np.arange(n_tokens), extrapolated), 1.0
        factor = float(self._field("rope.scaling.factor"))
        trained = float(self._field("rope.scaling.original_context_length"))

        def turning_at(rotations: float) -> float:
            """The pair that turns `rotations` times over the trained context."""
            return width * math.log(trained / (rotations * 2 * math.pi)) / (2 * math.log(base))

        low = max(0.0, math.floor(turning_at(32.0)))
        high = min(width - 1.0, math.ceil(turning_at(1.0)))
        keep = 1.0 - np.clip((pair - low) / max(0.001, high - low), 0.0, 1.0)
        frequencies = extrapolated * keep + extrapolated / factor * (1.0 - keep)
        return np.outer(np.arange(n_tokens), frequencies), 1.0 + 0.1 * math.log(factor)

    def _rotate(self, x: Doubles) -> Doubles:
        """x: [tokens, heads, width]; pairs (j, j + width / 2)."""
        half = x.shape[-1] // 2
        angles, magnitude = self._angles(len(x), x.shape[-1])
        cos, sin = magnitude * np.cos(angles)[:, None], magnitude * np.sin(angles)[:, None]
        u, v = x[..., :half], x[..., half:]
        return np.concatenate([u * cos - v * sin, u * sin + v * cos], axis=-1)

    def _attention(self, x: Doubles, at: str) -> Doubles:
        n_head, n_head_kv = int(self._field("attention.head_count")), int(self._field("attention.head_count_kv"))
        n = len(x)
        q = self._linear(x, f"{at}.attn_q").reshape(n, n_head, -1)
        k = self._linear(x, f"{at}.attn_k").reshape(n, n_head_kv, -1)
        v = self._linear(x, f"{at}.attn_v").reshape(n, n_head_kv, -1)
        q = self._rotate(rms(q, self._tensors[f"{at}.attn_q_norm.weight"], self._eps))
        k = self._rotate(rms(k, self._tensors[f"{at}.attn_k_norm.weight"], self._eps))
        k, v = (np.repeat(a, n_head // n_head_kv, axis=1) for a in (k, v))
        scores = np.einsum("thd,shd->hts", q, k) / math.sqrt(q.shape[-1])
        scores = np.where(np.tril(np.ones((n, n), bool)), scores, -np.inf)
        mixed = np.einsum("hts,shd->thd", softmax(scores), v)
        return self._linear(mixed.reshape(n, -1), f"{at}.attn_output")

    def _dense(self, x: Doubles, at: str) -> Doubles:
        return self._linear(
            _silu(self._linear(x, f"{at}.ffn_gate")) * self._linear(x, f"{at}.ffn_up"), f"{at}.ffn_down"
        )

    def _routed(self, x: Doubles, at: str) -> tuple[Doubles, Doubles]:
        n_used = int(self._field("expert_used_count"))
        p = softmax(self._linear(x, f"{at}.ffn_gate_inp"))
        order = np.argsort(-p, axis=-1, kind="stable")
        ranked = np.take_along_axis(p, order, axis=-1)
        gate, up, down = (self._tensors[f"{at}.ffn_{part}_exps.weight"] for part in ("gate", "up", "down"))
        y = np.zeros_like(x)
        for t, row in enumerate(x):
            total = max(ranked[t, :n_used].sum(), 2.0**-14)
            for i in range(n_used):
                e = order[t, i]
                y[t] += ranked[t, i] / total * (down[e] @ (_silu(gate[e] @ row) * (up[e] @ row)))
        return y, np.log(ranked[:, n_used - 1]) - np.log(ranked[:, n_used])

    def run(self, ids: list[int]) -> Outcome:
        """The whole prompt in one pass."""
        h = self._tensors["token_embd.weight"][ids]
        gaps: list[Doubles] = []
        for layer in range(int(self._field("block_count"))):
            at = f"blk.{layer}"
            h = h + self._attention(rms(h, self._tensors[f"{at}.attn_norm.weight"], self._eps), at)
            f = rms(h, self._tensors[f"{at}.ffn_norm.weight"], self._eps)
            if f"{at}.ffn_gate_inp.weight" in self._tensors:
                y, gap = self._routed(f, at)
                gaps.append(gap)
            else:
                y = self._dense(f, at)
            h = h + y
        head = self._tensors.get("output.weight", self._tensors["token_embd.weight"])
        logits = rms(h, self._tensors["output_norm.weight"], self._eps) @ head.T
        return Outcome(logits, np.array(gaps).reshape(-1, len(ids)))
