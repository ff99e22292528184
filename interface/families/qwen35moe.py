"""`qwen35moe`: Qwen3.5 and Qwen3.6 with routed experts and a gated shared one in every layer."""

from __future__ import annotations

from bloomery.interface.families.count import read_count
from bloomery.interface.families.qwen35 import describe
from bloomery.interface.files.gguf import GgufFile, ModelFileError
from bloomery.interface.spec import ModelDescription, Moe, SharedExpert


def read(file: GgufFile) -> ModelDescription:
    """The spec and weight table of a `qwen35moe` file.

    Where a file has no width of experts, `feed_forward_length` is the shared one's and that of all chosen together.
    Raises ModelFileError naming a key that is missing or impossible.
    """
    n_expert = read_count(file, "qwen35moe.expert_count")
    n_used = read_count(file, "qwen35moe.expert_used_count")
    if n_used > n_expert:
        raise ModelFileError(
            f"{file.path}: qwen35moe.expert_used_count {n_used} is more than qwen35moe.expert_count {n_expert}"
        )

    def width(key: str, n_together: int) -> int:
        if key in file.metadata:
            return read_count(file, key)
        return max(1, read_count(file, "qwen35moe.feed_forward_length") // n_together)

    experts = Moe(
        n_expert=n_expert,
        n_expert_used=n_used,
        n_ff=width("qwen35moe.expert_feed_forward_length", n_used),
        shared=SharedExpert(n_ff=width("qwen35moe.expert_shared_feed_forward_length", 1), gated=True),
    )
    return describe(file, experts)
