"""Record what the real sampler does with fixed logits: the expectations of `bloomery-conformance parts`.

    python -m tools.record_sampling [--out FOLDER]

Needs the `oracle` extra. Five kinds of cases are written. Stages: single samplers and short chains on rows full of
ties, infinities and steep or flat stretches, through llama.cpp's C functions; what they leave is kept as a digest of
the exact bytes. Draw: one seeded draw with its probabilities. Chain: whole chains with a seed, a prompt and several
rows; the ids are kept. Server: requests to llama-server on a model that is a table of successors, so that its logits
are known exactly; ids and log-probabilities are kept. After: the same with the probabilities after sampling.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import datetime
import hashlib
import json
import math
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import xllamacpp

from bloomery.conformance.oracle import Oracle, OracleSettings, oracle_version

FloatRow = npt.NDArray[np.float32]
Stage = Sequence[Any]

FOLDER = Path(__file__).parents[1] / "conformance/recordings/parts/sampling"
CANDIDATE = np.dtype([("id", "<i4"), ("logit", "<f4"), ("p", "<f4")])
EOG_ID = 2
N_TABLE = 64


class _Array(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("size", ctypes.c_size_t),
        ("selected", ctypes.c_int64),
        ("sorted", ctypes.c_bool),
    )


class _Bias(ctypes.Structure):
    _fields_ = (("token", ctypes.c_int32), ("bias", ctypes.c_float))


class _ChainParams(ctypes.Structure):
    _fields_ = (("no_perf", ctypes.c_bool),)


def _functions() -> dict[str, Any]:
    """llama.cpp's sampler functions, which the oracle's extension module exports."""
    library = ctypes.CDLL(str(next(Path(xllamacpp.__file__).parent.glob("*.so"))))
    int32, size, float32, pointer = ctypes.c_int32, ctypes.c_size_t, ctypes.c_float, ctypes.c_void_p
    signatures: dict[str, tuple[Any, ...]] = {
        "chain_init": (pointer, _ChainParams),
        "chain_add": (None, pointer, pointer),
        "accept": (None, pointer, int32),
        "apply": (None, pointer, ctypes.POINTER(_Array)),
        "free": (None, pointer),
        "init_top_k": (pointer, int32),
        "init_top_p": (pointer, float32, size),
        "init_min_p": (pointer, float32, size),
        "init_temp_ext": (pointer, float32, float32, float32),
        "init_dist": (pointer, ctypes.c_uint32),
        "init_penalties": (pointer, int32, int32, float32, float32, float32),
        "init_logit_bias": (pointer, int32, int32, ctypes.POINTER(_Bias)),
    }
    functions = {}
    for name, (result, *arguments) in signatures.items():
        function = getattr(library, f"llama_sampler_{name}")
        function.restype, function.argtypes = result, arguments
        functions[name] = function
    return functions


class LlamaChain:
    """A chain of real samplers, each given as its name and its arguments."""

    _call = _functions()

    def __init__(self, stages: Sequence[Stage]) -> None:
        self._chain = self._call["chain_init"](_ChainParams(True))
        for name, *arguments in stages:
            self._call["chain_add"](self._chain, self._call[f"init_{name}"](*arguments))

    def accept(self, token: int) -> None:
        self._call["accept"](self._chain, token)

    def apply(self, logits: FloatRow) -> tuple[npt.NDArray[Any], _Array]:
        """What is left of the row, as CANDIDATE records, and the array's header."""
        row = np.zeros(len(logits), CANDIDATE)
        row["id"], row["logit"] = np.arange(len(logits)), logits
        header = _Array(row.ctypes.data, len(row), -1, False)
        self._call["apply"](self._chain, ctypes.byref(header))
        return row[: header.size], header

    def __del__(self) -> None:
        self._call["free"](self._chain)


