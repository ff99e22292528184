"""The table of flags: the only place that knows one. Reading, usage text, documentation and refusals come from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bloomery.server.api_keys import read_key_file, read_key_list
from bloomery.server.setting_values import MAX_REQUESTS, count, model_word, slots, text


@dataclass(frozen=True, kw_only=True)
class Flag:
    """One flag.

    spellings: as on the command line, the long one first, which is also the flag's name.  value: what the usage text
    calls its value.  read: turns the value's text into the setting, or raises ValueError with what it takes.
    default: the setting when nobody names it.  help: what it sets, and why the default is what it is.  env:
    llama-server's variable for it.  secret: never print its value.  shown: print its value where a settings file gave
    it.  adds: may be given several times, and adds to its variable instead of replacing it.  same: the flag that sets
    the same thing another way, so that either replaces the other's variable and entry in a settings file.
    """

    spellings: tuple[str, ...]
    value: str
    read: Callable[[str], Any]
    default: Any
    help: str
    env: str | None = None
    secret: bool = False
    shown: bool = False
    adds: bool = False
    same: str | None = None

    @property
    def name(self) -> str:
        return self.spellings[0]


@dataclass(frozen=True)
class Action:
    """A flag that has the command do something in place of serving."""

    spellings: tuple[str, ...]
    help: str


@dataclass(frozen=True)
class Refused:
    """A flag that users of llama-server or of the seats know, and that ends the start: its spellings, the long one
    first, why, and its variable, which ends the start as well."""

    spellings: tuple[str, ...]
    why: str
    env: str | None = None

    @property
    def name(self) -> str:
        return self.spellings[0]


MOST_AUTO_SLOTS = 8

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
        spellings=("--config",),
        value="FILE",
        read=text,
        default=None,
        help="a settings file: one JSON object of flags without their dashes, which the command line's replace",
    ),
    Flag(
        spellings=("--model",),
        value="WORD",
        read=model_word,
        default=None,
        help="a model of the catalog (demo), or the seat that must serve the file",
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
        shown=True,
        same="--slot-ctx",
        help="positions of all slots together; unset, each slot takes the model's limit, or as much as memory allows",
    ),
    Flag(
        spellings=("--slot-ctx",),
        value="N",
        read=count(1, 2**31 - 1),
        default=None,
        same="--ctx-size",
        help="positions of each slot, in place of a total",
    ),
    Flag(
        spellings=("--parallel", "-np"),
        value="N|auto",
        read=slots,
        default=1,
        env="LLAMA_ARG_N_PARALLEL",
        shown=True,
        help="slots, the requests that run at once; 1 gives one request the whole context, auto takes as many as"
        f" memory holds, up to {MOST_AUTO_SLOTS}",
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
        shown=True,
        help="ids of a prompt computed in one pass; between passes other requests get their turn",
    ),
    Flag(
        spellings=("--alias", "-a"),
        value="NAME",
        read=text,
        default=None,
        env="LLAMA_ARG_ALIAS",
        shown=True,
        help="the model's name in answers; unset, the name the file gives itself",
    ),
    Flag(
        spellings=("--chat-template-file",),
        value="PATH",
        read=text,
        default=None,
        env="LLAMA_ARG_CHAT_TEMPLATE_FILE",
        shown=True,
        help="a chat template to use in place of the file's own; read once at the start",
    ),
    Flag(
        spellings=("--host",),
        value="ADDRESS",
        read=text,
        default="127.0.0.1",
        env="LLAMA_ARG_HOST",
        shown=True,
        help="the address to listen on; by default this machine alone can reach the server",
    ),
    Flag(
        spellings=("--port",),
        value="N",
        read=count(0, 65535),
        default=8080,
        env="LLAMA_ARG_PORT",
        shown=True,
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
        shown=True,
        adds=True,
        help="a file of keys, one a line, each with the limits that follow it: scope=inference,read,admin"
        " inflight=N rate=N/s|N/m burst=N; a key without them reaches every route",
    ),
)

ACTIONS = (
    Action(("--levers",), "print every lever, whether it is applied, and its value, and exit"),
    Action(("--list-devices",), "print the devices a model can be placed on, and exit"),
    Action(("--version",), "print the version and exit"),
    Action(("--help", "-h"), "print this text and exit; with --model SEAT, that seat's"),
)

_LATER = "is not part of this version yet; leave it out"
_CARDS = "places a model on cards, and the reference engine uses none; leave it out"
_PARKS = "would park requests, and each slot here holds its sequence; leave it out"

REFUSED = (
    Refused(("--hf", "-hf"), "is not part of this version yet; name a file with -m", "LLAMA_ARG_HF_REPO"),
    Refused(("--plan",), "prints a placement on cards, and the reference engine uses none; leave it out"),
    Refused(("--place",), _CARDS),
    Refused(("--slot-save-path",), _LATER, "LLAMA_ARG_SLOT_SAVE_PATH"),
    Refused(("--cache-ram", "-cram"), _LATER, "LLAMA_ARG_CACHE_RAM"),
    Refused(("--cache-type-k", "-ctk"), "is not part of this version, as --numerics sets the format; leave it out"),
    Refused(("--prefill",), _LATER),
    Refused(("--park-ram",), _PARKS),
    Refused(("--mmproj", "-mm"), _LATER, "LLAMA_ARG_MMPROJ"),
    Refused(("--no-mmproj",), _LATER),
    Refused(("--image-min-tokens",), _LATER, "LLAMA_ARG_IMAGE_MIN_TOKENS"),
    Refused(("--image-max-tokens",), _LATER, "LLAMA_ARG_IMAGE_MAX_TOKENS"),
    Refused(("--head",), _LATER),
    Refused(("--head-config",), _LATER),
    Refused(("--embd-model",), _LATER),
    Refused(("--embd-hf",), _LATER),
    Refused(("--embd-mmproj",), _LATER),
    Refused(("--embd-no-mmproj",), _LATER),
    Refused(("--embd-ctx",), _LATER),
    Refused(("--embd-cache-bytes",), _LATER),
    Refused(("--embd-image-min-tokens",), _LATER),
    Refused(("--embd-image-max-tokens",), _LATER),
    Refused(("--device", "-dev"), _CARDS, "LLAMA_ARG_DEVICE"),
    Refused(("--split-mode", "-sm"), _CARDS, "LLAMA_ARG_SPLIT_MODE"),
    Refused(("--tensor-split", "-ts"), _CARDS, "LLAMA_ARG_TENSOR_SPLIT"),
    Refused(("--main-gpu", "-mg"), _CARDS, "LLAMA_ARG_MAIN_GPU"),
    Refused(("--n-gpu-layers", "--gpu-layers", "-ngl"), _CARDS, "LLAMA_ARG_N_GPU_LAYERS"),
    Refused(("--cpu-moe", "-cmoe"), _CARDS, "LLAMA_ARG_CPU_MOE"),
    Refused(("--n-cpu-moe", "-ncmoe"), _CARDS, "LLAMA_ARG_N_CPU_MOE"),
    Refused(("--override-tensor", "-ot"), _CARDS, "LLAMA_ARG_OVERRIDE_TENSOR"),
    Refused(("--fit", "-fit"), _CARDS, "LLAMA_ARG_FIT"),
    Refused(("--fit-target", "-fitt"), _CARDS, "LLAMA_ARG_FIT_TARGET"),
    Refused(("--fit-ctx", "-fitc"), _CARDS, "LLAMA_ARG_FIT_CTX"),
    Refused(("--spec-draft-device", "--device-draft", "-devd"), _CARDS),
)
BY_SPELLING = {spelling: flag for flag in FLAGS for spelling in flag.spellings}
ACTION_SPELLINGS = frozenset(spelling for action in ACTIONS for spelling in action.spellings)
REFUSED_BY_SPELLING = {spelling: refused for refused in REFUSED for spelling in refused.spellings}
