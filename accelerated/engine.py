"""The accelerated engine's place: this version has no kernels, and says so when asked for."""

from __future__ import annotations

from bloomery.interface.engine import Engine, EngineError, EngineOptions
from bloomery.interface.files.gguf import GgufFile
from bloomery.interface.spec import ModelDescription, ModelSpec

_WHY = "it is not part of this version"


class AcceleratedProvider:
    """The entry point `accelerated` of the group `bloomery.engines`."""

    name = "accelerated"
    preference = 10

    def unusable(self, _description: ModelDescription, _file: GgufFile) -> str | None:
        return _WHY

    def bytes_per_cell(self, _spec: ModelSpec) -> int:
        raise EngineError(_WHY)

    def bytes_per_sequence(self, _spec: ModelSpec, _n_trial: int) -> int:
        raise EngineError(_WHY)

    def open(self, _file: GgufFile, _description: ModelDescription, _options: EngineOptions) -> Engine:
        raise EngineError(_WHY)


PROVIDER = AcceleratedProvider()
