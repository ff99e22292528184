"""The registry of levers: every `BLOOMERY_*` variable that somebody may set, which seats apply it, and its value.

A flag replaces its lever. A lever that nobody applies ends the start, as does a name that the registry does not have,
so that no set lever is ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bloomery.interface.quoted import one_line
from bloomery.server.given import SettingsError
from bloomery.server.seats import served_seats
from bloomery.server.setting_values import byte_count, count

PREFIX = "BLOOMERY_"
_CARDS = "it belongs to the accelerated engine, which is not part of this version"
_LATER = "it is not part of this version yet"


@dataclass(frozen=True, kw_only=True)
class Lever:
    """One lever.

    value: what the listings call its value.  unset: what holds when nobody sets it.  help: what it sets.  read: turns
    its text into the setting, or raises ValueError with what it takes; None when no seat applies it.  seats: the
    seats that apply it, or None for every one.  why: why no seat applies it.  flag: the flag that replaces it.
    """

    name: str
    value: str
    unset: str
    help: str
    read: Callable[[str], Any] | None = None
    seats: tuple[str, ...] | None = None
    why: str = ""
    flag: str | None = None

    def applied_by(self, seat: str) -> bool:
        """Whether that seat acts on it."""
        return self.read is not None and (self.seats is None or seat in self.seats)


def _threads(text: str) -> int:
    return count(1, 1024)(text.strip(" "))


def _no_draft(text: str) -> str:
    if text != "off":
        raise ValueError("it takes off, as drafting is not part of this version yet")
    return text


def _elsewhere(name: str, value: str, help_: str, why: str = _CARDS) -> Lever:
    return Lever(name=PREFIX + name, value=value, unset="-", help=help_, why=why)


LEVERS = (
    Lever(
        name="BLOOMERY_THREADS",
        value="N",
        unset="unset: the engine chooses",
        help="threads of the engine's products",
        read=_threads,
        flag="--threads",
    ),
    Lever(
        name="BLOOMERY_HOST_ROOM",
        value="BYTES",
        unset="unset: read from the machine",
        help="bytes of memory that the start takes as available, with an M or G suffix for MiB or GiB",
        read=byte_count,
    ),
    Lever(
        name="BLOOMERY_QWEN3_UBATCH",
        value="N",
        unset="default 512",
        help="ids of a prompt computed in one pass",
        read=count(1, 4096),
        seats=("qwen3",),
        flag="--ubatch-size",
    ),
    Lever(
        name="BLOOMERY_DRAFT",
        value="off",
        unset="default off",
        help="what drafts a request's next ids",
        read=_no_draft,
        seats=("qwen3",),
    ),
    _elsewhere("QWEN3_KV", "f16|q8_0", "format of the cache", "--numerics sets the format"),
    _elsewhere("SCHEMAJUMP", "on|off", "feed the fixed text of a structured reply in one call", _LATER),
    _elsewhere("SPIN", "N", "iterations a pool thread spins before it parks"),
    _elsewhere("PIN_MAIN", "0|1", "pin the engine's thread"),
    _elsewhere("HOST_LANES", "WORD", "lanes of the experts on the host"),
    _elsewhere("CARD_BUDGET", "BYTES|CUDA<N>=...", "bytes, or shares of the experts, that a card plans with"),
    _elsewhere("CARD_MARGIN", "BYTES|CUDA<N>=...", "bytes kept free on a card"),
    _elsewhere("NVTIER_BYTES", "BYTES", "arena of the experts that are read from NVMe"),
    _elsewhere("NVTIER_READ", "direct|buffered", "how experts are read from NVMe"),
    _elsewhere("NVTIER_MEM", "anon|pinned", "memory of the NVMe arena"),
    _elsewhere("HOST_POPULATE", "0|1", "read the host's experts in at the load"),
    _elsewhere("HOST_LOCK", "0|1", "lock the host's experts in memory"),
    _elsewhere("CARD_DONTNEED", "0|1", "drop the file's pages of what went to a card"),
    _elsewhere("R8", "on|off", "read the r8 sidecar of a file"),
    _elsewhere("RESIDENCY", "off|mid-p<P>-s<S>", "move experts onto the card as they are used"),
    _elsewhere("HOSTSTREAM", "on|off", "stream experts to the card for a prompt"),
    _elsewhere("XSTREAM", "off|admit|split", "what a prompt's call moves to the card"),
    _elsewhere("MTP_DRAFT", "PATH", "file of the draft layer", _LATER),
    _elsewhere("MTP_HEAD_ROWS", "full|PATH", "rows that the draft's head scores", _LATER),
    _elsewhere("MTP_WIDTH", "cost|fixed", "how wide a draft is", _LATER),
    _elsewhere("DSPARK_CARD", "cuda<N>", "the card of the DSpark draft"),
    _elsewhere("QWEN38_EXPERTS", "host|card", "where every routed expert is planned"),
    _elsewhere("PREFILL", "batch|steps", "how a prompt is fed"),
    _elsewhere("PREFILL_GROUP", "N", "batches of a prompt that run layer by layer together"),
    _elsewhere("CED", "on|off", "skip layers that no later position reads"),
    _elsewhere("ENGRAM_HELPER", "0|1", "a thread that prepares engram rows"),
    _elsewhere("ROUTE_TRACE", "PATH", "a folder for the trace of routed experts"),
    _elsewhere("STEP_STATS", "0|1", "records of rounds of several slots"),
    _elsewhere("SCALES", "PATH", "store of decoded block scales"),
    _elsewhere("TP_NODES", "NODES", "the ranks of tensor parallelism"),
    _elsewhere("NEED_HOOK", "PROGRAM", "a program that is asked before a load opens a card"),
)
BY_NAME = {lever.name: lever for lever in LEVERS}
# Variables that name a path or belong to a tool: none of them is a lever, and none ends a start.
_PATHS = ("REF_MODEL", "CACHE", "DATA", "ARCH", "DSPARK_MODEL", "FIXTURES", "VOCABULARIES", "LLAMA_CPP")
NO_LEVERS = frozenset(PREFIX + name for name in _PATHS)


def read_levers(
    environ: Mapping[str, str], seat: str | None, replaced: Mapping[str, str], notice: Callable[[str], None]
) -> dict[str, Any]:
    """The values of the levers that are set, by name.

    seat: the seat that will serve, None when only the file will tell.  replaced: for each flag that was named, the
    words that say by what. `notice` gets a line for each lever that such a flag replaces; its value is not read.
    Raises SettingsError with a line for each set lever that is refused.
    """
    values: dict[str, Any] = {}
    refusals: list[str] = []
    for name in sorted(name for name in environ if name.startswith(PREFIX) and name not in NO_LEVERS):
        lever = BY_NAME.get(name)
        try:
            if lever is None:
                raise ValueError(_unknown(name))
            check_applied(lever, seat)
            if lever.flag is not None and lever.flag in replaced:
                notice(f"{name} is not read: {replaced[lever.flag]} replaces it")
            elif lever.read is not None:
                values[name] = lever.read(environ[name])
        except ValueError as error:
            refusals.append(f'{name}="{one_line(environ[name])}" is refused: {error}')
    if refusals:
        raise SettingsError("\n".join(refusals))
    return values


def check_applied(lever: Lever, seat: str | None) -> None:
    """Raise the ValueError that says why a lever cannot be set on a seat; None stands for any of them."""
    if lever.read is None:
        raise ValueError(f"{lever.why}; unset it")
    if seat is not None and not lever.applied_by(seat):
        raise ValueError(f"the seat {seat} does not act on it; unset it")


def check_levers(values: Mapping[str, Any], seat: str) -> None:
    """Refuse the levers that the seat of the file does not act on.  Raises SettingsError with a line for each."""
    refused = [name for name in sorted(values) if not BY_NAME[name].applied_by(seat)]
    if refused:
        raise SettingsError(
            "\n".join(f"{name} is refused: the seat {seat} does not act on it; unset it" for name in refused)
        )


def lever_lines(values: Mapping[str, Any], by_flag: Mapping[str, Any], seat: str | None) -> Iterator[str]:
    """What `--levers` prints: a line for each lever with its value and who applies it.

    by_flag: the values of the flags that were named.  seat: as in read_levers.
    """
    for lever in LEVERS:
        if lever.flag is not None and lever.flag in by_flag:
            value = f"set {by_flag[lever.flag]}"
        elif lever.name in values:
            value = f"set {values[lever.name]}"
        else:
            value = lever.unset
        applied = _applied(lever, seat)
        yield f"{lever.name:<26} {value if applied != 'not applied' else '-':<32} {applied}"


def _applied(lever: Lever, seat: str | None) -> str:
    if seat is not None:
        return "applied" if lever.applied_by(seat) else "not applied"
    by = [found.word for found in served_seats() if lever.applied_by(found.word)]
    if not by:
        return "not applied"
    return "applied" if lever.seats is None else f"applied by {', '.join(by)}"


def _unknown(name: str) -> str:
    # Names are short, and a long one would only make the search for its neighbour slow.
    nearest = min(LEVERS, key=lambda lever: _distance(lever.name, name[:64])).name
    return f"no row of the lever registry names it (the nearest is {nearest}); unset it or fix the name"


def _distance(a: str, b: str) -> int:
    """The fewest insertions, deletions and replacements that make one text the other."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (x != y))
    return row[-1]
