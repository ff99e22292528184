"""A float64 forward pass of `nemotron_h` and `nemotron_h_moe`, straight from the published equations: the second
opinion of `forward64`, for a family whose blocks are Mamba-2, attention or a feed-forward.

Equations: Dao & Gu 2024 (arXiv:2405.21060), section 7, whose recurrence is unrolled here: the output at t is the sum
over s <= t of exp(sum of decays from s+1 to t) (C_t . B_s) step_s x_s, as one matrix a head; Nemotron-H
(arXiv:2504.03624): no positions, squared ReLU, the gate before the group norm; router by sigmoid with a bias for the
choice alone, renormalised and scaled (DeepSeek-V3, arXiv:2412.19437, eqs. 13 to 16).
"""

from __future__ import annotations

import math

import numpy as np

from tests.conformance.forward64 import Doubles, Forward64, Outcome, rms, softmax


def logistic(x: Doubles) -> Doubles:
    """1 / (1 + exp(-x))."""
    return np.asarray(1.0 / (1.0 + np.exp(-x)))


def relu2(x: Doubles) -> Doubles:
    """Squared ReLU."""
    return np.asarray(np.where(x > 0, x * x, 0.0))


class NemotronForward64(Forward64):
    """One file's model. Router gaps are differences of the scores that are compared."""

    def _per_block(self, name: str, block: int) -> int:
        value = self._field(name)
        return int(value[block] if isinstance(value, list) else value)

    def _mamba(self, h: Doubles, at: str) -> Doubles:
        n, n_head, n_group = len(h), int(self._field("ssm.time_step_rank")), int(self._field("ssm.group_count"))
        n_inner, d_state = int(self._field("ssm.inner_size")), int(self._field("ssm.state_size"))
        z, u, dt = np.split(self._linear(h, f"{at}.ssm_in"), [n_inner, 2 * n_inner + 2 * n_group * d_state], axis=1)
        taps = self._tensors[f"{at}.ssm_conv1d.weight"]
        reach = taps.shape[1] - 1
        padded = np.concatenate([np.zeros((reach, u.shape[1])), u])
        v = self._tensors[f"{at}.ssm_conv1d.bias"] + sum(taps[:, j] * padded[j : j + n] for j in range(reach + 1))
        v = v * logistic(v)
        x, b, c = np.split(v, [n_inner, n_inner + n_group * d_state], axis=1)
        x, b, c = x.reshape(n, n_head, -1), b.reshape(n, n_group, d_state), c.reshape(n, n_group, d_state)
        step = np.logaddexp(0.0, dt + self._tensors[f"{at}.ssm_dt.bias"])
        decay = step * self._tensors[f"{at}.ssm_a"].reshape(-1)
        total = np.cumsum(decay, axis=0)
        y = np.empty_like(x)
        later = np.tril(np.ones((n, n), bool))
        for head in range(n_head):
            group = head // (n_head // n_group)
            forgotten = np.where(later, total[:, None, head] - total[None, :, head], -np.inf)
            y[:, head] = (np.exp(forgotten) * (c[:, group] @ b[:, group].T)) @ (step[:, head, None] * x[:, head])
        y += self._tensors[f"{at}.ssm_d"].reshape(-1)[:, None] * x
        gated = (y.reshape(n, -1) * z * logistic(z)).reshape(n, n_group, -1)
        normed = rms(gated, self._tensors[f"{at}.ssm_norm.weight"].reshape(n_group, -1), self._eps)
        return self._linear(normed.reshape(n, -1), f"{at}.ssm_out")

    def _mixed(self, h: Doubles, at: str, n_head_kv: int) -> Doubles:
        n, n_head = len(h), int(self._field("attention.head_count"))
        q = self._linear(h, f"{at}.attn_q").reshape(n, n_head, -1)
        k, v = (self._linear(h, f"{at}.attn_{name}").reshape(n, n_head_kv, -1) for name in "kv")
        hidden = np.triu(np.ones((n, n), bool), 1)
        mixed = np.empty_like(q)
        for head in range(n_head):
            kv = head * n_head_kv // n_head
            scores = q[:, head] @ k[:, kv].T / math.sqrt(q.shape[-1])
            mixed[:, head] = softmax(np.where(hidden, -np.inf, scores)) @ v[:, kv]
        return self._linear(mixed.reshape(n, -1), f"{at}.attn_output")

    def _experts(self, h: Doubles, at: str, n_used: int) -> tuple[Doubles, Doubles]:
        score = logistic(self._linear(h, f"{at}.ffn_gate_inp"))
        compared = score + self._tensors[f"{at}.exp_probs_b.bias"]
        order = np.argsort(-compared, axis=-1, kind="stable")
        ranked = np.take_along_axis(compared, order, axis=-1)
        latent = f"{at}.ffn_latent_down.weight" in self._tensors
        seen = self._linear(h, f"{at}.ffn_latent_down") if latent else h
        up, down = (self._tensors[f"{at}.ffn_{name}_exps.weight"] for name in ("up", "down"))
        y = np.zeros_like(seen)
        for t, chosen in enumerate(order[:, :n_used]):
            shares = score[t, chosen]
            if self._field("expert_weights_norm", False):
                shares = shares / max(shares.sum(), 2.0**-14)
            shares = shares * (float(self._field("expert_weights_scale", 0.0)) or 1.0)
            y[t] = sum(share * (down[e] @ relu2(up[e] @ seen[t])) for share, e in zip(shares, chosen, strict=True))
        if latent:
            y = self._linear(y, f"{at}.ffn_latent_up")
        shared = self._linear(relu2(self._linear(h, f"{at}.ffn_up_shexp")), f"{at}.ffn_down_shexp")
        return y + shared, ranked[:, n_used - 1] - ranked[:, n_used]

    def run(self, ids: list[int]) -> Outcome:
        """The whole prompt in one pass."""
        x = self._tensors["token_embd.weight"][ids]
        gaps: list[Doubles] = []
        for block in range(int(self._field("block_count")) - int(self._field("nextn_predict_layers", 0))):
            at = f"blk.{block}"
            h = rms(x, self._tensors[f"{at}.attn_norm.weight"], self._eps)
            if not self._per_block("feed_forward_length", block):
                n_head_kv = self._per_block("attention.head_count_kv", block)
                x = x + (self._mixed(h, at, n_head_kv) if n_head_kv else self._mamba(h, at))
            elif int(self._field("expert_count", 0)):
                y, gap = self._experts(h, at, self._per_block("expert_used_count", block))
                gaps.append(gap)
                x = x + y
            else:
                x = x + self._linear(relu2(self._linear(h, f"{at}.ffn_up")), f"{at}.ffn_down")
        head = self._tensors.get("output.weight", self._tensors["token_embd.weight"])
        logits = rms(x, self._tensors["output_norm.weight"], self._eps) @ head.T
        return Outcome(logits, np.array(gaps).reshape(-1, len(ids)))
