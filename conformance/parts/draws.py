"""The sampler against recorded draws of a real llama-server's, to the bit: ties, every stage, penalties, reports."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from bloomery.conformance.finding import Check, Effort, Finding
from bloomery.conformance.parts.ggml_digests import random_words, uniform
from bloomery.conformance.parts.recordings import PARTS, Json, cases_of, manifest_of
from bloomery.conformance.reports.report import first_few
from bloomery.interface.sampling import Sampler, SamplingParams, chain, probabilities
from bloomery.interface.sampling.candidates import Candidates
from bloomery.interface.sampling.libm import expf, logf
from bloomery.interface.sampling.rng import MersenneTwister

SUBJECT = "sampler"
FOLDER = PARTS / "sampling"
EDGES, FUNCTIONS = "exact cuts", "functions"
_MOST_SENTENCES = 8

# Of `_arguments`, by glibc 2.36: sha256 of the results as little-endian float32.
_N_NUMBERS = 1 << 19
_EXPF = "6e90ffe201444ebeb262f50792e7b8ed86d347e67a6c90d728d54430e8e5cfaa"
_LOGF = "9e1301f566998145e79a09b5eb54efd01d1d68e2edb6b06ce3cef6fad4b0edc2"

Floats = npt.NDArray[np.float32]
Sentences = Iterator[str]

_STAGES: Mapping[str, Callable[..., Candidates]] = {
    "top_k": chain.top_k,
    "top_p": chain.top_p,
    "min_p": chain.min_p,
    "temp_ext": lambda candidates, t, _delta, _exponent: chain.temperature(candidates, t),
}


@dataclass(frozen=True, eq=False)
class _Rows:
    """The recorded rows of logits; `table[id]` is the row that follows an id in the recorded server's model."""

    rows: list[Floats]
    table: Floats
    eog_id: int


def checks() -> list[Check]:
    """A check a kind of recorded case, and those of what needs no recording."""
    found = [Check(subject=SUBJECT, name=name, run=partial(_asked, name)) for name in _QUESTIONS]
    found.append(Check(subject=SUBJECT, name=EDGES, run=_exact_cuts))
    return [*found, Check(subject=SUBJECT, name=FUNCTIONS, run=_functions)]


def _asked(name: str, _effort: Effort) -> Iterator[Finding]:
    kind, ask = _QUESTIONS[name]
    cases = cases_of(FOLDER, kind)
    with np.load(FOLDER / "arrays.npz") as arrays:
        rows = np.split(arrays["rows"], arrays["starts"][1:-1])
        recorded = _Rows(rows, arrays["table"], manifest_of(FOLDER)["eog_id"])
    wrong = [sentence for case in cases for sentence in ask(recorded, case)]
    measured = {"cases": float(len(cases))}
    yield Finding(subject=SUBJECT, check=name, measured=measured, wrong=first_few(wrong, _MOST_SENTENCES))


def _digest(ids: npt.NDArray[np.intp], numbers: Floats) -> str:
    return hashlib.sha256(ids.astype("<i4").tobytes() + numbers.astype("<f4").tobytes()).hexdigest()


def _left(recorded: _Rows, case: Json) -> Candidates:
    candidates = Candidates.of_row(recorded.rows[case["row"]])
    for name, *arguments in case["stages"]:
        candidates = _STAGES[name](candidates, *arguments)
    return candidates


def _stages(recorded: _Rows, case: Json) -> Sentences:
    left = _left(recorded, case)
    first = left.ids[:8].tolist()
    asked = f"{case['stages']} of row {case['row']}"
    if (len(left), first) != (case["count"], case["first_ids"]):
        yield f"{asked} leaves {len(left)} ids, {first} ..., llama.cpp {case['count']}, {case['first_ids']} ..."
    elif _digest(left.ids, left.logits) != case["digest"]:
        yield f"{asked} leaves other logits or another order than llama.cpp"


def _draws(recorded: _Rows, case: Json) -> Sentences:
    left = _left(recorded, case)
    chosen, drawn_by = chain.draw(left, MersenneTwister(case["seed"]).uniform())
    asked = f"seed {case['seed']} after {case['stages']} of row {case['row']}"
    if chosen != case["selected"]:
        yield f"{asked} draws the candidate {chosen}, llama.cpp {case['selected']}"
    elif _digest(left.ids, drawn_by) != case["digest"]:
        yield f"{asked} draws by other probabilities than llama.cpp"


def _sampler(recorded: _Rows, case: Json, n_vocab: int) -> Sampler:
    fields: dict[str, Any] = dict(case["params"])
    fields["logit_bias"] = {token: -math.inf if bias is None else bias for token, bias in fields["logit_bias"]}
    sampler = Sampler(SamplingParams(**fields), n_vocab=n_vocab, eog_ids=[recorded.eog_id])
    sampler.accept_all(case["prompt"])
    return sampler


