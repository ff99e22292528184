"""The known differences of bloomery from the recorded llama-server, each a rule with its reason and its places.

docs/differences.md tells a user the same. A rule is narrow: it names sets and cases, and takes out of the answers only
what it expects to find. One that finds nothing where it says it would is stale, and a failure of the check.
"""

from __future__ import annotations

from typing import Any

from bloomery.conformance import rewrites as rewrite
from bloomery.conformance.error_rewrites import unfinished_call
from bloomery.conformance.known_difference import (
    ALIAS,
    BARE,
    CALLS,
    COUNTS,
    EVERY,
    FUNCTIONS,
    GENERATING,
    KEYS,
    LINES,
    REFUSALS,
    STATUS,
    TEXT,
    THINK,
    KnownDifference,
    every_case,
)
from bloomery.conformance.refusal_differences import REFUSAL_DIFFERENCES

# The arguments of a scripted call up to its second value.
_CITY = '{"city":"Seoul & <\\"n\\">\\n</paris","days":'

# Differences in the sequence of events come first: later rules compare event by event.
_STREAMS = (
    KnownDifference(
        name="held-text",
        why="Text that is held back for a character or a stop string is released when the answer ends instead of lost.",
        source="judgement",
        cases={TEXT: ("completion cut inside a character, streamed", "chat cut inside a character*")},
        without=rewrite.released_at_end("\ufffd"),
    ),
    *(
        KnownDifference(
            name="call-cut-in-its-name",
            why="A call that the limit cuts before its name is whole is content, so that no text is lost.",
            source="design",
            cases={CALLS: (f"a call cut after {limit} ids", f"a call cut after {limit} ids, streamed")},
            without=rewrite.released_at_end(text),
        )
        for limit, text in ((12, '<tool_call>\n{"name"'), (14, '<tool_call>\n{"name": "get_'))
    ),
    *(
        KnownDifference(
            name="call-cut-in-its-name",
            why="A call that the limit cuts before its name is whole is content, so that no text is lost.",
            source="design",
            cases={framing: (f"a call cut after {limit} ids", f"a call cut after {limit} ids, streamed")},
            without=rewrite.released_at_end(text),
        )
        for framing, limit, text in (
            (LINES, 11, "<tool_call>\n<func"),
            (BARE, 11, "<tool_call>"),
            (BARE, 13, "<tool_call><function=get_"),
        )
    ),
    KnownDifference(
        name="call-cut-by-a-stop",
        why="A reply that ends inside a call without reaching its limit is an error that names the call.",
        source="design",
        cases=dict.fromkeys((CALLS, *FUNCTIONS), ("a call and a stop inside it*",)),
        without=unfinished_call("get_weather"),
    ),
    KnownDifference(
        name="arguments-as-they-come",
        why="A call's arguments are the model's own text so far; llama-server opens the object before the model does.",
        source="design",
        cases={CALLS: ("a call cut after 16 ids*",)},
        without=rewrite.changed("arguments", ("{", "")),
    ),
    KnownDifference(
        name="timings-at-a-stop",
        why="Timings come with a stream's last event; llama-server's also come with the text before a stop string.",
        source="judgement",
        cases={
            TEXT: (
                "stop *, streamed",
                "two stops*, streamed",
                "v1 completions with a stop, streamed",
                "chat with a stop, streamed",
                "* at a stop, streamed",
            ),
            THINK: ("a stop inside the thought, streamed",),
            **dict.fromkeys((CALLS, LINES), ("a call and a stop inside it, streamed",)),
        },
        without=rewrite.timings_at_stop,
    ),
    KnownDifference(
        name="arguments-cut",
        why="Where a call's arguments are cut into fragments carries no meaning; joined, they are the same.",
        source="judgement",
        cases={
            CALLS: (
                "one call*streamed",
                "a call cut after 1* ids, streamed",
                "a call cut after 2* ids, streamed",
                "a call cut after 30 ids, streamed",
                "calls drawn with seed *, streamed",
                "a call and a stop inside it, streamed",
                "a turn after a tool's answer, streamed",
            ),
            **dict.fromkeys(
                FUNCTIONS,
                (
                    "one call*streamed",
                    "a call *streamed",
                    "calls drawn *streamed",
                    "reasoning*streamed",
                ),
            ),
        },
        without=rewrite.arguments_recut,
    ),
    KnownDifference(
        name="call-cut-after-its-name",
        why="A call that the limit cuts right after its name is one; llama-server waits for the line's end.",
        source="design",
        cases={LINES: ("a call cut after 13 ids*",)},
        without=rewrite.called_at_end("get_weather"),
    ),
    KnownDifference(
        name="values-when-complete",
        why="A number or JSON value joins a call's arguments when it is complete; llama-server may cut inside it.",
        source="design",
        cases={LINES: ("a call cut after 27 ids*", "a call cut after 30 ids*"), BARE: ("a call cut after 24 ids*",)},
        without=rewrite.changed(
            "arguments",
            *(
                (f"{_CITY}{before}{part}", f"{_CITY}{before}")
                for before, part in (("", "2"), ('2,"units":', '["c"'), ('2,"units":["c", "</"],"exact":', "tr"))
            ),
        ),
    ),
    KnownDifference(
        name="empty-stop",
        why="An empty stop string stops nothing; llama-server finds it in any text and ends at once.",
        source="judgement",
        cases={TEXT: ("stop that is empty*",)},
        without=rewrite.stop_never_empty(("The", 273), (" forge", 361), (" is", 259), (" warm", 365)),
    ),
)

