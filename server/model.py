"""The model a server serves: from a file to an engine, a tokenizer, a chat template and the facts routes report."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bloomery.interface import coverage, registry
from bloomery.interface.engine import Engine, EngineOptions
from bloomery.interface.files.gguf import GgufFile, ModelFileError, open_gguf
from bloomery.interface.machine import available_memory
from bloomery.interface.quoted import one_line
from bloomery.interface.spec import ModelDescription
from bloomery.interface.tokenizer import Tokenizer, TokenizerError, load_tokenizer
from bloomery.server.chat.template import CHATML, ChatTemplate
from bloomery.server.context import StateBytes, choose_context, count_slots
from bloomery.server.flags import MOST_AUTO_SLOTS
from bloomery.server.given import SettingsError
from bloomery.server.levers import check_levers
from bloomery.server.seats import seat_of
from bloomery.server.settings import Settings

# The least an engine takes. Nothing is drafted here, and a state that cannot be cut back is kept once for each input
# that may be on trial.
_N_TRIAL = 1
_MAX_TEMPLATE_BYTES = 1 << 20
# llama.cpp's enum llama_vocab_type, by the tokenizer's word in a file.
_VOCAB_TYPES = {"none": 0, "llama": 1, "gpt2": 2, "bert": 3, "t5": 4, "rwkv": 5, "plamo2": 6}
# llama.cpp's names of general.file_type.
_FILE_TYPES = {
    0: "all F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K - Medium",
    11: "Q3_K - Small", 12: "Q3_K - Medium", 13: "Q3_K - Large", 14: "Q4_K - Small", 15: "Q4_K - Medium",
    16: "Q5_K - Small", 17: "Q5_K - Medium", 18: "Q6_K", 21: "Q2_K - Small", 32: "BF16",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class ServedModel:
    """A loaded model and its names.

    name: the model's name in answers.  path: the file as opened, the first of a split set.  n_ctx: positions of each of
    n_parallel slots.  template: the file's, the start's, or ChatML when neither has one.
    file_type: the file's mix of formats in llama-server's words.  meta: llama-server's `meta` of /v1/models.
    """

    file: GgufFile
    description: ModelDescription
    engine: Engine
    tokenizer: Tokenizer
    template: ChatTemplate
    name: str
    path: str
    n_ctx: int
    n_parallel: int
    file_type: str
    meta: Mapping[str, Any]


def load_model(settings: Settings, notice: Callable[[str], None]) -> ServedModel:
    """Open, check and load the model that the settings name; `notice` gets the start lines.

    Raises SettingsError for a setting that does not fit the file or the machine, and ModelFileError, CoverageError,
    TokenizerError, ChatTemplateError, ContextError, UnknownNameError or EngineError, each naming what is wrong.
    """
    if settings.model_file is None:
        raise SettingsError("no model file: pass -m PATH, or --model demo, or set BLOOMERY_REF_MODEL")
    file = open_gguf(settings.model_file)
    architecture = _architecture(file, settings)
    description = registry.family(architecture)(file)
    coverage.check(file, description)
    spec = description.spec
    tokenizer = _tokenizer(file)
    if tokenizer.n_vocab != spec.n_vocab:
        raise ModelFileError(
            f"{file.path}: the tokenizer has {tokenizer.n_vocab} tokens, and the model has rows for {spec.n_vocab}"
        )
    template = _template(file, tokenizer, settings)
    provider, why = registry.choose_engine(settings.engine, description, file)
    state = StateBytes(per_cell=provider.bytes_per_cell(spec), per_sequence=provider.bytes_per_sequence(spec, _N_TRIAL))
    room = settings.levers.get("BLOOMERY_HOST_ROOM")
    available = available_memory() if room is None else room
    n_parallel = settings.parallel
    if n_parallel == "auto":
        n_parallel = count_slots(
            settings.slot_ctx, n_ctx_train=spec.n_ctx_train, state=state, available=available, most=MOST_AUTO_SLOTS
        )
    context = choose_context(
        settings.ctx_size,
        slot_ctx=settings.slot_ctx,
        n_parallel=n_parallel,
        n_ctx_train=spec.n_ctx_train,
        state=state,
        available=available,
    )
    options = EngineOptions(
        n_ctx=context.per_slot,
        n_sequences=n_parallel,
        n_ubatch=settings.ubatch_size,
        threads=settings.threads,
        numerics=settings.numerics,
        n_trial=_N_TRIAL,
    )
    name = settings.alias or file.get_str("general.name", "") or seat_of(architecture)
    file_type = _FILE_TYPES.get(file.get_int("general.file_type", -1), "unknown")
    notice(
        f"model path={file.path} name={one_line(name)} arch={architecture} type={file_type} bytes={file.tensor_bytes}"
    )
    notice(f"engine name={provider.name} numerics={settings.numerics} why={why}")
    notice(context.line())
    notice(
        f"parallel rule=slots slots={n_parallel} slot_ctx={context.per_slot} total={n_parallel * context.per_slot}"
        f" from={_slots_from(settings)}"
    )
    notice(f"ubatch size={settings.ubatch_size} from={_ubatch_from(settings)}")
    if settings.ctx_size is not None and "--parallel" not in settings.given:
        notice(
            f"--ctx-size {settings.ctx_size} is one request's context;"
            " add --parallel N to serve N requests at once, which split it"
        )
    return ServedModel(
        file=file,
        description=description,
        engine=provider.open(file, description, options),
        tokenizer=tokenizer,
        template=template,
        name=name,
        path=settings.model_file,
        n_ctx=context.per_slot,
        n_parallel=n_parallel,
        file_type=file_type,
        meta={
            "vocab_type": _VOCAB_TYPES.get(file.get_str("tokenizer.ggml.model", "none"), 0),
            "n_vocab": spec.n_vocab,
            "n_ctx": context.per_slot,
            "n_ctx_train": spec.n_ctx_train,
            "n_embd": spec.n_embd,
            "n_params": sum(math.prod(tensor.shape) for tensor in file.tensors.values()),
            "size": file.tensor_bytes,
            "ftype": file_type,
        },
    )


def _slots_from(settings: Settings) -> str:
    if "--parallel" in settings.given:
        return "auto" if settings.parallel == "auto" else "flag"
    return "default" if settings.ctx_size is None and settings.slot_ctx is None else "ctx"


def _ubatch_from(settings: Settings) -> str:
    if "--ubatch-size" in settings.given:
        return "flag"
    return "lever" if "BLOOMERY_QWEN3_UBATCH" in settings.levers else "default"


def _architecture(file: GgufFile, settings: Settings) -> str:
    architecture = file.get_str("general.architecture", "")
    known = ", ".join(registry.families())
    if not architecture:
        raise ModelFileError(f"{file.path}: the file names no general.architecture; this server serves {known}")
    if architecture not in registry.families():
        raise ModelFileError(
            f"{file.path} is a {one_line(architecture)} file, which no seat serves; this server serves {known}"
        )
    if settings.seat is not None and settings.seat != seat_of(architecture):
        raise SettingsError(
            f"--model {settings.seat} on a {architecture} file, which serves --model {seat_of(architecture)}"
        )
    check_levers(settings.levers, seat_of(architecture))
    return architecture


def _tokenizer(file: GgufFile) -> Tokenizer:
    try:
        return load_tokenizer(file.metadata)
    except TokenizerError as error:
        raise TokenizerError(f"{file.path}: {error}") from None


def _template(file: GgufFile, tokenizer: Tokenizer, settings: Settings) -> ChatTemplate:
    if settings.chat_template_file is None:
        source = file.get_str("tokenizer.chat_template", "", most=_MAX_TEMPLATE_BYTES) or CHATML
    else:
        try:
            with Path(settings.chat_template_file).open("rb") as opened:
                data = opened.read(_MAX_TEMPLATE_BYTES + 1)
            source = data.decode()
        except OSError as error:
            raise SettingsError(f"--chat-template-file {settings.chat_template_file}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise SettingsError(f"--chat-template-file {settings.chat_template_file}: it is not UTF-8 text") from None
        if len(data) > _MAX_TEMPLATE_BYTES:
            raise SettingsError(
                f"--chat-template-file {settings.chat_template_file}: it has more than {_MAX_TEMPLATE_BYTES} bytes"
            )
    return chat_template(source, tokenizer)


def chat_template(source: str, tokenizer: Tokenizer) -> ChatTemplate:
    """A template with the begin and end tokens of a tokenizer.  Raises ChatTemplateError."""

    def text(token: int | None) -> str:
        return "" if token is None else tokenizer.token_to_piece(token).decode("utf-8", "replace")

    return ChatTemplate(
        source,
        bos_token=text(tokenizer.bos_id),
        eos_token=text(tokenizer.eos_id),
        add_bos=tokenizer.add_bos,
        add_eos=tokenizer.add_eos,
    )
