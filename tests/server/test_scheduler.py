"""The scheduler over a scripted engine: what runs together, what is reused, and how each generation ends."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bloomery.interface.engine import EngineError, Span
from bloomery.interface.sampling import SamplingParams
from bloomery.server.errors import ApiError
from bloomery.server.events import Failure, Finish, PromptProgress, Token
from bloomery.server.generation import Generation
from bloomery.server.scheduler import Scheduler
from bloomery.server.slot import common_prefix
from bloomery.server.stream import Stream
from tests.server.scripted import EOS, N_VOCAB, SPECIAL, Script, ScriptedEngine, answering, ids_of, scattered, served

GREEDY = SamplingParams(temperature=0)


class Log(list[str]):
    """The request lines."""


@contextmanager
def running(
    engine: ScriptedEngine, *, queue_depth: int = 63, start: bool = True, **options: Any
) -> Iterator[tuple[Scheduler, Log]]:
    """A scheduler over an engine, ended and checked to have ended at the close."""
    log = Log()
    scheduler = Scheduler(
        served(engine=engine),
        n_parallel=engine.options.n_sequences,
        queue_depth=queue_depth,
        log=log.append,
        **options,
    )
    if start:
        scheduler.start()
    try:
        yield scheduler, log
    finally:
        engine.free()
        assert scheduler.stop("the test's end", 30.0)
        assert engine.closed


def generation(prompt: str | Sequence[int], **fields: Any) -> Generation:
    ids = ids_of(prompt) if isinstance(prompt, str) else tuple(prompt)
    return Generation(**{"endpoint": "/completion", "prompt": ids, "sampling": GREEDY, **fields})


def events(stream: Stream) -> tuple[list[Token], Finish]:
    """All of a stream that ends well."""
    *tokens, finish = [event for event in stream if not isinstance(event, PromptProgress)]
    assert isinstance(finish, Finish), finish
    assert stream.exhausted
    assert stream.get(0) is None
    return [token for token in tokens if isinstance(token, Token)], finish


def text(stream: Stream) -> str:
    tokens, finish = events(stream)
    return "".join(token.text for token in tokens) + finish.text


def failure(stream: Stream) -> Failure:
    *_, last = stream
    assert isinstance(last, Failure), last
    assert stream.exhausted
    return last


def answer_alone(script: Script, prompt: tuple[int, ...], n: int) -> list[int]:
    """What the script says after a prompt, by the definition."""
    ids = list(prompt)
    for _ in range(n):
        ids.append(script(tuple(ids)))
    return ids[len(prompt) :]


# Answers.


def test_eight_streams_on_four_slots_get_the_ids_each_gets_alone() -> None:
    engine = ScriptedEngine(n_sequences=4, n_ubatch=16)
    prompts = [tuple(ids_of(f"prompt {i} " + "x" * 9 * i)) for i in range(8)]
    with running(engine) as (scheduler, log):
        streams = [scheduler.submit(generation(prompt, n_predict=20 + i)) for i, prompt in enumerate(prompts)]
        for i, (stream, prompt) in enumerate(zip(streams, prompts, strict=True)):
            tokens, finish = events(stream)
            assert [token.id for token in tokens] == answer_alone(scattered, prompt, 20 + i)
            assert (finish.stop_type, finish.n_decoded, finish.n_prompt) == ("limit", 20 + i, len(prompt))
        assert len(log) == 8
        assert max(len(spans) for spans in engine.passes) == 4


@settings(max_examples=25, deadline=None)
@given(
    requests=st.lists(st.tuples(st.text("ab", min_size=1, max_size=40), st.integers(0, 12), st.booleans()), max_size=8),
    n_parallel=st.integers(1, 3),
    n_ubatch=st.integers(1, 24),
)
def test_neither_neighbours_nor_chunks_nor_a_reused_prefix_change_an_id(
    requests: list[tuple[str, int, bool]], n_parallel: int, n_ubatch: int
) -> None:
    with running(ScriptedEngine(n_sequences=n_parallel, n_ubatch=n_ubatch)) as (scheduler, _):
        streams = [
            scheduler.submit(generation(prompt, n_predict=n, cache_prompt=cache)) for prompt, n, cache in requests
        ]
        for stream, (prompt, n, _) in zip(streams, requests, strict=True):
            tokens, _ = events(stream)
            assert [token.id for token in tokens] == answer_alone(scattered, ids_of(prompt), max(1, n))


def test_an_answer_ends_at_its_end_of_generation_id() -> None:
    with running(ScriptedEngine(answering({"hi": "Hello\nyou"}))) as (scheduler, log):
        tokens, finish = events(scheduler.submit(generation("hi")))
    assert [token.text for token in tokens] == [*"Hello\nyou", ""]
    assert tokens[-1].id == EOS
    assert not tokens[-1].special
    assert (finish.stop_type, finish.text, finish.stopping_word, finish.truncated) == ("eos", "", "", False)
    assert (finish.n_decoded, finish.n_past, finish.has_new_line) == (10, 11, True)
    assert log[0].endswith("stop eos; ctx 11/4096")


def test_ignore_eos_goes_on_and_never_draws_an_end() -> None:
    with running(ScriptedEngine(answering({"hi": "Hello"}))) as (scheduler, _):
        sampling = SamplingParams(temperature=0, ignore_eos=True)
        tokens, finish = events(scheduler.submit(generation("hi", sampling=sampling, n_predict=9)))
    assert finish.stop_type == "limit"
    assert len(tokens) == 9
    assert EOS not in [token.id for token in tokens]


@pytest.mark.parametrize(("n_predict", "n"), [(0, 1), (1, 1), (3, 3)])
def test_n_predict_limits_the_answer_and_a_limit_of_zero_gives_one_id(n_predict: int, n: int) -> None:
    with running(ScriptedEngine()) as (scheduler, _):
        tokens, finish = events(scheduler.submit(generation("hi", n_predict=n_predict)))
    assert (len(tokens), finish.stop_type, finish.truncated) == (n, "limit", False)


@pytest.mark.parametrize(("n_prompt", "n"), [(10, 54), (62, 2), (63, 1)])
def test_the_context_ends_an_answer_where_llama_server_ends_it(n_prompt: int, n: int) -> None:
    with running(ScriptedEngine(n_ctx=64)) as (scheduler, log):
        tokens, finish = events(scheduler.submit(generation([5] * n_prompt)))
    assert (len(tokens), finish.stop_type, finish.truncated, finish.n_past) == (n, "limit", True, 63)
    assert log[0].endswith("stop length; ctx 63/64")


def test_a_prompt_without_room_for_an_answer_is_refused_with_both_lengths() -> None:
    with running(ScriptedEngine(n_ctx=64)) as (scheduler, log):
        with pytest.raises(ApiError) as caught:
            scheduler.submit(generation([5] * 64))
        assert caught.value.body() == {
            "error": {
                "code": 400,
                "message": "request (64 tokens) exceeds the available context size (64 tokens), try increasing it",
                "type": "exceed_context_size_error",
                "n_prompt_tokens": 64,
                "n_ctx": 64,
            }
        }
        assert not log


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"prompt": ()}, "empty"),
        ({"prompt": (1, N_VOCAB)}, str(N_VOCAB)),
        ({"prompt": (-1,)}, "-1"),
        ({"sampling": SamplingParams(logit_bias={N_VOCAB: 1.0})}, "logit_bias"),
    ],
)
def test_what_no_engine_could_compute_is_a_400_before_it_queues(fields: dict[str, Any], word: str) -> None:
    with running(ScriptedEngine()) as (scheduler, log):
        with pytest.raises(ApiError) as caught:
            scheduler.submit(generation(**{"prompt": "hi", **fields}))
        assert caught.value.code == 400
        assert word in caught.value.message
        assert not log


def test_a_stop_string_ends_the_answer_and_is_no_part_of_it() -> None:
    with running(ScriptedEngine(answering({"count": "one two three"}))) as (scheduler, log):
        tokens, finish = events(scheduler.submit(generation("count", stop=("two th", "nothing"))))
        assert "".join(token.text for token in tokens) == "one "
        assert (finish.stop_type, finish.stopping_word, finish.text) == ("word", "two th", "")
        assert "; stop stop; " in log[0]


def test_a_held_back_beginning_is_released_at_the_limit() -> None:
    with running(ScriptedEngine(answering({"count": "one two three"}))) as (scheduler, _):
        tokens, finish = events(scheduler.submit(generation("count", stop=("two th",), n_predict=8)))
        assert "".join(token.text for token in tokens) == "one "
        assert (finish.stop_type, finish.stopping_word, finish.text) == ("limit", "", "two ")


def test_a_held_back_beginning_comes_with_the_id_that_ends_the_answer() -> None:
    with running(ScriptedEngine(answering({"count": "one t"}))) as (scheduler, _):
        tokens, finish = events(scheduler.submit(generation("count", stop=("two",))))
        assert [token.text for token in tokens][-2:] == ["", "t"]
        assert finish.text == ""


def test_a_character_comes_with_its_last_byte_and_an_unfinished_one_at_the_end() -> None:
    engine = ScriptedEngine(answering({"e": "\U0001f600!", "h": b"\xc3"}))
    with running(engine) as (scheduler, _):
        tokens, _ = events(scheduler.submit(generation("e")))
        assert [token.text for token in tokens] == ["", "", "", "\U0001f600", "!", ""]
        assert text(scheduler.submit(generation("h"))) == "�"


def test_control_tokens_are_text_only_where_they_are_preserved() -> None:
    engine = ScriptedEngine(answering({"hi": "<think>a</think><|im_start|>b"}))
    mark = SPECIAL["<|im_start|>"]
    with running(engine) as (scheduler, _):
        tokens, _ = events(scheduler.submit(generation("hi")))
        assert [(token.text, token.special) for token in tokens] == [
            ("<think>", True), ("a", False), ("</think>", True), ("", False), ("b", False), ("", False),
        ]  # fmt: skip
        tokens, _ = events(scheduler.submit(generation("hi", preserved=frozenset({mark, EOS}))))
        assert [(token.text, token.special) for token in tokens][-3:] == [
            ("<|im_start|>", True), ("b", False), ("<|im_end|>", True),
        ]  # fmt: skip


def test_probabilities_are_the_models_own_whatever_the_sampling() -> None:
    with running(ScriptedEngine(answering({"hi": "x"}), margin=10.0)) as (scheduler, _):
        biased = SamplingParams(temperature=0, logit_bias={ord("y"): 50.0})
        tokens, _ = events(scheduler.submit(generation("hi", n_probs=2, n_predict=1, sampling=biased)))
    (token,) = tokens
    assert token.id == ord("y")
    assert token.own is not None
    assert token.own.piece == b"y"
    assert token.best[0].piece == b"x"
    assert len(token.best) == 2
    assert token.best[0].value - token.own.value == pytest.approx(10.0, abs=1e-4)


def test_penalties_see_the_prompt() -> None:
    # Every other logit is 0, so a penalty of the favourite by its place in the prompt makes it lose.
    with running(ScriptedEngine(lambda ids: ord("a"), margin=1.0)) as (scheduler, _):
        sampling = SamplingParams(temperature=0, presence_penalty=2.0)
        assert text(scheduler.submit(generation("b", n_predict=1, sampling=sampling))) == "a"
        assert text(scheduler.submit(generation("a", n_predict=1, sampling=sampling))) != "a"


def test_a_seed_gives_the_same_ids_again() -> None:
    with running(ScriptedEngine(margin=2.0, n_sequences=2)) as (scheduler, _):
        sampling = SamplingParams(seed=42, temperature=1.5, top_k=0)
        first, second = (scheduler.submit(generation("hi", n_predict=30, sampling=sampling)) for _ in range(2))
        assert [token.id for token in events(first)[0]] == [token.id for token in events(second)[0]]


# Slots and the cache.


def test_the_common_prefix_is_reused_and_the_last_id_computed_again() -> None:
    engine = ScriptedEngine(answering({"abcdef": "gh"}))
    with running(engine) as (scheduler, log):
        events(scheduler.submit(generation("abcdef")))
        again = events(scheduler.submit(generation("abcdef")))[1]
        longer = events(scheduler.submit(generation("abcdefghij")))[1]
        fresh = events(scheduler.submit(generation("abcdef", cache_prompt=False)))[1]
    assert [(end.timings.cache_n, end.timings.prompt_n) for end in (again, longer, fresh)] == [(5, 1), (8, 2), (0, 6)]
    assert all(end.n_prompt == end.timings.cache_n + end.timings.prompt_n for end in (again, longer, fresh))
    assert "prompt 10 ids (8 reused)" in log[2]


def test_a_request_goes_to_the_slot_of_its_longest_prefix_and_else_to_the_least_recently_used() -> None:
    with running(ScriptedEngine(n_sequences=3)) as (scheduler, _):

        def slot_of(prompt: str, **fields: Any) -> int:
            return events(scheduler.submit(generation(prompt, n_predict=1, **fields)))[1].id_slot

        assert [slot_of("first " * 5), slot_of("second " * 5), slot_of("third " * 5)] == [2, 1, 0]
        assert slot_of("first " * 5 + "and more") == 2
        assert slot_of("another") == 1
        assert slot_of("first " * 5, id_slot=0) == 0
        assert slot_of("whichever", id_slot=4) == 1


def test_a_tenth_in_common_is_no_reason_to_overwrite_a_conversation() -> None:
    with running(ScriptedEngine(n_sequences=2)) as (scheduler, _):
        first = events(scheduler.submit(generation("<|im_start|>" + "a" * 40, n_predict=1)))[1]
        second = events(scheduler.submit(generation("<|im_start|>" + "b" * 40, n_predict=1)))[1]
        assert first.id_slot != second.id_slot


def test_a_request_for_a_busy_slot_waits_while_a_later_one_takes_an_idle_slot() -> None:
    engine = ScriptedEngine(n_sequences=2, held=True)
    with running(engine) as (scheduler, _):
        first = scheduler.submit(generation("a", id_slot=0, n_predict=2))
        second = scheduler.submit(generation("b", id_slot=0, n_predict=1))
        third = scheduler.submit(generation("c", n_predict=1))
        engine.free()
        assert [events(stream)[1].id_slot for stream in (first, second, third)] == [0, 0, 1]


@given(st.lists(st.integers(0, 1), max_size=5), st.integers(0, 1200), st.lists(st.integers(0, 1), max_size=5))
def test_common_prefix(left: list[int], shared: int, right: list[int]) -> None:
    a, b = (tuple(itertools.islice(itertools.cycle((3, 4, 5)), shared)) + tuple(tail) for tail in (left, right))
    expected = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    assert common_prefix(a, b) == expected


def test_a_long_prompt_delays_a_running_answer_by_one_pass_at_most() -> None:
    engine = ScriptedEngine(n_sequences=2, n_ubatch=8, held=True)
    with running(engine) as (scheduler, _):
        talker = scheduler.submit(generation("a", n_predict=40))
        engine.allow()
        reader = scheduler.submit(generation("r" * 70, n_predict=2))
        engine.free()
        events(talker)
        events(reader)
    prompts = [spans for spans in engine.passes if any(len(ids) > 1 for _, ids in spans)]
    # Seven rows a pass are left for the prompt, and the answer's row is in every one of them.
    assert [sorted(len(ids) for _, ids in spans) for spans in prompts] == [[1, 7]] * 10


def test_progress_counts_from_the_reused_ids_to_the_whole_prompt() -> None:
    with running(ScriptedEngine(n_ubatch=4)) as (scheduler, _):
        events(scheduler.submit(generation("abcdef", n_predict=1)))
        stream = scheduler.submit(generation("abcdefghijklm", n_predict=1, return_progress=True))
        progress = [event for event in stream if isinstance(event, PromptProgress)]
    assert [(event.total, event.cache, event.processed) for event in progress] == [
        (13, 6, done) for done in (6, 10, 13)
    ]


# The queue.


def test_a_full_queue_is_a_503_that_names_its_depth() -> None:
    engine = ScriptedEngine(n_sequences=2, held=True)
    with running(engine, queue_depth=1) as (scheduler, log):
        streams = [scheduler.submit(generation("hi", n_predict=1)) for _ in range(3)]
        with pytest.raises(ApiError) as caught:
            scheduler.submit(generation("hi"))
        assert (caught.value.code, caught.value.type, caught.value.retry_after) == (503, "unavailable_error", 1)
        assert "every one of the 2 slots is busy" in caught.value.message
        engine.free()
        for stream in streams:
            events(stream)
        assert len(log) == 3
        events(scheduler.submit(generation("hi", n_predict=1)))


def test_several_choices_are_queued_together_or_not_at_all() -> None:
    engine = ScriptedEngine(held=True)
    with running(engine, queue_depth=2) as (scheduler, log):
        with pytest.raises(ApiError, match="needs 4 places and 3 are free"):
            scheduler.submit_all([generation("hi", choice=i) for i in range(4)])
        assert {metric.name: metric.value for metric in scheduler.metrics()}["requests_deferred"] == 0
        streams = scheduler.submit_all([generation("hi", n_predict=1, choice=i) for i in range(3)])
        engine.free()
        assert len({events(stream)[1].n_decoded for stream in streams}) == 1
    assert [line.split(":")[0] for line in log] == [f"request {i} {i} /completion" for i in range(3)]


def test_requests_run_in_the_order_they_came() -> None:
    engine = ScriptedEngine(held=True)
    with running(engine) as (scheduler, log):
        streams = [scheduler.submit(generation("hi", n_predict=1)) for _ in range(5)]
        engine.free()
        for stream in streams:
            events(stream)
    assert [line.split()[1] for line in log] == ["0", "1", "2", "3", "4"]


# Cancelling.


def test_a_client_that_leaves_during_the_answer_frees_its_slot_within_a_step() -> None:
    engine = ScriptedEngine(held=True)
    with running(engine) as (scheduler, log):
        left = scheduler.submit(generation("hi"))
        engine.allow(3)
        engine.wait_until_held()
        left.cancel()
        following = scheduler.submit(generation("next", n_predict=1))
        engine.allow(1)
        assert left.exhausted
        assert left.get(0) is None
        engine.free()
        events(following)
        # The pass that was under way is the last one of the cancelled answer.
        assert [ids for _, ids in engine.passes[4]] == [ids_of("next")]
    assert "stop cancel" in log[0]
    assert "generated 3 ids" in log[0]


def test_a_client_that_leaves_during_its_prompt_frees_its_slot_within_a_chunk() -> None:
    engine = ScriptedEngine(held=True, n_ubatch=4)
    with running(engine) as (scheduler, log):
        left = scheduler.submit(generation("p" * 40))
        engine.allow(2)
        engine.wait_until_held()
        left.cancel()
        engine.allow(1)
        following = scheduler.submit(generation("next", n_predict=1))
        engine.free()
        events(following)
        assert len(engine.passes) == 4
    assert "prompt 40 ids (0 reused)" in log[0]
    assert "generated 0 ids in 0.00 s, - ids/s; stop cancel; ctx 12/4096" in log[0]


def test_a_client_that_leaves_the_queue_runs_nothing_and_makes_room_at_once() -> None:
    engine = ScriptedEngine(held=True)
    with running(engine, queue_depth=1) as (scheduler, log):
        first = scheduler.submit(generation("first", n_predict=1))
        engine.wait_until_held()
        waiting = scheduler.submit(generation("waiting"))
        waiting.cancel()
        waiting.cancel()
        assert log == [
            "request 1 /completion: prompt 7 ids (0 reused) in 0.00 s, - ids/s; generated 0 ids in 0.00 s, - ids/s;"
            " stop cancel; ctx 0/4096"
        ]
        other = scheduler.submit(generation("other", n_predict=1))
        engine.free()
        assert [text(stream) != "" for stream in (first, other)] == [True, True]
        assert ids_of("waiting") not in [ids for spans in engine.passes for _, ids in spans]


def test_cancelling_what_has_ended_changes_nothing() -> None:
    with running(ScriptedEngine()) as (scheduler, log):
        stream = scheduler.submit(generation("hi", n_predict=1))
        events(stream)
        stream.cancel()
        assert len(log) == 1
        events(scheduler.submit(generation("hi", n_predict=1)))


def test_a_reader_that_waits_is_woken_by_a_cancel() -> None:
    engine = ScriptedEngine(held=True)
    with running(engine) as (scheduler, _):
        stream = scheduler.submit(generation("hi"))
        assert stream.get(0.001) is None
        assert not stream.exhausted
        reader = threading.Thread(target=stream.get)
        reader.start()
        stream.cancel()
        reader.join(30.0)
        assert not reader.is_alive()


# Failures and the end.


def failing_for(word: str, error: Exception) -> Callable[[Sequence[Span]], None]:
    """Fail each pass in which a sequence's ids begin with a word."""

    def before_pass(spans: Sequence[Span]) -> None:
        for span in spans:
            if (span.sequence.ids + tuple(span.ids))[: len(word)] == ids_of(word):
                raise error

    return before_pass