_PROBABILITIES = (
    KnownDifference(
        name="every-probability",
        why="Every id has its entry; llama-server leaves out ids inside a character, in markup and before a stop.",
        source="judgement",
        cases={
            TEXT: ("probabilities, *", "probabilities", "probabilities at a stop", "chat with logprobs*"),
            THINK: ("logprobs through a thought, streamed",),
        },
        without=rewrite.probability_for_every_id,
    ),
    KnownDifference(
        name="own-piece",
        why="An id's entry shows the id's own bytes; llama-server's shows the text that was released with it.",
        source="judgement",
        cases={TEXT: ("probabilities*", "chat with logprobs*")},
        without=rewrite.in_objects(rewrite.own_entry_is_its_piece),
    ),
    KnownDifference(
        name="every-id",
        why="A stream's event lists all ids of its text; llama-server's lists the last id of a character alone.",
        source="judgement",
        cases={TEXT: ("completion*, streamed", "stop *, streamed", "probabilities, streamed", "ignore_eos, streamed")},
        without=rewrite.ids_of_every_character,
    ),
    KnownDifference(
        name="no-id-in-progress",
        why="An event of the prompt's progress lists no id; llama-server lists an id 0 that nobody generated.",
        source="judgement",
        cases={TEXT: ("progress of the prompt, streamed",)},
        without=rewrite.changed("tokens", ([0], [])),
    ),
)


def _gguf_name(value: Any) -> Any:
    if isinstance(value, list):
        return [_gguf_name(each) for each in value] if all(map(_gguf_name, value)) else None
    return value.removesuffix(".gguf") if isinstance(value, str) and value.endswith(".gguf") else None


_NAMES = (
    KnownDifference(
        name="model-name",
        why="A model goes by its alias, else by its file's general.name; llama-server takes the name of the file.",
        source="design",
        cases={**every_case(*GENERATING, REFUSALS, STATUS), KEYS: ("/v1/models with*key*", "/props with*key*")},
        without=rewrite.chained(
            *(rewrite.respelled(key, _gguf_name) for key in ("model", "model_alias", "name", "id", "aliases"))
        ),
    ),
    KnownDifference(
        name="ids",
        why="A call's id tells its place, and a text completion's begins as OpenAI's does.",
        source="judgement",
        cases={
            TEXT: ("v1 completions*",),
            CALLS: ("one call*", "calls drawn*", "a call *", "a turn after*"),
            **dict.fromkeys(FUNCTIONS, ("one call*", "reasoning_format*", "calls drawn*", "a call *")),
        },
        without=rewrite.in_objects(rewrite.with_an_id_of_its_own),
    ),
    KnownDifference(
        name="start-seed",
        why="The recorded server was started with a seed of 42; this one has none, and says so with the random one.",
        source="start",
        cases={
            TEXT: EVERY,
            THINK: ("a completion*",),
            **dict.fromkeys((CALLS, *FUNCTIONS), ("a completion*",)),
            REFUSALS: EVERY,
            STATUS: EVERY,
            ALIAS: EVERY,
            KEYS: ("/props*",),
        },
        without=rewrite.changed("seed", (42, 4294967295)),
    ),
    KnownDifference(
        name="start-path",
        why="The recorded server was started in its model's folder; both show the path they were given.",
        source="start",
        cases={STATUS: ("/props*",), ALIAS: ("/props*",), KEYS: ("/props*",)},
        without=rewrite.in_objects(rewrite.path_of_the_same_file),
    ),
)

