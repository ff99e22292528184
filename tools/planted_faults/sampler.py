"""Faults in the sampler: a stage, the draw, the penalties, the report."""

from __future__ import annotations

from tools.planted_faults.fault import Fault


def _fault(name: str, module: str, check: str, old: str, new: str) -> Fault:
    return Fault(
        name=name,
        area="sampler",
        file=f"interface/sampling/{module}.py",
        old=old,
        new=new,
        run=("parts", "-k", f'"sampler {check}"'),
        caught_by=f"sampler: {check}",
    )


def _seeded(name: str, module: str, old: str, new: str) -> Fault:
    """A fault that recorded seeded ids of a scripted model show."""
    model = "chain-branch.strict"
    return Fault(
        name=name,
        area="sampler",
        file=f"interface/sampling/{module}.py",
        old=old,
        new=new,
        run=("seat", "-k", f'"{model} seeded"'),
        caught_by=f"{model}: seeded ids",
    )


FAULTS = (
    _fault(
        "top_p wants more than p",
        "chain",
        "exact cuts",
        "dtype=np.float32) >= np.float32(p)",
        "dtype=np.float32) > np.float32(p)",
    ),
    _fault(
        "top_p's min_keep counts one too many",
        "chain",
        "stages",
        "reached[: max(min_keep - 1, 0)] = False",
        "reached[: max(min_keep, 0)] = False",
    ),
    _fault(
        "min_p takes its share of the first entry, best or not",
        "chain",
        "stages",
        "floor = candidates.logits.max() + margin",
        "floor = candidates.logits[0] + margin",
    ),
    _fault(
        "the draw adds in single precision",
        "chain",
        "draws",
        "running = np.cumsum(weights, dtype=np.float64)",
        "running = np.cumsum(weights, dtype=np.float32)",
    ),
    _fault(
        "of equal logits the heap takes the other",
        "order",
        "stages",
        "if heap[child][0] > heap[child - 1][0]:",
        "if heap[child][0] >= heap[child - 1][0]:",
    ),
    _fault(
        "the exponential's linear coefficient is ln 2",
        "libm",
        "functions",
        "0x1.62e42ff0c52d6p-1",
        "0x1.62e42fefa39efp-1",
    ),
    _fault(
        "reported probabilities are summed in the row's order",
        "probabilities",
        "probabilities",
        "total = np.cumsum(weights[order], dtype=np.float32)[-1]",
        "total = np.cumsum(weights, dtype=np.float32)[-1]",
    ),
    _fault(
        "a penalty multiplies what it should divide",
        "penalties",
        "sequences",
        "np.where(touched <= 0, touched * repeat, touched / repeat)",
        "np.where(touched <= 0, touched / repeat, touched * repeat)",
    ),
    _fault(
        "the bias is added behind the penalties",
        "sampler",
        "requests",
        "self._window.apply(chain.logit_bias(logits, self._biases))",
        "chain.logit_bias(self._window.apply(logits), self._biases)",
    ),
    _fault(
        "ignore_eos forgets the client's biases",
        "sampler",
        "requests",
        "self._biases |= dict.fromkeys(eog_ids, -np.inf)",
        "self._biases = dict.fromkeys(eog_ids, -np.inf)",
    ),
    _fault(
        "of equal best ids the greedy pick is the first",
        "sampler",
        "sequences",
        "candidates.logits == candidates.logits[best]) == 1:",
        "candidates.logits == candidates.logits[best]) >= 1:",
    ),
    _fault(
        "a listed id may have probability 0",
        "drawn",
        "probabilities after sampling",
        "possible = min(k, int(np.count_nonzero(self._probabilities)))",
        "possible = min(k, len(self._probabilities))",
    ),
    _seeded(
        "the twister's words are read in the other order",
        "rng",
        'self._words.bytes(8), "little")',
        'self._words.bytes(8), "big")',
    ),
    _seeded(
        "the penalty window is one id too long",
        "penalties",
        "if len(self._last) == self._params.repeat_last_n:",
        "if len(self._last) > self._params.repeat_last_n:",
    ),
    _seeded(
        "the presence penalty counts how often",
        "penalties",
        "touched - (counts * frequency + presence)",
        "touched - counts * (frequency + presence)",
    ),
    _seeded(
        "the temperature runs before the cuts",
        "chain",
        "candidates = top_k(candidates, params.top_k)",
        "candidates = top_k(temperature(candidates, params.temperature), params.top_k)",
    ),
    _seeded(
        "a seed keeps its sign",
        "params",
        '_integer("seed", self.seed) & UINT32_MASK',
        'abs(_integer("seed", self.seed)) & UINT32_MASK',
    ),
)