def request_chain(params: dict[str, Any], n_vocab: int, seed: int) -> LlamaChain:
    """The chain that llama-server builds for a request (`common_sampler_init`), as far as its settings are offered."""
    biases = [(token, -math.inf if bias is None else bias) for token, bias in params["logit_bias"]]
    if params["ignore_eos"]:
        biases.append((EOG_ID, -math.inf))
    stages: list[Stage] = []
    if biases:
        stages.append(("logit_bias", n_vocab, len(biases), (_Bias * len(biases))(*biases)))
    penalties = (params["repeat_penalty"], params["frequency_penalty"], params["presence_penalty"])
    stages += [
        ("penalties", n_vocab, params["repeat_last_n"], *penalties),
        ("top_k", params["top_k"]),
        ("top_p", params["top_p"], params["min_keep"]),
        ("min_p", params["min_p"], params["min_keep"]),
        ("temp_ext", params["temperature"], 0.0, 1.0),
        ("dist", seed),
    ]
    return LlamaChain(stages)


def digest(ids: npt.NDArray[Any], *numbers: npt.NDArray[Any]) -> str:
    """sha256 of the ids as int32 and of the numbers as float32, little-endian."""
    parts = [ids.astype("<i4").tobytes(), *(part.astype("<f4").tobytes() for part in numbers)]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def quicksort_killer(n: int) -> FloatRow:
    """n logits within one bucket, each twice, on which `std::sort` runs out of depth and changes to its heap sort.

    The order is Musser's (Introspective sorting and selection algorithms, 1997) against pivots by a median of three.
    """
    half = n // 2
    order = [place if place % 2 else half + place - 1 for place in range(1, half + 1)]
    order += [2 * place for place in range(1, half + 1)]
    return (np.roll(order, 1) // 2 / 4096).astype(np.float32)


def rows(random: np.random.Generator) -> list[FloatRow]:
    """Rows of 1 to 3000 logits: plain, coarse (many ties), level, mostly ruled out, peaked, ordered."""
    made = []
    for n in (1, 2, 5, 16, 17, 40, 41, 128, 129, 300, 1024, 1025, 3000):
        normal = random.normal(size=n)
        coarse = np.round(normal * 3)
        sparse = np.where(random.random(n) < 0.9, -np.inf, coarse)
        sparse[random.integers(n)] = 1.25
        peaked = coarse / 8
        peaked[random.integers(n)] += 30
        made += [coarse, sparse, peaked, np.sort(coarse), np.full(n, -1.5)]
        made += [np.round(normal * 4 * 256) / 256] if n > 1024 else [normal * 4, np.sort(normal * 12)[::-1]]
    killer = np.concatenate([quicksort_killer(400), np.round(random.normal(size=100)) - 5])
    return [row.astype(np.float32) for row in [*made, killer]]


def stage_cases(bank: Sequence[FloatRow], random: np.random.Generator) -> Iterator[dict[str, Any]]:
    """Each sampler alone, chains of cuts, and the draw with its probabilities, on every row."""
    for index, row in enumerate(bank):
        k = int(random.choice([1, 5, 40, 128, 129, 256, 1000]))
        p, min_p = float(random.choice([0.0, 0.3, 0.9, 0.95, 0.9999])), float(random.choice([0.001, 0.05, 0.4, 1.0]))
        t, min_keep = float(random.choice([0.0, 0.1, 0.8, 2.5])), int(random.choice([0, 0, 1, 7, 300]))
        top_k, top_p = ["top_k", k], ["top_p", p, min_keep]
        cut, temp = ["min_p", min_p, min_keep], ["temp_ext", t, 0.0, 1.0]
        chains = [
            [["top_k", len(row)]],
            [top_k],
            [top_p],
            [cut],
            [temp],
            [top_k, top_p],
            [top_k, top_p, cut, temp],
            [top_p, cut],
        ]
        for stages in chains:
            left, header = LlamaChain(stages).apply(row)
            yield {
                "kind": "stages",
                "row": index,
                "stages": stages,
                "first_ids": left["id"][:8].tolist(),
                "count": len(left),
                "best_first": bool(header.sorted),
                "digest": digest(left["id"], left["logit"]),
            }
        seed = int(random.integers(2**32 - 1))
        left, header = LlamaChain([top_k, ["dist", seed]]).apply(row)
        yield {
            "kind": "draw",
            "row": index,
            "stages": [top_k],
            "seed": seed,
            "selected": int(header.selected),
            "digest": digest(left["id"], left["p"]),
        }


def settings(random: np.random.Generator, n_vocab: int) -> dict[str, Any]:
    """One request's fields; defaults are frequent."""

    def pick(*values: Any) -> Any:
        return values[int(random.integers(len(values)))]

    biased = random.choice(n_vocab, 3, replace=False).tolist()
    biases = [list(pair) for pair in zip(biased, (-100.0, 2.5, None), strict=True)] if pick(0, 0, 1) else []
    return {
        "seed": int(random.integers(2**32 - 1)),
        "temperature": pick(0.8, 0.8, 0.0, 0.3, 1.5, 20.0),
        "top_k": pick(40, 40, 0, 3, 128, 1000),
        "top_p": pick(0.95, 0.95, 1.0, 0.5, 0.999),
        "min_p": pick(0.05, 0.05, 0.0, 0.3),
        "repeat_penalty": pick(1.0, 1.0, 1.1, 0.8),
        "repeat_last_n": pick(64, 64, 0, 5),
        "presence_penalty": pick(0.0, 0.0, 0.75, -0.5),
        "frequency_penalty": pick(0.0, 0.0, 0.3),
        "min_keep": pick(0, 0, 0, 6),
        "logit_bias": biases,
        "ignore_eos": bool(pick(0, 1)),
    }


def draw_cases(bank: Sequence[FloatRow], random: np.random.Generator) -> Iterator[dict[str, Any]]:
    """Whole chains over a prompt and a run of draws, each drawn id accepted before the next."""
    by_size: dict[int, list[int]] = {}
    for index, row in enumerate(bank):
        by_size.setdefault(len(row), []).append(index)
    for _ in range(200):
        n_vocab = int(random.choice([n for n in by_size if n >= 16]))
        params = settings(random, n_vocab)
        prompt = random.integers(0, min(n_vocab, 40), int(random.integers(0, 90))).tolist()
        order = random.choice(by_size[n_vocab], 12).tolist()
        chain = request_chain(params, n_vocab, params["seed"])
        for token in prompt:
            chain.accept(token)
        drawn = []
        for index in order:
            left, header = chain.apply(bank[index])
            if not np.isfinite(left["logit"].max()):
                break  # A ban met the last id a row allowed, and the real sampler's answer means nothing.
            drawn.append(int(left["id"][header.selected]))
            chain.accept(drawn[-1])
        yield {
            "kind": "chain",
            "n_vocab": n_vocab,
            "params": params,
            "prompt": prompt,
            "rows": order[: len(drawn)],
            "drawn": drawn,
        }


def write_table_model(path: Path, table: FloatRow) -> None:
    """A GGUF whose logits after token i are exactly ``table[i]``, `[n, n]`, n a power of 4.

    Attention and feed-forward are zero and embeddings are unit vectors, which the norm scales by sqrt(n).
    """
    n = len(table)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(1024)
    writer.add_embedding_length(n)
    writer.add_block_count(1)
    writer.add_feed_forward_length(32)
    writer.add_head_count(1)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(0.0)
    writer.add_rope_dimension_count(n)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<unk>", "<s>", "</s>", *(f"w{i}" for i in range(3, n))])
    writer.add_token_scores([0.0] * n)
    writer.add_token_types([2, 3, 3, *[1] * (n - 3)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(EOG_ID)
    writer.add_add_bos_token(False)
    one, square = np.ones(n, np.float32), np.zeros((n, n), np.float32)
    writer.add_tensor("token_embd.weight", np.eye(n, dtype=np.float32))
    writer.add_tensor("output_norm.weight", one)
    writer.add_tensor("output.weight", np.ascontiguousarray(table.T) / np.float32(math.isqrt(n)))
    for norm in ("attn_norm", "ffn_norm"):
        writer.add_tensor(f"blk.0.{norm}.weight", one)
    for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
        writer.add_tensor(f"blk.0.{part}.weight", square)
    writer.add_tensor("blk.0.ffn_gate.weight", np.zeros((32, n), np.float32))
    writer.add_tensor("blk.0.ffn_up.weight", np.zeros((32, n), np.float32))
    writer.add_tensor("blk.0.ffn_down.weight", np.zeros((n, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@contextlib.contextmanager
def table_server(table: FloatRow) -> Iterator[Oracle]:
    """llama-server on the model of a table."""
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "table.gguf"
        write_table_model(model, table)
        with Oracle(model, OracleSettings(configuration="strict")) as server:
            yield server


def ask(server: Oracle, params: dict[str, Any], prompt: list[int], n_predict: int, **more: Any) -> dict[str, Any]:
    """llama-server's answer to one request."""
    bias = [[token, False if value is None else value] for token, value in params["logit_bias"]]
    fields = params | {"prompt": prompt, "logit_bias": bias, "n_predict": n_predict, "return_tokens": True}
    answer: dict[str, Any] = server.post("/completion", fields | {"cache_prompt": False} | more)
    return answer


def report(answer: dict[str, Any], value: str) -> list[Any]:
    """Each drawn id with the value it comes with, and the best ids with theirs."""
    return [
        [token["id"], token[value], [[top["id"], top[value]] for top in token[f"top_{value}s"]]]
        for token in answer.get("completion_probabilities", [])
    ]


def server_cases(server: Oracle, random: np.random.Generator) -> Iterator[dict[str, Any]]:
    """Requests to llama-server, with ids and, for some, the log-probabilities it reports."""
    for number in range(80):
        params = settings(random, N_TABLE)
        params["n_probs"] = (0, 0, 4, 0, N_TABLE, 0, 0, 0)[number % 8]
        prompt = random.integers(3, N_TABLE, int(random.integers(1, 40))).tolist()
        answer = ask(server, params, prompt, 24)
        reported = report(answer, "logprob")
        yield {"kind": "server", "params": params, "prompt": prompt, "drawn": answer["tokens"], "reported": reported}


def seed_cases(server: Oracle, random: np.random.Generator) -> Iterator[dict[str, Any]]:
    """The default settings with fifty seeds, 64 ids each."""
    for seed in random.integers(2**32 - 1, size=50).tolist():
        params: dict[str, Any] = {"seed": seed, "ignore_eos": True, "logit_bias": []}
        drawn = ask(server, params, [3], 64)["tokens"]
        yield {"kind": "server", "params": params, "prompt": [3], "drawn": drawn, "reported": []}


def after_cases(server: Oracle, random: np.random.Generator) -> Iterator[dict[str, Any]]:
    """Requests to llama-server with the probabilities after sampling."""
    for number in range(30):
        params = settings(random, N_TABLE)
        params["n_probs"] = (3, 3, N_TABLE)[number % 3]
        if number % 5 == 2:
            # No stage sorts, so that the report does.
            params |= {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
        prompt = random.integers(3, N_TABLE, int(random.integers(1, 40))).tolist()
        answer = ask(server, params, prompt, 8, post_sampling_probs=True)
        yield {"kind": "after", "params": params, "prompt": prompt, "reported": report(answer, "prob")}


def record(folder: Path) -> None:
    """Write the whole set into ``folder``, its manifest last."""
    random = np.random.default_rng(20240607)
    bank = rows(random)
    # Halves and sixteenths: exact through the model's products by 8, and full of ties.
    table = (np.round(random.normal(size=(N_TABLE, N_TABLE)) * 2 * 16) / 16).astype(np.float32)
    table[::4] = np.round(table[::4] * 2) / 2
    cases = [*stage_cases(bank, random), *draw_cases(bank, random)]
    with table_server(table) as server:
        for asked in (server_cases, seed_cases, after_cases):
            cases += asked(server, random)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cases.jsonl").write_text("".join(json.dumps(case, separators=(",", ":")) + "\n" for case in cases))
    starts = np.cumsum([0, *(len(row) for row in bank)])
    np.savez_compressed(folder / "arrays.npz", rows=np.concatenate(bank), starts=starts, table=table)
    kinds = [case["kind"] for case in cases]
    manifest = {
        "format": "bloomery-sampling-recording",
        "version": 1,
        "oracle": oracle_version(),
        "command": "python -m tools.record_sampling",
        "taken": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "eog_id": EOG_ID,
        "counts": {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)},
        "sha256": {
            name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in ("cases.jsonl", "arrays.npz")
        },
    }
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    print(f"{len(cases)} cases in {folder}: {manifest['counts']}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.record_sampling", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder to write (default: the suite's own)")
    record(parser.parse_args().out)


if __name__ == "__main__":
    main()
