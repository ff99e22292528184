"""The stderr lines about a request, to the letter."""

from __future__ import annotations

import dataclasses

from bloomery.server.request_log import RequestCounts, ended, generating

COUNTS = RequestCounts(
    n_prompt=120, n_reused=20, n_evaluated=100, prompt_s=2.0, n_decoded=41, generated_s=8.0, n_past=160, n_ctx=4096
)


def test_the_line_of_a_request_that_ended() -> None:
    assert ended(7, None, "/v1/chat/completions", COUNTS, "eos") == (
        "request 7 /v1/chat/completions: prompt 120 ids (20 reused) in 2.00 s, 50.0 ids/s;"
        " generated 41 ids in 8.00 s, 5.0 ids/s; stop eos; ctx 160/4096"
    )


def test_a_choice_has_its_index_after_the_task() -> None:
    assert ended(7, 2, "/v1/completions", COUNTS, "stop").startswith("request 7 2 /v1/completions: prompt 120 ids")


def test_a_rate_over_no_time_or_of_nothing_is_a_dash() -> None:
    counts = dataclasses.replace(COUNTS, n_evaluated=0, prompt_s=0.0, n_decoded=1, generated_s=0.0)
    assert ended(0, None, "/completion", counts, "length") == (
        "request 0 /completion: prompt 120 ids (20 reused) in 0.00 s, - ids/s;"
        " generated 1 ids in 0.00 s, - ids/s; stop length; ctx 160/4096"
    )


def test_the_line_of_a_request_that_goes_on() -> None:
    assert generating(7, None, "/completion", COUNTS) == (
        "request 7 /completion: generating, 41 ids in 8.00 s, 5.0 ids/s; ctx 160/4096"
    )
