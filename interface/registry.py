"""Finding engines, op sets and families by name through entry points: a third party's plugs in with no edit."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, cast

from bloomery.interface.engine import EngineProvider
from bloomery.interface.spec import ModelDescription

if TYPE_CHECKING:
    from bloomery.interface.files.gguf import GgufFile

FamilyReader = Callable[["GgufFile"], ModelDescription]


class UnknownNameError(LookupError):
    """No engine, op set or family of that name is installed; the message lists those that are."""


def _load(group: str, kind: str, name: str) -> Any:
    found = {entry.name: entry for entry in entry_points(group=group)}
    if name not in found:
        known = ", ".join(sorted(found)) or "none"
        raise UnknownNameError(f"no {kind} is named {name!r}; installed: {known}")
    return found[name].load()


def family(architecture: str) -> FamilyReader:
    """The reader of a GGUF `general.architecture`.  Raises UnknownNameError."""
    return cast(FamilyReader, _load("bloomery.families", "model family", architecture))


def families() -> list[str]:
    """The architectures that an installed family reads, in order."""
    return sorted({entry.name for entry in entry_points(group="bloomery.families")})


def op_set(name: str) -> Any:
    """The op set class of that name.  Raises UnknownNameError."""
    return _load("bloomery.opsets", "op set", name)


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
    providers = sorted(
        (engine(entry.name) for entry in entry_points(group="bloomery.engines")), key=lambda p: -p.preference
    )
    passed_over: list[str] = []
    for provider in providers:
        why = provider.unusable(description, file)
        if why is None:
            return provider, "; ".join(passed_over) or "the only engine installed"
        passed_over.append(f"{provider.name}: {why}")
    raise UnknownNameError("no engine can run this file: " + "; ".join(passed_over))
