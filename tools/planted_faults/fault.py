"""One planted fault: a small change of one source file, and the check that is to notice it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Area: TypeAlias = Literal[
    "ops", "block formats", "layer programs", "family readers", "engine", "sampler", "tokenizer", "server"
]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A change that a kernel developer or a maintainer could make by mistake, and that no linter sees.

    name: what is wrong, in a few words.  file: in the checkout.  old, new: the text that is replaced, which stands in
    the file once, and what replaces it.  run: the arguments of `bloomery-conformance` that are to notice.  caught_by:
    the check that must fail, "subject: name" as its reports have it.
    """

    name: str
    area: Area
    file: str
    old: str
    new: str
    run: tuple[str, ...]
    caught_by: str
