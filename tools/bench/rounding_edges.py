"""Where `ggml` numerics and a real llama.cpp part: every far row traced to a rounding edge or a near-tie of experts.

    python -m tools.bench.rounding_edges [--shapes qwen3moe-a ...] [--recipes q8_0 q4km] [--seeds 3] [--prompts 16]

Both read the same prompts, and what each is about to multiply is compared at every place where activations are
rounded: after a norm, after attention, after SwiGLU. A row is *touched* once a code, a half-precision scale, or the
choice of experts differs in it or in a row before it. The first difference of a touched row has nothing but the order
of float32 sums before it, so it must be an edge: a value so near the middle between two codes (or two halves, or two
experts so near each other) that this order decides. Needs the `oracle` extra.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bloomery.interface import registry
from bloomery.interface.engine import EngineOptions, Span, Tap
from bloomery.interface.files.gguf import open_gguf
from bloomery.interface.files.quants.activations import codes_and_scales
from tools.bench.numerics_distance import distances, model, prompts
from tools.bench.oracle_taps import TappedOracle

Floats = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]

# A row nearer than this has met the same integers everywhere.
FAR = 1e-4
_ROUNDED_TO = {"q8_0": "Q8_0", "q4km": "Q8_K"}
# The oracle's names of what is multiplied next, and this engine's.
_IN_LAYERS = (
    ("attn_norm", "attn_norm"),
    ("kqv_out", "merge_heads.0"),
    ("ffn_norm", "ffn_norm"),
    ("ffn_moe_logits", "ffn_gate_inp"),
    ("ffn_moe_swiglu", "swiglu.0"),
    ("ffn_swiglu", "swiglu.0"),
)


@dataclass
class Account:
    """What was found over all prompts.

    rows, far, touched, unexplained: counts of rows; far is past `FAR`, unexplained is far and not touched.
    farthest_untouched: a distance.  flips, flips_touched: rows whose best token is another.  edges: the distance of
    every first difference of codes from its edge, in codes.  scales: that of every first difference of scales alone,
    in units of the half's last place.  ties: the gap of router scores at every first difference of experts.
    """

    rows: int = 0
    far: int = 0
    touched: int = 0
    unexplained: int = 0
    farthest_untouched: float = 0.0
    flips: int = 0
    flips_touched: int = 0
    edges: list[float] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)
    ties: list[float] = field(default_factory=list)


def _edge(ours: Floats, theirs: Floats, name: str) -> tuple[float, float] | None:
    """How far the first difference of one row's rounding is from its edge, as (codes, halves); None: no difference."""
    (codes, scales), (other_codes, other_scales) = codes_and_scales(ours, name), codes_and_scales(theirs, name)
    if name == "Q8_K":
        # Its scale is single precision, and has no edge.
        other_scales = scales
    differ = codes != other_codes
    if not differ.any() and (scales == other_scales).all():
        return None
    block = len(ours) // len(scales)
    by_block = ours.astype(np.float64).reshape(-1, block)
    largest = np.abs(by_block).max(axis=1, keepdims=True)
    scaled = np.divide(by_block * 127, largest, out=np.zeros_like(by_block), where=largest != 0).reshape(-1)
    code_edge = float(np.abs(np.abs(scaled - np.trunc(scaled)) - 0.5)[differ].max(initial=0.0))
    moved = scales != other_scales
    middle = (scales.astype(np.float64) + other_scales) / 2
    step = np.abs(scales.astype(np.float64) - other_scales)
    off = np.abs(largest[:, 0] / 127 - middle)
    return code_edge, float((off[moved] / step[moved]).max(initial=0.0))


def _tie(ours: Floats, theirs: Floats, n_used: int) -> float | None:
    """The gap between the last expert taken and the first left out where the two take others; None: the same ones."""
    if set(np.argsort(-ours, kind="stable")[:n_used]) == set(np.argsort(-theirs, kind="stable")[:n_used]):
        return None
    ranked = np.sort(ours)[::-1]
    return float(ranked[n_used - 1] - ranked[n_used])


