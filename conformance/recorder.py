"""Takes recordings: asks a running oracle what a plan says, and writes the set."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bloomery.conformance.cases import Case, Distribution, Drafted, Exchange, Greedy, Seeded
from bloomery.conformance.corpus.request import Request
from bloomery.conformance.corpus.sampling_runs import RUNS
from bloomery.conformance.fixtures import fixture, sha256_of
from bloomery.conformance.fixtures.counter import integers
from bloomery.conformance.oracle import Oracle, OracleError, oracle_version
from bloomery.conformance.plan import DRAFTED_RUNS, LENGTHS, NUMERICS, PROMPT_IDS, Numbers, SetPlan
from bloomery.conformance.recording import N_BEST, Manifest, write_set
from bloomery.conformance.wire import ask

Floats = npt.NDArray[np.float32]

N_CONTINUED = 64
# After how many ids of a continuation its distribution is recorded.
_STEPS = (0, 1, 2, 16, 32, 48, 63)
_PROMPT_SEED = 11

# A token whose text is whole: a reply that would end inside a character comes without its probabilities. It is forced
# by a bias, which the reported probabilities do not see.
_FORCED_ID = 65

_EVERY_REQUEST: Mapping[str, Any] = {"cache_prompt": False, "return_tokens": True}


class _Rows:
    """Distributions as they come in, and the arrays they become."""

    def __init__(self, n_vocab: int, *, whole: bool) -> None:
        self._n_vocab = n_vocab
        self._whole = whole
        self._rows: list[Floats] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, best: Sequence[Mapping[str, Any]]) -> Floats:
        """A row from a reply's `top_logprobs`, which must name every id of the vocabulary once."""
        row = np.full(self._n_vocab, np.nan, np.float32)
        for entry in best:
            row[entry["id"]] = entry["logprob"]
        if len(best) != self._n_vocab or np.isnan(row).any():
            raise OracleError(f"a distribution came with {len(best)} entries for {self._n_vocab} tokens")
        self._rows.append(row)
        return row

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        if not self._rows:
            return {}
        whole = np.stack(self._rows)
        if self._whole:
            return {"logprobs": whole}
        order = np.argsort(-whole, axis=1, kind="stable")[:, :N_BEST]
        return {"best_ids": order.astype(np.uint32), "best_logprobs": np.take_along_axis(whole, order, axis=1)}


def random_prompt(index: int, n: int = PROMPT_IDS) -> list[int]:
    """`n` ids of normal tokens; the same for every model, so that they can be compared."""
    # Ids 0..351 are bytes and merges in every fixture's vocabulary.
    return [int(value) for value in integers(_PROMPT_SEED, f"prompt {index}", n, 352)]


def _lead(best: Sequence[Mapping[str, Any]]) -> float:
    first, second = (entry["logprob"] for entry in best[:2])
    return float(first - second)


