"""The training corpus: documents drawn from a seed, conversations rendered by the chat template itself.

Nothing is stored: `Corpus(seed)` is an endless stream that always starts the same. One question in thirty (chosen by
a hash of its text) never occurs in it; `is_held_out` tells which, so that the evaluation can ask exactly those.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from tools.demo_model import facts
from tools.demo_model.questions import arithmetic, ask
from tools.demo_model.small_talk import SMALL_TALK_QUESTIONS
from tools.demo_model.template import render
from tools.demo_model.tool_chats import with_tools
from tools.demo_model.vocabulary import END_OF_TEXT

FROM_MEMORY = ["arithmetic", "facts", "talk", "words"]
Stage = tuple[int | None, dict[str, int]]
STAGES: list[Stage] = [
    (13_000, {"arithmetic": 33, "facts": 16, "talk": 6, "words": 15, "tools": 28, "text": 2}),
    (25_000, {"copying": 32, "recollection": 32, "tools": 16, "arithmetic": 12, "facts": 8}),
    (36_000, {"arithmetic": 27, "facts": 14, "talk": 5, "words": 12, "recollection": 9, "tools": 31, "text": 2}),
    (
        None,
        {"arithmetic": 26, "drill": 15, "facts": 15, "talk": 5, "words": 9, "recollection": 6, "tools": 22, "text": 2},
    ),
]
"""Up to which document a stage lasts, and how often each kind comes in it.

The second stage is there for copying, which everything with tools rests on: its documents are short and made of
little else. The last gives sums and facts, learned by repetition, the room that copying no longer needs. All kinds
but `tools`, `text` and `drill` are those of `questions.MAKERS`.
"""


@dataclass(frozen=True)
class Conversation:
    """A chat that ends with the assistant message to learn."""

    kind: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    thinking: bool


@dataclass(frozen=True)
class Document:
    """What the model is given, and what it has to write, as a server renders it."""

    kind: str
    prompt: str
    target: str
    conversation: Conversation | None  # None for plain text, which no template wraps.


def is_held_out(question: str) -> bool:
    """Whether a user message is kept out of training. Small talk never is: it has no pattern to generalise from."""
    if question in SMALL_TALK_QUESTIONS:
        return False
    return hashlib.blake2b(question.encode(), digest_size=2).digest()[0] % 30 == 0


def render_document(conversation: Conversation) -> Document:
    """Render with the chat template; the target is what the template writes for the last message."""
    *history, _ = conversation.messages
    before = render(history, conversation.tools)
    whole = render(conversation.messages, conversation.tools)
    opening = "<|im_start|>assistant\n"
    if not whole.startswith(before + opening):
        raise ValueError("the chat template renders earlier turns differently once the assistant's reply follows")
    thinking = conversation.thinking
    prompt = render(history, conversation.tools, add_generation_prompt=True, enable_thinking=thinking)
    return Document(conversation.kind, prompt, whole[len(before) + len(opening) :], conversation)


class Corpus:
    """An endless, seeded stream of documents, stage after stage."""

    def __init__(self, seed: int, stages: list[Stage] = STAGES) -> None:
        self._rng = Random(seed)
        self._stages = stages

    def __iter__(self) -> Iterator[Document]:
        drawn = 0
        for last, kinds in self._stages:
            while last is None or drawn < last:
                (kind,) = self._rng.choices(list(kinds), list(kinds.values()))
                plain = {"text": self._text, "drill": self._drill}.get(kind)
                document = plain() if plain else self._asked(kind)
                if document is not None:
                    drawn += 1
                    yield document

    def _asked(self, kind: str) -> Document | None:
        """A conversation, or nothing if one of its questions is held out."""
        conversation = self._chat(kind)
        asked = [message["content"] for message in conversation.messages if message["role"] == "user"]
        return None if any(is_held_out(question) for question in asked) else render_document(conversation)

    def _text(self) -> Document:
        """Plain sentences, for a raw completion such as `The capital of France is`."""
        sentences = []
        for _ in range(self._rng.randint(1, 4)):
            exchange = ask(self._rng, self._rng.choice(["arithmetic", "facts", "facts"]))
            if exchange.answer[-1] == "." and "small sums" not in exchange.answer:
                is_sum = "=" in exchange.thought
                sentences.append(exchange.thought if is_sum and self._rng.random() < 0.4 else exchange.answer)
        return Document("text", "", " ".join(sentences) + END_OF_TEXT, None)

    def _drill(self) -> Document:
        """A page of sums and nothing else: a chat of the same length would hold a fifth as many."""
        sums = [arithmetic(self._rng) for _ in range(self._rng.randint(8, 14))]
        written = self._rng.random() < 0.7
        sentences = [exchange.answer if written else f"{exchange.thought}." for exchange in sums]
        return Document("drill", "", " ".join(sentences) + END_OF_TEXT, None)

    def _chat(self, kind: str) -> Conversation:
        rng = self._rng
        thinking = rng.random() < 0.5
        messages: list[dict[str, Any]] = []
        if rng.random() < 0.3:
            messages.append({"role": "system", "content": rng.choice(facts.SYSTEM_PROMPTS)})
        if kind == "tools":
            chat = with_tools(rng, thinking)
            return Conversation(kind, messages + chat.messages, chat.tools, thinking)
        earlier = rng.choices([0, 1, 2, 3, 6], [72, 14, 8, 4, 2])[0]
        for _ in range(earlier):
            exchange = ask(rng, rng.choice(FROM_MEMORY))
            messages.append({"role": "user", "content": exchange.question})
            messages.append({"role": "assistant", "content": exchange.answer})
        exchange = ask(rng, kind)
        messages.append({"role": "user", "content": exchange.question})
        last = {"role": "assistant", "content": exchange.answer}
        if thinking:
            last["reasoning_content"] = exchange.thought
        messages.append(last)
        return Conversation(kind, messages, None, thinking)