def _drawn(case: Json, sampler: Sampler, rows: Iterator[Floats]) -> Sentences:
    """The first id of a sequence of draws that is another than the recorded one."""
    for step, (row, wanted) in enumerate(zip(rows, case["drawn"], strict=False)):
        drawn = sampler.sample(row)
        if drawn != wanted:
            yield f"{case['params']} after {case['prompt']}: id {step} is {drawn}, llama.cpp's {wanted}"
            return
        sampler.accept(wanted)


def _sequences(recorded: _Rows, case: Json) -> Sentences:
    rows = (recorded.rows[row] for row in case["rows"])
    return _drawn(case, _sampler(recorded, case, case["n_vocab"]), rows)


def _requests(recorded: _Rows, case: Json) -> Sentences:
    rows = (recorded.table[token] for token in (case["prompt"][-1], *case["drawn"]))
    return _drawn(case, _sampler(recorded, case, len(recorded.table)), rows)


def _reported(recorded: _Rows, case: Json) -> Sentences:
    previous = case["prompt"][-1]
    for token, logprob, top in case["reported"]:
        report = probabilities(recorded.table[previous], case["params"]["n_probs"])
        ours = [(token, report.logprob(token)), *((entry.id, entry.logprob) for entry in report)]
        theirs = [(token, logprob), *((other, value) for other, value in top)]
        if [(each, np.float32(value)) for each, value in ours] != [(each, np.float32(value)) for each, value in theirs]:
            yield f"after id {previous} the probabilities are {ours[:3]} ..., llama-server's {theirs[:3]} ..."
        previous = token


def _after(recorded: _Rows, case: Json) -> Sentences:
    sampler = _sampler(recorded, case, len(recorded.table))
    previous = case["prompt"][-1]
    for wanted, probability, best in case["reported"]:
        drawn = sampler.draw(recorded.table[previous])
        listed = [list(entry) for entry in drawn.best(case["params"]["n_probs"])]
        if (drawn.token, drawn.probability, listed) != (wanted, probability, best):
            ours, theirs = f"{drawn.token} by {drawn.probability}", f"{wanted} by {probability}"
            yield f"{case['params']}: after id {previous} the draw is {ours}, llama-server's {theirs}"
        sampler.accept(wanted)
        previous = wanted


def _exact_cuts(_effort: Effort) -> Iterator[Finding]:
    """Cuts of rows whose shares are exact, where what reaches a limit and what passes it are not the same.

    Of 2^n equal logits each has the share 2^-n, so that top_p takes exactly p 2^n of them; and a logit that is as far
    below the best as min_p's margin stays.
    """
    wrong = []
    n_cut = 0
    for n in (2, 4, 8, 64):
        row = Candidates.of_row(np.zeros(n, np.float32))
        for kept in range(1, n):
            n_cut += 1
            left = len(chain.top_p(row, kept / n))
            if left != kept:
                wrong.append(f"top_p {kept / n} leaves {left} of {n} equal ids, and {kept} of them sum to it")
    for share in (0.5, 0.25, 0.05):
        n_cut += 1
        margin = logf(np.array([share], np.float32))
        row = Candidates.of_row(np.concatenate([np.zeros(1, np.float32), margin, margin - np.float32(1e-3)]))
        left = chain.min_p(row, share).ids.tolist()
        if left != [0, 1]:
            wrong.append(f"min_p {share} leaves the ids {left} where 1 has exactly that share and 2 has less")
    yield Finding(
        subject=SUBJECT, check=EDGES, measured={"cuts": float(n_cut)}, wrong=first_few(wrong, _MOST_SENTENCES)
    )


def _functions(_effort: Effort) -> Iterator[Finding]:
    """Exponential and logarithm, to the bit of the C library's."""
    exponents, shares = _arguments()
    wrong = []
    for name, got, digest in (("expf", expf(exponents), _EXPF), ("logf", logf(shares), _LOGF)):
        if hashlib.sha256(got.astype("<f4").tobytes()).hexdigest() != digest:
            wrong.append(f"{name} of {len(got)} numbers has other bits than the C library's")
    measured = {"numbers": float(len(exponents) + len(shares))}
    yield Finding(subject=SUBJECT, check=FUNCTIONS, measured=measured, wrong=tuple(wrong))


def _arguments() -> tuple[Floats, Floats]:
    """Numbers from -110 to 0, and positive ones of every exponent."""
    exponents = -55 * (uniform(41, _N_NUMBERS) + np.float32(1))
    shares = ((random_words(42, _N_NUMBERS) >> np.uint64(33)) % np.uint64(0x7F7FFFFF)).astype(np.uint32) + np.uint32(1)
    return exponents, shares.view(np.float32)


_QUESTIONS: Mapping[str, tuple[str, Callable[[_Rows, Json], Sentences]]] = {
    "stages": ("stages", _stages),
    "draws": ("draw", _draws),
    "sequences": ("chain", _sequences),
    "requests": ("server", _requests),
    "probabilities": ("server", _reported),
    "probabilities after sampling": ("after", _after),
}
