"""Faults planted into a copy of the packages one by one, each of which the conformance suite must notice."""

from __future__ import annotations

from tools.planted_faults import engine, formats, ops, programs, sampler, server, tokenizer
from tools.planted_faults.fault import Fault

FAULTS: tuple[Fault, ...] = (
    *ops.FAULTS,
    *formats.FAULTS,
    *programs.FAULTS,
    *engine.FAULTS,
    *sampler.FAULTS,
    *tokenizer.FAULTS,
    *server.FAULTS,
)
