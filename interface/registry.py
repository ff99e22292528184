"""Finding engines, op sets and families by name through entry points: a third party's plugs in with no edit."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from bloomery.interface.engine import EngineProvider
from bloomery.interface.spec import ModelDescription

if TYPE_CHECKING:
    from bloomery.interface.files.gguf import GgufFile

FamilyReader = Callable[["GgufFile"], ModelDescription]


class UnknownNameError(LookupError):
    """No engine, op set or family of that name is installed; the message lists those that are."""


@cache
def _installed(group: str) -> dict[str, EntryPoint]:
    """The group's entry points by name, read once: every look reads the metadata of all that is installed."""
    return {entry.name: entry for entry in entry_points(group=group)}


def _load(group: str, kind: str, name: str) -> Any:
    found = _installed(group)
    if name not in found:
        known = ", ".join(sorted(found)) or "none"
        raise UnknownNameError(f"no {kind} is named {name!r}; installed: {known}")
    return found[name].load()


def family(architecture: str) -> FamilyReader:
    """The reader of a GGUF `general.architecture`.  Raises UnknownNameError."""
    return cast(FamilyReader, _load("bloomery.families", "model family", architecture))


def families() -> list[str]:
    """The architectures that an installed family reads, in order."""
    return sorted(_installed("bloomery.families"))


def op_set(name: str) -> Any:
    """The op set class of that name, or what `module:factory` names: one that is not installed yet.

    Raises UnknownNameError.
    """
    return _imported(name) if ":" in name else _load("bloomery.opsets", "op set", name)


def _imported(path: str) -> Any:
    module, _, attribute = path.partition(":")
    # An installed command does not look where it was started, which is where an op set under work lies; last, so that
    # nothing installed is hidden by it.
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UnknownNameError(f"no op set is at {path!r} (module:factory): {error}") from None


def engine(name: str) -> EngineProvider:
    """The engine of that name.  Raises UnknownNameError."""
    return cast(EngineProvider, _load("bloomery.engines", "engine", name))


def choose_engine(name: str, description: ModelDescription, file: GgufFile) -> tuple[EngineProvider, str]:
    """The engine that `--engine name` means for this file, and the reason in a few words.

    "auto" takes the usable engine of highest preference. A named engine that is not usable is an UnknownNameError that
    says why, so that nobody serves from another engine than the one they asked for.
    """
    if name != "auto":
        provider = engine(name)
        if why := provider.unusable(description, file):
            raise UnknownNameError(f"--engine {name} cannot run this file: {why}; --engine auto takes one that can")
        return provider, "asked for"
    providers = sorted(map(engine, _installed("bloomery.engines")), key=lambda p: -p.preference)
    passed_over: list[str] = []
    for provider in providers:
        why = provider.unusable(description, file)
        if why is None:
            return provider, "; ".join(passed_over) or "the only engine installed"
        passed_over.append(f"{provider.name}: {why}")
    raise UnknownNameError("no engine can run this file: " + "; ".join(passed_over))
