"""The server's counters, and the table of what /metrics shows of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from bloomery.server.request_log import RequestCounts


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One line of /metrics, without the `llamacpp:` prefix; metrics of one name stand together and share their help."""

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    value: float
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Load:
    """The server at this moment.

    running: counts of the requests in a slot.  waiting: requests in the queue.  n_past: ids in all sequences together,
    which have n_cells cells together.
    """

    running: tuple[RequestCounts, ...]
    waiting: int
    n_past: int
    n_cells: int


@dataclass
class Counters:
    """Sums since the start. A request's numbers are booked once, when it ends, and are those of its stderr line."""

    prompt_tokens: int = 0
    prompt_tokens_cached: int = 0
    prompt_seconds: float = 0.0
    prompt_cache_seconds: float = 0.0
    predicted_tokens: int = 0
    predicted_steps: int = 0
    predicted_seconds: float = 0.0
    n_tokens_max: int = 0
    passes: int = 0
    busy_slots: int = 0
    rounds: Counter[int] = field(default_factory=Counter)
    round_seconds: dict[int, float] = field(default_factory=dict)

    def book_request(self, counts: RequestCounts, cache_seconds: float) -> None:
        """Add a request that ended."""
        self.prompt_tokens += counts.n_evaluated
        self.prompt_tokens_cached += counts.n_reused
        self.prompt_seconds += counts.prompt_s
        self.prompt_cache_seconds += cache_seconds
        self.predicted_tokens += counts.n_decoded
        self.predicted_steps += max(0, counts.n_decoded - 1)
        self.predicted_seconds += counts.generated_s
        self.n_tokens_max = max(self.n_tokens_max, counts.n_past)

    def book_pass(self, busy: int, width: int, seconds: float) -> None:
        """Add an engine pass with `busy` slots, `width` of which decoded: a decode round when there were any."""
        self.passes += 1
        self.busy_slots += busy
        if width:
            self.rounds[width] += 1
            self.round_seconds[width] = self.round_seconds.get(width, 0.0) + seconds


def _ratio(count: float, by: float) -> float:
    return count / by if by else 0.0


def table(counters: Counters, load: Load) -> tuple[Metric, ...]:
    """What /metrics shows: llama-server's names and kinds first, then this server's own.

    The two rates are averages since the start, and the requests that run now are in them.
    """
    prompt_seconds = counters.prompt_seconds + sum(counts.prompt_s for counts in load.running)
    evaluated = counters.prompt_tokens + sum(counts.n_evaluated for counts in load.running)
    predicted_seconds = counters.predicted_seconds + sum(counts.generated_s for counts in load.running)
    # A generation's first id comes out of its prompt and takes no decode time, so the rate leaves it out.
    steps = counters.predicted_steps + sum(max(0, counts.n_decoded - 1) for counts in load.running)
    widths = sorted(counters.rounds)

    def counter(name: str, text: str, value: float) -> Metric:
        return Metric(name=name, kind="counter", help=text, value=value)

    def gauge(name: str, text: str, value: float) -> Metric:
        return Metric(name=name, kind="gauge", help=text, value=value)

    def by_width(name: str, text: str, values: dict[int, float]) -> list[Metric]:
        return [
            Metric(name=name, kind="counter", help=text, value=values[width], labels=(("width", str(width)),))
            for width in widths
        ]

    no_waits = dict.fromkeys(widths, 0.0)
    return (
        counter("prompt_tokens_total", "Prompt ids computed, without those reused.", counters.prompt_tokens),
        counter("prompt_tokens_cached_total", "Prompt ids reused from a slot.", counters.prompt_tokens_cached),
        counter("prompt_seconds_total", "Seconds spent on prompts.", counters.prompt_seconds),
        counter("prompt_cache_seconds_total", "Seconds of prompt cache work.", counters.prompt_cache_seconds),
        counter("tokens_predicted_total", "Ids generated.", counters.predicted_tokens),
        counter("tokens_predicted_seconds_total", "Seconds spent generating.", counters.predicted_seconds),
        counter("n_decode_total", "Engine passes.", counters.passes),
        counter("n_tokens_max", "Ids of the longest sequence so far.", counters.n_tokens_max),
        counter("spec_decode_num_draft_tokens_total", "Ids drafted.", 0),
        counter("spec_decode_num_accepted_tokens_total", "Drafted ids the model accepted.", 0),
        counter("spec_decode_num_drafts_total", "Passes that verified a draft.", 0),
        gauge("prompt_tokens_seconds", "Prompt ids a second since the start.", _ratio(evaluated, prompt_seconds)),
        gauge("predicted_tokens_seconds", "Generated ids a second since the start.", _ratio(steps, predicted_seconds)),
        gauge("requests_processing", "Requests in a slot.", len(load.running)),
        gauge("requests_deferred", "Requests in the queue.", load.waiting),
        gauge(
            "n_busy_slots_per_decode", "Slots a pass served on average.", _ratio(counters.busy_slots, counters.passes)
        ),
        gauge("kv_cache_tokens", "Ids in the slots' sequences.", load.n_past),
        gauge("kv_cache_usage_ratio", "Share of the cells in use.", _ratio(load.n_past, load.n_cells)),
        *by_width("rounds_total", "Decode rounds, by the slots each stepped.", dict(counters.rounds)),
        *by_width("round_seconds_total", "Wall seconds of decode rounds.", counters.round_seconds),
        *by_width("round_card_wait_seconds_total", "Seconds of decode rounds spent waiting for a card.", no_waits),
        *by_width("round_ple_wait_seconds_total", "Seconds of decode rounds spent waiting for PLE rows.", no_waits),
        counter("card_wait_seconds_total", "Seconds of all passes spent waiting for a card.", 0),
        counter("ple_wait_seconds_total", "Seconds of all passes spent waiting for PLE rows.", 0),
    )
