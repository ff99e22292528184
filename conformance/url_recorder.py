"""Takes recordings of any llama-server or bloomery by its URL, whatever its model.

Distributions and ids are asked for after passages of text that the server itself turns into ids, so that the same
recording of another server of the same model holds the same prompts.
"""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import numpy.typing as npt

from bloomery.conformance.cases import Case, Distribution, Greedy, Seeded
from bloomery.conformance.corpus.prose import PASSAGES
from bloomery.conformance.corpus.sampling_runs import FEW_RUNS, RUNS, SEEDS
from bloomery.conformance.fixtures import sha256_of
from bloomery.conformance.peer import About, Peer, PeerError, about
from bloomery.conformance.plan import LENGTHS, all_plans
from bloomery.conformance.recorder import N_CONTINUED, take_exchange
from bloomery.conformance.recording import N_BEST, Manifest, write_set
from bloomery.conformance.redaction import redacted
from bloomery.conformance.wire import WireError

NUMBERS = "numbers"
# Up to here a whole distribution is some 200 KiB of JSON, and is asked for whole.
WHOLE_VOCABULARY = 4096
_EVERY_REQUEST: Mapping[str, Any] = {"cache_prompt": False, "return_tokens": True}
# The largest bias that every server takes. Reported probabilities do not see it.
_FORCE = 100


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What is recorded, and what the person who records says of the server.

    out: the folder of sets.  model_file: the model's, for its sha256; None where it is not at hand.  weights,
    numerics: in words.  redact: leave out keys, folders and times.  command: how it was taken.
    """

    out: Path
    model_file: Path | None
    weights: str
    numerics: str
    redact: bool
    command: str


class _NumbersTaker:
    """Asks for distributions, greedy and seeded ids."""

    def __init__(self, peer: Peer, server: About) -> None:
        self._peer = peer
        self._n_vocab = server.n_vocab
        self._whole = 0 < server.n_vocab <= WHOLE_VOCABULARY
        self._n_probs = server.n_vocab if self._whole else N_BEST
        # A token whose text is whole: llama-server answers one that ends inside a character without its probabilities.
        [*_, forced] = self._tokens("a")
        bias: Any = {str(forced): _FORCE} if server.bloomery else [[forced, _FORCE]]
        self._one_row = {**_EVERY_REQUEST, "n_predict": 1, "temperature": 0, "logit_bias": bias}
        self._ids: list[npt.NDArray[np.uint32]] = []
        self._rows: list[npt.NDArray[np.float32]] = []
        self._margins: list[float] = []

    def _tokens(self, text: str) -> list[int]:
        tokens: list[int] = self._peer.post("/tokenize", {"content": text, "add_special": True})["tokens"]
        if not tokens:
            raise PeerError(f"/tokenize at {self._peer.url} makes no ids of {text!r}")
        return tokens

    def take(self) -> tuple[list[Case], dict[str, npt.NDArray[Any]]]:
        """The cases and the arrays they speak of."""
        prompts = [self._tokens(passage)[: LENGTHS[-1]] for passage in PASSAGES]
        cases: list[Case] = [self._distribution(f"passage {index}", ids) for index, ids in enumerate(prompts)]
        cases += [self._greedy(f"passage {index}", ids) for index, ids in enumerate(prompts)]
        cases += [self._seeded(run, seed, prompts[0][:16]) for run in FEW_RUNS for seed in SEEDS]
        return cases, self._arrays()

    def _arrays(self) -> dict[str, npt.NDArray[Any]]:
        arrays: dict[str, npt.NDArray[Any]] = {"margins": np.array(self._margins, np.float32)}
        if self._whole:
            whole = np.empty((len(self._rows), self._n_vocab), np.float32)
            np.put_along_axis(whole, np.stack(self._ids).astype(np.int64), np.stack(self._rows), axis=1)
            return {**arrays, "logprobs": whole}
        return {**arrays, "best_ids": np.stack(self._ids), "best_logprobs": np.stack(self._rows)}

    def _row(self, ids: Sequence[int], n_probs: int) -> list[Mapping[str, Any]]:
        reply = self._peer.post("/completion", {**self._one_row, "n_probs": n_probs, "prompt": list(ids)})
        best: list[Mapping[str, Any]] = reply["completion_probabilities"][0]["top_logprobs"]
        named = {entry["id"] for entry in best}
        if len(named) != n_probs:
            raise PeerError(f"a distribution at {self._peer.url} came with {len(named)} ids of {n_probs}")
        if min(named) < 0 or max(named) >= (self._n_vocab or 2**31):
            raise PeerError(f"a distribution at {self._peer.url} names the id {max(named)} of {self._n_vocab}")
        return best

    def _distribution(self, name: str, ids: list[int]) -> Distribution:
        first_row = len(self._rows)
        lengths = tuple(length for length in LENGTHS if length <= len(ids))
        digest = hashlib.sha256()
        for length in lengths:
            best = self._row(ids[:length], self._n_probs)
            self._ids.append(np.array([entry["id"] for entry in best], np.uint32))
            self._rows.append(np.array([entry["logprob"] for entry in best], np.float32))
            digest.update(self._rows[-1].astype("<f4").tobytes())
        return Distribution(
            name=name,
            ids=tuple(ids),
            lengths=lengths,
            request={**self._one_row, "n_probs": self._n_probs},
            first_row=first_row,
            digest=digest.hexdigest(),
        )

    def _greedy(self, name: str, prompt: list[int]) -> Greedy:
        request = {**_EVERY_REQUEST, "n_predict": N_CONTINUED, "temperature": 0, "n_probs": 2}
        reply = self._peer.post("/completion", {**request, "prompt": prompt})
        ids: list[int] = reply["tokens"]
        first_step = len(self._margins)
        steps = [step["top_logprobs"] for step in reply.get("completion_probabilities", ())]
        if len(steps) != len(ids):
            # llama-server leaves out the ids inside a character, so each is asked for on its own.
            steps = [self._row([*prompt, *ids[:count]], 2) for count in range(len(ids))]
        self._margins += [float(best[0]["logprob"] - best[1]["logprob"]) for best in steps]
        return Greedy(
            name=name,
            prompt=tuple(prompt),
            request=request,
            ids=tuple(ids),
            stop_type=str(reply["stop_type"]),
            first_step=first_step,
        )

    def _seeded(self, run: str, seed: int, prompt: list[int]) -> Seeded:
        request = {**_EVERY_REQUEST, "n_predict": N_CONTINUED, **RUNS[run], "seed": seed}
        reply = self._peer.post("/completion", {**request, "prompt": prompt})
        return Seeded(
            name=f"{run}, seed {seed}",
            prompt=tuple(prompt),
            request=request,
            ids=tuple(reply["tokens"]),
            stop_type=str(reply["stop_type"]),
        )


def record_url(peer: Peer, name: str, wanted: Wanted) -> dict[str, float]:
    """Take one set and write it to `wanted.out/name`.  Returns how many cases and KiB it holds.

    Raises PeerError when the server does not answer as either server does, and OSError where nothing can be written.
    """
    server = about(peer)
    cases: list[Case]
    arrays: dict[str, npt.NDArray[Any]] = {}
    try:
        if name == NUMBERS:
            cases, arrays = _NumbersTaker(peer, server).take()
        else:
            cases = _exchanges(peer, name)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise PeerError(
            f"an answer at {peer.url} has another shape than llama-server's: {type(error).__name__}: {error}"
        ) from None
    manifest = _manifest(server, wanted, name)
    if wanted.redact:
        cases = [redacted(case, server.model_path) for case in cases]
    folder = wanted.out / name
    write_set(folder, manifest, cases, arrays)
    return {"cases": len(cases), "KiB": sum(path.stat().st_size for path in folder.iterdir()) // 1024}


def _exchanges(peer: Peer, name: str) -> list[Case]:
    requests = all_plans()[name].requests
    if requests is None:
        raise PeerError(f"{name} is no set of exchanges")
    cases: list[Case] = []
    for request in requests():
        try:
            taken = take_exchange(peer.address, replace(request, headers=(*request.headers, *peer.headers)))
        except (OSError, WireError) as error:
            raise PeerError(f"{request.name}: {request.method} {request.path} was not answered: {error}") from None
        # The key that let us in is no part of a recording.
        cases.append(replace(taken, headers=request.headers))
    return cases


def _manifest(server: About, wanted: Wanted, name: str) -> Manifest:
    # Without an alias of its own a llama-server goes by its model's path.
    alias = PurePath(server.alias).name if wanted.redact else server.alias
    settings = {"n_ctx": server.n_ctx * server.n_slots, "n_parallel": server.n_slots, "alias": alias}
    return Manifest(
        oracle=f"{'bloomery' if server.bloomery else 'llama-server'} {server.build}, by its URL",
        # An address and a folder are what is redacted.
        command=f"bloomery-conformance record --set {name} --redact"
        if wanted.redact
        else f"{wanted.command} --set {name}",
        settings={**settings, "redacted": wanted.redact},
        model=server.model,
        model_sha256="" if wanted.model_file is None else sha256_of(wanted.model_file),
        weights=wanted.weights,
        numerics=wanted.numerics,
        taken=datetime.datetime.now(datetime.UTC).date().isoformat(),
    )
