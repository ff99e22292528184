"""Op sets with one fault each, as a port has them: what the op checks must find; and three without."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from bloomery.conformance.ops.case import HostWeight, Stored
from bloomery.conformance.ops.values import f32_weight
from bloomery.interface.spec import Rope
from bloomery.reference import recurrent
from bloomery.reference.ggml_ops import GgmlOps
from bloomery.reference.ops import NumpyOps

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]


class ExactOps(NumpyOps):
    """The reference with what it claims of its arithmetic."""

    numerics = "exact"
    decides_in = "float64"
    rows_stand_alone = True


class RoundingOps(GgmlOps):
    """The reference in ggml numerics with what it claims."""

    numerics = "ggml"
    decides_in = "float64"
    rows_stand_alone = True


_ONE = np.float32(1)


def _softplus(z: Floats) -> Floats:
    return np.where(z > 20, z, np.log(_ONE + np.exp(np.minimum(z, np.float32(20)))))


class Float32Ops(ExactOps):
    """A port that decides in float32 throughout, and says so: what a plain GPU kernel computes."""

    decides_in = "float32"
    rows_stand_alone = False

    def rms_norm(self, x: Floats, weight: Any, *, eps: float) -> Floats:
        mean = np.mean(x * x, axis=-1, keepdims=True, dtype=np.float32)
        return np.asarray(x / np.sqrt(mean + np.float32(eps)) * weight.values(), np.float32)

    def l2_norm(self, x: Floats, *, eps: float) -> Floats:
        return x * (_ONE / np.sqrt((x * x).sum(axis=-1, keepdims=True, dtype=np.float32) + np.float32(eps)))

    def rope(self, x: Floats, positions: Ints, rope: Rope) -> Floats:
        if rope.ext_factor or rope.sections is not None:
            return super().rope(x, positions, rope)
        y, step = x.copy(), np.float32(rope.base ** (-2 / rope.n_dims))
        angle = positions.astype(np.float32) * np.float32(rope.freq_scale)
        for j in range(rope.n_dims // 2):
            u, v = (j, j + rope.n_dims // 2) if rope.style == "neox" else (2 * j, 2 * j + 1)
            cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
            y[..., u], y[..., v] = x[..., u] * cos - x[..., v] * sin, x[..., u] * sin + x[..., v] * cos
            angle = angle * step
        return y

    def attention(self, q: Floats, k_cache: Floats, v_cache: Floats, slots: Ints, cells: Ints, **named: Any) -> Floats:
        if named.get("chosen") is not None:
            return super().attention(q, k_cache, v_cache, slots, cells, **named)
        window, sinks = named.get("window"), named.get("sinks")
        y = np.zeros((*q.shape[:2], v_cache.shape[-1]), np.float32)
        for t, h in np.ndindex(q.shape[:2]):
            kv = h // (q.shape[1] // k_cache.shape[2])
            seen = slice(0 if window is None else max(0, cells[t] + 1 - window), cells[t] + 1)
            scores = k_cache[slots[t], seen, kv] @ q[t, h] * np.float32(named["scale"])
            most = max(scores.max(), sinks.values()[h]) if sinks is not None else scores.max()
            powers = np.exp(scores - most)
            total = powers.sum(dtype=np.float32) + (np.exp(sinks.values()[h] - most) if sinks is not None else 0)
            y[t, h] = (powers @ v_cache[slots[t], seen, kv]) / total
        return y

    def causal_conv(self, x: Floats, weight: Any, bias: Any, state: Floats, *places: Any) -> Floats:
        y = np.empty_like(x)
        for t, (slot, read, write) in enumerate(zip(*places, strict=True)):
            inputs = np.concatenate([state[slot, read], x[t : t + 1]])
            y[t] = (inputs.T * weight.values()).sum(axis=1, dtype=np.float32)
            state[slot, write] = inputs[1:]
        return self.swiglu(y if bias is None else y + bias.values(), np.ones_like(y))

    def log_decay(self, x: Floats, bias: Any, a: Any) -> Floats:
        return _softplus(x + bias.values()) * a.values()

    def delta_rule(
        self,
        q: Floats,
        k: Floats,
        v: Floats,
        log_decay: Floats,
        strength: Floats,
        state: Floats,
        *places: Any,
        scale: float,
    ) -> Floats:
        y = np.empty_like(v)
        for t, (slot, read, write) in enumerate(zip(*places, strict=True)):
            held = state[slot, read].copy()
            for h in range(v.shape[1]):
                key = k[t, h % k.shape[1]]
                held[h] *= np.exp(log_decay[t, h])
                error = (v[t, h] - held[h] @ key) / (_ONE + np.exp(-strength[t, h]))
                held[h] += np.outer(error, key)
                y[t, h] = held[h] @ q[t, h % k.shape[1]] * np.float32(scale)
            state[slot, write] = held
        return y

    def ssm_scan(
        self, x: Floats, b: Floats, c: Floats, dt: Floats, dt_bias: Any, a: Any, d: Any, state: Floats, *places: Any
    ) -> Floats:
        steps, group = _softplus(dt + dt_bias.values())[..., None, None], x.shape[1] // b.shape[1]
        y = np.empty_like(x)
        for t, (slot, read, write) in enumerate(zip(*places, strict=True)):
            into, out = np.repeat(b[t], group, axis=0)[:, None], np.repeat(c[t], group, axis=0)[:, None]
            held = state[slot, read] * np.exp(steps[t] * a.values()[..., None]) + steps[t] * x[t][..., None] * into
            y[t] = (held * out).sum(axis=-1, dtype=np.float32) + d.values() * x[t]
            state[slot, write] = held
        return y

    def sigmoid_gate(self, x: Floats, gate: Floats) -> Floats:
        return x / (_ONE + np.exp(-gate))

    def swiglu(self, gate: Floats, up: Floats) -> Floats:
        return gate / (_ONE + np.exp(-gate)) * up

    def geglu(self, gate: Floats, up: Floats) -> Floats:
        bent = np.float32(math.sqrt(2 / math.pi)) * gate * (_ONE + np.float32(0.044715) * gate * gate)
        return np.float32(0.5) * gate * (_ONE + np.tanh(bent)) * up

    def swiglu_oai(self, gate: Floats, up: Floats) -> Floats:
        g = np.minimum(gate, np.float32(7))
        return g / (_ONE + np.exp(np.float32(-1.702) * g)) * (np.clip(up, -7, 7).astype(np.float32) + _ONE)

    def route(self, logits: Floats, **named: Any) -> tuple[Ints, Floats]:
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        p = powers / powers.sum(axis=1, keepdims=True, dtype=np.float32)
        if named["score"] == "sigmoid":
            p = _ONE / (_ONE + np.exp(-logits))
        ranked = p if named.get("bias") is None else p + named["bias"].values()
        experts = np.argsort(-ranked, axis=1, kind="stable")[:, : named["n_used"]]
        picked = np.take_along_axis(p, experts, axis=1)
        if named["normalised"]:
            picked = picked / np.maximum(picked.sum(axis=1, keepdims=True), np.float32(2**-14))
        return experts.astype(np.int32), picked * np.float32(named["scale"])


FAULTS: list[tuple[str, str, type[ExactOps]]] = []
"""The op, the check that must find the fault, and the op set."""

OpsClass = type[ExactOps]


def fault(op: str, check: str = "values") -> Callable[[OpsClass], OpsClass]:
    """Add the class to `FAULTS`."""

    def registered(ops: OpsClass) -> OpsClass:
        FAULTS.append((op, check, ops))
        return ops

    return registered


# What moves.


@fault("to_host")
class HandsOutItsOwnArray(ExactOps):
    def to_host(self, x: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        return x


@fault("from_host")
class TakesCOrderForGranted(ExactOps):
    def from_host(self, values: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        return np.ascontiguousarray(values.T).reshape(values.shape)


@fault("embed", "Q6_K")
class ReadsTheRowBehind(ExactOps):
    def embed(self, table: Any, ids: Ints) -> Floats:
        return np.asarray(table.rows((ids + 1) % table.shape[0]))


@fault("take_rows")
class SortsTheRows(ExactOps):
    def take_rows(self, x: Floats, rows: Ints) -> Floats:
        return x[np.sort(rows)]


@fault("split_heads")
class HeadsAreTheInnerAxis(ExactOps):
    def split_heads(self, x: Floats, n_head: int) -> Floats:
        return np.ascontiguousarray(x.reshape(len(x), -1, n_head).transpose(0, 2, 1))


@fault("merge_heads")
class MergesAcrossHeads(ExactOps):
    def merge_heads(self, x: Floats) -> Floats:
        return x.transpose(0, 2, 1).reshape(len(x), -1)


@fault("split")
class SplitsBackwards(ExactOps):
    def split(self, x: Floats, sizes: Any) -> tuple[Floats, ...]:
        return super().split(x, list(sizes)[::-1])[::-1]


@fault("concat")
class AheadInPlaceOfBehind(ExactOps):
    def concat(self, a: Floats, b: Floats) -> Floats:
        return super().concat(b, a)


@fault("append")
class WritesTheNextCell(ExactOps):
    def append(self, cache: Floats, rows: Floats, slots: Ints, cells: Ints) -> None:
        cache[slots, (cells + 1) % cache.shape[1]] = rows


@fault("append")
class TouchesEverySlot(ExactOps):
    def append(self, cache: Floats, rows: Floats, slots: Ints, cells: Ints) -> None:
        cache[:, cells] = rows


# Element by element.


@fault("add")
class AddsIntoItsArgument(ExactOps):
    def add(self, a: Floats, b: Floats) -> Floats:
        a += b
        return a


@fault("scale")
class RoundsTheFactorLate(ExactOps):
    def scale(self, x: Floats, factor: float) -> Floats:
        return (x.astype(np.float64) * factor).astype(np.float32)


@fault("sigmoid_gate")
class GatesByTheInput(ExactOps):
    def sigmoid_gate(self, x: Floats, gate: Floats) -> Floats:
        return np.asarray(gate * expit(x.astype(np.float64)), np.float32)


@fault("swiglu")
class GatesTheOther(ExactOps):
    def swiglu(self, gate: Floats, up: Floats) -> Floats:
        return super().swiglu(up, gate)


@fault("geglu")
class TheErfForm(ExactOps):
    def geglu(self, gate: Floats, up: Floats) -> Floats:
        halves = np.vectorize(lambda x: x / 2 * (1 + math.erf(x / math.sqrt(2))))(gate.astype(np.float64))
        return np.asarray(halves * up, np.float32)


@fault("swiglu_oai")
class LimitsNothing(ExactOps):
    def swiglu_oai(self, gate: Floats, up: Floats) -> Floats:
        wide = gate.astype(np.float64)
        return np.asarray(wide * expit(1.702 * wide) * (up.astype(np.float64) + 1), np.float32)


@fault("squared_relu")
class Squared(ExactOps):
    def squared_relu(self, x: Floats) -> Floats:
        return x * x


@fault("combine_experts")
class ForgetsTheLast(ExactOps):
    def combine_experts(self, y: Floats, weights: Floats) -> Floats:
        kept = weights.copy()
        kept[:, -1] = 0
        return super().combine_experts(y, kept)


# Norms and rotation.


@fault("rms_norm")
class EpsilonOutsideTheRoot(ExactOps):
    def rms_norm(self, x: Floats, weight: Any, *, eps: float) -> Floats:
        wide = x.astype(np.float64)
        root = np.sqrt(np.mean(wide * wide, axis=-1, keepdims=True))
        return np.asarray(wide / (root + eps) * weight.values(), np.float32)


@fault("rms_norm")
class DecidesInFloat32(ExactOps):
    def rms_norm(self, x: Floats, weight: Any, *, eps: float) -> Floats:
        mean = np.mean(x * x, axis=-1, keepdims=True)
        return np.asarray(x / np.sqrt(mean + np.float32(eps)) * weight.values(), np.float32)


@fault("rms_norm")
class OneHeadsWeightForAll(ExactOps):
    def rms_norm(self, x: Floats, weight: Any, *, eps: float) -> Floats:
        values = weight.values()
        first = HostWeight("first", f32_weight(values.reshape(-1, values.shape[-1])[0]))
        return super().rms_norm(x, first, eps=eps)  # type: ignore[arg-type]


@fault("l2_norm")
class MeanInPlaceOfSum(ExactOps):
    def l2_norm(self, x: Floats, *, eps: float) -> Floats:
        wide = x.astype(np.float64)
        return np.asarray(wide / np.sqrt((wide * wide).mean(axis=-1, keepdims=True) + eps), np.float32)


@fault("rope")
class SwapsThePairing(ExactOps):
    def rope(self, x: Floats, positions: Ints, rope: Rope) -> Floats:
        return super().rope(x, positions, replace(rope, style="norm" if rope.style == "neox" else "neox"))


@fault("rope")
class ForgetsTheMagnitude(ExactOps):
    def rope(self, x: Floats, positions: Ints, rope: Rope) -> Floats:
        return super().rope(x, positions, replace(rope, magnitude=1.0))


@fault("rope")
class TheFirstComponentForAll(ExactOps):
    def rope(self, x: Floats, positions: Ints, rope: Rope) -> Floats:
        return super().rope(x, positions, replace(rope, sections=None))


# Products.


@fault("linear", "F32")
@fault("linear", "Q4_K")
class LosesTheLastColumn(ExactOps):
    def linear(self, x: Floats, weight: Any, bias: Any = None) -> Floats:
        shorter = x.copy()
        shorter[:, -1] = 0
        return super().linear(shorter, weight, bias)


@fault("linear", "F32")
class ForgetsTheBias(ExactOps):
    def linear(self, x: Floats, weight: Any, bias: Any = None) -> Floats:
        return super().linear(x, weight)


@fault("linear", "F16")
class RoundsActivationsAndDoesNotSaySo(ExactOps):
    def linear(self, x: Floats, weight: Any, bias: Any = None) -> Floats:
        return super().linear(x.astype(np.float16).astype(np.float32), weight, bias)


@fault("linear", "rows alone")
class BlasAsItComes(ExactOps):
    def linear(self, x: Floats, weight: Any, bias: Any = None) -> Floats:
        y = x @ weight.values().T
        return np.asarray(y if bias is None else y + bias.values(), np.float32)


@fault("linear", "Q4_0")
class SwapsTheNibbles(ExactOps):
    """Weight handles of its own, with the halves of each block's bytes exchanged."""

    def weight(self, name: str, raw: npt.NDArray[np.uint8], format_name: str, shape: tuple[int, ...]) -> HostWeight:
        if format_name == "Q4_0":
            blocks = raw.reshape(-1, 18).copy()
            blocks[:, 2:] = blocks[:, 2:] >> 4 | blocks[:, 2:] << 4
            raw = blocks.reshape(raw.shape)
        return HostWeight(name, Stored(format_name, shape, raw))


