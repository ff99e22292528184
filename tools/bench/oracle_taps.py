"""What the oracle computes on the way: every tensor of a pass, read through llama.cpp's C interface in the wheel.

The offsets below are those of llama.cpp b11549, the build in the `oracle` extra; other defaults at those places are
refused before anything is set. With the taps on or off the logits are the same bits.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bloomery.conformance.oracle import Configuration

Floats = npt.NDArray[np.float32]

# Offsets in `struct llama_context_params`, with the format of what stands there and its default.
_SETTINGS = {
    "n_ctx, n_batch, n_ubatch, n_seq_max": (0, "<4I", (512, 2048, 512, 1)),
    "n_threads, n_threads_batch": (28, "<2i", (4, 4)),
    "flash_attn_type": (52, "<i", (-1,)),
    "cb_eval": (88, "<Q", (0,)),
    "type_k, type_v": (104, "<2i", (1, 1)),
}
_OFF, _AS_IT_IS = 0, -1
_F32, _F16 = 0, 1


class _Parameters(ctypes.Structure):
    """Room for either of llama.cpp's parameter structures, which are passed by value."""

    _fields_ = (("raw", ctypes.c_uint8 * 192),)


class _Batch(ctypes.Structure):
    """`struct llama_batch` of llama.h."""

    _fields_ = (
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embd", ctypes.c_void_p),
        ("pos", ctypes.POINTER(ctypes.c_int32)),
        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    )


_LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
_TAP = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_bool, ctypes.c_void_p)


def _library() -> Any:
    import xllamacpp

    [path] = Path(xllamacpp.__file__).parent.glob("xllamacpp*.so")
    llama = ctypes.CDLL(str(path))
    pointer = ctypes.c_void_p
    for name, result, *arguments in (
        ("llama_context_default_params", _Parameters),
        ("llama_model_default_params", _Parameters),
        ("llama_batch_init", _Batch, ctypes.c_int32, ctypes.c_int32, ctypes.c_int32),
        ("llama_batch_free", None, _Batch),
        ("llama_model_load_from_file", pointer, ctypes.c_char_p, _Parameters),
        ("llama_init_from_model", pointer, pointer, _Parameters),
        ("llama_decode", ctypes.c_int32, pointer, _Batch),
        ("llama_get_logits", ctypes.POINTER(ctypes.c_float), pointer),
        ("llama_get_memory", pointer, pointer),
        ("llama_memory_clear", None, pointer, ctypes.c_bool),
        ("llama_free", None, pointer),
        ("llama_model_free", None, pointer),
        ("ggml_get_name", ctypes.c_char_p, pointer),
        ("ggml_get_data", pointer, pointer),
        ("ggml_nbytes", ctypes.c_size_t, pointer),
    ):
        function = getattr(llama, name)
        function.restype, function.argtypes = result, list(arguments)
    return llama


class TappedOracle:
    """llama.cpp on one file in this process, in a configuration of `bloomery.conformance.oracle` and on one thread."""

    def __init__(
        self,
        path: Path,
        *,
        n_ctx: int,
        n_vocab: int,
        configuration: Configuration = "strict",
        n_ubatch: int = 512,
        taps: bool = True,
    ) -> None:
        """`n_ubatch`: ids a pass.  `taps`: whether tensors are read; without, a pass is faster and its logits the same.

        RuntimeError when the library is another build than the one whose structures are known here.
        """
        self._llama = _library()
        self._quiet = _LOG(lambda _level, _text, _data: None)
        self._llama.llama_log_set(self._quiet, None)
        self._llama.llama_backend_init()
        self._tap = _TAP(self._seen)
        self._taps: dict[str, list[Floats]] = {}
        self._n_vocab = n_vocab
        parameters = self._llama.llama_context_default_params()
        raw = bytearray(bytes(parameters.raw))
        for name, (offset, layout, default) in _SETTINGS.items():
            if struct.unpack_from(layout, raw, offset) != default:
                raise RuntimeError(f"the library is not llama.cpp b11549: it has no {name} of {default} at {offset}")
        seen = ctypes.cast(self._tap, ctypes.c_void_p).value if taps else 0
        # Left as it is, flash attention is on.
        attention, cache = (_OFF, _F32) if configuration == "strict" else (_AS_IT_IS, _F16)
        wanted = [(n_ctx, 2048, n_ubatch, 1), (1, 1), (attention,), (seen,), (cache, cache)]
        for (offset, layout, _), values in zip(_SETTINGS.values(), wanted, strict=True):
            struct.pack_into(layout, raw, offset, *values)
        defaults = self._llama.llama_model_default_params()
        self._model = self._llama.llama_model_load_from_file(str(path).encode(), defaults)
        self._context = self._llama.llama_init_from_model(self._model, _Parameters.from_buffer_copy(raw))
        if not self._context:
            raise RuntimeError(f"the oracle cannot open {path}")

    def _seen(self, tensor: int, asked: bool, _data: int | None) -> bool:
        """Called before and after every tensor is computed."""
        # `struct ggml_tensor` begins with its type, and has its four sizes at 16, the fastest first.
        if not asked and ctypes.c_int32.from_address(tensor).value == _F32:
            shape = tuple(reversed((ctypes.c_int64 * 4).from_address(tensor + 16)))
            raw = ctypes.string_at(self._llama.ggml_get_data(tensor), self._llama.ggml_nbytes(tensor))
            values = np.frombuffer(raw, np.float32)
            if values.size == np.prod(shape):
                name = self._llama.ggml_get_name(tensor).decode()
                self._taps.setdefault(name, []).append(values.reshape(shape))
        return True

    def run(self, ids: Sequence[int]) -> tuple[Floats, dict[str, list[Floats]]]:
        """The logits `[len(ids), n_vocab]` of a fresh prompt, and by name every float32 tensor that is contiguous."""
        self._taps = {}
        self._llama.llama_memory_clear(self._llama.llama_get_memory(self._context), True)
        batch = self._llama.llama_batch_init(len(ids), 0, 1)
        try:
            batch.n_tokens = len(ids)
            for at, token in enumerate(ids):
                batch.token[at], batch.pos[at], batch.n_seq_id[at], batch.logits[at] = token, at, 1, 1
                batch.seq_id[at][0] = 0
            if status := self._llama.llama_decode(self._context, batch):
                raise RuntimeError(f"llama_decode answered {status}")
        finally:
            self._llama.llama_batch_free(batch)
        logits = np.ctypeslib.as_array(self._llama.llama_get_logits(self._context), (len(ids), self._n_vocab))
        return logits.copy(), self._taps

    def close(self) -> None:
        """Free the context and the model."""
        self._llama.llama_free(self._context)
        self._llama.llama_model_free(self._model)
