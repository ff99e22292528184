"""Record the real tokenizer of llama.cpp: the expectations of `bloomery-conformance parts`.

    python -m tools.record_tokenizer [NAME ...]

Needs the `oracle` extra. Small vocabularies of our own are written into models that are nothing but a table of
successors, so that an answer's tokens can be prescribed: `chatml` is an ordinary chat vocabulary, `overlapping` has all
that is odd (special spellings that overlap, bytes and merged symbols that are no token, BOS and EOS to add),
`sentencepiece` and `gemma4` are the two kinds without a byte alphabet. Recorded from llama-server are /tokenize with
every flag and with pieces, /detokenize, and for `chatml` answers of /completion, whole and streamed, whose tokens cut
characters or are no UTF-8 at all.

`pairs` has every kind and every pre-tokenizer by its name, on the vocabularies of pair_vocabulary.py and one list of
texts; the ids come from llama.cpp's C functions.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import gguf
import numpy as np

from bloomery.conformance.fixtures.pair_vocabulary import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    VARIANTS,
    letters_of,
    pair_text,
    variant_digest,
)
from bloomery.conformance.oracle import Oracle, OracleSettings, oracle_version
from bloomery.conformance.wire import ask
from tests.interface.tokenizer.hard_texts import hard_text
from tools.llama_vocabulary import LlamaVocabulary, add_metadata, write_vocabulary

FOLDER = Path(__file__).parents[1] / "conformance/recordings/parts"

SENTENCES = """\
The smith opens the bloomery in the morning and the iron comes out as a bloom. Don't touch it, it's hot!
We're here; you've seen it, they'll come, I'd wait, I'm sure. 2024 was 12 years and 365 days after 2012.
def weigh(bloom, *, slag=0.1): return bloom * (1 - slag)  # in kg, print(weigh(12.5))
{"name": "weigh", "arguments": {"bloom": 12.5, "unit": "kg"}} user What is 7 plus 5? assistant 12
대장장이가 아침에 화로를 열면 쇳덩이가 나온다. 쇳덩이는 뜨겁다. 대장장이는 기다린다.
Кузнец утром открывает печь, и железо горячее. Железо остывает, кузнец ждёт. 鉄は熱いうちに打て。鉄は熱い。
"""


def trained_merges(text: str, count: int, *, space: str = "") -> list[tuple[str, str]]:
    """Pairs joined in order of their frequency (of two equally frequent ones the alphabetically first).

    Of bytes in their alphabet, or, with a `space`, of characters with that one for a space.
    """
    lines = [line.split() for line in text.splitlines()]
    words = Counter(f" {word}" if place else word for line in lines for place, word in enumerate(line))
    spelled = {
        tuple(word.replace(" ", space) if space else letters_of(word.encode())): times for word, times in words.items()
    }
    merges = []
    for _ in range(count):
        pairs: Counter[tuple[str, str]] = Counter()
        for symbols, times in spelled.items():
            for pair in pairwise(symbols):
                pairs[pair] += times
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        spelled = {joined(symbols, best): times for symbols, times in spelled.items()}
    return merges


def joined(symbols: Sequence[str], pair: tuple[str, str]) -> tuple[str, ...]:
    done: list[str] = []
    for symbol in symbols:
        if done and (done[-1], symbol) == pair:
            done[-1] += symbol
        else:
            done.append(symbol)
    return tuple(done)


def chatml() -> dict[str, Any]:
    """256 bytes, 160 merges, the marks of a chat, and one token of every other kind."""
    merges = trained_merges(SENTENCES, 160)
    special = {"<|endoftext|>": CONTROL, "<|im_start|>": CONTROL, "<|im_end|>": CONTROL}
    special |= dict.fromkeys(("<think>", "</think>", "<tool_call>", "</tool_call>"), USER_DEFINED)
    special |= {"<unk>": UNKNOWN, "<|spare|>": UNUSED, "<0x0A>": BYTE, "not a byte": NORMAL}
    metadata = vocabulary_of([letters_of(bytes([byte])) for byte in range(256)], merges, special)
    tokens = metadata["tokenizer.ggml.tokens"]
    metadata["tokenizer.ggml.bos_token_id"] = tokens.index("<|endoftext|>")
    metadata["tokenizer.ggml.eos_token_id"] = tokens.index("<|im_end|>")
    metadata["tokenizer.ggml.padding_token_id"] = tokens.index("<|endoftext|>")
    metadata["tokenizer.ggml.add_bos_token"] = False
    return metadata


def overlapping() -> dict[str, Any]:
    """Missing bytes, merged symbols that are no token, and special spellings that overlap and nest."""
    merges = trained_merges(SENTENCES, 60)
    missing = {"~", letters_of(b"\x07"), letters_of(b"\xea"), letters_of(b"\xe2")}
    special = {"<|a|>": CONTROL, "<|a|><|b|>": CONTROL, "|><|": USER_DEFINED, "|><": USER_DEFINED, "><|b": CONTROL}
    special |= dict.fromkeys(("  ", "    ", "\n\n", "abab", "bab", "한국", "❤️", "1,2", "plus"), USER_DEFINED)
    special |= {"</s>": NORMAL, "[PAD]": NORMAL, "<unk>": UNKNOWN, "": NORMAL}
    metadata = vocabulary_of([letters_of(bytes([byte])) for byte in range(256)], merges, special)
    gone = missing | {left + right for left, right in merges[10:40:5]}
    kept = [place for place, token in enumerate(metadata["tokenizer.ggml.tokens"]) if token not in gone]
    for key in ("tokenizer.ggml.tokens", "tokenizer.ggml.token_type"):
        metadata[key] = [metadata[key][place] for place in kept]
    metadata["tokenizer.ggml.merges"] += [metadata["tokenizer.ggml.merges"][0], "nothing", " leading space"]
    metadata["tokenizer.ggml.bos_token_id"] = metadata["tokenizer.ggml.tokens"].index("<|a|>")
    metadata["tokenizer.ggml.eos_token_id"] = metadata["tokenizer.ggml.tokens"].index("!")
    metadata["tokenizer.ggml.add_bos_token"] = True
    metadata["tokenizer.ggml.add_eos_token"] = True
    return metadata


def vocabulary_of(letters: list[str], merges: list[tuple[str, str]], special: dict[str, int]) -> dict[str, Any]:
    ordinary = list(dict.fromkeys(letters + [left + right for left, right in merges]))
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": ordinary + list(special),
        "tokenizer.ggml.token_type": [NORMAL] * len(ordinary) + list(special.values()),
        "tokenizer.ggml.merges": [f"{left} {right}" for left, right in merges],
    }


def spaced(model: str) -> dict[str, Any]:
    """Byte tokens, characters and merges of SENTENCES with U+2581 for a space; runs of spaces and line ends."""
    merges = trained_merges(SENTENCES, 90, space="\u2581")
    special = {"<unk>": UNKNOWN, "<s>": CONTROL, "</s>": CONTROL, "<|im_end|>": CONTROL}
    special |= {f"<0x{byte:02X}>": BYTE for byte in range(256)}
    characters = [
        character for character in dict.fromkeys("\u2581abcdefghijklmnopqrstuvwxyz,.'" + SENTENCES) if character > " "
    ]
    ordinary = list(dict.fromkeys([*characters[:70], "\n", *(left + right for left, right in merges)]))
    ordinary = [token for token in ordinary if token not in special]
    added = {
        "  ": USER_DEFINED,
        "\n\n": USER_DEFINED,
        "<think>": USER_DEFINED,
        "\u2581\u2581": NORMAL,
        "\n\n\n": NORMAL,
    }
    tokens = [*special, *ordinary, *added]
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": model,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [*special.values(), *[NORMAL] * len(ordinary), *added.values()],
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_eos_token": model == "gemma4",
    }
    if model == "llama":
        # Every second pair has the score of the one before it.
        scores = {left + right: -float(place // 2) for place, (left, right) in enumerate(merges)}
        metadata["tokenizer.ggml.scores"] = [scores.get(token, -1000.0) for token in tokens]
    else:
        metadata["tokenizer.ggml.merges"] = [f"{left} {right}" for left, right in merges]
    return metadata


def write_model(path: Path, metadata: dict[str, Any], successors: dict[int, int]) -> None:
    """A one-layer model that adds nothing to the embeddings, which are unit vectors: each id predicts its successor."""
    n_vocab, head, width = len(metadata["tokenizer.ggml.tokens"]), 32, 512
    writer = gguf.GGUFWriter(path, "qwen3")
    writer.add_context_length(512)
    writer.add_embedding_length(width)
    writer.add_block_count(1)
    writer.add_feed_forward_length(head)
    writer.add_head_count(1)
    writer.add_head_count_kv(1)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_layer_norm_rms_eps(1e-6)
    add_metadata(writer, metadata)
    output = np.zeros((n_vocab, width), np.float32)
    for token_id, successor in successors.items():
        output[successor, token_id] = 1
    zeros = {"attn_q": (head, width), "attn_k": (head, width), "attn_v": (head, width), "attn_output": (width, head)}
    zeros |= {"ffn_gate": (head, width), "ffn_up": (head, width), "ffn_down": (width, head)}
    ones = {"attn_norm": width, "attn_q_norm": head, "attn_k_norm": head, "ffn_norm": width}
    writer.add_tensor("token_embd.weight", np.eye(n_vocab, width, dtype=np.float32))
    writer.add_tensor("output_norm.weight", np.ones(width, np.float32))
    writer.add_tensor("output.weight", output)
    for name, shape in zeros.items():
        writer.add_tensor(f"blk.0.{name}.weight", np.zeros(shape, np.float32))
    for name, size in ones.items():
        writer.add_tensor(f"blk.0.{name}.weight", np.ones(size, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def encode_cases(server: Oracle, texts: Iterable[str]) -> Iterator[dict[str, Any]]:
    for text in texts:
        answers = {}
        for add_special in (False, True):
            for parse_special in (False, True):
                fields = {"content": text, "add_special": add_special, "parse_special": parse_special}
                answers[f"{add_special:d}{parse_special:d}"] = server.post("/tokenize", fields)["tokens"]
        yield {"kind": "encode", "text": text, "ids": answers}


def pieces_case(server: Oracle, n_vocab: int) -> dict[str, Any]:
    """What /tokenize shows of each token, asked for by ids: they pass through unchanged."""
    tokens = server.post("/tokenize", {"content": list(range(n_vocab)), "with_pieces": True})["tokens"]
    assert [token["id"] for token in tokens] == list(range(n_vocab))
    return {"kind": "pieces", "pieces": [token["piece"] for token in tokens]}


def detokenize_cases(server: Oracle, random: Random, n_vocab: int, count: int) -> Iterator[dict[str, Any]]:
    for _ in range(count):
        highest = random.choice((256, n_vocab))
        ids = [random.randrange(highest) for _ in range(random.randint(0, 12))]
        yield {"kind": "detokenize", "ids": ids, "text": server.post("/detokenize", {"tokens": ids})["content"]}


# Answers by the bytes of their tokens; each byte at most once an answer, because a token has one successor.
ANSWERS: tuple[tuple[bytes | str, ...], ...] = (
    (b"a", b"\xf0", b"\x9f", b"\x98", b"\x80", b"b"),
    (b"a", b"\xe2", b"\x82", b"\xac", b"\xc3", b"\xa9"),
    (b"a", b"\xf0", b"\x9f", b"\x98"),
    (b"a", b"\xe2", b"\x82"),
    (b"\xc3",),
    (b"\xe2", b"a", b"b", b"c"),
    (b"\xf0", b"a", b"b", b"c", b"d"),
    (b"\xf0", b"\x9f", b"a", b"\xe2", b"\x82", b"\xac"),
    (b"\x80", b"x", b"\xbf", b"y"),
    (b"\xc0", b"\x80", b"x"),
    (b"\xc1", b"\xc2", b"\xc3", b"\xa9", b"x"),
    (b"\xed", b"\xa0", b"\x80", b"z"),
    (b"\xe0", b"\x80", b"\xaf", b"z"),
    (b"\xf4", b"\x90", b"\x80", b"\x81", b"z"),
    (b"\xf8", b"\x88", b"\x80", b"\x81", b"\x82", b"q"),
    (b"\xff", b"\xfe", b"q"),
    (b"a", "<|im_start|>", b"b", "<think>", b"c", "</think>", b"d"),
    (b"\xe2", "<|im_start|>", b"\x82", b"\xac"),
    (b"\xe2", "<tool_call>", b"\x82"),
    (b"a", "<unk>", b"b", "<|spare|>", b"c", "<0x0A>", b"d", "not a byte", b"e"),
)


def stream_cases(folder: Path, metadata: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Answers that begin after the prompt `<|endoftext|>` and end with `<|im_end|>`."""
    tokens = metadata["tokenizer.ggml.tokens"]
    start, end = tokens.index("<|endoftext|>"), tokens.index("<|im_end|>")
    for number, answer in enumerate(ANSWERS):
        ids = [tokens.index(letters_of(part) if isinstance(part, bytes) else part) for part in answer]
        model = folder / f"answer-{number}.gguf"
        write_model(model, metadata, dict(pairwise([start, *ids, end])))
        fields = {"prompt": [start], "n_predict": 32, "temperature": 0, "return_tokens": True, "cache_prompt": False}
        with Oracle(model, OracleSettings(configuration="strict")) as server:
            whole = server.post("/completion", fields)
            streamed = ask(server.address, "POST", "/completion", json.dumps(fields | {"stream": True}).encode())
        assert whole["tokens"] == [*ids, end], (answer, whole)
        events = [json.loads(line[6:]) for line in streamed.body.decode().splitlines() if line.startswith("data: {")]
        yield {
            "kind": "stream",
            "ids": whole["tokens"],
            "content": whole["content"],
            "chunks": [event["content"] for event in events],
        }