@fault("expert_linear", "F32")
class TheExpertBehind(ExactOps):
    def expert_linear(self, x: Floats, weight: Any, experts: Ints) -> Floats:
        return super().expert_linear(x, weight, (experts + 1) % weight.shape[0])


@fault("expert_linear", "IQ2_XXS")
class TheFirstPlacesRow(ExactOps):
    def expert_linear(self, x: Floats, weight: Any, experts: Ints) -> Floats:
        return super().expert_linear(x if x.ndim == 2 else x[:, 0], weight, experts)


# Attention and choices.


class _Attention(ExactOps):
    """Attention by plain loops, for a fault in one of its lines."""

    def kv_head(self, h: int, n_head: int, n_head_kv: int) -> int:
        return h // (n_head // n_head_kv)

    def first_cell(self, cell: int, window: int | None) -> int:
        return 0 if window is None else max(0, cell + 1 - window)

    def powers(self, scores: Any) -> Any:
        return np.exp(scores - scores.max())

    def sink(self, sink: float, scale: float) -> float:
        return sink

    def block_of(self, cell: int, block: int) -> int:
        return cell // block

    def attention(self, q: Floats, k_cache: Floats, v_cache: Floats, slots: Ints, cells: Ints, **named: Any) -> Floats:
        sinks, chosen, block = named.get("sinks"), named.get("chosen"), named.get("block", 1)
        y = np.zeros((*q.shape[:2], v_cache.shape[-1]), np.float32)
        for t, h in np.ndindex(q.shape[:2]):
            kv = self.kv_head(h, q.shape[1], k_cache.shape[2])
            seen = list(range(self.first_cell(int(cells[t]), named.get("window")), int(cells[t]) + 1))
            if chosen is not None:
                seen = [c for c in seen if self.block_of(c, block) in chosen[t, kv]]
            scores = k_cache[slots[t], seen, kv].astype(np.float64) @ q[t, h].astype(np.float64) * named["scale"]
            if sinks is not None:
                scores = np.append(scores, self.sink(sinks.values()[h], named["scale"]))
            powers = self.powers(scores)
            y[t, h] = (powers / powers.sum())[: len(seen)] @ v_cache[slots[t], seen, kv].astype(np.float64)
        return y