_MORE_KEYS = (
    KnownDifference(
        name="cache-ms",
        why="Timings also say what the prompt cache's work took, which no other number counts.",
        source="design",
        cases=every_case(*GENERATING, REFUSALS, STATUS, ALIAS),
        without=rewrite.in_objects(rewrite.cache_ms),
        owed=True,
    ),
    KnownDifference(
        name="stopped-keys",
        why="/completion also says in three booleans what stop_type says, as older clients read them.",
        source="design",
        cases=every_case(*GENERATING, REFUSALS, STATUS, ALIAS),
        without=rewrite.in_objects(rewrite.stopped_booleans),
        owed=True,
    ),
    KnownDifference(
        name="n-past",
        why="A slot also says as n_past how many ids it holds, by which a running request is followed.",
        source="design",
        cases={STATUS: ("/slots*",), ALIAS: ("/slots*",)},
        without=rewrite.in_objects(rewrite.n_past),
        owed=True,
    ),
    KnownDifference(
        name="task-ids",
        why="Only generations count as tasks; llama-server numbers its own requests for slots and metrics too.",
        source="judgement",
        cases={STATUS: ("/slots, after*",), ALIAS: ("/slots, after*",)},
        without=rewrite.changed("id_task", (2, 0)),
    ),
    KnownDifference(
        name="more-metrics",
        why="Metrics of the prompt cache, of decode rounds and of what they waited for.",
        source="design",
        cases={STATUS: ("/metrics*",), ALIAS: ("/metrics*",)},
        without=rewrite.more_metrics(
            {
                "prompt_cache_seconds_total": "counter",
                "kv_cache_tokens": "gauge",
                "kv_cache_usage_ratio": "gauge",
                "rounds_total": "counter",
                "round_seconds_total": "counter",
                "card_wait_seconds_total": "counter",
                "round_card_wait_seconds_total": "counter",
                "round_ple_wait_seconds_total": "counter",
                "ple_wait_seconds_total": "counter",
            }
        ),
    ),
    KnownDifference(
        name="more-props",
        why="/props also names the routes, the engine and the context, and says how thinking is turned off.",
        source="design",
        cases={STATUS: ("/props*",), ALIAS: ("/props*",), KEYS: ("/props with*key*",)},
        without=rewrite.chained(
            rewrite.added("thinking_off", {"switch", "low_effort", "neither"}.__contains__, beside="chat_template"),
            rewrite.added("n_ctx", lambda value: isinstance(value, int), beside="total_slots"),
            rewrite.added("routes", lambda value: "/v1/chat/completions" in value, beside="total_slots"),
            rewrite.added("engine", lambda value: value["name"] == "bloomery", beside="total_slots"),
        ),
    ),
    KnownDifference(
        name="text-only-server",
        why="No web page and no media: the page is off and there is no marker to put media at.",
        source="judgement",
        cases={STATUS: ("/props*",), ALIAS: ("/props*",), KEYS: ("/props with*key*",)},
        without=rewrite.chained(
            rewrite.changed("ui", (True, False)), rewrite.missing("media_marker", beside="total_slots")
        ),
    ),
    KnownDifference(
        name="model-facts",
        why="The list of models is also the answer for Ollama's clients, so it says what the model is and can do.",
        source="design",
        cases={STATUS: ("*/models,*",), ALIAS: ("*/models,*",), KEYS: ("/v1/models with*key*",)},
        without=rewrite.chained(
            rewrite.becomes("owned_by", "llamacpp", "bloomery"),
            rewrite.becomes("size", "", 1682560),
            rewrite.becomes("capabilities", ["completion"], ["completion", "tools"]),
            rewrite.becomes("family", "", "qwen3"),
            rewrite.becomes("families", [""], ["qwen3"]),
            rewrite.becomes("quantization_level", "", "all F32"),
        ),
        owed=True,
    ),
)

_WORK = (
    KnownDifference(
        name="no-prompt-cache",
        why="This version reuses what the slot holds, and keeps no earlier prompts beside it.",
        source="judgement",
        cases={
            TEXT: ("chat by its other name",),
            CALLS: ("a call cut after 10 ids",),
            REFUSALS: ("chat logprobs: 3",),
        },
        without=rewrite.less_from_the_cache,
    ),
    KnownDifference(
        name="guarded-text",
        why="A special token's spelling in a client's text stays text, so the prompt has more ids and shares fewer.",
        source="design",
        cases={REFUSALS: ("messages: markup in the user's text",)},
        without=rewrite.counted(
            prompt_tokens=(36, 54), total_tokens=(37, 55), cached_tokens=(8, 5), cache_n=(8, 5), prompt_n=(28, 49)
        ),
    ),
    KnownDifference(
        name="guarded-text",
        why="A special token's spelling in a client's text stays text, so the prompt has more ids.",
        source="design",
        cases={COUNTS: ("count: markup",)},
        without=rewrite.counted(input_tokens=(19, 27)),
    ),
    KnownDifference(
        name="guarded-text",
        why="A special token's spelling in a client's text stays text, so the prompt has more ids.",
        source="design",
        cases={COUNTS: ("count: markup, with tools",)},
        without=rewrite.counted(input_tokens=(249, 257)),
    ),
    KnownDifference(
        name="n-probs-clamped",
        why="generation_settings reports how many probabilities come: never fewer than none or more than all.",
        source="judgement",
        cases={REFUSALS: ("n_probs: -1", "n_probs: 100000")},
        without=rewrite.changed("n_probs", (-1, 0), (100000, 392)),
    ),
    KnownDifference(
        name="head-without-ranges",
        why="No answer comes in ranges, so none is offered.",
        source="judgement",
        cases={REFUSALS: ("HEAD of a known route",)},
        without=rewrite.missing("accept-ranges", beside="content-type"),
    ),
)

DIFFERENCES: tuple[KnownDifference, ...] = (
    *_STREAMS,
    *_PROBABILITIES,
    *_NAMES,
    *_MORE_KEYS,
    *_WORK,
    *REFUSAL_DIFFERENCES,
)