def _trace(account: Account, ours: dict[str, Floats], theirs: dict[str, Floats], name: str, n_used: int) -> Bools:
    """Note every first difference; returns which rows are touched."""
    touched = np.zeros(len(next(iter(ours.values()))), bool)
    for place, values in ours.items():
        before = np.logical_or.accumulate(touched)
        for row in range(len(touched)):
            if place.startswith("ffn_moe_logits"):
                gap = _tie(values[row], theirs[place][row], n_used)
                if gap is not None and not before[row]:
                    account.ties.append(gap)
                touched[row] |= gap is not None
                continue
            edge = _edge(values[row], theirs[place][row], name)
            if edge is not None and not before[row]:
                (account.edges if edge[0] else account.scales).append(max(edge))
            touched[row] |= edge is not None
    return np.logical_or.accumulate(touched)


def _ours(taps: list[Tap]) -> dict[str, Floats]:
    """This engine's values by the oracle's name, in program order, one row a token."""
    found: dict[str, Floats] = {}
    for tap in taps:
        values = np.asarray(tap.output, np.float32).reshape(len(tap.output), -1)
        if tap.label == "output_norm":
            found["result_norm"] = values
        for theirs, ours in _IN_LAYERS:
            if tap.layer is not None and tap.label in {ours, f"blk.{tap.layer}.{ours}"}:
                found[f"{theirs}-{tap.layer}"] = values
    return found


def account_of(shape: str, recipe: str, seeds: range, n_prompts: int) -> Account:
    """All rows of `n_prompts` prompts of 64 ids on one model a seed."""
    account = Account()
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            path = model(shape, recipe, seed, 512, Path(folder))
            file = open_gguf(path)
            description = registry.family(str(file.metadata["general.architecture"]))(file)
            options = EngineOptions(n_ctx=512, numerics="ggml")
            engine = registry.engine("reference").open(file, description, options)
            oracle = TappedOracle(path, n_ctx=512, n_vocab=engine.spec.n_vocab)
            for prompt in prompts(seed, n_prompts, 64, 1):
                logits, tensors = oracle.run(prompt.ids)
                taps: list[Tap] = []
                sequence = engine.sequence()
                [rows] = engine.run(
                    [Span(sequence=sequence, ids=prompt.ids, wanted=range(len(prompt.ids)))], taps=taps.append
                )
                sequence.release()
                apart = distances(logits, np.stack([rows.logits(at) for at in range(len(prompt.ids))]))
                theirs = {place: values[-1].reshape(len(prompt.ids), -1) for place, values in tensors.items()}
                ours = {place: values for place, values in _ours(taps).items() if place in theirs}
                touched = _trace(account, ours, theirs, _ROUNDED_TO[recipe], n_used=2)
                account.rows += len(touched)
                account.touched += int(touched.sum())
                account.far += int((apart.top > FAR).sum())
                account.unexplained += int(((apart.top > FAR) & ~touched).sum())
                account.farthest_untouched = max(account.farthest_untouched, apart.top[~touched].max(initial=0.0))
                account.flips += int(apart.flipped.sum())
                account.flips_touched += int((apart.flipped & touched).sum())
            oracle.close()
            engine.close()
    return account


def main() -> None:
    """Prints one line for each shape and recipe."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shapes", nargs="+", default=["qwen3-a", "qwen3moe-a"])
    parser.add_argument("--recipes", nargs="+", choices=_ROUNDED_TO, default=list(_ROUNDED_TO))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=16)
    wanted = parser.parse_args()
    print(
        "| model | rows | touched | far | far, not touched | farthest not touched | flips | of them touched "
        "| first differences: codes, scales, experts | farthest from its edge |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for shape in wanted.shapes:
        for recipe in wanted.recipes:
            found = account_of(shape, recipe, range(101, 101 + wanted.seeds), wanted.prompts)
            kinds = (found.edges, found.scales, found.ties)
            counts = ", ".join(str(len(kind)) for kind in kinds)
            most = ", ".join(f"{max(kind):.1g}" if kind else "-" for kind in kinds)
            print(
                f"| {shape}-{recipe} | {found.rows:,} | {found.touched:,} | {found.far:,} | {found.unexplained} "
                f"| {found.farthest_untouched:.1g} | {found.flips} | {found.flips_touched} | {counts} | {most} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