@fault("attention")
class WrongHeadMap(_Attention):
    def kv_head(self, h: int, n_head: int, n_head_kv: int) -> int:
        return h % n_head_kv


@fault("attention")
class WindowOffByOne(_Attention):
    def first_cell(self, cell: int, window: int | None) -> int:
        return 0 if window is None else max(0, cell - window)


@fault("attention")
class SoftmaxWithoutMaximum(_Attention):
    def powers(self, scores: Any) -> Any:
        return np.exp(scores)


@fault("attention")
class PowersInHalfPrecision(_Attention):
    def powers(self, scores: Any) -> Any:
        return np.exp((scores - scores.max()).astype(np.float16).astype(np.float64))


@fault("attention")
class SinksAreScaled(_Attention):
    def sink(self, sink: float, scale: float) -> float:
        return sink * scale


@fault("attention")
class BlocksOfOneMore(_Attention):
    def block_of(self, cell: int, block: int) -> int:
        return cell // (block + 1)


@fault("select_blocks")
class TheMostRecentBlocks(ExactOps):
    def select_blocks(
        self, q: Floats, k_cache: Floats, slots: Ints, cells: Ints, *, block: int, n_chosen: int, n_local: int
    ) -> Ints:
        return super().select_blocks(q, k_cache, slots, cells, block=block, n_chosen=n_chosen, n_local=n_chosen)


