"""Stop strings in a text that arrives in pieces.

A stop string may begin in one piece and end in a later one, so text that could still become one is held back. The
stop that ends first ends the text, and among those that end on the same character the longest. As that rule looks at
one character after the other, no cut of the text into pieces changes where it ends.
"""

from __future__ import annotations

from collections.abc import Iterable


class _Matcher:
    """How much of one word the text read so far ends with (Knuth, Morris and Pratt 1977).

    One character costs constant time on average however the word repeats itself, so a client's stop string cannot make
    a step slow. The table of borders grows only as far as the text has matched.
    """

    def __init__(self, word: str) -> None:
        self.word = word
        self.matched = 0
        self._border = [0, 0]

    def step(self, character: str) -> bool:
        """Read one character; whether the text now ends with the whole word."""
        while self.matched and self.word[self.matched] != character:
            self.matched = self._borders(self.matched)
        if self.word[self.matched] == character:
            self.matched += 1
        return self.matched == len(self.word)

    def _borders(self, length: int) -> int:
        """The longest proper prefix of `word[:length]` that is also its suffix."""
        while len(self._border) <= length:
            last = self.word[len(self._border) - 1]
            border = self._border[-1]
            while border and self.word[border] != last:
                border = self._border[border]
            self._border.append(border + (self.word[border] == last))
        return self._border[length]


class StopStrings:
    """The stop strings of one generation.

    Like llama-server, it releases nothing of what it holds while the text ends with the beginning of a stop string, so
    that streamed pieces are cut in the same places (llama.cpp `tools/server/server-context.cpp`, process_token).
    """

    def __init__(self, words: Iterable[str]) -> None:
        """`words` that are empty stop nothing."""
        self._matchers = [_Matcher(word) for word in dict.fromkeys(words) if word]
        self._held = ""
        self.found = ""

    def feed(self, text: str) -> str:
        """Add text, and return what is released; after a stop string was `found`, nothing is read or released."""
        if self.found:
            return ""
        if not self._matchers:
            return text
        start = len(self._held)
        self._held += text
        for at in range(start, len(self._held)):
            character = self._held[at]
            ended = [matcher.word for matcher in self._matchers if matcher.step(character)]
            if ended:
                self.found = max(ended, key=len)
                released = self._held[: at + 1 - len(self.found)]
                self._held = ""
                return released
        return "" if any(matcher.matched for matcher in self._matchers) else self.flush()

    def flush(self) -> str:
        """What is held back, which no later text can turn into a stop string any more."""
        released, self._held = self._held, ""
        return released
