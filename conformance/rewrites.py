"""What takes a known difference out of two answers, so that whatever else differs is left.

A rewrite gets a case and the two answers as JSON (`answers.as_json`), which it may change, and returns both as they
look without its difference. Most write into the recorded answer what a conforming server owes instead. A rewrite that
does not find exactly what it expects leaves both alone, except that what is owed is written wherever it belongs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from bloomery.conformance.answers import Json
from bloomery.conformance.cases import Exchange
from bloomery.conformance.volatile import NUMBER, TEXT

Pair: TypeAlias = tuple[Json, Json]
Rewrite: TypeAlias = Callable[[Exchange, Json, Json], Pair]

DONE = "data: [DONE]"


def pairs(theirs: Any, ours: Any) -> Iterator[tuple[Json, Json]]:
    """Every two objects that stand at one place of both values, the outer ones first."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        yield theirs, ours
        for key in theirs:
            if key in ours:
                yield from pairs(theirs[key], ours[key])
    elif isinstance(theirs, list) and isinstance(ours, list):
        for one, other in zip(theirs, ours, strict=False):
            yield from pairs(one, other)


def in_objects(change: Callable[[Json, Json], None]) -> Rewrite:
    """Let `change` look at every two objects that stand at one place."""

    def rewrite(_case: Exchange, theirs: Json, ours: Json) -> Pair:
        for one, other in pairs(theirs, ours):
            change(one, other)
        return theirs, ours

    return rewrite


def insert(theirs: Json, ours: Json, key: str, value: Any) -> None:
    """Give `theirs` a key it lacks: at its place in `ours`, at the end where ours lacks it too."""
    if key in theirs:
        return
    before = list(ours)[: list(ours).index(key)] if key in ours else []
    follows = next((name for name in reversed(before) if name in theirs), None)
    entries = list(theirs.items())
    place = len(entries) if key not in ours else 0 if follows is None else 1 + list(theirs).index(follows)
    theirs.clear()
    theirs.update([*entries[:place], (key, value), *entries[place:]])


def added(key: str, fits: Callable[[Any], bool], *, beside: str) -> Rewrite:
    """A key that only our objects have, with a value that fits; in objects that have the key `beside`."""

    def change(theirs: Json, ours: Json) -> None:
        if beside in theirs and key in ours and fits(ours[key]):
            insert(theirs, ours, key, ours[key])

    return in_objects(change)


def missing(*keys: str, beside: str) -> Rewrite:
    """Keys that only recorded objects have; in objects that have the key `beside`."""

    def change(theirs: Json, ours: Json) -> None:
        for key in keys if beside in theirs else ():
            if key not in ours:
                theirs.pop(key, None)

    return in_objects(change)


def changed(key: str, *values: tuple[Any, Any]) -> Rewrite:
    """A key with another value: one of these (recorded, ours) pairs, each of one type."""

    def change(theirs: Json, ours: Json) -> None:
        if key in theirs and key in ours and (theirs[key], ours[key]) in values:
            theirs[key] = ours[key]

    return in_objects(change)


def becomes(key: str, recorded: Any, owed: Any) -> Rewrite:
    """A key with another value, whatever ours is; owed."""

    def change(theirs: Json, _ours: Json) -> None:
        if key in theirs and theirs[key] == recorded:
            theirs[key] = owed

    return in_objects(change)


def respelled(key: str, spell: Callable[[Any], Any]) -> Rewrite:
    """A key whose value is what `spell` makes of the recorded one; None when it makes nothing of it."""

    def change(theirs: Json, ours: Json) -> None:
        if key in theirs and (value := spell(theirs[key])) is not None and ours.get(key) == value:
            theirs[key] = value

    return in_objects(change)


def chained(*rewrites: Rewrite) -> Rewrite:
    """One after the other."""

    def rewrite(case: Exchange, theirs: Json, ours: Json) -> Pair:
        for each in rewrites:
            theirs, ours = each(case, theirs, ours)
        return theirs, ours

    return rewrite


# Text.


def delta_of(event: Any) -> Any:
    """What a chunk of a chat stream adds to its one choice; None for any other event."""
    choices = event.get("choices") if isinstance(event, dict) else None
    return choices[0].get("delta") if choices and len(choices) == 1 else None


def _is_piece(event: Any, text: str) -> bool:
    if not isinstance(event, dict):
        return False
    return delta_of(event) == {"content": text} or (event.get("content") == text and event.get("stop") is False)


def released_at_end(text: str) -> Rewrite:
    """Text at the answer's end that the recorded one lacks: in a stream, the event before the one that ends it."""

    def rewrite(_case: Exchange, theirs: Json, ours: Json) -> Pair:
        body = ours["body"]
        if isinstance(body, list):
            at = len(body) - (3 if body[-1] == DONE else 2)
            if _is_piece(body[at], text):
                del body[at]
        else:
            for one, other in pairs(theirs, ours):
                if other.get("role") == "assistant" and other["content"] == one["content"] + text:
                    one["content"] = other["content"]
        return theirs, ours

    return rewrite