@fault("route")
class HighestIdAmongEquals(ExactOps):
    def route(self, logits: Floats, **named: Any) -> tuple[Ints, Floats]:
        if named.get("bias") is not None:
            return super().route(logits, **named)
        experts, shares = super().route(logits[:, ::-1], **named)
        return (logits.shape[1] - 1 - experts).astype(np.int32), shares


@fault("route")
class WeighsWithTheBias(ExactOps):
    def route(self, logits: Floats, **named: Any) -> tuple[Ints, Floats]:
        experts, shares = super().route(logits, **named)
        if named.get("bias") is not None:
            shares = shares + named["bias"].values()[experts]
        return experts, shares


# Recurrences.


@fault("causal_conv")
class NewestInputFirst(ExactOps):
    def causal_conv(self, x: Floats, weight: Any, bias: Any, state: Floats, *places: Any) -> Floats:
        added = None if bias is None else bias.values()
        return recurrent.causal_conv(x, weight.values()[:, ::-1], added, state, *places)


@fault("causal_conv")
class LeavesTheStateAsItWas(ExactOps):
    def causal_conv(self, x: Floats, weight: Any, bias: Any, state: Floats, *places: Any) -> Floats:
        return super().causal_conv(x, weight, bias, state.copy(), *places)


@fault("log_decay")
class DecayWithoutBias(ExactOps):
    def log_decay(self, x: Floats, bias: Any, a: Any) -> Floats:
        return np.asarray(recurrent.softplus(x.astype(np.float64)) * a.values(), np.float32)


