"""Rewrites (see `rewrites`) of errors, and of answers where one of the two servers refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bloomery.conformance.answers import Json
from bloomery.conformance.cases import Exchange
from bloomery.conformance.rewrites import Pair, Rewrite, insert

_JSON = {"content-type": "application/json; charset=utf-8"}


def error_of(answer: Json) -> Json:
    """The error object of an answer; empty when it has none."""
    body = answer["body"]
    error = body.get("error") if isinstance(body, dict) else None
    return error if isinstance(error, dict) else {}


def is_refusal(answer: Json, param: str | None, status: int = 400, type_: str = "invalid_request_error") -> bool:
    """Whether an answer is this error and nothing else, with a message and with this `param` or none."""
    owed = {"code": status, "message": error_of(answer).get("message"), "type": type_}
    owed |= {} if param is None else {"param": param}
    named = isinstance(owed["message"], str) and owed["message"] != ""
    return (
        named
        and _JSON.items() <= answer["headers"].items()
        and answer["status"] == status
        and answer["body"] == {"error": owed}
    )


def _ours_instead(theirs: Json, ours: Json) -> Pair:
    """Our status and body in the recorded answer's place; its headers stay, but for what belongs to the body's kind."""
    kind = {name: value for name, value in ours["headers"].items() if name in {"content-type", "x-accel-buffering"}}
    others = {name: value for name, value in theirs["headers"].items() if name != "x-accel-buffering"}
    return ours | {"headers": dict(sorted((others | kind).items()))}, ours


def refused(param: str | None, *, instead_of: int) -> Rewrite:
    """A 400 that names the field `param`, where the recorded status is another one."""

    def rewrite(_case: Exchange, theirs: Json, ours: Json) -> Pair:
        right = theirs["status"] == instead_of and is_refusal(ours, param)
        return _ours_instead(theirs, ours) if right else (theirs, ours)

    return rewrite


def own_message(theirs: Json, ours: Json) -> None:
    """The same error in other words."""
    one, other = error_of(theirs), error_of(ours)
    right = theirs["status"] == ours["status"] and isinstance(other.get("message"), str) and other["message"] != ""
    if right and "message" in one:
        one["message"] = other["message"]


def in_own_words(_case: Exchange, theirs: Json, ours: Json) -> Pair:
    """The same error with a message of the server's own."""
    own_message(theirs, ours)
    return theirs, ours


def with_param(param: str) -> Rewrite:
    """The same error, which also names the field; owed."""

    def rewrite(_case: Exchange, theirs: Json, ours: Json) -> Pair:
        if "message" in error_of(theirs):
            insert(error_of(theirs), error_of(ours), "param", param)
        return theirs, ours

    return rewrite


def unknown_route(case: Exchange, theirs: Json, ours: Json) -> Pair:
    """A 404 that says what was asked for, and what there is."""
    asked = f"File Not Found: {case.method} {case.path}; this server serves: /"
    if str(error_of(ours).get("message")).startswith(asked):
        own_message(theirs, ours)
    return theirs, ours


def error_keys_in_order(_case: Exchange, theirs: Json, ours: Json) -> Pair:
    """An error object with its keys in the order of all others."""
    error = error_of(theirs)
    if list(error) == ["message", "type", "code"]:
        theirs["body"] = {"error": {key: error[key] for key in ("code", "message", "type")}}
    return theirs, ours


def no_such_route(*, instead_of: int) -> Rewrite:
    """A 404 of a route that llama-server has and answers with another error."""

    def rewrite(case: Exchange, theirs: Json, ours: Json) -> Pair:
        asked = f"File Not Found: {case.method} {case.path}; this server serves: /"
        right = is_refusal(ours, None, 404, "not_found_error") and str(error_of(ours)["message"]).startswith(asked)
        return _ours_instead(theirs, ours) if theirs["status"] == instead_of and right else (theirs, ours)

    return rewrite


def answered(fits: Callable[[Any], bool], *, instead_of: int) -> Rewrite:
    """A 200 whose body fits, where the recorded answer is an error."""

    def rewrite(_case: Exchange, theirs: Json, ours: Json) -> Pair:
        right = theirs["status"] == instead_of and ours["status"] == 200 and fits(ours["body"])
        return _ours_instead(theirs, ours) if right else (theirs, ours)

    return rewrite


def unfinished_call(name: str) -> Rewrite:
    """A 500 that names the call the reply ended in: as the answer, or as the last event of a stream."""

    def rewrite(_case: Exchange, theirs: Json, ours: Json) -> Pair:
        streamed = isinstance(ours["body"], list)
        last = {"status": 500, "headers": _JSON, "body": ours["body"][-1]} if streamed else ours
        if not is_refusal(last, None, 500, "server_error") or name not in error_of(last)["message"]:
            return theirs, ours
        if not streamed:
            return _ours_instead(theirs, ours) if theirs["status"] == 200 else (theirs, ours)
        # The recorded stream ends with a finish reason and [DONE] instead.
        theirs["body"] = [*theirs["body"][:-2], ours["body"][-1]]
        return theirs, ours

    return rewrite
