"""What a chat template does, learnt from what it renders.

Names say little: two files of one model family may carry different templates, and a file may be given another one. So
every fact here comes from rendering small conversations and comparing the results. A template that refuses a
conversation teaches nothing by it, and then has the plain answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, TypeAlias

from bloomery.server.chat.dsml import recognise_dsml
from bloomery.server.chat.function_xml import recognise_functions
from bloomery.server.chat.glm_xml import recognise_glm
from bloomery.server.chat.hermes import recognise_hermes
from bloomery.server.chat.markup import CallMarkup, Recognise, WrittenCalls
from bloomery.server.chat.minimax import recognise_minimax
from bloomery.server.chat.muse import recognise_muse
from bloomery.server.chat.tags import FIRST_TAG, LAST_TAG
from bloomery.server.chat.template import ChatTemplate
from bloomery.server.chat.think import ThinkTags

ThinkingOff: TypeAlias = Literal["switch", "low_effort", "neither"]

# Words that no template has.
_USER, _SYSTEM, _THOUGHT, _SAID, _ARGUMENT, _TOOL = "Zuq1", "Zsy2", "Zth3", "Zsa4", "Zar5", "ztool6"
_PARAMETER = "place"

# Asked in turn for the markup of a template's calls.
_RECOGNISERS: tuple[Recognise, ...] = (
    recognise_hermes,
    recognise_functions,
    recognise_glm,
    recognise_dsml,
    recognise_minimax,
    recognise_muse,
)

_PROBE_TOOL = {
    "type": "function",
    "function": {
        "name": _TOOL,
        "description": "A tool.",
        "parameters": {"type": "object", "properties": {_PARAMETER: {"type": "string"}}, "required": [_PARAMETER]},
    },
}


class SpecialTokens(Protocol):
    """The part of a tokenizer that facts need."""

    def special_id(self, text: str) -> int | None:
        """The special token spelled `text`, None if there is none."""


@dataclass(frozen=True, kw_only=True)
class TemplateFacts:
    """What a template does, on a vocabulary.

    think: its reasoning tags, None without.  markup: how it writes calls, None when this server cannot read that or the
    template writes none.  writes_calls: whether it renders calls at all.  special_tags: those of the reasoning's and
    the markup's tags that are one special token.  thinking_off: what turns thinking off (/props).  thinks_by_default:
    whether it thinks when nothing is asked.  typed_content: whether it takes content in parts; string_content: as a
    string.  system_role: whether it renders system messages.  object_arguments: whether a call's arguments are an
    object to it.  keeps_developer: whether it knows the role `developer` itself.
    """

    think: ThinkTags | None = None
    markup: CallMarkup | None = None
    writes_calls: bool = False
    special_tags: frozenset[str] = frozenset()
    thinking_off: ThinkingOff = "neither"
    thinks_by_default: bool = True
    typed_content: bool = False
    string_content: bool = True
    system_role: bool = True
    object_arguments: bool = False
    keeps_developer: bool = False

    @property
    def parses_calls(self) -> bool:
        """Whether a reply's tool calls can be read."""
        return self.markup is not None

    def preserved_ids(self, tokenizer: SpecialTokens) -> frozenset[int]:
        """The ids whose text belongs to an answer although they may be control tokens."""
        ids = (tokenizer.special_id(tag) for tag in self.special_tags)
        return frozenset(token_id for token_id in ids if token_id is not None)


def read_facts(template: ChatTemplate, tokenizer: SpecialTokens) -> TemplateFacts:
    """Render the probes and compare."""
    probe = _Probe(template)
    thinking_off, thinks_by_default = probe.thinking()
    markup, writes_calls, object_arguments = probe.calls()
    think = probe.think_tags()
    tags = [*([think.open, think.close] if think else ()), *(markup.tags if markup else ())]
    return TemplateFacts(
        think=think,
        markup=markup,
        writes_calls=writes_calls,
        special_tags=frozenset(tag for tag in tags if tokenizer.special_id(tag) is not None),
        thinking_off=thinking_off,
        thinks_by_default=thinks_by_default,
        typed_content=probe.typed_content(),
        string_content=_USER in probe.render([_user()]),
        system_role=_SYSTEM in probe.render([{"role": "system", "content": _SYSTEM}, _user()]),
        object_arguments=object_arguments,
        keeps_developer="<|channel|>" in template.source,
    )


class _Looked(list[Any]):
    """An empty list that knows whether anybody looked into it."""

    looked = False

    def __iter__(self) -> Any:
        self.looked = True
        return super().__iter__()

    def __getitem__(self, key: Any) -> Any:
        self.looked = True
        return super().__getitem__(key)


def _user(content: object = _USER) -> dict[str, Any]:
    return {"role": "user", "content": content}


def _call(name: str, arguments: object) -> dict[str, Any]:
    return {"id": "call00001", "type": "function", "function": {"name": name, "arguments": arguments}}