@fault("delta_rule")
class KeyHeadsInRuns(ExactOps):
    def delta_rule(self, q: Floats, k: Floats, v: Floats, *rest: Any, scale: float) -> Floats:
        group = v.shape[1] // k.shape[1]
        return super().delta_rule(np.repeat(q, group, axis=1), np.repeat(k, group, axis=1), v, *rest, scale=scale)


@fault("delta_rule")
class WritesTheLaneItRead(ExactOps):
    def delta_rule(self, q: Floats, k: Floats, v: Floats, *rest: Any, scale: float) -> Floats:
        *others, read_lanes, _ = rest
        return super().delta_rule(q, k, v, *others, read_lanes, read_lanes, scale=scale)


@fault("ssm_scan")
class GroupsInTurn(ExactOps):
    def ssm_scan(self, x: Floats, b: Floats, c: Floats, *rest: Any) -> Floats:
        turns = np.arange(x.shape[1]) % b.shape[1]
        return super().ssm_scan(x, b[:, turns], c[:, turns], *rest)


@fault("previous")
class TheRowItself(ExactOps):
    def previous(self, x: Floats, state: Floats, *places: Any) -> Floats:
        super().previous(x, state, *places)
        return x.copy()


@fault("read_state")
class TheFirstLane(ExactOps):
    def read_state(self, state: Floats, slots: Ints, lanes: Ints) -> Floats:
        return super().read_state(state, slots, np.zeros_like(lanes))
