"""llama-server's sampler chain in its default order, stage by stage, to the last bit of float32.

The order is: logit bias, penalties, (dry, top_n_sigma: off), top_k, (typical_p: off), top_p, min_p, (xtc: off),
temperature, draw. Bias and penalties work on the whole row; every later stage is one function from candidates to
candidates. Each does what the sampler of its name in llama.cpp's ``src/llama-sampler.cpp`` does: sums are float32 and
run in the order of the candidates, except in the draw, where they are float64.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from bloomery.interface.sampling.candidates import Candidates, FloatRow
from bloomery.interface.sampling.libm import expf, logf
from bloomery.interface.sampling.order import best_first, bucket_best_first
from bloomery.interface.sampling.params import SamplingParams

_TOP_P_GUESS = 256
_TOP_P_SMALL = 1024


def logit_bias(logits: FloatRow, biases: Mapping[int, float]) -> FloatRow:
    """The row, float32 ``[n_vocab]``, with a bias added to some ids' logits; -inf rules an id out."""
    if not biases:
        return logits
    biased = logits.copy()
    with np.errstate(over="ignore"):
        biased[np.fromiter(biases.keys(), np.intp)] += np.fromiter(biases.values(), np.float32)
    return biased


def top_k(candidates: Candidates, k: int) -> Candidates:
    """Keep the k best, best first; k <= 0 keeps all as they stand."""
    if k <= 0:
        return candidates
    k = min(k, len(candidates))
    if candidates.best_first:
        return candidates.take(slice(k), best_first=True)
    return candidates.take(best_first(candidates.logits, k), best_first=True)


def top_p(candidates: Candidates, p: float, min_keep: int = 0) -> Candidates:
    """Keep the smallest best-first set whose probabilities sum to p and that has ``min_keep`` entries; p >= 1 is off.

    Holtzman et al., The Curious Case of Neural Text Degeneration, arXiv 1904.09751.
    """
    if np.float32(p) >= 1:
        return candidates
    probabilities = softmax(candidates)
    if candidates.best_first:
        return candidates.take(slice(_reach(probabilities, p, min_keep)), best_first=True)
    n = len(candidates)
    kept = _reach(np.sort(probabilities)[::-1], p, min_keep)
    if n <= _TOP_P_SMALL:
        order = best_first(candidates.logits, n)[:kept]
    elif kept is not None and kept <= _TOP_P_GUESS:
        order = bucket_best_first(candidates.logits, _TOP_P_GUESS, kept)
    else:
        # llama.cpp sorts a few first, in the hope that they suffice, and then all: each sort orders ties its own way.
        order = bucket_best_first(candidates.logits, n, n if kept is None else kept)
    return candidates.take(order, best_first=True)


def _reach(probabilities: FloatRow, p: float, min_keep: int) -> int | None:
    """How many leading entries it takes for a sum of p and a count of ``min_keep``; None if all together fall short."""
    reached = np.cumsum(probabilities, dtype=np.float32) >= np.float32(p)
    reached[: max(min_keep - 1, 0)] = False
    first = int(np.argmax(reached))
    return first + 1 if reached[first] else None


def min_p(candidates: Candidates, p: float, min_keep: int = 0) -> Candidates:
    """Keep what has at least p times the probability of the best, and ``min_keep`` entries; p <= 0 is off.

    The comparison is made on logits, so no softmax is taken. https://github.com/ggml-org/llama.cpp/pull/3841
    """
    share = np.array([p], np.float32)
    if share[0] <= 0:
        return candidates
    margin = logf(share)[0]
    if not candidates.best_first:
        floor = candidates.logits.max() + margin
        kept = np.flatnonzero(candidates.logits >= floor)
        if 0 < len(kept) >= min_keep:
            return candidates.take(kept, best_first=False)
        candidates = top_k(candidates, len(candidates))
    floor = candidates.logits[0] + margin
    below = candidates.logits < floor
    below[: max(min_keep, 1)] = False
    first = int(np.argmax(below))
    return candidates.take(slice(first if below[first] else None), best_first=True)


def temperature(candidates: Candidates, t: float) -> Candidates:
    """Divide the logits by t; t <= 0 rules out all but the first of the best."""
    if np.float32(t) > 0:
        with np.errstate(over="ignore", under="ignore"):
            scaled = candidates.logits / np.float32(t)
        return Candidates(candidates.ids, scaled, candidates.best_first)
    best = int(np.argmax(candidates.logits))
    logits = np.full_like(candidates.logits, -np.inf)
    logits[best] = candidates.logits[best]
    return Candidates(candidates.ids, logits, candidates.best_first)


def softmax(candidates: Candidates) -> FloatRow:
    """Probability of each candidate: float32 exponentials over their float32 sum, in the order of the candidates."""
    weights = _weights(candidates)
    total: np.float32 = np.cumsum(weights, dtype=np.float32)[-1]
    return weights / total


def draw(candidates: Candidates, uniform: float) -> tuple[int, FloatRow]:
    """Pick the candidate at which the running sum of the weights reaches ``uniform`` (in 0..1) of the whole.

    Returns its position, and each candidate's probability. The sums are float64, over float32 weights in the order of
    the candidates.
    """
    weights = _weights(candidates)
    running = np.cumsum(weights, dtype=np.float64)
    target = running[-1] * uniform
    # A target of 0 must not fall on a candidate of weight 0 that stands in front.
    chosen = int(np.searchsorted(running, target, side="left" if target > 0 else "right"))
    return chosen, (weights / running[-1]).astype(np.float32)


def _weights(candidates: Candidates) -> FloatRow:
    """Exponentials of the logits' distances from the best one."""
    best = candidates.logits[0] if candidates.best_first else candidates.logits.max()
    return expf(candidates.logits - best)


def narrow(candidates: Candidates, params: SamplingParams) -> Candidates:
    """The stages between the penalties and the draw, in llama-server's default order."""
    candidates = top_k(candidates, params.top_k)
    candidates = top_p(candidates, params.top_p, params.min_keep)
    candidates = min_p(candidates, params.min_p, params.min_keep)
    return temperature(candidates, params.temperature)
