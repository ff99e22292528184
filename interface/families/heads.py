"""The attention heads of a model, from the metadata keys every architecture shares."""

from __future__ import annotations

from typing import NamedTuple

from bloomery.interface.families.count import read_count
from bloomery.interface.files.gguf import GgufFile, ModelFileError


class Heads(NamedTuple):
    """Query heads, key-value heads, and the widths of a query or key head and of a value head."""

    n_head: int
    n_head_kv: int
    head_dim: int
    value_dim: int


def read_heads(file: GgufFile, n_embd: int) -> Heads:
    """`<arch>.attention.*`, keys and values of one width.

    The width of a head is read, never derived where the file has it: it is not `n_embd / n_head` in most models.
    Raises ModelFileError naming a key that is missing or contradicts another.
    """
    prefix = f"{file.get_str('general.architecture')}.attention"
    n_head = read_count(file, f"{prefix}.head_count")
    n_head_kv = read_count(file, f"{prefix}.head_count_kv", n_head)
    if n_head % n_head_kv:
        raise ModelFileError(
            f"{file.path}: {prefix}.head_count {n_head} is not a multiple of head_count_kv {n_head_kv}"
        )
    head_dim = read_count(file, f"{prefix}.key_length", n_embd // n_head)
    if (size := read_count(file, f"{prefix}.value_length", head_dim)) != head_dim:
        raise ModelFileError(
            f"{file.path}: {prefix}.value_length is {size}, but {prefix}.key_length"
            f" ({head_dim} where the file has none) must be equal to it"
        )
    return Heads(n_head, n_head_kv, head_dim, head_dim)


def read_n_vocab(file: GgufFile) -> int:
    """The rows of the embedding.  Raises ModelFileError when the file has none."""
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelFileError(f"{file.path}: the tensor token_embd.weight is missing")
    return embedding.shape[0]
