"""Distances between this engine's numerics and a real llama-server's: the table of docs/numerics.md.

    python -m tools.bench.numerics_distance [--shapes qwen3moe-a ...] [--recipes q8_0 ...] [--numerics exact ggml]
        [--seeds 5] [--prompts 16] [--ids 64] [--every 1] [--configuration strict] [--passes lengths] [--itself]
        [--keep FOLDER]

Makes each fixture with other seeds, starts the oracle on it (`--configuration strict`: flash attention off, cache in
float32), asks for the next-token distribution over the whole vocabulary after every `--every`-th id of every prompt,
and reads the same prompts with the reference engine. Needs the `oracle` extra.

A distance is the largest difference of log-probability over the oracle's ten best tokens; `whole` is the largest over
the vocabulary, and KL the divergence of the engine's row from the oracle's. Flips are rows whose best token is
another, per 1,000, with the exact binomial interval of 95 %; rows of one prompt are not independent, so the true
interval is somewhat wider. The oracle's rows come from one request a length; with `--passes whole` each prompt is one
pass, and with `--passes single` every id is one. `--itself` adds a line for llama.cpp against itself: the whole prompt
as one pass. `--keep` keeps the rows of requests, and reads them when they are there.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

import numpy as np
import numpy.typing as npt
from scipy.stats import binomtest

from bloomery.conformance.compare import TOP, log_softmax
from bloomery.conformance.fixtures import sha256_of
from bloomery.conformance.fixtures.catalog import RANDOM_SHAPES, write_random
from bloomery.conformance.fixtures.counter import integers
from bloomery.conformance.fixtures.recipes import RECIPES
from bloomery.conformance.oracle import Configuration, Oracle, OracleSettings
from bloomery.interface import registry
from bloomery.interface.engine import Engine, EngineOptions, Span
from bloomery.interface.files.gguf import open_gguf
from tools.bench.oracle_taps import TappedOracle

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

# Ids 0..351 are bytes and merges in every fixture's vocabulary. The forced id keeps a reply from ending inside a
# character; the reported probabilities do not see the bias.
_N_IDS = 352
_ONE_ROW = {
    "n_predict": 1, "temperature": 0, "cache_prompt": False, "return_tokens": True, "logit_bias": [[65, 1000]],
}  # fmt: skip


_IDS_A_PASS = {"whole": 512, "single": 1}


@dataclass(frozen=True)
class Prompt:
    """A prompt, and the lengths after which its next-token distribution is compared."""

    ids: list[int]
    lengths: range


def prompts(seed: int, n: int, n_ids: int, every: int) -> list[Prompt]:
    """`n` prompts of `n_ids` random ids."""
    return [
        Prompt([int(i) for i in integers(seed, f"distance {at}", n_ids, _N_IDS)], range(every, n_ids + 1, every))
        for at in range(n)
    ]


def model(shape: str, recipe: str, seed: int, n_ctx: int, folder: Path) -> Path:
    """The fixture `shape` with other weights, as a file in `folder`."""
    drawn = replace(RANDOM_SHAPES[shape], seed=seed, n_ctx=n_ctx)
    path = folder / f"{shape}-{recipe}-{seed}-{n_ctx}.gguf"
    write_random(path, drawn, recipe)
    return path


def oracle_rows(path: Path, asked: Iterable[Prompt], n_ctx: int, configuration: Configuration) -> Floats:
    """The oracle's log-probabilities `[rows, n_vocab]` of every length of every prompt."""
    rows = []
    with Oracle(path, OracleSettings(configuration=configuration, n_ctx=n_ctx)) as oracle:
        n_vocab = oracle.n_vocab()
        for prompt in asked:
            for length in prompt.lengths:
                reply = oracle.post("/completion", {**_ONE_ROW, "n_probs": n_vocab, "prompt": prompt.ids[:length]})
                row = np.full(n_vocab, np.nan, np.float32)
                for entry in reply["completion_probabilities"][0]["top_logprobs"]:
                    row[entry["id"]] = entry["logprob"]
                rows.append(row)
    return np.stack(rows)


def engine_rows(engine: Engine, asked: Iterable[Prompt]) -> Floats:
    """The engine's logits `[rows, n_vocab]` of the same rows."""
    rows = []
    for prompt in asked:
        sequence = engine.sequence()
        [found] = engine.run([Span(sequence=sequence, ids=prompt.ids, wanted=[n - 1 for n in prompt.lengths])])
        sequence.release()
        rows += [found.logits(at) for at in range(len(prompt.lengths))]
    return np.stack(rows)


def pass_rows(
    path: Path, asked: Iterable[Prompt], n_ctx: int, n_vocab: int, configuration: Configuration, n_ubatch: int = 512
) -> Floats:
    """llama.cpp's logits `[rows, n_vocab]` of the same rows, `n_ubatch` ids a pass."""
    oracle = TappedOracle(
        path, n_ctx=n_ctx, n_vocab=n_vocab, configuration=configuration, n_ubatch=n_ubatch, taps=False
    )
    try:
        return np.concatenate([oracle.run(prompt.ids)[0][[n - 1 for n in prompt.lengths]] for prompt in asked])
    finally:
        oracle.close()


