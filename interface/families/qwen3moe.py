"""`qwen3moe`: Qwen3 with routed experts in every layer. The router is softmax over all experts, renormalised."""

from __future__ import annotations

from bloomery.interface.families.count import read_count
from bloomery.interface.families.qwen3 import describe
from bloomery.interface.files.gguf import GgufFile, ModelFileError
from bloomery.interface.spec import ModelDescription, Moe


def read(file: GgufFile) -> ModelDescription:
    """The spec and weight table of a `qwen3moe` file.

    An expert's width is `expert_feed_forward_length`, or `feed_forward_length / expert_used_count` in files without
    it.  Raises ModelFileError naming a key that is missing or impossible.
    """
    n_expert = read_count(file, "qwen3moe.expert_count")
    n_used = read_count(file, "qwen3moe.expert_used_count")
    if n_used > n_expert:
        raise ModelFileError(
            f"{file.path}: qwen3moe.expert_used_count {n_used} is more than qwen3moe.expert_count {n_expert}"
        )
    if "qwen3moe.expert_feed_forward_length" in file.metadata:
        n_ff = read_count(file, "qwen3moe.expert_feed_forward_length")
    else:
        n_ff = max(1, read_count(file, "qwen3moe.feed_forward_length") // n_used)
    return describe(file, Moe(n_expert=n_expert, n_expert_used=n_used, n_ff=n_ff))