class _Probe:
    """One template under questions."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template

    def render(self, messages: list[dict[str, Any]], **variables: Any) -> str:
        """What the template makes of a conversation; nothing when it refuses it."""
        return self._template.try_raw({"messages": messages, **variables}) or ""

    def typed_content(self) -> bool:
        """Whether the template looks into content that is a list, and not only to print it as it is."""
        content = _Looked()
        taken = self._template.try_raw({"messages": [_user(content)]}) is not None
        return taken and content.looked and '"type"' not in self.render([_user([{"type": "text", "text": _USER}])])

    def thinking(self) -> tuple[ThinkingOff, bool]:
        """What turns thinking off, and whether it is on when nothing is asked."""
        conversation = [_user()]

        def prompt(**variables: Any) -> str:
            return self.render(conversation, add_generation_prompt=True, **variables)

        default, off = prompt(), prompt(enable_thinking=False)
        if prompt(enable_thinking=True) != off:
            return "switch", default != off
        return ("low_effort" if prompt(reasoning_effort="low") != default else "neither"), True

    def think_tags(self) -> ThinkTags | None:
        """The tags around an assistant's reasoning; failing that, those at the end of a generation prompt."""
        said = {"role": "assistant", "content": _SAID, "reasoning_content": _THOUGHT}
        for variables in ({"enable_thinking": True}, {"add_generation_prompt": False}):
            before, found, after = self.render([_user(), said], **variables).partition(_THOUGHT)
            if found and (tags := _tags_around(before, after.partition(_SAID)[0])):
                return replace(tags, bare_close=self._closes_barely(tags))
        return self._tags_of_prompt()

    def _closes_barely(self, tags: ThinkTags) -> bool:
        """Whether a turn without reasoning begins with the closing tag alone."""
        before = self.render([_user(), {"role": "assistant", "content": _SAID}]).partition(_SAID)[0].rstrip()
        return before.endswith(tags.close) and not before.removesuffix(tags.close).rstrip().endswith(tags.open)

    def _tags_of_prompt(self) -> ThinkTags | None:
        without = self.render([_user()], add_generation_prompt=False)
        for variables in ({}, {"enable_thinking": True}, {"enable_thinking": False}):
            prompt = self.render([_user()], add_generation_prompt=True, **variables)
            tail = prompt[_common_prefix(prompt, without) :]
            # An empty span at the end, or an open one: its closing tag is the opening one with a slash.
            closed = re.search(r"<([^<>/\s]+)>(\s*)</\1>(\s*)$", tail)
            if closed:
                return ThinkTags(f"<{closed[1]}>", f"</{closed[1]}>", after_close=closed[3])
            opened = re.search(r"<([^<>/|\s]+)>(\s*)$", tail)
            if opened:
                return ThinkTags(f"<{opened[1]}>", f"</{opened[1]}>", after_open=opened[2])
        return None

    def calls(self) -> tuple[CallMarkup | None, bool, bool]:
        """How calls are written, whether they are at all, and whether arguments are an object to the template."""
        as_object = self._rendered_calls({_PARAMETER: _ARGUMENT}, 1)
        is_object = _ARGUMENT in as_object and repr({_PARAMETER: _ARGUMENT}) not in as_object
        arguments = {_PARAMETER: _ARGUMENT} if is_object else json.dumps({_PARAMETER: _ARGUMENT})
        written = WrittenCalls(
            function=_TOOL,
            argument=_PARAMETER,
            value=_ARGUMENT,
            one=self._rendered_calls(arguments, 1),
            two=self._rendered_calls(arguments, 2),
        )
        markup = next((markup for recognise in _RECOGNISERS if (markup := recognise(written))), None)
        return markup, _TOOL in written.one, is_object

    def _rendered_calls(self, arguments: Mapping[str, str] | str, count: int) -> str:
        """How the template writes `count` calls of one message, and what follows."""
        message = {"role": "assistant", "content": "", "tool_calls": [_call(_TOOL, arguments)] * count}
        result = {"role": "tool", "content": "ok", "tool_call_id": "call00001", "name": _TOOL}
        with_calls = self.render([_user(), message, *[result] * count], tools=[_PROBE_TOOL])
        return with_calls[_common_prefix(with_calls, self.render([_user()], tools=[_PROBE_TOOL])) :]


def _common_prefix(left: str, right: str) -> int:
    """How many characters both begin with."""
    return next((at for at, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


def _tags_around(before: str, after: str) -> ThinkTags | None:
    opened, closed = LAST_TAG.search(before), FIRST_TAG.search(after)
    if opened is None or closed is None or not _are_pair(opened[1], closed[2]):
        return None
    return ThinkTags(opened[1], closed[2], opened[2], closed[1], closed[3])


def _are_pair(opened: str, closed: str) -> bool:
    """Whether two tags differ as the ends of one span do: by a slash, or as START and END."""
    return closed in {f"{opened[0]}/{opened[1:]}", opened.replace("START", "END")} and closed != opened
