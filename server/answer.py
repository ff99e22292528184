"""One answer as it grows: a row of logits in, the next id and the text it releases out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from bloomery.interface.sampling import Drawn, Sampler, probabilities
from bloomery.interface.tokenizer import StreamDecoder, Tokenizer
from bloomery.server.events import Probability, StopType, Token
from bloomery.server.generation import Generation
from bloomery.server.stops import StopStrings


class Answer:
    """The sampling, the text and the end of one generation. It knows ids and text, and nothing of engines or slots.

    stop_type: why it ended, None while it goes on.  stopping_word: the stop string that ended it, or "".
    truncated: whether the context ended it.  has_new_line: whether the text holds a newline.
    """

    def __init__(self, generation: Generation, tokenizer: Tokenizer, n_vocab: int) -> None:
        """Raises ValueError when the generation's sampling does not fit the vocabulary.

        The penalties see the prompt's ids as if they had been generated, as llama-server's do (llama.cpp
        `tools/server/server-context.cpp`, init_sampler).
        """
        self._generation = generation
        self._tokenizer = tokenizer
        self._sampler = Sampler(generation.sampling, n_vocab=n_vocab, eog_ids=tokenizer.eog_ids)
        self._sampler.accept_all(generation.prompt)
        self._decoder = StreamDecoder(tokenizer, preserved=generation.preserved)
        self._stops = StopStrings(generation.stop)
        self.n_decoded = 0
        self.stop_type: StopType | None = None
        self.truncated = False
        self.has_new_line = False

    @property
    def stopping_word(self) -> str:
        return self._stops.found

    def advance(self, logits: npt.NDArray[np.float32], *, context_full: bool) -> Token:
        """Pick the next id from a row, `[n_vocab]`.

        `context_full` says that the sequence has no cell for an id after this one. Raises ValueError when the sampler
        cannot draw from the row.
        """
        drawn = self._sampler.draw(logits)
        token = drawn.token
        self._sampler.accept(token)
        self.n_decoded += 1
        text = self._stops.feed(self._decoder.feed(token))
        ends = token in self._tokenizer.eog_ids
        if ends:
            # No later text can complete a stop string any more.
            text += self._stops.flush()
        self.has_new_line = self.has_new_line or "\n" in text
        self._judge(ends, context_full)
        special = token in self._tokenizer.special_ids and self._ends_with(text, token)
        plain = Token(id=token, text=text, special=special)
        return plain if self._generation.n_probs == 0 else self._with_probabilities(plain, drawn, logits)

    def _with_probabilities(self, token: Token, drawn: Drawn, logits: npt.NDArray[np.float32]) -> Token:
        n_probs, after_sampling = self._generation.n_probs, self._generation.post_sampling_probs
        best: Iterable[tuple[int, float]]
        if after_sampling:
            own, best = drawn.probability, drawn.best(n_probs)
        else:
            logprobs = probabilities(logits, n_probs)
            own, best = logprobs.logprob(token.id), logprobs
        return replace(
            token,
            own=self._probability(token.id, own),
            best=tuple(self._probability(*each) for each in best),
            after_sampling=after_sampling,
        )

    def remainder(self) -> str:
        """At the end: the text that was held back, with what is left of an unfinished character replaced."""
        if self.stopping_word:
            return ""
        text = self._stops.flush() + self._decoder.flush()
        self.has_new_line = self.has_new_line or "\n" in text
        return text

    def _judge(self, ends: bool, context_full: bool) -> None:
        n_predict = self._generation.n_predict
        if ends:
            self.stop_type = "eos"
        elif self.stopping_word:
            self.stop_type = "word"
        elif context_full:
            self.stop_type = "limit"
            self.truncated = True
        elif 0 <= n_predict <= self.n_decoded:
            # The limit is looked at after an id, so that a limit of 0 gives one, as llama-server does.
            self.stop_type = "limit"

    def _piece(self, token: int) -> bytes:
        """The bytes the answer shows of an id: none of a control token, unless the generation preserves it."""
        return self._tokenizer.token_to_piece(token, special=token in self._generation.preserved)

    def _ends_with(self, text: str, token: int) -> bool:
        piece = self._piece(token).decode("utf-8", "replace")
        return bool(piece) and text.endswith(piece)

    def _probability(self, token: int, value: float) -> Probability:
        return Probability(id=token, piece=self._piece(token), value=value)
