"""The table of flags: the only place that knows one. Usage text, variables, checks and refusals come from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bloomery.interface import catalog
from bloomery.server.api_keys import read_key_file, read_key_list

# The last is this server's own.
SEATS = (
    "ds41", "glm", "qwen38", "qwen3", "mimo2", "minimaxm3", "flint", "musespark", "solar2", "nemotron", "raon1",
    "decide", "gemma3",
)  # fmt: skip
SERVED_SEATS = ("qwen3", "nemotron", "gemma3")
MAX_REQUESTS = 64


def count(lo: int, hi: int) -> Callable[[str], int]:
    """A reader of a whole number from lo to hi, written in base 10 without sign or leading zero."""

    def read(text: str) -> int:
        # A text of many digits is refused before Python converts it.
        if not (text.isascii() and text.isdigit() and len(text) <= 10) or (text[0] == "0" and text != "0"):
            raise ValueError(f"it takes a whole number from {lo} to {hi}")
        if not lo <= int(text) <= hi:
            raise ValueError(f"it takes {lo} to {hi}")
        return int(text)

    return read


def word(*words: str) -> Callable[[str], str]:
    """A reader of one of a few words."""

    def read(text: str) -> str:
        if text not in words:
            raise ValueError(f"it takes {' or '.join(words)}")
        return text

    return read


def text(value: str) -> str:
    """A reader of any text but the empty one."""
    if not value:
        raise ValueError("it takes a text that is not empty")
    return value


def parallel(value: str) -> int:
    """A reader of `--parallel`."""
    if value == "auto":
        raise ValueError("counting the slots from memory is not part of this version yet; name a number")
    return count(1, MAX_REQUESTS)(value)


def model_word(value: str) -> str:
    """A reader of `--model`: a seat word, or a catalog word."""
    if value in SERVED_SEATS or value in catalog.words():
        return value
    seat, _, variant = value.partition(":")
    known = f"it takes a seat ({', '.join(SERVED_SEATS)}) or a model of the catalog ({', '.join(catalog.words())})"
    if seat in SEATS and variant:
        raise ValueError(f"downloading {value} is not part of this version yet; name the file with -m")
    if seat in SEATS:
        raise ValueError(f"the seat {seat} is not part of this version yet; {known}")
    raise ValueError(f"{known}; a model file is named with -m")


@dataclass(frozen=True, kw_only=True)
class Flag:
    """One flag.

    spellings: as on the command line, the long one first, which is also the flag's name.  value: what the usage text
    calls its value.  read: turns the value's text into the setting, or raises ValueError with what it takes.
    default: the setting when nobody names it.  help: what it sets, and why the default is what it is.  env:
    llama-server's variable for it.  secret: never print its value.  adds: may be given several times, and adds to its
    variable instead of replacing it.
    """

    spellings: tuple[str, ...]
    value: str
    read: Callable[[str], Any]
    default: Any
    help: str
    env: str | None = None
    secret: bool = False
    adds: bool = False

    @property
    def name(self) -> str:
        return self.spellings[0]


FLAGS = (
    Flag(
        spellings=("--model-file", "-m"),
        value="PATH",
        read=text,
        default=None,
        env="LLAMA_ARG_MODEL",
        help="the GGUF file to serve; of a split set, the first shard",
    ),
    Flag(
        spellings=("--model",),
        value="WORD",
        read=model_word,
        default=None,
        help="a model of the catalog (demo), or the seat that must serve the file (qwen3, nemotron ...)",
    ),
    Flag(
        spellings=("--engine",),
        value="NAME",
        read=text,
        default="auto",
        help="auto, reference or accelerated; auto takes the fastest one that covers the file on this machine",
    ),
    Flag(
        spellings=("--numerics",),
        value="NAME",
        read=text,
        default="exact",
        help="the engine's arithmetic: exact, the definition that all others are judged by; ggml, which rounds as "
        "llama.cpp does on a CPU; ggml-fa and ggml-fa-rows, as with flash attention in long and in short passes",
    ),
    Flag(
        spellings=("--ctx-size", "--ctx", "-c"),
        value="N",
        read=count(1, 2**31 - 1),
        default=None,
        env="LLAMA_ARG_CTX_SIZE",
        help="positions of all slots together; unset, each slot takes the model's limit, or as much as memory allows",
    ),
    Flag(
        spellings=("--parallel", "-np"),
        value="N",
        read=parallel,
        default=1,
        env="LLAMA_ARG_N_PARALLEL",
        help="slots, the requests that run at once; 1 gives one request the whole context",
    ),
    Flag(
        spellings=("--queue-depth",),
        value="N",
        read=count(0, MAX_REQUESTS - 1),
        default=None,
        help=f"requests that may wait for a slot; unset, what is left of {MAX_REQUESTS} after the slots",
    ),
    Flag(
        spellings=("--threads", "-t"),
        value="N",
        read=count(1, 1024),
        default=None,
        env="LLAMA_ARG_THREADS",
        help="threads of the engine's products; unset, one for a small model, which gains from no more, else the cores",
    ),
    Flag(
        spellings=("--ubatch-size", "-ub"),
        value="N",
        read=count(1, 4096),
        default=512,
        env="LLAMA_ARG_UBATCH",
        help="ids of a prompt computed in one pass; between passes other requests get their turn",
    ),
    Flag(
        spellings=("--alias", "-a"),
        value="NAME",
        read=text,
        default=None,
        env="LLAMA_ARG_ALIAS",
        help="the model's name in answers; unset, the name the file gives itself",
    ),
    Flag(
        spellings=("--chat-template-file",),
        value="PATH",
        read=text,
        default=None,
        env="LLAMA_ARG_CHAT_TEMPLATE_FILE",
        help="a chat template to use in place of the file's own; read once at the start",
    ),
    Flag(
        spellings=("--host",),
        value="ADDRESS",
        read=text,
        default="127.0.0.1",
        env="LLAMA_ARG_HOST",
        help="the address to listen on; by default this machine alone can reach the server",
    ),
    Flag(
        spellings=("--port",),
        value="N",
        read=count(0, 65535),
        default=8080,
        env="LLAMA_ARG_PORT",
        help="the port to listen on; 0 takes a free one, which the start names",
    ),
    Flag(
        spellings=("--api-key",),
        value="KEY[,KEY...]",
        read=read_key_list,
        default=(),
        env="LLAMA_API_KEY",
        secret=True,
        adds=True,
        help="keys that clients must send one of; without any key every request is answered",
    ),
    Flag(
        spellings=("--api-key-file",),
        value="PATH",
        read=read_key_file,
        default=(),
        env="LLAMA_ARG_API_KEY_FILE",
        adds=True,
        help="a file of keys, one a line",
    ),
)

# Flags of llama-server and of this project that a later version takes.
NOT_YET = frozenset({
    "--hf", "-hf", "--config", "--levers", "--list-devices", "--plan", "--slot-ctx", "--place", "--slot-save-path",
    "--cache-ram", "-cram", "--cache-type-k", "--prefill", "--mmproj", "-mm", "--no-mmproj", "--image-min-tokens",
    "--image-max-tokens", "--head", "--head-config", "--embd-model", "--embd-hf", "--embd-mmproj", "--embd-no-mmproj",
    "--embd-ctx", "--embd-cache-bytes", "--embd-image-min-tokens", "--embd-image-max-tokens",
})  # fmt: skip
# llama-server's flags that place a model on cards.
PLACEMENT = frozenset({
    "-dev", "--device", "-sm", "--split-mode", "-ts", "--tensor-split", "-mg", "--main-gpu", "-ngl", "--gpu-layers",
    "--n-gpu-layers", "-cmoe", "--cpu-moe", "-ncmoe", "--n-cpu-moe", "-ot", "--override-tensor", "-fit", "--fit",
    "-fitt", "--fit-target", "-fitc", "--fit-ctx", "-devd", "--spec-draft-device",
})  # fmt: skip
BY_SPELLING = {spelling: flag for flag in FLAGS for spelling in flag.spellings}


def usage() -> str:
    """The text that `--help` prints."""
    lines = ["usage: bloomery-serve (-m PATH | --model demo) [flags]", ""]
    for flag in FLAGS:
        given = f"default {flag.default}; " if flag.default not in (None, ()) else ""
        variable = f" [{flag.env}]" if flag.env else ""
        lines += [f"  {', '.join(flag.spellings)} {flag.value}{variable}", f"      {given}{flag.help}"]
    lines += ["  --version", "      print the version and exit", "  --help, -h", "      print this text and exit"]
    return "\n".join(lines) + "\n"
