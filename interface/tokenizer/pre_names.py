"""The names of `tokenizer.ggml.pre`, and what llama.cpp presumes of a vocabulary by it (llama-vocab.cpp, `load`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from bloomery.interface.quoted import quoted
from bloomery.interface.tokenizer import pre_patterns as patterns
from bloomery.interface.tokenizer.errors import TokenizerError
from bloomery.interface.tokenizer.metadata_keys import PREFIX
from bloomery.interface.tokenizer.pretokenize import PreTokenizer


@dataclass(frozen=True)
class PreKind:
    """How a byte-pair vocabulary of one name cuts text, and its other rules.

    `ignore_merges`: a word that is a token is that token, however it would merge. `add_bos`: BOS is added unless the
    file says otherwise. `presumed_bos`: token 11 is BOS where the file names none.
    """

    pre_tokenizer: PreTokenizer
    ignore_merges: bool = False
    add_bos: bool = False
    presumed_bos: bool = True


def _named(kind: PreKind | PreTokenizer, *names: str) -> dict[str, PreKind]:
    return dict.fromkeys(names, PreKind(kind) if isinstance(kind, PreTokenizer) else kind)


PRE_KINDS: Mapping[str, PreKind] = MappingProxyType(
    _named(patterns.QWEN2, "qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez")
    | _named(patterns.QWEN2, "stablelm2", "hunyuan", "solar-open", "grok-2")
    # Written otherwise in llama.cpp, but no text tells them from the ones above.
    | _named(patterns.QWEN2, "bailingmoe", "bailingmoe2", "llada-moe")
    | _named(patterns.QWEN35, "qwen35")
    | _named(patterns.DEEPSEEK3, "deepseek-v3", "joyai-llm", "hunyuan-dense", "hy_v4")
    | _named(PreKind(patterns.LLAMA3, ignore_merges=True, presumed_bos=False), "glm4", "glm5")
    | _named(PreKind(patterns.LLAMA3, presumed_bos=False), "chatglm-bpe")
    | _named(patterns.GPT4O, "gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2")
    | _named(PreKind(patterns.LLAMA3, ignore_merges=True, add_bos=True), "pixtral", "llama-bpe", "llama3", "llama-v3")
    | _named(PreKind(patterns.LLAMA3, ignore_merges=True, add_bos=True), "falcon3", "falcon-h1", "midm-2.0", "lfm2")
    | _named(PreKind(patterns.LLAMA3, ignore_merges=True, add_bos=True), "jina-v5-nano")
    | _named(PreKind(patterns.TEKKEN, ignore_merges=True, add_bos=True), "tekken")
    | _named(patterns.LLAMA3, "dbrx", "smaug-bpe")
    | _named(patterns.GPT2, "gpt-2", "phi-2", "jina-es", "jina-de", "gigachat", "jina-v2-es", "jina-v2-de", "a.x-4.0")
    | _named(patterns.GPT2, "mellum", "modern-bert", "jina-v1-en", "jina-v2-code", "roberta-bpe", "exaone4", "mpt")
    | _named(patterns.GPT2, "olmo", "jais", "trillion", "granite-docling")
    | _named(patterns.STARCODER, "starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b")
    | _named(patterns.STARCODER, "mellum2")
    | _named(patterns.DEEPSEEK_LLM, "deepseek-llm")
    | _named(patterns.DEEPSEEK_CODER, "deepseek-coder")
    | _named(patterns.FALCON, "falcon")
    | _named(patterns.BLOOM, "poro-chat", "bloom", "gpt3-finnish")
    | _named(patterns.VIKING, "viking")
    | _named(PreKind(patterns.CHAMELEON, add_bos=True), "chameleon")
    | _named(patterns.JAIS2, "jais-2")
    | _named(patterns.SEED_CODER, "seed-coder")
    | _named(patterns.SPARK2_5, "spark2_5")
    | _named(PreKind(patterns.YOUTU, ignore_merges=True), "youtu")
    | _named(PreKind(patterns.MINICPM5, ignore_merges=True), "minicpm5")
    | _named(PreKind(patterns.GRANITE_EMB_MULTI, ignore_merges=True), "granite-embed-multi-97m")
    | _named(patterns.TINY_AYA, "tiny_aya", "cohere2moe")
    | _named(patterns.SUPERBPE, "superbpe")
    | _named(patterns.KIMI_K2, "kimi-k2")
    | _named(patterns.UFAKZEKA, "ufakzeka")
    | _named(patterns.AFMOE, "afmoe")
    | _named(patterns.LAGUNA, "laguna")
    | _named(patterns.EXAONE_MOE, "exaone-moe")
    | _named(patterns.DEFAULT, "default")
)

# These write spaces as U+2581 and have no byte alphabet.
METASPACE_NAMES = ("gemma4", "granite-embed-multi-311m", "mmbert", "sarvam-moe")


def find_pre_kind(name: str | None) -> PreKind:
    """The kind of that name; a file that names none has the default one, as in llama.cpp. TokenizerError if unknown."""
    if name not in PRE_KINDS and name:
        supported = ", ".join((*PRE_KINDS, *METASPACE_NAMES))
        raise TokenizerError(f"{PREFIX}pre is {quoted(name)}; supported are {supported}")
    return PRE_KINDS[name or "default"]
