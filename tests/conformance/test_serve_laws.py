"""Each law of serving finds the fault that it is about, and this server keeps them all."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from bloomery.conformance import serve_laws
from bloomery.conformance.finding import Effort, Finding
from bloomery.conformance.fixtures import fixture
from bloomery.conformance.own_server import OwnServerError, own_server
from bloomery.conformance.peer import Peer, PeerError, about
from bloomery.conformance.serve_laws import LAWS, hold, law_checks
from bloomery.conformance.wire import Answer


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    arguments = ["--model-file", str(fixture("qwen3-a-f32")), "--ctx-size", "512", "--parallel", "2"]
    with own_server(arguments) as address:
        yield address


@pytest.mark.parametrize("name", LAWS)
def test_this_server_keeps_every_law(url: str, name: str) -> None:
    [check] = [each for each in law_checks(Peer(url)) if each.name == name]
    # No time for more than one round; a law always has one.
    [finding] = check.run(Effort(seconds=0.0))
    assert finding.verdict == "passed", finding.wrong


def test_a_server_says_what_it_is(url: str) -> None:
    server = about(Peer(url))
    assert (server.model, server.n_ctx, server.n_slots, server.bloomery) == ("qwen3-a-f32", 256, 2, True)
    assert server.n_vocab > 300


# A server in a few lines, whose faults are planted one by one.

_ERROR = {"code": 404, "message": "no", "type": "not_found_error"}


@dataclass
class Faults:
    """How the toy server strays; by default it does not."""

    health: Any = field(default_factory=lambda: {"status": "ok"})
    unknown: tuple[int, Any] = (404, {"error": _ERROR})
    broken_status: int = 400
    dies_of_broken: bool = False
    stream: Callable[[list[dict[str, Any]]], list[dict[str, Any]]] = lambda events: events
    answer: Callable[[dict[str, Any], int], str] = lambda fields, asked: f"{fields['prompt']!r} and so on"
    text: Callable[[str], str] = lambda text: text
    stopped: Callable[[str, list[str]], str] = lambda text, stops: text[: text.index(stops[0])]
    penalised: Callable[[str], str] = lambda prompt: "b" if prompt == "a" else "a"
    choices: Callable[[int], list[int]] = lambda seed: [seed, seed + 1]
    cost: Callable[[list[str]], int] = lambda texts: sum(map(len, texts))
    slots: tuple[int, Any] = (200, [{"n_ctx": 512, "is_processing": False, "next_token": [{"n_decoded": 3}]}])


class Toy(Peer):
    """Answers without a socket."""

    def __init__(self, faults: Faults) -> None:
        super().__init__("http://127.0.0.1:1")
        object.__setattr__(self, "faults", faults)
        object.__setattr__(self, "asked", {})
        object.__setattr__(self, "dead", [])

    faults: Faults
    asked: dict[str, int]
    dead: list[bool]

    def _text(self, fields: dict[str, Any]) -> str:
        if "messages" in fields:
            fields = {**fields, "prompt": fields["messages"][0]["content"]}
        key = json.dumps(fields, sort_keys=True)
        self.asked[key] = self.asked.get(key, 0) + 1
        if "presence_penalty" in fields:
            return self.faults.penalised(fields["prompt"])
        text = self.faults.answer(fields, self.asked[key])
        return self.faults.stopped(text, fields["stop"]) if "stop" in fields else text

    def ask(self, method: str, path: str, body: bytes | None = None) -> Answer:
        status, value = self._answer(path, body)
        return Answer(status=status, reason="", headers=(), body=json.dumps(value).encode(), chunks=None)

    def _answer(self, path: str, body: bytes | None) -> tuple[int, Any]:
        if path == "/health":
            return (503, {}) if self.dead else (200, self.faults.health)
        if path == "/metrics":
            return 501, {}
        if path == "/slots":
            return self.faults.slots
        if path == "/props":
            return 200, {"default_generation_settings": {"n_ctx": 512}, "total_slots": 2}
        if path == "/v1/models":
            return 200, {"data": [{"id": "toy"}]}
        try:
            fields = json.loads(body or b"")
            valid = isinstance(fields, dict) and isinstance(fields.get("messages", []), list)
        except ValueError:
            valid = False
        if path == "/no/such/page":
            return self.faults.unknown
        if not valid:
            if self.faults.dies_of_broken:
                self.dead.append(True)
            status = self.faults.broken_status
            return status, {"error": {**_ERROR, "code": status}}
        if path == "/tokenize":
            return 200, {"tokens": list(fields["content"].encode("utf-8", "surrogatepass"))}
        if path == "/detokenize":
            return 200, {"content": self.faults.text(bytes(fields["tokens"]).decode("utf-8", "surrogatepass"))}
        if fields.pop("n", 1) == 2:
            texts = [self._text({**fields, "seed": seed}) for seed in self.faults.choices(fields["seed"])]
            return 200, {
                "choices": [{"text": text} for text in texts],
                "usage": {"completion_tokens": self.faults.cost(texts)},
            }
        text = self._text(fields)
        if path == "/completion":
            return 200, {"content": text, "tokens": list(text.encode("utf-8", "surrogatepass"))}
        if path == "/v1/completions":
            return 200, {"choices": [{"text": text}], "usage": {"completion_tokens": len(text)}}
        return 200, {"choices": [{"message": {"content": text, "reasoning_content": "Hm."}}]}

    def stream(self, path: str, fields: dict[str, Any]) -> list[Any]:
        text = self._text(fields)
        pieces = [text[at : at + 3] for at in range(0, len(text), 3)]
        if path == "/completion":
            return self.faults.stream([{"content": piece} for piece in pieces])
        if path == "/v1/completions":
            return self.faults.stream([{"choices": [{"text": piece}]} for piece in pieces])
        deltas = [{"reasoning_content": "Hm."}, *({"content": piece} for piece in pieces)]
        return self.faults.stream([{"choices": [{"delta": delta}]} for delta in deltas])


def held(name: str, faults: Faults, monkeypatch: pytest.MonkeyPatch) -> Finding:
    monkeypatch.setattr(serve_laws, "_leave_a_stream", lambda peer, fields: None)
    return hold(name, Toy(faults), Effort())


@pytest.mark.parametrize("name", LAWS)
def test_a_server_without_faults_is_found_without(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    finding = held(name, Faults(), monkeypatch)
    assert finding.verdict == "passed", finding.wrong


def _odd(fields: dict[str, Any], asked: int) -> str:
    return f"answer {asked}"


def _forgets_with_the_cache(fields: dict[str, Any], asked: int) -> str:
    return "a" if fields["cache_prompt"] else "b"


FAULTS: dict[str, tuple[str, Faults, str]] = {
    "health says nothing": ("health answers", Faults(health={}), "/health says {}"),
    "an unknown path is served": ("an unknown path", Faults(unknown=(200, {})), "answers 200, not 404"),
    "an error without its type": (
        "an unknown path",
        Faults(unknown=(404, {"error": {"code": 404, "message": "no"}})),
        "no object error",
    ),
    "an error of another code": (
        "an unknown path",
        Faults(unknown=(404, {"error": {**_ERROR, "code": 500}})),
        "no object error",
    ),
    "an error that is a text": ("an unknown path", Faults(unknown=(404, "no")), "no object"),
    "a broken body is a 500": ("broken bodies", Faults(broken_status=500), "answers 500, not 400"),
    "a broken body ends the server": ("broken bodies", Faults(dies_of_broken=True), "/health any more"),
    "a stream loses its end": (
        "stream is whole, completion",
        Faults(stream=lambda events: events[:-1]),
        "the whole answer",
    ),
    "a text stream swaps pieces": (
        "stream is whole, text completion",
        Faults(stream=lambda events: [events[1], events[0], *events[2:]]),
        "the whole answer",
    ),
    "a chat stream drops its thought": (
        "stream is whole, chat",
        Faults(stream=lambda events: events[1:]),
        "reasoning_content of the stream is ''",
    ),
    "events of another shape": (
        "stream is whole, chat",
        Faults(stream=lambda events: [{"delta": event} for event in events]),
        "another shape",
    ),
    "nothing is ever said": ("something is said", Faults(answer=lambda fields, asked: ""), "nothing was generated"),
    "a seed is not kept": ("the same seed, the same ids", Faults(answer=_odd), "then"),
    "company changes ids": ("concurrent is alone", Faults(answer=_odd), "beside others"),
    "the cache changes ids": (
        "a cached prefix changes nothing",
        Faults(answer=_forgets_with_the_cache),
        "without the cache",
    ),
    "a text loses its blanks": ("text to ids and back", Faults(text=str.strip), "which are the text"),
    "a stop leaves its first character": (
        "stops end the text",
        Faults(stopped=lambda text, stops: text[: text.index(stops[0]) + 1]),
        "and must be",
    ),
    "every choice has the same seed": (
        "choices of a seed",
        Faults(answer=lambda fields, asked: f"{fields['seed']}", choices=lambda seed: [seed, seed]),
        "asked for one by one",
    ),
    "a prompt carries no penalty": (
        "penalties see the prompt",
        Faults(penalised=lambda prompt: "a"),
        "'b', as 'a' is in the prompt",
    ),
    "one choice of two is paid for": (
        "choices of a seed",
        Faults(cost=lambda texts: len(texts[0])),
        "two choices cost",
    ),
    "a left stream runs to its end": (
        "a left stream frees its slot",
        Faults(slots=(200, [{"n_ctx": 512, "is_processing": False, "next_token": {"n_decoded": 480}}])),
        "all 480 tokens were generated",
    ),
    "a left stream never frees its slot": (
        "a left stream frees its slot",
        Faults(slots=(200, [{"n_ctx": 512, "is_processing": True}])),
        "still at work",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_law_finds_its_fault(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, faults, words = FAULTS[fault]
    monkeypatch.setattr(serve_laws, "_FREED_SECONDS", 0.1)
    finding = held(name, faults, monkeypatch)
    assert finding.verdict == "failed"
    assert any(words in sentence for sentence in finding.wrong), finding.wrong


def test_every_law_has_a_fault() -> None:
    assert {name for name, _, _ in FAULTS.values()} == set(LAWS)


def test_a_law_without_its_page_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    finding = held("a left stream frees its slot", Faults(slots=(501, {})), monkeypatch)
    assert finding.skipped == "/slots answers 501; llama-server has the page with --slots"


def test_a_server_that_is_not_there_fails_every_law() -> None:
    for name in LAWS:
        finding = hold(name, Peer("http://127.0.0.1:1"), Effort())
        assert "was not answered" in finding.wrong[0]


def test_a_server_that_is_no_llama_server_is_named() -> None:
    class Other(Toy):
        def _answer(self, path: str, body: bytes | None) -> tuple[int, Any]:
            return 200, []

    with pytest.raises(PeerError, match="are not llama-server's"):
        about(Other(Faults()))


def test_a_server_that_does_not_start_says_why() -> None:
    with pytest.raises(OwnServerError, match="no-such-file"), own_server(["--model-file", "no-such-file.gguf"]):
        pass