@dataclass(frozen=True)
class Distances:
    """Per row: the distance over the ten best, over the whole vocabulary, the divergence, and whether it flipped."""

    top: Doubles
    whole: Doubles
    kl: Doubles
    flipped: npt.NDArray[np.bool_]

    def line(self) -> str:
        """As the columns of a table."""
        p50, p90, p99 = np.percentile(self.top, [50, 90, 99])
        n, flips = len(self.top), int(self.flipped.sum())
        interval = binomtest(flips, n).proportion_ci()
        per_mille = f"{1000 * flips / n:.1f} ({1000 * interval.low:.1f} to {1000 * interval.high:.1f})"
        numbers = [p50, p90, p99, self.top.max(), self.whole.max(), np.median(self.kl)]
        return " | ".join([f"{number:.2g}" for number in numbers] + [per_mille])


def distances(oracle: Floats, engine: Floats) -> Distances:
    """Row by row, both `[rows, n_vocab]`: log-probabilities and logits."""
    # The server's own probabilities come from a float32 sum and add up to 1 within 1e-5; here they do to float64.
    theirs, ours = (np.stack([log_softmax(row) for row in rows]) for rows in (oracle, engine))
    apart = np.abs(theirs - ours)
    best = np.argsort(-theirs, axis=1, kind="stable")[:, :TOP]
    return Distances(
        top=np.take_along_axis(apart, best, axis=1).max(axis=1),
        whole=apart.max(axis=1),
        kl=(np.exp(theirs) * (theirs - ours)).sum(axis=1),
        flipped=theirs.argmax(axis=1) != ours.argmax(axis=1),
    )


def joined(parts: list[Distances]) -> Distances:
    """All rows of several models as one."""
    return Distances(*(np.concatenate([getattr(part, name) for part in parts]) for name in Distances.__annotations__))


def _oracle_rows_kept(
    path: Path, asked: list[Prompt], n_ctx: int, configuration: Configuration, keep: Path | None
) -> Floats:
    if keep is None:
        return oracle_rows(path, asked, n_ctx, configuration)
    what = f"{len(asked)}-{len(asked[0].ids)}-{asked[0].lengths.step}-{configuration}"
    kept = keep / f"{path.stem}-{what}-{sha256_of(path)[:12]}.npy"
    if not kept.exists():
        keep.mkdir(parents=True, exist_ok=True)
        np.save(kept, oracle_rows(path, asked, n_ctx, configuration))
    return np.asarray(np.load(kept), np.float32)


def main() -> None:
    """Prints one line of the table for each shape, recipe and numerics."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shapes", nargs="+", choices=RANDOM_SHAPES, default=["qwen3-a", "qwen3moe-a"])
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=list(RECIPES))
    parser.add_argument("--numerics", nargs="*", default=["exact", "ggml"])
    parser.add_argument("--seeds", type=int, default=5, help="models of each kind")
    parser.add_argument("--prompts", type=int, default=16, help="prompts a model")
    parser.add_argument("--ids", type=int, default=64, help="ids a prompt")
    parser.add_argument("--every", type=int, default=1, help="compare after every so many ids")
    parser.add_argument("--configuration", choices=get_args(Configuration), default="strict", help="the oracle's")
    parser.add_argument("--passes", choices=["lengths", *_IDS_A_PASS], default="lengths", help="the oracle's passes")
    parser.add_argument("--itself", action="store_true", help="also llama.cpp against itself")
    parser.add_argument("--keep", type=Path, help="a folder for the oracle's rows")
    wanted = parser.parse_args()
    n_ctx = max(512, wanted.ids + 64)
    print("| model | numerics | rows | p50 | p90 | p99 | max | whole | KL p50 | flips per 1,000 |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for shape in wanted.shapes:
            for recipe in wanted.recipes:
                found: dict[str, list[Distances]] = {numerics: [] for numerics in wanted.numerics}
                itself: list[Distances] = []
                for seed in range(101, 101 + wanted.seeds):
                    path = model(shape, recipe, seed, n_ctx, Path(folder))
                    asked = prompts(seed, wanted.prompts, wanted.ids, wanted.every)
                    file = open_gguf(path)
                    description = registry.family(str(file.metadata["general.architecture"]))(file)
                    n_vocab = description.spec.n_vocab
                    if wanted.passes == "lengths":
                        theirs = _oracle_rows_kept(path, asked, n_ctx, wanted.configuration, wanted.keep)
                    else:
                        n_ubatch = _IDS_A_PASS[wanted.passes]
                        theirs = pass_rows(path, asked, n_ctx, n_vocab, wanted.configuration, n_ubatch)
                    for numerics, parts in found.items():
                        options = EngineOptions(n_ctx=n_ctx, numerics=numerics)
                        engine = registry.engine("reference").open(file, description, options)
                        parts.append(distances(theirs, engine_rows(engine, asked)))
                        engine.close()
                    if wanted.itself:
                        whole = pass_rows(path, asked, n_ctx, n_vocab, wanted.configuration)
                        itself.append(distances(theirs, whole))
                if wanted.itself:
                    found["llama.cpp"] = itself
                for numerics, parts in found.items():
                    every = joined(parts)
                    print(f"| {shape}-{recipe} | {numerics} | {len(every.top):,} | {every.line()} |", flush=True)


if __name__ == "__main__":
    main()