def timings_at_stop(_case: Exchange, theirs: Json, ours: Json) -> Pair:
    """Timings in the event before the one that ends a stream."""
    events = theirs["body"]
    at = len(events) - (3 if events[-1] == DONE else 2)
    if "timings" not in ours["body"][at]:
        events[at].pop("timings", None)
    return theirs, ours


def stop_never_empty(*pieces: tuple[str, int]) -> Rewrite:
    """An empty stop string, which ends the recorded completion at once; ours goes on with these texts and ids."""
    text, n = "".join(piece for piece, _ in pieces), len(pieces)

    def completed(last: Json) -> None:
        kept = last["tokens_cached"] - last["tokens_predicted"]
        last |= {"tokens_predicted": n, "stop_type": "limit", "tokens_cached": kept + n}
        last["timings"]["predicted_n"] = n

    def rewrite(_case: Exchange, theirs: Json, ours: Json) -> Pair:
        body = theirs["body"]
        if isinstance(body, list):
            first, last = body
            theirs["body"] = [
                *(
                    first | {"content": piece, "tokens": [token], "tokens_predicted": at}
                    for at, (piece, token) in enumerate(pieces, 1)
                ),
                last,
            ]
        else:
            last = body
            last["content"] = text
        completed(last)
        return theirs, ours

    return rewrite


# Tool calls.


def _call_of(event: Any) -> Json | None:
    delta = delta_of(event)
    calls = delta.get("tool_calls") if isinstance(delta, dict) and len(delta) == 1 else None
    return calls[0] if calls and len(calls) == 1 else None


def joined_arguments(events: list[Any]) -> list[Any]:
    """A chat stream with the arguments of each call in one piece, in the chunk that begins the call."""
    joined: list[Any] = []
    for event in events:
        call, begun = _call_of(event), _call_of(joined[-1]) if joined else None
        goes_on = call is not None and call.keys() == {"index", "function"} and call["function"].keys() == {"arguments"}
        if goes_on and call is not None and begun is not None and begun["index"] == call["index"]:
            begun["function"]["arguments"] += call["function"]["arguments"]
        else:
            joined.append(event)
    return joined


def called_at_end(name: str) -> Rewrite:
    """A call of `name` without arguments at the answer's end, which the recorded one lacks."""

    def rewrite(_case: Exchange, theirs: Json, ours: Json) -> Pair:
        body = ours["body"]
        if isinstance(body, list):
            at = len(body) - (3 if body[-1] == DONE else 2)
            if (call := _call_of(body[at])) is not None and call["function"] == {"name": name, "arguments": "{"}:
                del body[at]
        else:
            for one, other in pairs(theirs, ours):
                calls = [call["function"] for call in other.get("tool_calls", ())]
                if "tool_calls" not in one and calls == [{"name": name, "arguments": "{"}]:
                    del other["tool_calls"]
        return theirs, ours

    return rewrite


def arguments_recut(_case: Exchange, theirs: Json, ours: Json) -> Pair:
    """A call's arguments in other pieces."""
    theirs["body"], ours["body"] = joined_arguments(theirs["body"]), joined_arguments(ours["body"])
    return theirs, ours


# Ids and probabilities.


def _entries(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(entry, dict) and "top_logprobs" in entry for entry in value)


def _n_predicted(answer: Json) -> int:
    """The ids of an answer, by its last timings."""
    events = answer["body"] if isinstance(answer["body"], list) else [answer["body"]]
    timed = [event["timings"]["predicted_n"] for event in events if isinstance(event, dict) and "timings" in event]
    return int(timed[-1]) if timed else -1


def _lists(value: Any, key: str) -> Iterator[list[Any]]:
    """Every list under a key, anywhere in a value."""
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _lists(inner, key)
    if isinstance(value, dict) and isinstance(value.get(key), list):
        yield value[key]


def _fits(entry: Json, like: Json) -> bool:
    """Whether an entry of ours has the form of the others, and its id is the best as its alternatives have it."""
    agrees = entry["top_logprobs"][0] == {key: value for key, value in entry.items() if key != "top_logprobs"}
    return list(entry) == list(like) and len(entry["top_logprobs"]) == len(like["top_logprobs"]) and agrees


def _filled(theirs: list[Json], ours: list[Json], like: Json) -> list[Json]:
    """Our entries, each recorded one in its place; the recorded ones alone if they are not a part of ours in order."""
    rest = list(theirs)
    filled = []
    for entry in ours:
        if rest and rest[0]["id"] == entry["id"]:
            filled.append(rest.pop(0))
        elif _fits(entry, like):
            filled.append(entry)
    return theirs if rest else filled


