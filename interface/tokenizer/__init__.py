"""Tokenizers, bit-identical to llama-tokenize: `load_tokenizer(metadata)` and what it gives."""

from bloomery.interface.tokenizer.detokenize import StreamDecoder, complete_length, piece_json
from bloomery.interface.tokenizer.errors import TokenizerError
from bloomery.interface.tokenizer.load import load_tokenizer
from bloomery.interface.tokenizer.tokenizer import Tokenizer

__all__ = ["StreamDecoder", "Tokenizer", "TokenizerError", "complete_length", "load_tokenizer", "piece_json"]
