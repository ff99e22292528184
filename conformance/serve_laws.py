"""What is true of every server with every model: laws, held by asking.

Each law is asked of a server by its URL and needs to know nothing of its model. A law that a server has no page for is
skipped by name. Prompts are drawn from texts in many scripts by the run's seed.
"""

from __future__ import annotations

import json
import random
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bloomery.conformance.corpus.texts import TEXTS
from bloomery.conformance.finding import Check, Effort, Finding
from bloomery.conformance.peer import Peer, PeerError, about
from bloomery.conformance.reports.report import first_few

SUBJECT = "laws"
_ROUNDS = 6
_N_PREDICT = 24
_FREED_SECONDS = 30.0
_PROMPTS = tuple(text for text in TEXTS if text.strip() and "<|" not in text)


class NoPageError(RuntimeError):
    """The server has no page for a law; the message says which, and how it is switched on."""


# What a law found: the numbers, and the sentences of what is wrong.
Outcome = tuple[dict[str, float], list[str]]
Law = Callable[[Peer, Effort], Outcome]


def _rounds(effort: Effort) -> Iterator[random.Random]:
    """A generator for each round, until the check's time is spent; at least one."""
    ends = None if effort.seconds is None else time.monotonic() + effort.seconds
    for number in range(_ROUNDS):
        if number and ends is not None and time.monotonic() > ends:
            return
        yield random.Random(f"{effort.seed} {number}")


def _request(draw: random.Random, **more: Any) -> dict[str, Any]:
    """A completion of a drawn prompt: greedy or seeded."""
    sampled = {"temperature": 1.0, "seed": draw.randrange(2**32)} if draw.random() < 0.5 else {"temperature": 0}
    return {"prompt": draw.choice(_PROMPTS), "n_predict": _N_PREDICT, "cache_prompt": False, **sampled, **more}


def _told(fields: Mapping[str, Any]) -> str:
    return json.dumps(fields, ensure_ascii=False)


def health_answers(peer: Peer, _effort: Effort) -> Outcome:
    """GET /health is 200 and says ok."""
    page = peer.get("/health")
    return {}, [] if page == {"status": "ok"} else [f'/health says {page!r}, not {{"status": "ok"}}']


def _error_faults(name: str, status: int, body: bytes, wanted: int) -> list[str]:
    """What is wrong with an error's status and shape."""
    if status != wanted:
        return [f"{name} answers {status}, not {wanted}"]
    try:
        error = json.loads(body)["error"]
        shaped = error["code"] == status and bool(error["message"]) and isinstance(error["type"], str)
    except (LookupError, TypeError, ValueError):
        shaped = False
    return [] if shaped else [f"{name} answers no object error with its code, message and type: {body[:200]!r}"]


def unknown_path(peer: Peer, _effort: Effort) -> Outcome:
    """A path that is none is a 404 with an error object."""
    wrong = []
    for method, path, body in (("GET", "/no/such/page", None), ("POST", "/no/such/page", b"{}")):
        answer = peer.ask(method, path, body)
        wrong += _error_faults(f"{method} {path}", answer.status, answer.body, 404)
    return {}, wrong


def broken_bodies(peer: Peer, _effort: Effort) -> Outcome:
    """A body that is no JSON, or no request, is a 400 with an error object, and the server goes on."""
    wrong = []
    bodies = (b"{", b"", b"\xff\xfe", b'{"prompt": "a", "n_predict": {}}', b'{"messages": 5}')
    for path in ("/completion", "/v1/chat/completions"):
        for body in bodies[:3] if path == "/completion" else (*bodies[:3], bodies[4]):
            answer = peer.ask("POST", path, body)
            wrong += _error_faults(f"POST {path} with {body!r}", answer.status, answer.body, 400)
    if peer.ask("GET", "/health").status != 200:
        wrong.append("the server does not answer /health any more")
    return {}, wrong


def something_is_said(peer: Peer, effort: Effort) -> Outcome:
    """A prompt is answered: with ids, and not always with the empty text. Without it other laws compare nothing."""
    wrong, texts = [], []
    for draw in _rounds(effort):
        fields = _request(draw, return_tokens=True)
        whole = peer.post("/completion", fields)
        texts.append(whole["content"])
        if not (isinstance(whole["tokens"], list) and whole["tokens"]):
            wrong.append(f"{_told(fields)}: nothing was generated")
    if not any(texts):
        wrong.append(f"all of {len(texts)} answers are the empty text")
    return {"characters": float(sum(map(len, texts)))}, wrong


