"""The seats: the words that `--model` takes, and the architectures that each serves."""

from __future__ import annotations

from dataclasses import dataclass

from bloomery.interface import registry


@dataclass(frozen=True)
class Seat:
    """A seat: its word, the `general.architecture` values it serves, and the models they are in a person's words."""

    word: str
    architectures: tuple[str, ...]
    models: str


SEATS = (
    Seat("ds41", ("deepseek41", "deepseek4"), "DeepSeek-V4.1-Flash"),
    Seat("glm", ("glm5next",), "GLM-5.3-Flash"),
    Seat("qwen38", ("qwen4exp",), "Qwen3.8-Flash-Next"),
    Seat("qwen3", ("qwen3", "qwen3moe", "qwen35", "qwen35moe"), "Qwen3, Qwen3.5, Qwen3.6"),
    Seat("mimo2", ("mimo2",), "MiMo-V2.6-Flash"),
    Seat("minimaxm3", ("minimax-m3",), "MiniMax-M3"),
    Seat("flint", ("flint",), "Flint"),
    Seat("musespark", ("muse-spark",), "Muse Spark"),
    Seat("solar2", ("solar-open2",), "Solar-Open2"),
    Seat("nemotron", ("nemotron_h", "nemotron_h_moe"), "Nemotron 3, Nemotron 3.5"),
    Seat("raon1", (), "Raon"),
    Seat("decide", ("clef",), "Clef-Flash"),
    Seat("gemma3", ("gemma3",), "Gemma 3 (text)"),
)
BY_WORD = {seat.word: seat for seat in SEATS}


def seat_of(architecture: str) -> str:
    """The word of the seat that serves an architecture; it is also a model's name where its file has none.

    An architecture that an installed family adds is a seat of its own name.
    """
    return next((seat.word for seat in SEATS if architecture in seat.architectures), architecture)


def served_seats() -> tuple[Seat, ...]:
    """The seats with an architecture that an installed family reads."""
    families = set(registry.families())
    return tuple(seat for seat in SEATS if not families.isdisjoint(seat.architectures))
