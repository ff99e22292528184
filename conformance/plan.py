"""Which sets are recorded: the model of each, how its oracle is started, and what is asked of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from bloomery.conformance.bands import WITH_GELU
from bloomery.conformance.corpus import refusals, status, streams, texts
from bloomery.conformance.corpus.request import Request
from bloomery.conformance.corpus.sampling_runs import FEW_RUNS, RUNS
from bloomery.conformance.fixtures import gemma3
from bloomery.conformance.fixtures.catalog import RANDOM_SHAPES
from bloomery.conformance.fixtures.chain import CHAINS
from bloomery.conformance.fixtures.recipes import WEIGHTS, recipes_of
from bloomery.conformance.oracle import Configuration, OracleSettings

# Lengths of a prompt after which its next-token distribution is recorded: dense at the start, sparse to the end.
LENGTHS = (1, 2, 3, 5, 8, 13, 21, 34, 45, 55, 63, 64)
PROMPT_IDS = LENGTHS[-1]


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """What is asked of a model for its ids and distributions.

    distributions, greedy: how many prompts.  whole: keep whole distributions, not their best alone.  runs: the names
    of the sampling runs, each asked for with every seed.
    """

    distributions: int
    greedy: int
    whole: bool
    runs: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SetPlan:
    """One set: numbers, or HTTP requests."""

    model: str
    # As `bloomery.conformance.bands` calls them.
    weights: str = "F32"
    settings: OracleSettings
    numbers: Numbers | None = None
    requests: Callable[[], Iterable[Request]] | None = None


NUMERICS: Mapping[Configuration, str] = {
    "strict": "flash attention off, cache of keys and values in F32",
    "default": "flash attention on, cache of keys and values in F16",
}


def _random_models(plans: dict[str, SetPlan]) -> None:
    for shape in RANDOM_SHAPES:
        for recipe in recipes_of(shape):
            model = f"{shape}-{recipe}"
            tabled = shape in gemma3.TABLED
            weights = WEIGHTS[recipe] + (WITH_GELU if tabled else "")
            whole = recipe == "f32"
            # Only where nothing but the order of sums differs is every draw the same.
            runs = FEW_RUNS if whole and not tabled else ()
            plans[f"{model}.strict"] = SetPlan(
                model=model,
                weights=weights,
                settings=OracleSettings(configuration="strict"),
                numbers=Numbers(distributions=10, greedy=4, whole=whole, runs=runs),
            )
            if shape.endswith("-a") and recipe != "bf16":
                plans[f"{model}.default"] = SetPlan(
                    model=model,
                    weights=weights,
                    settings=OracleSettings(configuration="default"),
                    numbers=Numbers(distributions=6, greedy=2, whole=False),
                )


def _scripted_models(plans: dict[str, SetPlan]) -> None:
    for model in CHAINS:
        branches = model == "chain-branch"
        plans[f"{model}.strict"] = SetPlan(
            model=model,
            settings=OracleSettings(configuration="strict"),
            numbers=Numbers(distributions=2, greedy=1, whole=False, runs=tuple(RUNS) if branches else ()),
        )


def _http(plans: dict[str, SetPlan]) -> None:
    def plan(name: str, model: str, requests: Callable[[], Iterable[Request]], settings: OracleSettings) -> None:
        plans[f"http-{name}"] = SetPlan(model=model, settings=settings, requests=requests)

    one_slot = OracleSettings(configuration="default")
    plan("text", "chain-text", streams.text, one_slot)
    plan("think", "chain-think", streams.think, one_slot)
    plan("calls", "chain-calls", streams.calls, OracleSettings(configuration="default", n_ctx=1024))
    plan("branch", "chain-branch", streams.branch, one_slot)
    plan("refusals", "chain-text", refusals.refusals, one_slot)
    plan("status", "chain-text", status.status, OracleSettings(configuration="default", n_parallel=2))
    plan("alias", "chain-text", status.status, OracleSettings(configuration="default", alias="forge"))
    plan("keys", "chain-text", status.keys, OracleSettings(configuration="default", api_key=status.API_KEY))
    plan("tokenizer", "qwen3-a-f32", texts.tokenizer, one_slot)


def all_plans() -> dict[str, SetPlan]:
    """Every set by name."""
    plans: dict[str, SetPlan] = {}
    _random_models(plans)
    _scripted_models(plans)
    _http(plans)
    return plans
