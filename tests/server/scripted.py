"""A model without a file: an engine whose next ids a test gives, and a byte-level tokenizer, for tests of the server.

Ids 0 to 255 are the bytes; the special tokens follow. `served()` puts both into a `ServedModel`.
"""

from __future__ import annotations

import mmap
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bloomery.interface.engine import EngineError, EngineOptions, Rows, SavedSequence, Span, TapSink
from bloomery.interface.files.gguf import GgufFile
from bloomery.interface.files.metadata import Metadata
from bloomery.interface.spec import ModelDescription, ModelSpec
from bloomery.interface.tokenizer import Tokenizer, load_tokenizer
from bloomery.interface.tokenizer.byte_letters import to_letters
from bloomery.server.model import ServedModel, chat_template

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
USER_DEFINED = ("<think>", "</think>", "<tool_call>", "</tool_call>")
SPECIAL = {text: 256 + at for at, text in enumerate(CONTROL + USER_DEFINED)}
EOS = SPECIAL["<|im_end|>"]
N_VOCAB = 256 + len(SPECIAL)

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

Script = Callable[[tuple[int, ...]], int]


@cache
def byte_tokenizer() -> Tokenizer:
    """A tokenizer whose every byte is a token."""
    texts = [to_letters(bytes([value])) for value in range(256)] + list(SPECIAL)
    types = [1] * 256 + [3] * len(CONTROL) + [4] * len(USER_DEFINED)
    return load_tokenizer(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "qwen2",
            "tokenizer.ggml.tokens": texts,
            "tokenizer.ggml.token_type": np.array(types, np.int32),
            "tokenizer.ggml.merges": [],
            "tokenizer.ggml.eos_token_id": EOS,
            "tokenizer.ggml.bos_token_id": SPECIAL["<|endoftext|>"],
            "tokenizer.ggml.add_bos_token": False,
        }
    )


def ids_of(text: str | bytes) -> tuple[int, ...]:
    """The ids of a text; in a `str`, the spellings of special tokens are those tokens."""
    if isinstance(text, bytes):
        return tuple(text)
    return tuple(byte_tokenizer().encode(text, add_special=False, parse_special=True))


def scattered(ids: tuple[int, ...]) -> int:
    """A letter that depends on every id so far, so that no other sequence's ids would give the same answer."""
    return ord("a") + zlib.crc32(np.array(ids, np.int32).tobytes()) % 26


def answering(answers: Mapping[str, str | bytes | Sequence[int]], end: int = EOS) -> Script:
    """A script that continues each prompt with its answer and then `end`; a longer prompt wins over its beginning."""
    known = [
        (ids_of(prompt), ids_of(answer) if isinstance(answer, str | bytes) else tuple(answer))
        for prompt, answer in sorted(answers.items(), key=lambda item: -len(item[0]))
    ]

    def script(ids: tuple[int, ...]) -> int:
        for prompt, answer in known:
            said = ids[len(prompt) :]
            if ids[: len(prompt)] == prompt and answer[: len(said)] == said:
                return answer[len(said)] if len(said) < len(answer) else end
        return end

    return script


class ScriptedSequence:
    """See `bloomery.interface.engine.Sequence`; the state is the ids themselves."""

    def __init__(self, engine: ScriptedEngine, index: int) -> None:
        self.engine = engine
        self.index = index
        self._ids: list[int] = []
        self._trial = 0

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(self._ids)

    @property
    def n_past(self) -> int:
        return len(self._ids)

    def extend(self, ids: Sequence[int], trial: int) -> None:
        self._ids += ids
        self._trial = trial

    def commit(self, kept: int) -> None:
        if not 0 <= kept <= self._trial or not self._trial:
            raise EngineError(f"commit({kept}) with {self._trial} inputs on trial")
        del self._ids[len(self._ids) - self._trial + kept :]
        self._trial = 0

    def keep(self, n: int) -> int:
        if n < 0 or self._trial:
            raise EngineError(f"keep({n}) with {self._trial} inputs on trial")
        del self._ids[n:]
        return len(self._ids)

    def save(self) -> SavedSequence:
        return SavedSequence(engine="scripted", ids=self.ids, arrays={})

    def load(self, saved: SavedSequence) -> None:
        self._ids = list(saved.ids)

    def release(self) -> None:
        self.engine.resident -= 1


