"""The tokenizer of the real llama.cpp, by the C functions that the oracle's extension module exports.

Needs the `oracle` extra. A file with a vocabulary and nothing else is enough.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import gguf
import xllamacpp

_LONGEST_PIECE = 1 << 16


class _ModelParams(ctypes.Structure):
    """llama_model_params as far as `vocab_only`; the rest is as llama.cpp gives it."""

    _fields_ = (
        ("before_numbers", ctypes.c_void_p * 2),
        ("numbers", ctypes.c_int32 * 5),
        ("before_flags", ctypes.c_void_p * 4),
        ("vocab_only", ctypes.c_bool),
        ("after", ctypes.c_char * 95),
    )


_LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
_quiet = _LOG(lambda _level, _text, _data: None)


def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(next(Path(xllamacpp.__file__).parent.glob("*.so"))))
    pointer, integer, flag = ctypes.c_void_p, ctypes.c_int32, ctypes.c_bool
    for name, result, arguments in (
        ("llama_log_set", None, [_LOG, pointer]),
        ("llama_model_default_params", _ModelParams, []),
        ("llama_model_load_from_file", pointer, [ctypes.c_char_p, _ModelParams]),
        ("llama_model_get_vocab", pointer, [pointer]),
        ("llama_model_free", None, [pointer]),
        ("llama_tokenize", integer, [pointer, ctypes.c_char_p, integer, pointer, integer, flag, flag]),
        ("llama_token_to_piece", integer, [pointer, integer, ctypes.c_char_p, integer, integer, flag]),
        ("llama_vocab_n_tokens", integer, [pointer]),
        ("llama_vocab_is_eog", flag, [pointer, integer]),
    ):
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    library.llama_log_set(_quiet, None)
    library.llama_backend_init()
    return library


class LlamaVocabulary:
    """llama.cpp's tokenizer of a GGUF file; to be closed."""

    def __init__(self, path: Path) -> None:
        """ValueError if llama.cpp does not load the file."""
        self._library = _library()
        params = self._library.llama_model_default_params()
        params.vocab_only = True
        self._model = self._library.llama_model_load_from_file(str(path).encode(), params)
        if not self._model:
            raise ValueError(f"llama.cpp does not load {path}")
        self._vocabulary = self._library.llama_model_get_vocab(self._model)
        self.n_vocab: int = self._library.llama_vocab_n_tokens(self._vocabulary)

    def __enter__(self) -> LlamaVocabulary:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._library.llama_model_free(self._model)

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """The ids of llama_tokenize."""
        data = text.encode()
        capacity = len(data) + 16
        ids = (ctypes.c_int32 * capacity)()
        count = self._library.llama_tokenize(
            self._vocabulary, data, len(data), ids, capacity, add_special, parse_special
        )
        if count < 0:
            raise ValueError(f"llama_tokenize answers {count}")
        return ids[:count]

    def piece(self, token_id: int, *, special: bool = True) -> bytes:
        """The bytes of llama_token_to_piece."""
        piece = ctypes.create_string_buffer(_LONGEST_PIECE)
        size = self._library.llama_token_to_piece(self._vocabulary, token_id, piece, _LONGEST_PIECE, 0, special)
        return piece.raw[:size]

    def eog_ids(self) -> set[int]:
        """The tokens that end an answer."""
        return {i for i in range(self.n_vocab) if self._library.llama_vocab_is_eog(self._vocabulary, i)}


def write_vocabulary(path: Path, metadata: Mapping[str, Any]) -> None:
    """A GGUF file of metadata alone."""
    writer = gguf.GGUFWriter(path, "llama")
    add_metadata(writer, metadata)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_metadata(writer: gguf.GGUFWriter, metadata: Mapping[str, Any]) -> None:
    """Lists, truth values, unsigned integers and strings, by their Python types."""
    for key, value in metadata.items():
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_string(key, value)