def probability_for_every_id(_case: Exchange, theirs: Json, ours: Json) -> Pair:
    """Entries of ids that the recorded answer leaves out, as long as ours then has one for each id."""
    for key in ("completion_probabilities", "content"):
        recorded = [entry for entries in _lists(theirs["body"], key) if _entries(entries) for entry in entries]
        n_ours = sum(len(entries) for entries in _lists(ours["body"], key) if _entries(entries))
        if not recorded or n_ours != _n_predicted(ours):
            continue
        for one, other in pairs(theirs, ours):
            if isinstance(one.get(key), list) and _entries(other.get(key)):
                one[key] = _filled(one[key], other[key], recorded[0])
            elif "finish_reason" in one and _entries(other.get("logprobs", {}).get(key)):
                insert(one, other, "logprobs", {key: _filled([], other["logprobs"][key], recorded[0])})
    return theirs, ours


def ids_of_every_character(_case: Exchange, theirs: Json, ours: Json) -> Pair:
    """Events with all ids of a character, where the recorded one has its last alone."""
    if sum(map(len, _lists(ours["body"], "tokens"))) == _n_predicted(ours):
        for one, other in pairs(theirs, ours):
            last, every = one.get("tokens"), other.get("tokens")
            if last and every and every[-len(last) :] == last:
                one["tokens"] = every
    return theirs, ours


def own_entry_is_its_piece(theirs: Json, ours: Json) -> None:
    """An id's own entry with the text and bytes of the id, as the recorded alternatives have them."""
    for best in theirs.get("top_logprobs", ()):
        if best["id"] == theirs.get("id") == ours.get("id"):
            theirs["token"], theirs["bytes"] = best["token"], best["bytes"]


def with_an_id_of_its_own(theirs: Json, ours: Json) -> None:
    """Ids of answers and calls in other forms."""
    forms = {(TEXT, f"call_{index}_{TEXT}") for index in range(10)} | {(f"chatcmpl-{TEXT}", f"cmpl-{TEXT}")}
    if (theirs.get("id"), ours.get("id")) in forms:
        theirs["id"] = ours["id"]


def path_of_the_same_file(theirs: Json, ours: Json) -> None:
    """A model's path with folders."""
    if "model_path" in theirs and str(ours.get("model_path")).endswith(f"/{theirs['model_path']}"):
        theirs["model_path"] = ours["model_path"]


# Counts.


def cache_ms(theirs: Json, ours: Json) -> None:
    """The prompt cache's time beside the others; owed."""
    if "cache_n" in theirs:
        insert(theirs, ours, "cache_ms", NUMBER)


def stopped_booleans(theirs: Json, ours: Json) -> None:
    """stop_type once more, as three booleans; owed."""
    for cause in ("eos", "word", "limit") if "stop_type" in theirs and "stopping_word" in theirs else ():
        insert(theirs, ours, f"stopped_{cause}", theirs["stop_type"] == cause)


def n_past(theirs: Json, ours: Json) -> None:
    """A slot's ids once more; owed."""
    if "is_processing" in theirs:
        insert(theirs, ours, "n_past", theirs.get("n_prompt_tokens", 0))


def less_from_the_cache(_case: Exchange, theirs: Json, ours: Json) -> Pair:
    """Fewer ids reused and as many more computed, and the same said in usage."""
    recorded, answered = theirs["body"]["timings"], ours["body"]["timings"]
    same = recorded["cache_n"] + recorded["prompt_n"] == answered["cache_n"] + answered["prompt_n"]
    if same and answered["cache_n"] < recorded["cache_n"]:
        recorded |= {key: answered[key] for key in ("cache_n", "prompt_n")}
        theirs["body"]["usage"]["prompt_tokens_details"]["cached_tokens"] = answered["cache_n"]
    return theirs, ours


def counted(**values: tuple[int, int]) -> Rewrite:
    """Counts by their keys, each a (recorded, ours) pair."""
    return chained(*(changed(key, pair) for key, pair in values.items()))


def more_metrics(kinds: Mapping[str, str]) -> Rewrite:
    """Metrics of our own, by name and kind; those without labels have one value."""

    def rewrite(_case: Exchange, theirs: Json, ours: Json) -> Pair:
        for name, kind in kinds.items():
            own = ours["body"].get(f"llamacpp:{name}")
            if (
                own is not None
                and own["kind"] == kind
                and all(labels.startswith("{width=") or not labels for labels in own["values"])
            ):
                insert(theirs["body"], ours["body"], f"llamacpp:{name}", own)
        return theirs, ours

    return rewrite
