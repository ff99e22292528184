"""Opening an engine on a model file, as the commands name both."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bloomery.interface import registry
from bloomery.interface.engine import Engine, EngineError, EngineOptions
from bloomery.interface.files.gguf import GgufFile, open_gguf
from bloomery.interface.spec import ModelDescription


@dataclass(frozen=True, kw_only=True)
class EngineName:
    """An engine and the numerics to open it with, written ENGINE or ENGINE:NUMERICS.

    Numerics are the name of an installed op set or `module:factory`.
    """

    engine: str
    numerics: str = "exact"

    @classmethod
    def parse(cls, text: str) -> EngineName:
        """Raises ValueError for a text that names no engine."""
        engine, _, numerics = text.partition(":")
        if not engine:
            raise ValueError(f"{text!r} names no engine; write ENGINE or ENGINE:NUMERICS, as in reference:ggml")
        return cls(engine=engine, numerics=numerics or "exact")

    def find(self) -> None:
        """Raises UnknownNameError unless the engine is installed, and the op set there where it is `module:factory`."""
        registry.engine(self.engine)
        if ":" in self.numerics:
            registry.op_set(self.numerics)

    def __str__(self) -> str:
        return f"{self.engine}:{self.numerics}"


class Model:
    """A model file that was read as far as its description: no weight yet.

    Raises what `open_gguf` raises, and UnknownNameError for an architecture that no family reads.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file: GgufFile = open_gguf(path)
        self.description: ModelDescription = registry.family(self.file.get_str("general.architecture"))(self.file)

    def open(self, name: EngineName, **options: Any) -> Engine:
        """The engine of that name on this model; `options` are those of `EngineOptions`.

        Raises UnknownNameError, and EngineError when the engine cannot run the file.
        """
        provider = registry.engine(name.engine)
        if why := provider.unusable(self.description, self.file):
            raise EngineError(f"the engine {name.engine} cannot run {self.path.name}: {why}")
        return provider.open(self.file, self.description, EngineOptions(numerics=name.numerics, **options))
