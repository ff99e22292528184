"""What a file's own family says of it, held against the file."""

from __future__ import annotations

from pathlib import Path

from bloomery.conformance.fixtures import fixture
from bloomery.interface import coverage, registry
from bloomery.interface.files.gguf import open_gguf
from bloomery.interface.spec import ModelDescription


def described(path: Path) -> ModelDescription:
    """The description; raises what reader and coverage raise."""
    with open_gguf(path) as file:
        description = registry.family(file.get_str("general.architecture"))(file)
        coverage.check(file, description)
    return description


def of_fixture(name: str) -> ModelDescription:
    """The same of a fixture by name."""
    return described(fixture(name))
