"""One parser for every reply, whole or streamed: the model's tokens in, reasoning, content and tool calls out."""

from __future__ import annotations

import secrets

from bloomery.server.chat.deltas import ChatDelta, ContentDelta, ParseFailure
from bloomery.server.chat.facts import TemplateFacts
from bloomery.server.chat.markup import ContentReader, NewId, PlainContent, Tools
from bloomery.server.chat.tags import Tag, TagReader
from bloomery.server.chat.think import SPACES, Start, ThinkSpan, start_of

# The most text read at once. Text after a tag is copied, so a long piece full of tags would cost its square.
_PIECE = 4096


def new_call_id(index: int) -> str:
    """An id that no other call of any reply has."""
    return f"call_{index}_{secrets.token_hex(8)}"


class ChatParser:
    """Reads one reply.

    The reply's cut into pieces does not matter, only which pieces are special tokens: a tag that the vocabulary holds
    as one is markup only as that token.
    """

    def __init__(
        self,
        facts: TemplateFacts,
        prompt_tail: str,
        tools: Tools,
        *,
        thinking: bool = True,
        raw_reasoning: bool = False,
        whole: bool = False,
        new_id: NewId = new_call_id,
    ) -> None:
        """`prompt_tail`: what the template wrote last (`Rendered.tail`).  tools: those whose calls are parsed.

        thinking: False when the request turned thinking off, which closes a span that the template would leave to the
        model.  raw_reasoning: leave the reasoning and its tags in the content.  whole: the reply is not streamed.
        """
        special, markup = facts.special_tags, facts.markup
        self._tags = TagReader(special)
        self._content: ContentReader = PlainContent()
        if markup is not None and (tools or markup.frames_content):
            self._content = markup.reader(special, tools, new_id, whole=whole)
        self._span: ThinkSpan | None = None
        if facts.think is not None:
            start = start_of(facts.think, prompt_tail)
            if start is Start.MAY_OPEN and not thinking:
                start = Start.CLOSED
            self._span = ThinkSpan(
                facts.think,
                prompt_tail,
                start,
                raw=raw_reasoning,
                enders=markup.ends_thought if markup else (),
                all_space=markup is not None and markup.space_is_layout,
            )
        # White space before the first text, where it is layout.
        self._skips_space = markup is not None and markup.space_is_layout
        self._failed = False

    def feed(self, text: str, special: bool) -> list[ChatDelta]:
        """Read more text; `special` says that it ends with the spelling of one special token."""
        deltas: list[ChatDelta] = []
        at = 0
        while len(text) - at > 2 * _PIECE and not self._failed:
            self._tags.feed(text[at : at + _PIECE], False)
            deltas += self._read(ended=False)
            at += _PIECE
        if not self._failed:
            self._tags.feed(text[at:], special)
            deltas += self._read(ended=False)
        return deltas

    def finish(self, stop_type: str) -> list[ChatDelta]:
        """The reply has ended, at the token limit if `stop_type` is "limit", by itself otherwise.

        Text that a matched stop string or the end released goes through `feed` first.
        """
        if self._failed:
            return []
        deltas = self._read(ended=True)
        if not self._failed and (self._span is None or self._span.over):
            deltas += self._content.finish(cut=stop_type == "limit")
        return deltas

    def _read(self, *, ended: bool) -> list[ChatDelta]:
        deltas: list[ChatDelta] = []
        while not self._failed:
            wanted = self._content.wanted()
            span = self._span if self._span is not None and not self._span.over else None
            part = self._tags.next(wanted if span is None else span.wanted(wanted), ended=ended)
            if part is None:
                break
            if span is not None:
                more, rest = span.read(part)
                deltas += more
                if any(isinstance(delta, ContentDelta) for delta in more):
                    self._skips_space = False
                if not rest:
                    continue
                part = rest
            if isinstance(part, Tag) and part.text not in wanted:
                part = part.text
            if self._skips_space and isinstance(part, str) and not (part := part.lstrip(SPACES)):
                continue
            self._skips_space = False
            more, again = self._content.read(part)
            deltas += more
            self._tags.unread(again)
            self._failed = bool(more) and isinstance(more[-1], ParseFailure)
        return deltas
