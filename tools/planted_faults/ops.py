"""Faults in the ops: what a port of a kernel gets wrong."""

from __future__ import annotations

from tools.planted_faults.fault import Fault

_OPS = "reference/ops.py"
_ATTENTION = "reference/attention.py"
_SELECTION = "reference/selection.py"
_RECURRENT = "reference/recurrent.py"


def _fault(op: str, name: str, file: str, old: str, new: str, check: str = "values") -> Fault:
    """A fault that `ops --op` finds on drawn cases."""
    return Fault(
        name=name, area="ops", file=file, old=old, new=new, run=("ops", "--op", op), caught_by=f"op {op}: {check}"
    )


def _ggml(op: str, name: str, old: str, new: str, check: str) -> Fault:
    """A fault of the ggml numerics, on one format of weights."""
    return Fault(
        name=name,
        area="ops",
        file="reference/ggml_ops.py",
        old=old,
        new=new,
        run=("ops", "--ops", "ggml", "--op", op, "-k", check),
        caught_by=f"op {op}: {check}",
    )


FAULTS = (
    _fault(
        "rms_norm",
        "a norm's epsilon is added behind the root",
        _OPS,
        "normed: Floats = (wide / np.sqrt(mean + eps) * weight.values())",
        "normed: Floats = (wide / (np.sqrt(mean) + eps) * weight.values())",
    ),
    _fault(
        "rms_norm",
        "a norm's weight counts from 1",
        _OPS,
        "normed: Floats = (wide / np.sqrt(mean + eps) * weight.values())",
        "normed: Floats = (wide / np.sqrt(mean + eps) * (1 + weight.values()))",
    ),
    _fault(
        "l2_norm", "a plain norm divides by the mean", _OPS, "total = np.sum(wide * wide", "total = np.mean(wide * wide"
    ),
    _fault(
        "linear",
        "a bias is subtracted",
        _OPS,
        "y if bias is None else y + bias.values()",
        "y if bias is None else y - bias.values()",
        "F32",
    ),
    _fault(
        "rope",
        "a rotation turns the other way",
        _OPS,
        "y[..., u_at] = x[..., u_at] * cos - x[..., v_at] * sin",
        "y[..., u_at] = x[..., u_at] * cos + x[..., v_at] * sin",
    ),
    _fault(
        "rope",
        "a rotation pairs neighbours where halves belong together",
        _OPS,
        'if rope.style == "neox"',
        'if rope.style == "norm"',
    ),
    _fault(
        "rope",
        "the frequencies fall half as fast",
        _OPS,
        "rope.base ** (-2.0 * pairs / rope.n_dims)",
        "rope.base ** (-1.0 * pairs / rope.n_dims)",
    ),
    _fault(
        "rope",
        "YaRN's ramp runs between swapped ends",
        _OPS,
        "math.floor(dimension_turning(rope.beta_fast))",
        "math.floor(dimension_turning(rope.beta_slow))",
    ),
    _fault(
        "rope",
        "a pair's component is counted from the second",
        _OPS,
        "component[(pairs % 3 == turn) &",
        "component[(pairs % 3 == (turn + 1) % 3) &",
    ),
    _fault(
        "swiglu",
        "gate and up change places",
        _OPS,
        "gated: Floats = (wide * expit(wide) * up).astype(np.float32)",
        "gated: Floats = (up * expit(up.astype(np.float64)) * wide).astype(np.float32)",
    ),
    _fault("geglu", "GELU's cubic has a digit too few", _OPS, "0.044715 * (x", "0.04471 * (x"),
    _fault(
        "swiglu_oai",
        "the clamp forgets the negative side",
        _OPS,
        "np.clip(up, np.float32(-_OAI_LIMIT), np.float32(_OAI_LIMIT))",
        "np.minimum(up, np.float32(_OAI_LIMIT))",
    ),
    _fault(
        "squared_relu",
        "a squared ReLU keeps negative numbers",
        _OPS,
        "positive = np.maximum(x, np.float32(0))",
        "positive = np.abs(x)",
    ),
    _fault(
        "combine_experts",
        "the last expert is left out",
        _OPS,
        "for i in range(1, y.shape[1]):",
        "for i in range(1, max(1, y.shape[1] - 1)):",
    ),
    _fault(
        "expert_linear",
        "every expert reads the token's first row",
        _OPS,
        "rows = x[tokens] if x.ndim == 2 else x[tokens, places]",
        "rows = x[tokens] if x.ndim == 2 else x[tokens, 0]",
        "F32",
    ),
    _fault(
        "attention",
        "the softmax subtracts no maximum of the sink",
        _ATTENTION,
        "total += np.exp(sink - top)",
        "total += np.exp(sink)",
    ),
    _fault(
        "attention",
        "a row does not see its own cell",
        _ATTENTION,
        "zip(slots.tolist(), (cells + 1).tolist(), strict=True)",
        "zip(slots.tolist(), np.maximum(cells, 1).tolist(), strict=True)",
    ),
    _fault(
        "attention",
        "a window is a cell too wide",
        _ATTENTION,
        "start = 0 if window is None else max(0, stop - window)",
        "start = 0 if window is None else max(0, stop - window - 1)",
    ),
    _fault(
        "attention",
        "query heads share KV heads in turns, not in runs",
        _ATTENTION,
        "grouped = q.reshape(n_tokens, n_head_kv, n_head // n_head_kv, head_dim)",
        "grouped = q.reshape(n_tokens, n_head // n_head_kv, n_head_kv, head_dim).swapaxes(1, 2)",
    ),
    _fault(
        "attention",
        "a chosen block's last cell is not read",
        _ATTENTION,
        "return read[(read >= start) & (read < stop)]",
        "return read[(read >= start) & (read < stop - 1)]",
    ),
    _fault(
        "select_blocks",
        "the nearest blocks are not kept for sure",
        _SELECTION,
        "by_block.shape[1] - n_local) :] = np.inf",
        "by_block.shape[1] - n_local + 1) :] = np.inf",
    ),
    _fault(
        "select_blocks",
        "a block is scored by its first cell alone",
        _SELECTION,
        "np.maximum.reduceat(by_cell, np.arange(0, len(keys), block), axis=-1)",
        "by_cell[:, ::block].copy()",
    ),
    _fault(
        "route",
        "of equal experts the last is taken",
        _SELECTION,
        'return np.argsort(-scores, axis=-1, kind="stable")[..., :n]',
        'return np.argsort(scores, axis=-1, kind="stable")[..., ::-1][..., :n]',
    ),
    _fault(
        "route",
        "the shares carry the bias that was for choosing",
        _SELECTION,
        "picked = np.take_along_axis(shares, experts, axis=-1)",
        "picked = np.take_along_axis(shares if bias is None else shares + bias, experts, axis=-1)",
    ),
    _fault(
        "causal_conv",
        "the taps run from the newest input",
        _RECURRENT,
        "wide = taps.T.astype(np.float64)",
        "wide = taps.T[::-1].astype(np.float64)",
    ),
    _fault(
        "causal_conv",
        "the state keeps the oldest input, not the newest",
        _RECURRENT,
        "state[left] = inputs[1:]",
        "state[left] = inputs[:-1]",
    ),
    _fault(
        "delta_rule",
        "value heads take key heads in runs, not in turns",
        _RECURRENT,
        "np.tile(each.astype(np.float64), (1, repeats, 1))[..., None]",
        "np.repeat(each.astype(np.float64), repeats, axis=1)[..., None]",
    ),
    _fault(
        "delta_rule",
        "the error is taken before the state fades",
        _RECURRENT,
        "error = v[t][..., None] - matrix @ keys[t]",
        "error = v[t][..., None] - state[found] @ keys[t]",
    ),
    _fault(
        "ssm_scan",
        "heads take groups in turns, not in runs",
        _RECURRENT,
        "np.repeat(each.astype(np.float64), repeats, axis=1) for each in (b, c)",
        "np.tile(each.astype(np.float64), (1, repeats, 1)) for each in (b, c)",
    ),
    _fault(
        "ssm_scan",
        "the skip is left out of one lane's output",
        _RECURRENT,
        "[..., 0] + d * x[t]",
        "[..., 0] + d * x[0]",
    ),
    _fault(
        "previous",
        "a row gets itself back",
        _RECURRENT,
        "y[t] = state[found]\n        state[left] = x[t]",
        "state[left] = x[t]\n        y[t] = state[left]",
    ),
    _fault(
        "log_decay",
        "softplus has no linear end",
        _RECURRENT,
        "np.log1p(np.exp(np.minimum(x, _SOFTPLUS_ENDS)))",
        "np.log(np.exp(np.minimum(x, _SOFTPLUS_ENDS)))",
    ),
    _fault(
        "linear",
        "rows of one product are multiplied as a matrix",
        "reference/matmul.py",
        "np.vecdot(rows, weights.astype(x.dtype, copy=False), out=y[:, start : start + len(weights)])",
        "y[:, start : start + len(weights)] = rows[:, 0] @ weights.astype(x.dtype, copy=False).T",
        "rows alone",
    ),
    _fault(
        "linear",
        "the pieces of a large product are all written to its beginning",
        "reference/matmul.py",
        "yield start + at, rows[at : at + step]",
        "yield start, rows[at : at + step]",
        "F32",
    ),
    _ggml(
        "linear",
        "an offset's sum is not corrected for its rounding",
        "np.concatenate([values, lost_sums(x)], axis=1)",
        "np.concatenate([values, 0 * lost_sums(x)], axis=1)",
        "Q4_1",
    ),
    _ggml(
        "linear",
        "half-precision weights meet unrounded activations",
        'if rounded_to == "F32":',
        'if rounded_to in {"F32", "F16"}:',
        "F16",
    ),
    Fault(
        name="GELU's table is not rounded to half precision",
        area="ops",
        file="reference/ggml_ops.py",
        old="(half * x * (one + slope)).astype(np.float16).astype(np.float32)",
        new="(half * x * (one + slope)).astype(np.float32)",
        run=("seat", "--numerics", "ggml", "-k", '"gemma3-a-f32.strict distributions"'),
        caught_by="gemma3-a-f32.strict: distributions",
    ),
)
