"""Everything about the reference: its parts, its ops, its seats, and a server that serves it."""

from __future__ import annotations

import argparse
import copy
from importlib import import_module

from bloomery.conformance.commands import serve
from bloomery.conformance.finding import Check


def add_arguments(_parser: argparse.ArgumentParser) -> None:
    """None beside those of every command."""


def checks(arguments: argparse.Namespace) -> list[Check]:
    """What the other commands check by default, the exchanges and laws of serving on servers started for them."""
    found: list[Check] = []
    for name in ("parts", "ops", "seat"):
        module = import_module(f"bloomery.conformance.commands.{name}")
        parser = argparse.ArgumentParser()
        module.add_arguments(parser)
        found += module.checks(parser.parse_args([], copy.copy(arguments)))
    return found + serve.own_checks()
