"""`python -m tools.demo_model.evaluate URL`: ask a running server what the demo model should know.

Every question (user message) is held out: `corpus.is_held_out` keeps it from training in every form. An answer counts
only if it is word for word the expected one; a call, if its name and all its arguments are.
"""

import argparse
import json
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import Any

from tqdm import tqdm

from tools.demo_model.corpus import is_held_out
from tools.demo_model.questions import ask
from tools.demo_model.tool_chats import with_tools

KINDS = ["arithmetic", "facts", "words", "weather call", "calculator call", "tool answer", "no call"]
SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "default sampling": {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05},
}


@dataclass(frozen=True)
class Probe:
    """A conversation to continue, and the only continuation that counts."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    thinking: bool
    content: str
    calls: list[tuple[str, dict[str, Any]]]


def _held_out(messages: list[dict[str, Any]]) -> bool:
    return all(is_held_out(message["content"]) for message in messages if message["role"] == "user")


def _from_memory(rng: Random, kind: str) -> Iterator[Probe]:
    while True:
        exchange = ask(rng, kind)
        yield Probe([{"role": "user", "content": exchange.question}], None, rng.random() < 0.5, exchange.answer, [])


def _with_tools(rng: Random, kind: str) -> Iterator[Probe]:
    task = {"weather call": "weather", "calculator call": "calculator"}.get(kind)
    while True:
        thinking = rng.random() < 0.5
        chat = with_tools(rng, thinking, task)
        first = chat.messages[1]
        if kind in ("weather call", "calculator call") and "tool_calls" in first:
            calls = [(call["function"]["name"], call["function"]["arguments"]) for call in first["tool_calls"]]
            yield Probe(chat.messages[:1], chat.tools, thinking, "", calls)
        elif kind == "tool answer" and chat.messages[-2]["role"] == "tool":
            yield Probe(chat.messages[:-1], chat.tools, thinking, chat.messages[-1]["content"], [])
        elif kind == "no call" and len(chat.messages) == 2 and "tool_calls" not in first:
            yield Probe(chat.messages[:1], chat.tools, thinking, first["content"], [])


def probes(kind: str, count: int, seed: int) -> list[Probe]:
    """The first `count` held-out probes of a kind."""
    rng = Random(f"{seed} {kind}")
    source = _with_tools(rng, kind) if kind.endswith(("call", "answer")) else _from_memory(rng, kind)
    return list(islice((probe for probe in source if _held_out(probe.messages)), count))


def complete(url: str, probe: Probe, sampling: dict[str, Any], seed: int) -> dict[str, Any]:
    """The assistant message a server gives."""
    history = [dict(message) for message in probe.messages]
    for message in history:
        if "tool_calls" in message:
            message["tool_calls"] = [
                {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
                for call in message["tool_calls"]
            ]
    body = {"messages": history, "max_tokens": 160, "seed": seed, **sampling,
            "chat_template_kwargs": {"enable_thinking": probe.thinking}}  # fmt: skip
    if probe.tools:
        body["tools"] = probe.tools
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as reply:
        answer: dict[str, Any] = json.load(reply)["choices"][0]["message"]
    return answer


def is_right(probe: Probe, message: dict[str, Any]) -> bool:
    """Whether a message is the expected one, with a thought exactly where thinking was on."""
    calls = []
    for call in message.get("tool_calls") or []:
        try:
            arguments = json.loads(call["function"]["arguments"])
        except json.JSONDecodeError:
            return False
        calls.append((call["function"]["name"], arguments))
    thought = bool(message.get("reasoning_content"))
    return calls == probe.calls and (message.get("content") or "") == probe.content and thought == probe.thinking


def main() -> None:
    """Print one line a kind: the share of right answers, greedy and sampled."""
    parser = argparse.ArgumentParser(prog="python -m tools.demo_model.evaluate", description=__doc__)
    parser.add_argument("url", help="the server, e.g. http://127.0.0.1:8080")
    parser.add_argument("--count", type=int, default=100, help="questions a kind (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=7, help="of the questions and the sampling (%(default)s)")
    parser.add_argument("--show", type=int, default=0, help="wrong answers to print a kind (%(default)s)")
    options = parser.parse_args()
    for name, sampling in SAMPLINGS.items():
        for kind in KINDS:
            asked = probes(kind, options.count, options.seed)
            shown = right = 0
            right_by_thinking = {True: 0, False: 0}
            for number, probe in enumerate(tqdm(asked, desc=f"{name}, {kind}", leave=False)):
                message = complete(options.url, probe, sampling, options.seed + number)
                if is_right(probe, message):
                    right += 1
                    right_by_thinking[probe.thinking] += 1
                elif shown < options.show:
                    shown += 1
                    print(f"  asked {probe.messages[-1]['content']!r}, thinking {probe.thinking}: expected "
                          f"{probe.content!r} {probe.calls}, got {json.dumps(message)}")  # fmt: skip
            thoughtful = sum(probe.thinking for probe in asked)
            print(f"{name:17} {kind:16} {right / len(asked):7.1%}   thinking "
                  f"{right_by_thinking[True]}/{thoughtful}, not thinking "
                  f"{right_by_thinking[False]}/{len(asked) - thoughtful}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
