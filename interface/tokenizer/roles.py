"""Which tokens have a role: begin and end of text, end of a turn, fill-in-the-middle marks; and which end an answer.

llama.cpp finds them by metadata and, where a file says nothing, by spelling (llama-vocab.cpp, `load`). Where several
spellings of one role are in a vocabulary, llama.cpp takes whichever its hash table meets first; here the order of the
lists decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from bloomery.interface.tokenizer.errors import TokenizerError
from bloomery.interface.tokenizer.metadata_keys import PREFIX, read_flag, read_token_id
from bloomery.interface.tokenizer.vocabulary import Attribute, Vocabulary

# Role and metadata key. A later key of the same role wins, so the deprecated ones stand last, as in llama.cpp.
_KEYS = (
    ("bos", "bos_token_id"),
    ("eos", "eos_token_id"),
    ("eot", "eot_token_id"),
    ("eom", "eom_token_id"),
    ("unk", "unknown_token_id"),
    ("sep", "seperator_token_id"),
    ("pad", "padding_token_id"),
    ("mask", "mask_token_id"),
    ("fim_pre", "fim_pre_token_id"),
    ("fim_suf", "fim_suf_token_id"),
    ("fim_mid", "fim_mid_token_id"),
    ("fim_pad", "fim_pad_token_id"),
    ("fim_rep", "fim_rep_token_id"),
    ("fim_sep", "fim_sep_token_id"),
    ("fim_pre", "prefix_token_id"),
    ("fim_suf", "suffix_token_id"),
    ("fim_mid", "middle_token_id"),
)

_SPELLINGS = MappingProxyType(
    {
        "eot": (
            "<|eot_id|>",
            "<|im_end|>",
            "<|end|>",
            "<end_of_turn>",
            "<|endoftext|>",
            "<|end_of_text|>",
            "<EOT>",
            "_<EOT>",
            "[EOT]",
            "<｜end▁of▁sentence｜>",
            "<end_of_utterance>",
        ),
        "eom": ("<|eom_id|>",),
        "fim_pre": (
            "<|fim_prefix|>",
            "<fim-prefix>",
            "<fim_prefix>",
            "<｜fim▁begin｜>",
            "<PRE>",
            "▁<PRE>",
            "<|code_prefix|>",
            "<|prefix|>",
        ),
        "fim_suf": (
            "<|fim_suffix|>",
            "<fim-suffix>",
            "<fim_suffix>",
            "<｜fim▁hole｜>",
            "<SUF>",
            "▁<SUF>",
            "<|code_suffix|>",
            "<|suffix|>",
        ),
        "fim_mid": (
            "<|fim_middle|>",
            "<fim-middle>",
            "<fim_middle>",
            "<｜fim▁end｜>",
            "<MID>",
            "▁<MID>",
            "<|code_middle|>",
            "<|middle|>",
        ),
        "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
        "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
        "fim_sep": ("<|file_sep|>",),
    }
)

# Spellings that end an answer in whatever vocabulary they are found.
_END_SPELLINGS = (
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
)

# Harmony's marks frame what a client shows, so they are text to be seen.
_ALWAYS_VISIBLE = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")


@dataclass(frozen=True)
class Roles:
    """`ids[role]` for each role that has a token; `eog_ids` end an answer; the flags say whether to add BOS and EOS."""

    ids: Mapping[str, int]
    eog_ids: frozenset[int]
    add_bos: bool
    add_eos: bool


@dataclass(frozen=True)
class Presumed:
    """What llama.cpp presumes of a kind of tokenizer where the file says nothing.

    `ids[role]` are tokens; `add_bos` is whether BOS is added, and `always_bos` that it is whatever the file says.
    """

    ids: Mapping[str, int]
    add_bos: bool = False
    always_bos: bool = False


def assign_roles(metadata: Mapping[str, Any], vocabulary: Vocabulary, presumed: Presumed) -> Roles:
    """The roles by metadata, then by what is presumed, then by spelling.

    A presumed id outside the vocabulary is no token. Tokens whose spelling gives them a role become control tokens, as
    llama.cpp makes them: `vocabulary.attributes` is changed in place.
    """
    n_vocab = len(vocabulary)
    ids = {role: token_id for role, token_id in presumed.ids.items() if token_id < n_vocab}
    for role, key in _KEYS:
        token_id = read_token_id(metadata, key, n_vocab)
        if token_id is not None:
            ids[role] = token_id
    for role, spellings in _SPELLINGS.items():
        found = next((vocabulary.ids[text] for text in spellings if text in vocabulary.ids), None)
        if role not in ids and found is not None:
            ids[role] = found
            vocabulary.attributes[found] |= Attribute.CONTROL
    add_bos = read_flag(metadata, "add_bos_token")
    if add_bos is None or presumed.always_bos:
        add_bos = presumed.add_bos or presumed.always_bos
    add_eos = read_flag(metadata, "add_eos_token") or False
    for role, key, wanted in (("bos", "add_bos_token", add_bos), ("eos", "add_eos_token", add_eos)):
        if wanted and role not in ids:
            said = f"{PREFIX}{key} is true" if read_flag(metadata, key) else f"the tokenizer adds {role.upper()}"
            raise TokenizerError(f"{said}, but {PREFIX}{role}_token_id is missing")
    return Roles(MappingProxyType(ids), _end_of_generation(vocabulary, ids), add_bos, add_eos)


def _end_of_generation(vocabulary: Vocabulary, role_ids: Mapping[str, int]) -> frozenset[int]:
    attributes = vocabulary.attributes
    ends = {role_ids[role] for role in ("fim_pad", "fim_rep", "fim_sep") if role in role_ids}
    for text in _END_SPELLINGS:
        token_id = vocabulary.ids.get(text)
        if token_id is not None:
            ends.add(token_id)
            attributes[token_id] |= Attribute.CONTROL
    for text in _ALWAYS_VISIBLE:
        token_id = vocabulary.ids.get(text)
        if token_id is not None:
            attributes[token_id] = Attribute.USER_DEFINED
    ends.update(role_ids[role] for role in ("eos", "eot", "eom") if role in role_ids)

    texts = {vocabulary.texts[token_id] for token_id in ends}
    # In Harmony and Solar vocabularies <|end|> closes one message of several.
    if "<|end|>" in texts and texts & {"<|call|>", "<|calls|>"} and texts & {"<|return|>", "<|flush|>"}:
        end = vocabulary.ids["<|end|>"]
        ends.discard(end)
        attributes[end] = Attribute.USER_DEFINED
    # In Gemma 4 and PLaMo vocabularies </s> is an ordinary token, the closing tag of a struck-through text.
    if "</s>" in texts and texts & {"<|tool_response>", "<|plamo:eos|>"}:
        tag = vocabulary.ids["</s>"]
        ends.discard(tag)
        attributes[tag] = Attribute.NORMAL
    return frozenset(ends)