def test_what_the_engine_refuses_of_one_request_ends_that_request_alone() -> None:
    engine = ScriptedEngine(n_sequences=3, before_pass=failing_for("bad", EngineError("no such cell")), held=True)
    with running(engine) as (scheduler, log):
        good, bad, other = (scheduler.submit(generation(prompt, n_predict=5)) for prompt in ("good", "bad", "other"))
        engine.free()
        assert failure(bad) == Failure(code=500, type="server_error", message="no such cell")
        assert [token.id for token in events(good)[0]] == answer_alone(scattered, ids_of("good"), 5)
        assert [token.id for token in events(other)[0]] == answer_alone(scattered, ids_of("other"), 5)
        assert scheduler.failed is None
        events(scheduler.submit(generation("again", n_predict=1)))
    assert sum("stop error" in line for line in log) == 1


def test_a_row_no_sampler_can_draw_from_ends_that_request_alone() -> None:
    engine = ScriptedEngine(margin=float("nan"))
    with running(engine) as (scheduler, _):
        assert failure(scheduler.submit(generation("hi"))).code == 500
        engine.margin = 1.0
        events(scheduler.submit(generation("hi", n_predict=1)))


def test_an_engine_that_breaks_fails_everybody_by_name_and_admits_nobody() -> None:
    told: list[str] = []
    engine = ScriptedEngine(before_pass=failing_for("bad", ZeroDivisionError("division by zero")), held=True)
    with running(engine, on_failure=told.append) as (scheduler, log):
        bad, waiting = scheduler.submit(generation("bad")), scheduler.submit(generation("hi"))
        engine.free()
        assert failure(bad).code == 500
        ended = failure(waiting)
        assert (ended.code, ended.type) == (503, "unavailable_error")
        assert "ZeroDivisionError: division by zero" in ended.message
        with pytest.raises(ApiError, match="ZeroDivisionError") as caught:
            scheduler.submit(generation("hi"))
        assert caught.value.code == 503
        assert scheduler.failed == "ZeroDivisionError: division by zero"
        assert scheduler.stop("the test's end", 30.0)
        assert told == [scheduler.failed]
        assert len(log) == 2


