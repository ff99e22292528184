"""Which sets are recorded: the model of each, how its oracle is started, and what is asked of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bloomery.conformance.bands import LONG, WITH_GELU
from bloomery.conformance.corpus import probabilities, refusals, status, streams, texts
from bloomery.conformance.corpus.request import Request
from bloomery.conformance.corpus.sampling_runs import DEFAULT, FEW_RUNS, FIFTY_SEEDS, RUNS, SEEDS
from bloomery.conformance.fixtures import gemma3, mimo2, minimax_m3, qwen35
from bloomery.conformance.fixtures.catalog import RANDOM_SHAPES
from bloomery.conformance.fixtures.chain import CHAINS
from bloomery.conformance.fixtures.recipes import WEIGHTS, recipes_of
from bloomery.conformance.oracle import Configuration, OracleSettings

# Lengths of a prompt after which its next-token distribution is recorded: dense at the start, sparse to the end.
LENGTHS = (1, 2, 3, 5, 8, 13, 21, 34, 45, 55, 63, 64)
PROMPT_IDS = LENGTHS[-1]
# Prompts of a model that was trained for enough positions: one id, a few, past every window and chunk, and long.
CONTINUED = (1, 2, 17, 300, 1500)
LONG_N_CTX = 2048
# Shapes of which less is asked, so that all sets together stay small: fewer prompts, fewer formats beside flash
# attention, and of long prompts the best ids alone.
SPARING = frozenset((*mimo2.SHAPES, *minimax_m3.SHAPES))
# What models with a draft layer are asked while they draft, and how many ids at once.
DRAFTED_RUNS: Mapping[str, Mapping[str, Any]] = {
    "greedy": {"temperature": 0},
    "seeded": {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "seed": 5},
}
DRAFT_WINDOWS = (1, 2, 3, 4)


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """What is asked of a model for its ids and distributions.

    distributions, greedy: how many prompts.  whole: keep whole distributions, not their best alone.  runs: the seeds
    of each sampling run, by its name.  continued: lengths of prompts that are continued greedily, with distributions
    at the prompt's end and along the continuation.
    """

    distributions: int
    greedy: int
    whole: bool
    runs: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    continued: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SetPlan:
    """One set: numbers, prompts that are continued while the server drafts, or HTTP requests."""

    model: str
    # As `bloomery.conformance.bands` calls them.
    weights: str = "F32"
    settings: OracleSettings
    numbers: Numbers | None = None
    drafted: int = 0
    requests: Callable[[], Iterable[Request]] | None = None


NUMERICS: Mapping[Configuration, str] = {
    "strict": "flash attention off, cache of keys and values in F32",
    "default": "flash attention on, cache of keys and values in F16",
}


def _configurations(shape: str, recipe: str) -> tuple[Configuration, ...]:
    """How the oracle is started for a model of random weights, the nearest to the equations first."""
    if shape in minimax_m3.CHOOSING:
        # Without flash attention every block would be read. Rounded activations make it choose other blocks now and
        # then, which no band is about.
        return ("default",) if recipe == "f32" else ()
    beside = shape.endswith("-a") and recipe not in (("f16", "q8_0") if shape in SPARING else ("bf16",))
    return ("strict", "default") if beside else ("strict",)


def _random_models(plans: dict[str, SetPlan]) -> None:
    for shape in RANDOM_SHAPES:
        for recipe in recipes_of(shape):
            model = f"{shape}-{recipe}"
            tabled = shape in gemma3.TABLED
            weights = WEIGHTS[recipe] + (WITH_GELU if tabled else "")
            whole = recipe == "f32"
            # Only where nothing but the order of sums differs is every draw the same.
            runs = dict.fromkeys(FEW_RUNS, SEEDS) if whole and not tabled else {}
            sparing = shape in SPARING
            n_prompts = (3 if whole else 6) if sparing else 10
            asked: Mapping[Configuration, Numbers] = {
                "strict": Numbers(distributions=n_prompts, greedy=2 if sparing else 4, whole=whole, runs=runs),
                "default": Numbers(distributions=6, greedy=2, whole=False),
            }
            for configuration in _configurations(shape, recipe):
                plans[f"{model}.{configuration}"] = SetPlan(
                    model=model,
                    weights=weights,
                    settings=OracleSettings(configuration=configuration),
                    numbers=asked[configuration],
                )


def _long_prompts(plans: dict[str, SetPlan]) -> None:
    for name, shape in RANDOM_SHAPES.items():
        if shape.n_ctx < LONG_N_CTX:
            continue
        plans[f"{name}-f32.long"] = SetPlan(
            model=f"{name}-f32",
            weights="F32" + LONG,
            settings=OracleSettings(configuration=_configurations(name, "f32")[0], n_ctx=LONG_N_CTX),
            numbers=Numbers(distributions=0, greedy=0, whole=name not in SPARING, continued=CONTINUED),
        )


def _drafts(plans: dict[str, SetPlan]) -> None:
    for name, shape in qwen35.SHAPES.items():
        for window in DRAFT_WINDOWS if shape.draft else ():
            plans[f"{name}-f32.draft-{window}"] = SetPlan(
                model=f"{name}-f32",
                settings=OracleSettings(configuration="strict", draft_window=window),
                drafted=4,
            )


def _scripted_models(plans: dict[str, SetPlan]) -> None:
    for model in CHAINS:
        runs = dict.fromkeys(RUNS, SEEDS) | {DEFAULT: FIFTY_SEEDS} if model == "chain-branch" else {}
        plans[f"{model}.strict"] = SetPlan(
            model=model,
            settings=OracleSettings(configuration="strict"),
            numbers=Numbers(distributions=2, greedy=1, whole=False, runs=runs),
        )


def _http(plans: dict[str, SetPlan]) -> None:
    def plan(name: str, model: str, requests: Callable[[], Iterable[Request]], settings: OracleSettings) -> None:
        plans[f"http-{name}"] = SetPlan(model=model, settings=settings, requests=requests)

    one_slot = OracleSettings(configuration="default")
    plan("text", "chain-text", streams.text, one_slot)
    plan("think", "chain-think", streams.think, one_slot)
    plan("calls", "chain-calls", streams.calls, OracleSettings(configuration="default", n_ctx=1024))
    for framing in ("lines", "bare"):
        name, model = f"function-{framing}", f"chain-function-{framing}"
        plan(name, model, streams.function_calls, OracleSettings(configuration="default", n_ctx=1024))
    plan("branch", "chain-branch", streams.branch, one_slot)
    plan("probabilities", "chain-branch", probabilities.probabilities, one_slot)
    plan("random", "qwen3-a-f32", probabilities.random, OracleSettings(configuration="strict"))
    plan("refusals", "chain-text", refusals.refusals, one_slot)
    plan("status", "chain-text", status.status, OracleSettings(configuration="default", n_parallel=2))
    plan("alias", "chain-text", status.status, OracleSettings(configuration="default", alias="forge"))
    plan("keys", "chain-text", status.keys, OracleSettings(configuration="default", api_key=status.API_KEY))
    plan("tokenizer", "qwen3-a-f32", texts.tokenizer, one_slot)
    plan("counts", "qwen3-a-f32", texts.counts, one_slot)


def all_plans() -> dict[str, SetPlan]:
    """Every set by name."""
    plans: dict[str, SetPlan] = {}
    _random_models(plans)
    _long_prompts(plans)
    _drafts(plans)
    _scripted_models(plans)
    _http(plans)
    return plans
