"""Hold the parts beneath every engine and server: block formats, tokenizers, the sampler.

They are bloomery's own, used by each of its engines, so there is nothing to name: every conversion of a block format is
compared with ggml's bits, every recorded text with a real tokenizer's ids, every recorded draw with a real sampler's.
"""

from __future__ import annotations

import argparse

from bloomery.conformance.finding import Check
from bloomery.conformance.parts import draws, formats, tokens


def add_arguments(_parser: argparse.ArgumentParser) -> None:
    """None beside those of every command."""


def checks(_arguments: argparse.Namespace) -> list[Check]:
    """All of them."""
    return [*formats.checks(), *tokens.checks(), *draws.checks()]
