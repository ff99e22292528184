"""From a checkpoint to GGUF files: all Q8_0, and a mix of Q4_K and Q6_K."""

from collections.abc import Callable, Iterator
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from bloomery.interface.files.quants import encode
from tools.demo_model import template
from tools.demo_model.model import DemoModel, Shape
from tools.demo_model.vocabulary import CONTROL, END_OF_TEXT, TURN_END, USER_DEFINED, Vocabulary

ARCHITECTURE = "qwen3moe"

Weights = npt.NDArray[np.float32]
Mix = Callable[[str], str]
"""Which format a tensor is written in, by its name."""


def q8_0(name: str) -> str:
    """Everything in Q8_0 but the vectors and the routers."""
    return "F32" if name.endswith(("norm.weight", "ffn_gate_inp.weight")) else "Q8_0"


def q4_k(layers: int) -> Mix:
    """Q4_K; Q6_K for the embedding (which is the head, too), the values and the later half of the down projections."""

    def choose(name: str) -> str:
        if name.endswith(("norm.weight", "ffn_gate_inp.weight")):
            return "F32"
        if name == "token_embd.weight" or name.endswith("attn_v.weight"):
            return "Q6_K"
        if name.endswith("ffn_down_exps.weight") and int(name.split(".")[1]) >= layers // 2:
            return "Q6_K"
        return "Q4_K"

    return choose


def tensors(model: DemoModel) -> Iterator[tuple[str, Weights]]:
    """Every tensor under its GGUF name, in the order of the forward pass; shapes are NumPy's (rows are outputs)."""
    state = {name: value.detach().numpy().astype(np.float32) for name, value in model.state_dict().items()}
    width = model.shape.expert_width
    yield "token_embd.weight", state["embedding.weight"]
    for layer in range(model.shape.layers):
        here, block = f"blocks.{layer}.", f"blk.{layer}."
        yield block + "attn_norm.weight", state[here + "attention_norm"]
        yield block + "attn_q.weight", state[here + "attention.q.weight"]
        yield block + "attn_k.weight", state[here + "attention.k.weight"]
        yield block + "attn_v.weight", state[here + "attention.v.weight"]
        yield block + "attn_q_norm.weight", state[here + "attention.q_norm"]
        yield block + "attn_k_norm.weight", state[here + "attention.k_norm"]
        yield block + "attn_output.weight", state[here + "attention.output.weight"]
        yield block + "ffn_norm.weight", state[here + "experts_norm"]
        yield block + "ffn_gate_inp.weight", state[here + "experts.router.weight"]
        yield block + "ffn_gate_exps.weight", state[here + "experts.gate_up"][:, :width]
        yield block + "ffn_up_exps.weight", state[here + "experts.gate_up"][:, width:]
        yield block + "ffn_down_exps.weight", state[here + "experts.down"]
    yield "output_norm.weight", state["norm"]


def _describe(writer: gguf.GGUFWriter, shape: Shape, file_type: gguf.LlamaFileType) -> None:
    writer.add_name("bloomery-demo")
    writer.add_description("A tiny chat model that shows a bloomery server at work")
    writer.add_license("Apache-2.0")
    writer.add_file_type(file_type)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.expert_width * shape.experts_used)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.key_value_heads)
    writer.add_key_length(shape.head_width)
    writer.add_value_length(shape.head_width)
    writer.add_layer_norm_rms_eps(shape.epsilon)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_expert_count(shape.experts)
    writer.add_expert_used_count(shape.experts_used)
    writer.add_expert_feed_forward_length(shape.expert_width)


def _add_tokenizer(writer: gguf.GGUFWriter, vocabulary: Vocabulary) -> None:
    types = dict.fromkeys(CONTROL, gguf.TokenType.CONTROL) | dict.fromkeys(USER_DEFINED, gguf.TokenType.USER_DEFINED)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types([types.get(token, gguf.TokenType.NORMAL) for token in vocabulary.tokens])
    writer.add_token_merges([f"{left} {right}" for left, right in vocabulary.merges])
    writer.add_bos_token_id(vocabulary.id_of(END_OF_TEXT))
    writer.add_pad_token_id(vocabulary.id_of(END_OF_TEXT))
    writer.add_eos_token_id(vocabulary.id_of(TURN_END))
    writer.add_add_bos_token(False)
    writer.add_chat_template(template.SOURCE.rstrip("\n"))


def export(model: DemoModel, vocabulary: Vocabulary, path: Path, mix: Mix, file_type: gguf.LlamaFileType) -> int:
    """Write one GGUF file; gives its size in bytes."""
    writer = gguf.GGUFWriter(path, ARCHITECTURE)
    _describe(writer, model.shape, file_type)
    _add_tokenizer(writer, vocabulary)
    for name, values in tensors(model):
        format_name = mix(name)
        if format_name == "F32":
            writer.add_tensor(name, values)
        else:
            blocks = encode(np.ascontiguousarray(values), format_name)
            writer.add_tensor(name, blocks, raw_dtype=gguf.GGMLQuantizationType[format_name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.stat().st_size


def export_both(model: DemoModel, vocabulary: Vocabulary, small: Path, folder: Path) -> dict[Path, int]:
    """Write the Q4_K mix to `small` and the Q8_0 file into `folder`; gives the sizes in bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    large = folder / "demo-q8_0.gguf"
    return {
        small: export(model, vocabulary, small, q4_k(model.shape.layers), gguf.LlamaFileType.MOSTLY_Q4_K_M),
        large: export(model, vocabulary, large, q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
    }
