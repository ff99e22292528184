"""A float64 forward pass of `qwen35` and `qwen35moe`, straight from the published equations, draft layer included: the
second opinion of `forward64`, for a family with a recurrence, gated attention and experts beside a shared one.

Equations: Yang et al. 2024 (Gated DeltaNet, arXiv:2412.06464), eq. 10; Qwen3-Next model card (gated attention,
zero-centred norms, which files store added to one); Qwen2-VL and Qwen3-VL reports (positions of several components,
interleaved); DeepSeek-V3 report (arXiv:2412.19437), section 2.2 (a layer that predicts one token further).
"""

from __future__ import annotations

import math

import numpy as np

from tests.conformance.forward64 import Doubles, Forward64, Outcome, rms, softmax


def _sigmoid(x: Doubles) -> Doubles:
    return np.asarray(1.0 / (1.0 + np.exp(-x)))


def _silu(x: Doubles) -> Doubles:
    return x * _sigmoid(x)


def of_text(n: int) -> Doubles:
    """Positions of a text: the place, in three of four components.  [n, 4]."""
    place = np.arange(n, dtype=np.float64)
    return np.stack([place, place, place, np.zeros(n)], axis=1)


class Qwen35Forward64(Forward64):
    """One file's model."""

    @property
    def _n_trunk(self) -> int:
        return int(self._field("block_count")) - int(self._field("nextn_predict_layers", 0))

    def _norm(self, x: Doubles, name: str) -> Doubles:
        return rms(x, self._tensors[f"{name}.weight"], self._eps)

    def _turned(self, x: Doubles, positions: Doubles) -> Doubles:
        """x: [tokens, heads, width].  positions: [tokens, 4].  Pair (j, j + R / 2) of the first R numbers."""
        n_turned = int(self._field("rope.dimension_count"))
        t, h, w, _ = self._field("rope.dimension_sections")
        base, half = float(self._field("rope.freq_base")), n_turned // 2
        y = x.copy()
        for j in range(half):
            component = 3
            for turn, n_pairs in enumerate((t, h, w)):
                if j % 3 == turn and j < 3 * n_pairs:
                    component = turn
            angle = positions[:, component] * base ** (-2.0 * j / n_turned)
            z = (x[:, :, j] + 1j * x[:, :, j + half]) * np.exp(1j * angle)[:, None]
            y[:, :, j], y[:, :, j + half] = z.real, z.imag
        return y

    def _gated_attention(self, x: Doubles, at: str, positions: Doubles) -> Doubles:
        n, n_head, n_head_kv = len(x), *(int(self._field(f"attention.head_count{end}")) for end in ("", "_kv"))
        width = int(self._field("attention.key_length"))
        both = self._linear(x, f"{at}.attn_q").reshape(n, n_head, 2 * width)
        q, gate = both[..., :width], both[..., width:]
        k, v = (self._linear(x, f"{at}.attn_{name}").reshape(n, n_head_kv, width) for name in "kv")
        q = self._turned(self._norm(q, f"{at}.attn_q_norm"), positions)
        k = self._turned(self._norm(k, f"{at}.attn_k_norm"), positions)
        future = np.triu(np.ones((n, n), bool), 1)
        mixed = np.empty_like(q)
        for head in range(n_head):
            kv = head * n_head_kv // n_head
            scores = q[:, head] @ k[:, kv].T / math.sqrt(width)
            mixed[:, head] = softmax(np.where(future, -np.inf, scores)) @ v[:, kv]
        return self._linear((mixed * _sigmoid(gate)).reshape(n, -1), f"{at}.attn_output")

    def _delta_rule(self, x: Doubles, at: str) -> Doubles:
        n_key, n_value, width, n_taps = (
            int(self._field(f"ssm.{name}")) for name in ("group_count", "time_step_rank", "state_size", "conv_kernel")
        )
        n = len(x)
        raw = np.concatenate([np.zeros((n_taps - 1, (2 * n_key + n_value) * width)), self._linear(x, f"{at}.attn_qkv")])
        taps = self._tensors[f"{at}.ssm_conv1d.weight"]
        mixed = _silu(np.asarray(sum(raw[i : i + n] * taps[:, i] for i in range(n_taps))))
        q, k, v = (part.reshape(n, -1, width) for part in np.split(mixed, [n_key * width, 2 * n_key * width], axis=1))
        q, k = (part / np.sqrt((part * part).sum(axis=-1, keepdims=True) + self._eps) for part in (q, k))
        steps = self._linear(x, f"{at}.ssm_alpha") + self._tensors[f"{at}.ssm_dt.bias"]
        decay = np.exp(np.log1p(np.exp(steps)) * self._tensors[f"{at}.ssm_a"])
        strength = _sigmoid(self._linear(x, f"{at}.ssm_beta"))
        heads = np.empty((n, n_value, width))
        for head in range(n_value):
            memory = np.zeros((width, width))
            for i in range(n):
                key, query = k[i, head % n_key], q[i, head % n_key]
                memory = decay[i, head] * memory
                memory = memory + np.outer(strength[i, head] * (v[i, head] - memory @ key), key)
                heads[i, head] = memory @ query / math.sqrt(width)
        gate = _silu(self._linear(x, f"{at}.attn_gate").reshape(n, n_value, width))
        return self._linear((self._norm(heads, f"{at}.ssm_norm") * gate).reshape(n, -1), f"{at}.ssm_out")

    def _experts(self, x: Doubles, at: str) -> tuple[Doubles, Doubles]:
        n_used = int(self._field("expert_used_count"))
        p = softmax(x @ self._tensors[f"{at}.ffn_gate_inp.weight"].T)
        order = np.argsort(-p, axis=-1, kind="stable")
        ranked = np.take_along_axis(p, order, axis=-1)
        fused = self._tensors.get(f"{at}.ffn_gate_up_exps.weight")
        if fused is None:
            gates, ups = (self._tensors[f"{at}.ffn_{name}_exps.weight"] for name in ("gate", "up"))
        else:
            gates, ups = np.split(fused, 2, axis=1)
        downs = self._tensors[f"{at}.ffn_down_exps.weight"]
        y = np.zeros_like(x)
        for i, row in enumerate(x):
            for rank in range(n_used):
                e = order[i, rank]
                inner = _silu(gates[e] @ row) * (ups[e] @ row)
                y[i] += ranked[i, rank] / ranked[i, :n_used].sum() * (downs[e] @ inner)
        share = _sigmoid(x @ self._tensors[f"{at}.ffn_gate_inp_shexp.weight"].reshape(-1))
        inner = _silu(self._linear(x, f"{at}.ffn_gate_shexp")) * self._linear(x, f"{at}.ffn_up_shexp")
        y += share[:, None] * self._linear(inner, f"{at}.ffn_down_shexp")
        return y, np.log(ranked[:, n_used - 1]) - np.log(ranked[:, n_used])

    def _layer(self, h: Doubles, at: str, positions: Doubles) -> tuple[Doubles, list[Doubles]]:
        """The layer's output, and how near the router was to another choice."""
        a = self._norm(h, f"{at}.attn_norm")
        recurrent = f"{at}.ssm_a" in self._tensors
        h = h + (self._delta_rule(a, at) if recurrent else self._gated_attention(a, at, positions))
        f = self._norm(h, f"{at}.post_attention_norm")
        if f"{at}.ffn_gate_inp.weight" not in self._tensors:
            gate = _silu(self._linear(f, f"{at}.ffn_gate"))
            return h + self._linear(gate * self._linear(f, f"{at}.ffn_up"), f"{at}.ffn_down"), []
        y, gap = self._experts(f, at)
        return h + y, [gap]

    def _hidden(self, ids: list[int], positions: Doubles) -> tuple[Doubles, list[Doubles]]:
        """The rows behind the output norm."""
        h = self._tensors["token_embd.weight"][ids]
        gaps: list[Doubles] = []
        for layer in range(self._n_trunk):
            h, gap = self._layer(h, f"blk.{layer}", positions)
            gaps += gap
        return self._norm(h, "output_norm"), gaps

    def run(self, ids: list[int], positions: Doubles | None = None) -> Outcome:
        """The whole prompt in one pass.  positions: [tokens, 4], those of a text unless told."""
        hidden, gaps = self._hidden(ids, of_text(len(ids)) if positions is None else positions)
        head = self._tensors.get("output.weight", self._tensors["token_embd.weight"])
        return Outcome(hidden @ head.T, np.array(gaps).reshape(-1, len(ids)))

    def drafted(self, ids: list[int], n: int) -> Doubles:
        """The draft layer's logits of the `n` ids behind `ids`, each drafted from its best before.  [n, n_vocab]."""
        at = f"blk.{self._n_trunk}"
        table = self._tensors.get(f"{at}.nextn.embed_tokens.weight", self._tensors["token_embd.weight"])
        head = self._tensors.get(
            f"{at}.nextn.shared_head_head.weight",
            self._tensors.get("output.weight", self._tensors["token_embd.weight"]),
        )
        own_norm = f"{at}.nextn.shared_head_norm"
        norm = own_norm if f"{own_norm}.weight" in self._tensors else "output_norm"
        # Each place has the row of the one before it; the first has zeros.
        hidden, _ = (
            self._hidden(ids[:-1], of_text(len(ids) - 1)) if len(ids) > 1 else (np.empty((0, table.shape[1])), [])
        )
        before = [np.zeros(table.shape[1]), *hidden]
        seen, found = list(ids), []
        for _ in range(n):
            embedded = self._norm(table[seen], f"{at}.nextn.enorm")
            joined = np.concatenate([embedded, self._norm(np.stack(before), f"{at}.nextn.hnorm")], axis=1)
            rows, _ = self._layer(self._linear(joined, f"{at}.nextn.eh_proj"), at, of_text(len(seen)))
            last = self._norm(rows[-1], norm)
            found.append(head @ last)
            before.append(last)
            seen.append(int(found[-1].argmax()))
        return np.stack(found)