def test_stopping_ends_what_runs_and_waits_and_admits_nothing() -> None:
    engine = ScriptedEngine(held=True)
    with running(engine) as (scheduler, log):
        first, second = scheduler.submit(generation("a")), scheduler.submit(generation("b"))
        engine.allow(2)
        engine.wait_until_held()
        stopper = threading.Thread(target=scheduler.stop, args=("SIGTERM", 30.0))
        stopper.start()
        engine.free()
        stopper.join(30.0)
        message = "the server is shutting down (SIGTERM); no new request is admitted"
        assert [failure(stream).message for stream in (first, second)] == [message, message]
        with pytest.raises(ApiError) as caught:
            scheduler.submit(generation("c"))
        assert (caught.value.code, caught.value.message, caught.value.retry_after) == (503, message, None)
        assert len(log) == 2
        assert engine.closed


def test_stopping_what_never_started_ends_what_waits() -> None:
    with running(ScriptedEngine(), start=False) as (scheduler, _):
        stream = scheduler.submit(generation("a"))
        assert scheduler.stop("SIGINT")
        assert failure(stream).code == 503


# What others see of it.


def test_slots_and_metrics_show_a_running_request_and_book_it_when_it_ends() -> None:
    engine = ScriptedEngine(n_sequences=2, held=True)
    now = itertools.count()
    with running(engine, clock=lambda: float(next(now))) as (scheduler, log):
        assert [(view.id, view.is_processing, view.task_id) for view in scheduler.slots()] == [
            (0, False, -1),
            (1, False, -1),
        ]
        stream = scheduler.submit(generation("hello", n_predict=4))
        engine.allow(3)
        engine.wait_until_held()
        view = scheduler.slots()[1]
        assert (view.is_processing, view.task_id, view.n_past, view.n_decoded, view.n_remain) == (True, 0, 7, 3, 1)
        assert (view.n_evaluated, view.n_reused) == (5, 0)
        during = {metric.name: metric.value for metric in scheduler.metrics()}
        assert (during["requests_processing"], during["tokens_predicted_total"]) == (1, 0)
        assert during["predicted_tokens_seconds"] > 0
        engine.free()
        events(stream)
        view = scheduler.slots()[1]
        assert (view.is_processing, view.task_id, view.n_past, view.n_decoded) == (False, 0, 8, 0)
        after = {metric.name: metric.value for metric in scheduler.metrics()}
    assert (after["prompt_tokens_total"], after["tokens_predicted_total"], after["n_tokens_max"]) == (5, 4, 8)
    assert (after["requests_processing"], after["kv_cache_tokens"]) == (0, 8)
    assert "prompt 5 ids (0 reused)" in log[0]
    assert "generated 4 ids" in log[0]


def test_a_long_answer_says_so_every_thirty_seconds() -> None:
    now = itertools.count(step=4)
    with running(ScriptedEngine(), clock=lambda: float(next(now))) as (scheduler, log):
        _, finish = events(scheduler.submit(generation("hi", n_predict=40)))
    assert finish.timings.predicted_ms > 60_000
    generating = [line for line in log if ": generating, " in line]
    assert len(generating) == finish.timings.predicted_ms // 30_000
    assert generating[0].startswith("request 0 /completion: generating, ")
