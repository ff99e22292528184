"""The counters behind /metrics."""

from __future__ import annotations

import dataclasses

import pytest

from bloomery.server.metrics import Counters, Load, Metric, table
from bloomery.server.request_log import RequestCounts

COUNTS = RequestCounts(
    n_prompt=120, n_reused=20, n_evaluated=100, prompt_s=2.0, n_decoded=41, generated_s=8.0, n_past=160, n_ctx=4096
)
IDLE = Load(running=(), waiting=0, n_past=0, n_cells=8192)

# llama-server b11549's /metrics, names and types in its order.
LLAMA_SERVER = """
counter prompt_tokens_total, counter prompt_tokens_cached_total, counter prompt_seconds_total,
counter tokens_predicted_total, counter tokens_predicted_seconds_total, counter n_decode_total, counter n_tokens_max,
counter spec_decode_num_draft_tokens_total, counter spec_decode_num_accepted_tokens_total,
counter spec_decode_num_drafts_total, gauge prompt_tokens_seconds, gauge predicted_tokens_seconds,
gauge requests_processing, gauge requests_deferred, gauge n_busy_slots_per_decode
"""


def values(metrics: tuple[Metric, ...]) -> dict[str, float]:
    return {metric.name: metric.value for metric in metrics if not metric.labels}


def test_every_metric_of_llama_server_is_there_in_its_order() -> None:
    theirs = [tuple(pair.split()) for pair in LLAMA_SERVER.replace("\n", " ").split(",")]
    ours = [(metric.kind, metric.name) for metric in table(Counters(), IDLE)]
    assert [pair for pair in ours if pair in theirs] == theirs


def test_nothing_is_divided_by_nothing() -> None:
    assert set(values(table(Counters(), IDLE)).values()) == {0}


def test_a_request_is_booked_with_the_numbers_of_its_line() -> None:
    counters = Counters()
    counters.book_request(COUNTS, 0.25)
    counters.book_request(dataclasses.replace(COUNTS, n_past=90), 0.25)
    found = values(table(counters, IDLE))
    assert found["prompt_tokens_total"] == 200
    assert found["prompt_tokens_cached_total"] == 40
    assert found["prompt_seconds_total"] == 4
    assert found["prompt_cache_seconds_total"] == 0.5
    assert found["tokens_predicted_total"] == 82
    assert found["tokens_predicted_seconds_total"] == 16
    assert found["n_tokens_max"] == 160
    assert found["prompt_tokens_seconds"] == 50
    assert found["predicted_tokens_seconds"] == 5


def test_a_running_request_is_in_the_rates_and_not_yet_in_the_sums() -> None:
    found = values(table(Counters(), Load(running=(COUNTS,), waiting=3, n_past=160, n_cells=8192)))
    assert found["predicted_tokens_seconds"] == 5
    assert found["prompt_tokens_seconds"] == 50
    assert found["tokens_predicted_total"] == 0
    assert (found["requests_processing"], found["requests_deferred"]) == (1, 3)
    assert (found["kv_cache_tokens"], found["kv_cache_usage_ratio"]) == (160, pytest.approx(160 / 8192))


def test_decode_rounds_are_split_by_the_slots_they_stepped() -> None:
    counters = Counters()
    for busy, width, seconds in ((1, 0, 9.0), (2, 1, 1.0), (4, 4, 2.0), (4, 4, 3.0)):
        counters.book_pass(busy, width, seconds)
    metrics = table(counters, IDLE)
    assert values(metrics)["n_decode_total"] == 4
    assert values(metrics)["n_busy_slots_per_decode"] == 11 / 4
    by_width = {(metric.name, *metric.labels): metric.value for metric in metrics if metric.labels}
    assert by_width["rounds_total", ("width", "1")] == 1
    assert by_width["rounds_total", ("width", "4")] == 2
    assert by_width["round_seconds_total", ("width", "4")] == 5
    assert by_width["round_card_wait_seconds_total", ("width", "4")] == 0
    assert ("rounds_total", ("width", "0")) not in by_width


def test_metrics_of_one_name_stand_together() -> None:
    counters = Counters()
    for width in (1, 2, 3):
        counters.book_pass(width, width, 1.0)
    names = [metric.name for metric in table(counters, IDLE)]
    assert len(dict.fromkeys(names)) == sum(left != right for left, right in zip(names, [*names[1:], ""], strict=True))
