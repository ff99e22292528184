"""From documents to batches of token ids with a weight on every prediction."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from tools.demo_model.corpus import Document
from tools.demo_model.model import Batch
from tools.demo_model.vocabulary import TURN_END, TURN_START, Vocabulary


@dataclass(frozen=True)
class Lesson:
    """One document: its ids, and which of them the model itself would have to write."""

    ids: list[int]
    written: list[bool]


def lesson(document: Document, vocabulary: Vocabulary) -> Lesson:
    """Encode a document and mark what the assistant writes in it.

    The target is marked whole, but for the newline that the template writes after a turn. In earlier turns the first
    token is not marked: without its think span such a turn starts with the answer, which right after a generation
    prompt would be wrong.
    """
    prompt, target = vocabulary.encode(document.prompt), vocabulary.encode(document.target)
    written = [False] * len(prompt) + [True] * len(target)
    if document.conversation is None:
        return Lesson(prompt + target, written)
    written[-1] = False
    opening = vocabulary.encode(f"{TURN_START}assistant\n")
    think, end = vocabulary.id_of("<think>"), vocabulary.id_of(TURN_END)
    inside = False
    for at in range(len(opening), _last(prompt, opening)):
        if prompt[at - len(opening) : at] == opening:
            inside = True
            written[at] = prompt[at] == think
        else:
            written[at] = inside
        inside = inside and prompt[at] != end
    return Lesson(prompt + target, written)


def _last(ids: list[int], pattern: list[int]) -> int:
    """Where the last occurrence of a pattern starts."""
    return next(at for at in range(len(ids) - len(pattern), -1, -1) if ids[at : at + len(pattern)] == pattern)


def lessons(documents: Iterator[Document], vocabulary: Vocabulary, longest: int) -> Iterator[Lesson]:
    """Every document of at most `longest` tokens."""
    for document in documents:
        made = lesson(document, vocabulary)
        if len(made.ids) <= longest:
            yield made


def collect(source: Iterator[Lesson], tokens: int, prompt_weight: float) -> Batch:
    """Documents for about `tokens` tokens, sorted by length and grouped so that little padding is needed."""
    chosen: list[Lesson] = []
    total = 0
    while total < tokens:
        chosen.append(next(source))
        total += len(chosen[-1].ids)
    chosen.sort(key=lambda item: len(item.ids))

    ids: list[int] = []
    targets: list[int] = []
    weights: list[float] = []
    positions: list[int] = []
    starts: list[int] = []
    for item in chosen:
        starts.append(len(ids))
        ids += item.ids
        targets += [*item.ids[1:], 0]
        weights += [1.0 if mark else prompt_weight for mark in item.written[1:]] + [0.0]
        positions += range(len(item.ids))

    groups = []
    first = 0
    while first < len(chosen):
        last = first + 1
        shortest = len(chosen[first].ids)
        while last < len(chosen) and len(chosen[last].ids) <= shortest * 1.35:
            last += 1
        longest = len(chosen[last - 1].ids)
        index = torch.full((last - first, longest), total, dtype=torch.int64)
        for row in range(first, last):
            length = len(chosen[row].ids)
            index[row - first, :length] = torch.arange(starts[row], starts[row] + length)
        groups.append(index)
        first = last
    rows = torch.tensor(weights).nonzero().squeeze(1)
    return Batch(
        ids=torch.tensor(ids),
        positions=torch.tensor(positions),
        groups=groups,
        rows=rows,
        targets=torch.tensor(targets)[rows],
        weights=torch.tensor(weights)[rows],
    )