def completion_stream(peer: Peer, effort: Effort) -> Outcome:
    """/completion: the pieces of a stream, joined, are the whole answer."""
    wrong = []
    pieces = 0
    for draw in _rounds(effort):
        fields = _request(draw, return_tokens=True)
        whole = peer.post("/completion", fields)
        events = peer.stream("/completion", fields)
        pieces += len(events)
        joined = "".join(event["content"] for event in events)
        if joined != whole["content"]:
            wrong.append(f"{_told(fields)}: the stream is {joined!r}, the whole answer {whole['content']!r}")
    return {"pieces": pieces}, wrong


def text_completion_stream(peer: Peer, effort: Effort) -> Outcome:
    """/v1/completions: the same."""
    wrong = []
    for draw in _rounds(effort):
        fields = _request(draw)
        fields["max_tokens"] = fields.pop("n_predict")
        whole = peer.post("/v1/completions", fields)["choices"][0]["text"]
        events = peer.stream("/v1/completions", fields)
        joined = "".join(choice["text"] for event in events for choice in event["choices"])
        if joined != whole:
            wrong.append(f"{_told(fields)}: the stream is {joined!r}, the whole answer {whole!r}")
    return {}, wrong


def _chat_parts(deltas: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Content, thoughts and each call's name and arguments of a message, or of all deltas of one."""
    parts: dict[str, str] = {}
    for delta in deltas:
        for key in ("content", "reasoning_content"):
            parts[key] = parts.get(key, "") + (delta.get(key) or "")
        for place, call in enumerate(delta.get("tool_calls") or ()):
            for key in ("name", "arguments"):
                name = f"call {call.get('index', place)} {key}"
                parts[name] = parts.get(name, "") + (call["function"].get(key) or "")
    return parts


def chat_stream(peer: Peer, effort: Effort) -> Outcome:
    """/v1/chat/completions: content, thoughts and calls, each joined, are the whole message's."""
    wrong = []
    for draw in _rounds(effort):
        fields = _request(draw)
        fields["max_tokens"] = fields.pop("n_predict")
        fields["messages"] = [{"role": "user", "content": fields.pop("prompt")}]
        whole = _chat_parts([peer.post("/v1/chat/completions", fields)["choices"][0]["message"]])
        events = peer.stream("/v1/chat/completions", fields)
        joined = _chat_parts(choice["delta"] for event in events for choice in event["choices"])
        wrong += [
            f"{_told(fields)}: {name} of the stream is {joined.get(name)!r}, of the whole answer {whole.get(name)!r}"
            for name in whole | joined
            if joined.get(name, "") != whole.get(name, "")
        ]
    return {}, wrong


def _ids(peer: Peer, fields: Mapping[str, Any]) -> list[int]:
    return list(peer.post("/completion", {**fields, "return_tokens": True})["tokens"])


def same_seed(peer: Peer, effort: Effort) -> Outcome:
    """A request with a seed, asked twice, gives the same ids."""
    wrong = []
    for draw in _rounds(effort):
        fields = _request(draw)
        first, second = _ids(peer, fields), _ids(peer, fields)
        if first != second:
            wrong.append(f"{_told(fields)}: {first}, then {second}")
    return {}, wrong


def _of_two_letters(peer: Peer, draw: random.Random) -> dict[str, Any]:
    """A request whose answer is a drawn row of two letters, of which parts repeat and begin again in themselves."""
    letters = [peer.post("/tokenize", {"content": letter})["tokens"] for letter in "ab"]
    bias = {str(ids[0]): 90.0 for ids in letters if len(ids) == 1}
    sampled = {"temperature": 1e6, "top_k": 2, "top_p": 1.0, "min_p": 0.0, "seed": draw.randrange(2**32)}
    return {**_request(draw), **sampled, "n_predict": 2 * _N_PREDICT, "logit_bias": bias}


def stops_end_the_text(peer: Peer, effort: Effort) -> Outcome:
    """An answer with a stop string is what comes before its first occurrence, whole and streamed."""
    wrong = []
    for draw in _rounds(effort):
        fields = _of_two_letters(peer, draw)
        text = peer.post("/completion", fields)["content"]
        for length in (2, 3, 4, 5):
            # Late in the text, so that beginnings of it come and go before.
            at = draw.randrange(len(text) // 2, max(len(text) // 2 + 1, len(text) - length))
            stopped = {**fields, "stop": [text[at : at + length]]}
            if not stopped["stop"][0]:
                continue
            wanted = text[: text.index(stopped["stop"][0])]
            whole = peer.post("/completion", stopped)["content"]
            streamed = "".join(event["content"] for event in peer.stream("/completion", stopped))
            wrong += [
                f"{_told(stopped)}: the {form} is {got!r} and must be {wanted!r}, of {text!r}"
                for form, got in (("answer", whole), ("stream", streamed))
                if got != wanted
            ]
    return {}, wrong


def penalties_see_the_prompt(peer: Peer, _effort: Effort) -> Outcome:
    """Of two letters that are far ahead, one that stands in the prompt is not drawn under a presence penalty."""
    wrong = []
    ids = {letter: peer.post("/tokenize", {"content": letter})["tokens"] for letter in "ab"}
    bias = {str(token): 90.0 for tokens in ids.values() for token in tokens[-1:]}
    for seen, other in ("ab", "ba"):
        fields = {"prompt": seen, "n_predict": 1, "temperature": 0, "presence_penalty": 80.0, "logit_bias": bias}
        drawn = peer.post("/completion", {**fields, "cache_prompt": False})["content"]
        if drawn != other:
            wrong.append(f"{_told(fields)}: {drawn!r} is drawn, and must be {other!r}, as {seen!r} is in the prompt")
    return {}, wrong


def choices_of_a_seed(peer: Peer, effort: Effort) -> Outcome:
    """Choice i of a seeded request is the answer of the seed plus i, and the usage counts all of them."""
    if peer.get("/props").get("total_slots", 2) < 2:
        raise NoPageError("the server has one slot, and a llama-server takes no more choices than it has slots")
    wrong = []
    for draw in _rounds(effort):
        fields = {**_request(draw), "temperature": 1.0, "seed": draw.randrange(2**31)}
        fields["max_tokens"] = fields.pop("n_predict") // 2
        together = peer.post("/v1/completions", {**fields, "n": 2})
        alone = [peer.post("/v1/completions", {**fields, "seed": fields["seed"] + choice}) for choice in range(2)]
        texts = [[choice["text"] for choice in answer["choices"]] for answer in (together, *alone)]
        if texts[0] != [text for one in texts[1:] for text in one]:
            wrong.append(f"{_told(fields)}: two choices are {texts[0]}, asked for one by one {texts[1:]}")
        counts = [answer["usage"]["completion_tokens"] for answer in (together, *alone)]
        if counts[0] != sum(counts[1:]):
            wrong.append(f"{_told(fields)}: two choices cost {counts[0]} ids, asked for one by one {counts[1:]}")
    return {}, wrong


def cached_prefix(peer: Peer, effort: Effort) -> Outcome:
    """Reusing what a slot holds of a prompt changes no greedy id."""
    wrong = []
    for draw in _rounds(effort):
        fields = {**_request(draw), "temperature": 0, "id_slot": 0}
        fresh = _ids(peer, fields)
        prompt = fields["prompt"]
        # What the slot holds before: the prompt itself, something else, and what parts from it after a while.
        before = (prompt, draw.choice(_PROMPTS), prompt[: len(prompt) // 2] + "~~")
        for text in before:
            _ids(peer, {**fields, "prompt": text, "n_predict": 2})
            reused = _ids(peer, {**fields, "cache_prompt": True})
            if reused != fresh:
                wrong.append(f"{_told(fields)}: {fresh} without the cache, {reused} with it after {text!r}")
    return {}, wrong


def concurrent(peer: Peer, effort: Effort) -> Outcome:
    """What else runs beside a request changes no greedy id."""
    count = max(4, 2 * about(peer).n_slots)
    wrong = []
    for draw in _rounds(effort):
        requests = [{**_request(draw), "temperature": 0} for _ in range(count)]
        alone = [_ids(peer, fields) for fields in requests]
        with ThreadPoolExecutor(count) as pool:
            together = list(pool.map(lambda fields: _ids(peer, fields), requests))
        wrong += [
            f"{_told(fields)}: {one} alone, {other} beside others"
            for fields, one, other in zip(requests, alone, together, strict=True)
            if one != other
        ]
    return {"at once": count}, wrong


def round_trip(peer: Peer, effort: Effort) -> Outcome:
    """/detokenize of /tokenize is the text."""
    wrong = []
    asked = 0
    for draw in _rounds(effort):
        for text in draw.sample(TEXTS, 8):
            ids = peer.post("/tokenize", {"content": text})["tokens"]
            back = peer.post("/detokenize", {"tokens": ids})["content"]
            asked += 1
            if back != text:
                wrong.append(f"{text!r} is the ids {ids}, which are the text {back!r}")
    return {"texts": asked}, wrong


def _slots(peer: Peer) -> list[dict[str, Any]]:
    answer = peer.ask("GET", "/slots")
    if answer.status != 200:
        raise NoPageError(f"/slots answers {answer.status}; llama-server has the page with --slots")
    return list(json.loads(answer.body))


def _n_decoded(slot: Mapping[str, Any]) -> int:
    token = slot.get("next_token") or {}
    return int((token[0] if isinstance(token, list) else token).get("n_decoded", 0))


def _n_predicted(peer: Peer) -> int:
    """How many tokens the server has generated in all, as /metrics says; 0 where it does not say."""
    answer = peer.ask("GET", "/metrics")
    lines = answer.body.decode("utf-8", "replace").splitlines() if answer.status == 200 else []
    counts = [line.split()[-1] for line in lines if line.startswith("llamacpp:tokens_predicted_total")]
    return int(float(counts[0])) if counts else 0


def _leave_a_stream(peer: Peer, fields: Mapping[str, Any]) -> None:
    """Ask for a stream, wait for its first event and close the connection."""
    body = json.dumps({**fields, "stream": True}).encode()
    lines = [f"POST /completion HTTP/1.1\r\nHost: {peer.address[0]}\r\nContent-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in (("Content-Type", "application/json"), *peer.headers)]
    try:
        with socket.create_connection(peer.address, peer.timeout) as connection:
            connection.sendall("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body)
            seen = b""
            while b"data: " not in seen:
                more = connection.recv(4096)
                if not more:
                    raise PeerError(f"POST /completion at {peer.url} ended without an event: {seen[:200]!r}")
                seen += more
    except OSError as error:
        raise PeerError(f"POST /completion at {peer.url} was not answered: {error}") from None


def left_stream(peer: Peer, _effort: Effort) -> Outcome:
    """A client that goes away frees its slot before its answer is done."""
    n_predict = max(8, min(_slots(peer)[0]["n_ctx"] - 32, 4096))
    fields = {"prompt": "a", "n_predict": n_predict, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
    predicted = _n_predicted(peer)
    _leave_a_stream(peer, {**fields, "id_slot": 0})
    ends = time.monotonic() + _FREED_SECONDS
    slots = _slots(peer)
    while any(slot["is_processing"] for slot in slots) and time.monotonic() < ends:
        time.sleep(0.02)
        slots = _slots(peer)
    # A slot that is free may count from 0 again.
    decoded = max(_n_decoded(slots[0]), _n_predicted(peer) - predicted)
    measured = {"asked for": float(n_predict), "generated": float(decoded)}
    if any(slot["is_processing"] for slot in slots):
        return measured, [f"the slot is still at work {_FREED_SECONDS:g} s after its client went away"]
    if decoded >= n_predict:
        return measured, [f"all {n_predict} tokens were generated for a client that was gone after the first"]
    _ids(peer, {**fields, "n_predict": 2, "id_slot": 0})
    return measured, []


# The most telling first.
LAWS: Mapping[str, Law] = {
    "health answers": health_answers,
    "something is said": something_is_said,
    "stream is whole, completion": completion_stream,
    "stream is whole, chat": chat_stream,
    "concurrent is alone": concurrent,
    "a cached prefix changes nothing": cached_prefix,
    "a left stream frees its slot": left_stream,
    "stops end the text": stops_end_the_text,
    "choices of a seed": choices_of_a_seed,
    "penalties see the prompt": penalties_see_the_prompt,
    "an unknown path": unknown_path,
    "broken bodies": broken_bodies,
    "the same seed, the same ids": same_seed,
    "text to ids and back": round_trip,
    "stream is whole, text completion": text_completion_stream,
}
_MOST_SENTENCES = 10


def hold(name: str, peer: Peer, effort: Effort) -> Finding:
    """One law, held against a server."""
    try:
        measured, wrong = LAWS[name](peer, effort)
    except NoPageError as error:
        return Finding(subject=SUBJECT, check=name, measured={}, skipped=str(error))
    except PeerError as error:
        measured, wrong = {}, [str(error)]
    except (AttributeError, LookupError, TypeError) as error:
        # An answer of another shape than the route's is the server's fault, not the check's.
        measured, wrong = {}, [f"an answer has another shape than llama-server's: {type(error).__name__}: {error}"]
    return Finding(subject=SUBJECT, check=name, measured=measured, wrong=first_few(wrong, _MOST_SENTENCES))


def law_checks(peer: Peer) -> list[Check]:
    """Every law, of one server."""
    return [
        Check(subject=SUBJECT, name=name, run=lambda effort, name=name: [hold(name, peer, effort)])  # type: ignore[misc]
        for name in LAWS
    ]