def record(name: str, metadata: dict[str, Any], *, seed: int, n_texts: int) -> None:
    folder = FOLDER / name
    folder.mkdir(parents=True, exist_ok=True)
    random = Random(seed)
    n_vocab = len(metadata["tokenizer.ggml.tokens"])
    types = metadata["tokenizer.ggml.token_type"]
    spellings = [token for token, kind in zip(metadata["tokenizer.ggml.tokens"], types, strict=True) if kind != NORMAL]
    texts = dict.fromkeys(hard_text(random, spellings) for _ in range(n_texts))
    with tempfile.TemporaryDirectory() as scratch:
        model = Path(scratch) / f"{name}.gguf"
        write_model(model, metadata, {})
        with Oracle(model, OracleSettings(configuration="strict")) as server:
            cases = [*encode_cases(server, ["", *texts]), pieces_case(server, n_vocab)]
            cases += detokenize_cases(server, random, n_vocab, 60)
        if name == "chatml":
            cases += stream_cases(Path(scratch), metadata)
    files = {
        "vocabulary.json": json.dumps(metadata, indent=0) + "\n",
        "cases.jsonl": "".join(json.dumps(case, separators=(",", ":")) + "\n" for case in cases),
    }
    for file_name, content in files.items():
        (folder / file_name).write_text(content)
    write_manifest(folder, seed, dict(Counter(case["kind"] for case in cases)), files)