class _NumbersTaker:
    """Asks one oracle for all the numbers of a set."""

    def __init__(self, oracle: Oracle, wanted: Numbers) -> None:
        self._oracle = oracle
        self._wanted = wanted
        self._n_vocab = oracle.n_vocab()
        self._rows = _Rows(self._n_vocab, whole=wanted.whole)
        self._margins: list[float] = []

    def take(self) -> tuple[list[Case], dict[str, npt.NDArray[Any]]]:
        cases: list[Case] = [
            self._distribution(f"random {index}", random_prompt(index), LENGTHS)
            for index in range(self._wanted.distributions)
        ]
        cases += [
            self._greedy(f"greedy {index}", random_prompt(100 + index)[: PROMPT_IDS >> (index % 3)])
            for index in range(self._wanted.greedy)
        ]
        for n in self._wanted.continued:
            continued = self._greedy(f"{n} ids", random_prompt(300, n))
            lengths = tuple(n + step for step in _STEPS if step < len(continued.ids))
            ids = [*continued.prompt, *continued.ids[:-1]]
            cases += [continued, self._distribution(f"{n} ids and on", ids, lengths)]
        cases += [self._seeded(run, seed) for run, seeds in self._wanted.runs.items() for seed in seeds]
        arrays = self._rows.arrays()
        if self._margins:
            arrays["margins"] = np.array(self._margins, np.float32)
        return cases, arrays

    @staticmethod
    def _one_row(n_probs: int) -> dict[str, Any]:
        """The fields that ask for the `n_probs` best of the next-token distribution."""
        forced = {"n_predict": 1, "temperature": 0, "logit_bias": [[_FORCED_ID, 1000]]}
        return {**_EVERY_REQUEST, **forced, "n_probs": n_probs}

    def _distribution(self, name: str, ids: list[int], lengths: tuple[int, ...]) -> Distribution:
        request = self._one_row(self._n_vocab)
        first_row = len(self._rows)
        whole = hashlib.sha256()
        for length in lengths:
            reply = self._oracle.post("/completion", {**request, "prompt": ids[:length]})
            row = self._rows.add(reply["completion_probabilities"][0]["top_logprobs"])
            whole.update(row.astype("<f4").tobytes())
        return Distribution(
            name=name,
            ids=tuple(ids),
            lengths=lengths,
            request=request,
            first_row=first_row,
            digest=whole.hexdigest(),
        )

    def _row_after(self, ids: list[int]) -> Any:
        reply = self._oracle.post("/completion", {**self._one_row(2), "prompt": ids})
        return reply["completion_probabilities"][0]

    def _greedy(self, name: str, prompt: list[int]) -> Greedy:
        request = {**_EVERY_REQUEST, "n_predict": N_CONTINUED, "temperature": 0, "n_probs": 2}
        reply = self._oracle.post("/completion", {**request, "prompt": prompt})
        first_step = len(self._margins)
        steps = reply.get("completion_probabilities", [])
        if len(steps) != len(reply["tokens"]):
            # Steps inside a character of several tokens are left out of a reply, so each is asked for on its own.
            steps = [self._row_after([*prompt, *reply["tokens"][:n]]) for n in range(len(reply["tokens"]))]
        self._margins += [_lead(step["top_logprobs"]) for step in steps]
        return Greedy(
            name=name,
            prompt=tuple(prompt),
            request=request,
            ids=tuple(reply["tokens"]),
            stop_type=reply["stop_type"],
            first_step=first_step,
        )

    def _seeded(self, run: str, seed: int) -> Seeded:
        prompt = random_prompt(200)[:8]
        request = {**_EVERY_REQUEST, "n_predict": N_CONTINUED, **RUNS[run], "seed": seed}
        reply = self._oracle.post("/completion", {**request, "prompt": prompt})
        return Seeded(
            name=f"{run}, seed {seed}",
            prompt=tuple(prompt),
            request=request,
            ids=tuple(reply["tokens"]),
            stop_type=reply["stop_type"],
        )


def take_drafted(oracle: Oracle, n_prompts: int) -> list[Case]:
    """Prompts that are continued while the oracle drafts, each greedily and with a seed."""
    cases: list[Case] = []
    for index in range(n_prompts):
        prompt = random_prompt(400 + index, 16)
        for run, fields in DRAFTED_RUNS.items():
            request = {**_EVERY_REQUEST, "n_predict": N_CONTINUED, **fields}
            reply = oracle.post("/completion", {**request, "prompt": prompt})
            cases.append(
                Drafted(
                    name=f"{run} {index}",
                    prompt=tuple(prompt),
                    request=request,
                    ids=tuple(reply["tokens"]),
                    stop_type=reply["stop_type"],
                    proposed=reply["timings"]["draft_n"],
                    accepted=reply["timings"]["draft_n_accepted"],
                )
            )
    return cases


def take_exchange(address: tuple[str, int], request: Request) -> Exchange:
    """Send one request of the corpus and keep what comes back."""
    answer = ask(address, request.method, request.path, request.body, request.headers)
    return Exchange(
        name=request.name,
        method=request.method,
        path=request.path,
        headers=request.headers,
        body=request.body,
        status=answer.status,
        response_headers=answer.headers,
        response=answer.body,
        chunks=answer.chunks,
    )


def record(name: str, plan: SetPlan, out: Path, fixtures: Path | None = None) -> Path:
    """Take the set `name` and write it to `out/name`.  Returns its folder.  Raises OracleError and FixtureError."""
    model = fixture(plan.model, fixtures)
    cases: list[Case] = []
    arrays: dict[str, npt.NDArray[Any]] = {}
    with Oracle(model, plan.settings) as oracle:
        if plan.numbers is not None:
            cases, arrays = _NumbersTaker(oracle, plan.numbers).take()
        if plan.drafted:
            cases += take_drafted(oracle, plan.drafted)
        if plan.requests is not None:
            cases += [take_exchange(oracle.address, request) for request in plan.requests()]
    manifest = Manifest(
        oracle=oracle_version(),
        command=f"bloomery-conformance record --oracle --out conformance/recordings --set {name}",
        settings=asdict(plan.settings),
        model=plan.model,
        model_sha256=sha256_of(model),
        weights=plan.weights,
        numerics=NUMERICS[plan.settings.configuration],
        taken=datetime.datetime.now(datetime.UTC).date().isoformat(),
    )
    folder = out / name
    write_set(folder, manifest, cases, arrays)
    return folder