@dataclass(frozen=True)
class ScriptedRows:
    """Rows of a pass: each wanted row's next id is far above the others."""

    values: npt.NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.values)

    def logits(self, row: int) -> npt.NDArray[np.float32]:
        return self.values[row]

    def best(self, row: int, k: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        ids = np.argsort(-self.values[row], kind="stable")[:k].astype(np.int32)
        return ids, self.values[row][ids]


class ScriptedEngine:
    """See `bloomery.interface.engine.Engine`.

    script: the next id after a sequence's ids.  margin: how far its logit is above the others, which are 0; a small
    margin lets a sampler choose.  before_pass: called with each pass's spans and may raise.  seconds: how long a pass
    sleeps.  held: whether each pass waits for `allow`.  passes: what was computed, (sequence's index, ids) of each
    span.
    """

    name = "scripted"

    def __init__(
        self,
        script: Script = scattered,
        *,
        n_ctx: int = 4096,
        n_sequences: int = 1,
        n_ubatch: int = 512,
        margin: float = 100.0,
        held: bool = False,
        seconds: float = 0.0,
        before_pass: Callable[[Sequence[Span]], None] | None = None,
    ) -> None:
        self.spec = ModelSpec(
            architecture="scripted", n_vocab=N_VOCAB, n_embd=1, n_ctx_train=n_ctx, norm_eps=1e-6, layers=()
        )
        self.options = EngineOptions(n_ctx=n_ctx, n_sequences=n_sequences, n_ubatch=n_ubatch)
        self.script = script
        self.margin = margin
        self.seconds = seconds
        self.before_pass = before_pass
        self.held = held
        self.resident = 0
        self.closed = False
        self.passes: list[tuple[tuple[int, tuple[int, ...]], ...]] = []
        self._allowed = 0
        self._done = 0
        self._waiting = False
        self._changed = threading.Condition()

    def allow(self, n: int = 1) -> None:
        """Let `n` held passes run, and wait until they are done."""
        with self._changed:
            done = self._done + n
            self._allowed += n
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._done >= done, 30.0), "fewer passes came than were allowed"

    def free(self) -> None:
        """Hold no pass any more."""
        with self._changed:
            self.held = False
            self._changed.notify_all()

    def wait_until_held(self) -> None:
        """Wait until a pass is held."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._waiting, 30.0), "no pass came"

    def sequence(self) -> ScriptedSequence:
        if self.resident >= self.options.n_sequences:
            raise EngineError(f"all {self.options.n_sequences} sequences are resident")
        self.resident += 1
        return ScriptedSequence(self, self.resident - 1)

    def run(self, spans: Sequence[Span], *, taps: TapSink | None = None) -> list[Rows]:
        self._hold()
        try:
            return self._run(spans)
        finally:
            with self._changed:
                self._done += 1
                self._changed.notify_all()

    def _run(self, spans: Sequence[Span]) -> list[Rows]:
        if self.before_pass is not None:
            self.before_pass(spans)
        time.sleep(self.seconds)
        rows: list[Rows] = []
        for sequence, span in ((_own(span), span) for span in spans):
            before = sequence.ids
            if not span.ids or len(before) + len(span.ids) > self.options.n_ctx:
                raise EngineError(f"{len(span.ids)} ids after {len(before)} do not fit {self.options.n_ctx} cells")
            values = np.zeros((len(span.wanted), N_VOCAB), np.float32)
            for row, wanted in enumerate(span.wanted):
                seen = before + tuple(span.ids[: wanted % len(span.ids) + 1])
                values[row, self.script(seen)] = self.margin
            rows.append(ScriptedRows(values))
        for span in spans:
            _own(span).extend(list(span.ids), span.trial)
        self.passes.append(tuple((_own(span).index, tuple(span.ids)) for span in spans))
        return rows

    def close(self) -> None:
        self.closed = True

    def _hold(self) -> None:
        with self._changed:
            if not self.held:
                return
            self._waiting = True
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: not self.held or self._allowed, 60.0), "the pass was never allowed"
            self._waiting = False
            self._allowed -= self.held


def _own(span: Span) -> ScriptedSequence:
    assert isinstance(span.sequence, ScriptedSequence)
    return span.sequence


def served(
    script: Script = scattered,
    *,
    n_parallel: int = 1,
    n_ctx: int = 4096,
    template: str = TEMPLATE,
    name: str = "scripted",
    engine: ScriptedEngine | None = None,
) -> ServedModel:
    """A model around a scripted engine, which holds `n_parallel` sequences of `n_ctx` cells."""
    engine = engine or ScriptedEngine(script, n_ctx=n_ctx, n_sequences=n_parallel)
    tokenizer = byte_tokenizer()
    file = GgufFile(Path("scripted.gguf"), 3, Metadata({}, mmap.mmap(-1, 1)))
    return ServedModel(
        file=file,
        description=ModelDescription(spec=engine.spec, weights={}),
        engine=engine,
        tokenizer=tokenizer,
        template=chat_template(template, tokenizer),
        name=name,
        path="scripted.gguf",
        n_ctx=engine.options.n_ctx,
        n_parallel=engine.options.n_sequences,
        file_type="all F32",
        meta={
            "vocab_type": 2,
            "n_vocab": N_VOCAB,
            "n_ctx": engine.options.n_ctx,
            "n_ctx_train": engine.options.n_ctx,
            "n_embd": 1,
            "n_params": 0,
            "size": 0,
            "ftype": "all F32",
        },
    )