def write_manifest(folder: Path, seed: int, counts: dict[str, int], files: Iterable[str], **more: Any) -> None:
    manifest = {
        "format": "bloomery-tokenizer-recording",
        "version": 1,
        "oracle": oracle_version(),
        "command": "python -m tools.record_tokenizer",
        "taken": datetime.date.today().isoformat(),
        "seed": seed,
        "counts": counts,
        **more,
        "sha256": {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in files},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


def record_pairs(*, seed: int, n_texts: int) -> None:
    """The ids of each text in each variant, alternately with and without special tokens.

    `row_of[text, variant]` is a row of ids; row i has `lengths[i]` of them in `ids`.
    """
    folder = FOLDER / "pairs"
    folder.mkdir(parents=True, exist_ok=True)
    random = Random(seed)
    texts = list(dict.fromkeys(pair_text(random) for _ in range(n_texts)))
    rows: dict[tuple[int, tuple[int, ...]], int] = {}
    row_of = np.zeros((len(texts), len(VARIANTS)), np.uint16)
    with tempfile.TemporaryDirectory() as scratch:
        for column, make in enumerate(VARIANTS.values()):
            path = Path(scratch) / "pairs.gguf"
            write_vocabulary(path, make())
            with LlamaVocabulary(path) as vocabulary:
                for number, text in enumerate(texts):
                    special = number % 2 == 0
                    ids = vocabulary.encode(text, add_special=special, parse_special=special)
                    row_of[number, column] = rows.setdefault((number, tuple(ids)), len(rows))
    # Rows of one text are alike, and side by side they take little room.
    order = sorted(rows, key=lambda row: row[0])
    place = np.zeros(len(rows), np.uint16)
    place[[rows[row] for row in order]] = np.arange(len(rows))
    (folder / "texts.json").write_text(json.dumps(texts, indent=0) + "\n")
    np.savez_compressed(
        folder / "ids.npz",
        ids=np.array([token_id for _, ids in order for token_id in ids], np.uint16),
        lengths=np.array([len(ids) for _, ids in order], np.uint16),
        row_of=place[row_of],
    )
    digests = {name: variant_digest(make()) for name, make in VARIANTS.items()}
    write_manifest(folder, seed, {"encode": len(texts)}, ("texts.json", "ids.npz"), variants=digests)


RECORDINGS = {
    "chatml": lambda: record("chatml", chatml(), seed=1, n_texts=700),
    "overlapping": lambda: record("overlapping", overlapping(), seed=2, n_texts=500),
    "sentencepiece": lambda: record("sentencepiece", spaced("llama"), seed=3, n_texts=300),
    "gemma4": lambda: record("gemma4", spaced("gemma4"), seed=4, n_texts=300),
    "pairs": lambda: record_pairs(seed=5, n_texts=1000),
}


def main() -> None:
    """Records what the command line names, or everything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(RECORDINGS))
    for name in parser.parse_args().names or RECORDINGS:
        RECORDINGS[name]()


if __name__ == "__main__":
    main()
