"""What a chat template does, learnt from what it renders.

Names say little: two files of one model family may carry different templates, and a file may be given another one. So
every fact here comes from rendering small conversations and comparing the results. A template that refuses a
conversation teaches nothing by it, and then has the plain answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from bloomery.server.chat.template import ChatTemplate
from bloomery.server.chat.think import ThinkTags

ThinkingOff: TypeAlias = Literal["switch", "low_effort", "neither"]

# Words that no template has.
_USER, _SYSTEM, _THOUGHT, _SAID, _ARGUMENT, _TOOL = "Zuq1", "Zsy2", "Zth3", "Zsa4", "Zar5", "ztool6"

_LAST_TAG = re.compile(r"(<[^<>\s]+>|\[[^\[\]\s]+\])(\s*)$")
_FIRST_TAG = re.compile(r"^(\s*)(<[^<>\s]+>|\[[^\[\]\s]+\])(\s*)")

_PROBE_TOOL = {
    "type": "function",
    "function": {
        "name": _TOOL,
        "description": "A tool.",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
    },
}


class SpecialTokens(Protocol):
    """The part of a tokenizer that facts need."""

    def special_id(self, text: str) -> int | None:
        """The special token spelled `text`, None if there is none."""


@dataclass(frozen=True, kw_only=True)
class TemplateFacts:
    """What a template does, on a vocabulary.

    think: its reasoning tags, None without.  call_tags: the tags around a Hermes call, None when the template writes
    calls in another way or not at all.  writes_calls: whether it renders calls at all.  special_tags: those of these
    tags that are one special token.  thinking_off: what turns thinking off (/props).  thinks_by_default: whether it
    thinks when nothing is asked.  typed_content: whether it takes content in parts; string_content: as a string.
    system_role: whether it renders system messages.  object_arguments: whether a call's arguments are an object to it.
    keeps_developer: whether it knows the role `developer` itself.
    """

    think: ThinkTags | None = None
    call_tags: tuple[str, str] | None = None
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
        return self.call_tags is not None

    def preserved_ids(self, tokenizer: SpecialTokens) -> frozenset[int]:
        """The ids whose text belongs to an answer although they may be control tokens."""
        ids = (tokenizer.special_id(tag) for tag in self.special_tags)
        return frozenset(token_id for token_id in ids if token_id is not None)


def read_facts(template: ChatTemplate, tokenizer: SpecialTokens) -> TemplateFacts:
    """Render the probes and compare."""
    probe = _Probe(template)
    thinking_off, thinks_by_default = probe.thinking()
    call_tags, writes_calls, object_arguments = probe.calls()
    think = probe.think_tags()
    tags = [*([think.open, think.close] if think else ()), *(call_tags or ())]
    return TemplateFacts(
        think=think,
        call_tags=call_tags,
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
                return tags
        return self._tags_of_prompt()

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

    def calls(self) -> tuple[tuple[str, str] | None, bool, bool]:
        """The tags around a Hermes call, whether calls are written at all, and whether arguments are an object."""
        as_object = self._rendered_calls({"place": _ARGUMENT}, 1)
        is_object = _ARGUMENT in as_object and repr({"place": _ARGUMENT}) not in as_object
        arguments = {"place": _ARGUMENT} if is_object else json.dumps({"place": _ARGUMENT})
        return _hermes_tags(self._rendered_calls(arguments, 2)), _TOOL in self._rendered_calls(arguments, 1), is_object

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
    opened, closed = _LAST_TAG.search(before), _FIRST_TAG.search(after)
    if opened is None or closed is None or not _are_pair(opened[1], closed[2]):
        return None
    return ThinkTags(opened[1], closed[2], opened[2], closed[1], closed[3])


def _are_pair(opened: str, closed: str) -> bool:
    """Whether two tags differ as the ends of one span do: by a slash, or as START and END."""
    return closed in {f"{opened[0]}/{opened[1:]}", opened.replace("START", "END")} and closed != opened


def _hermes_tags(written: str) -> tuple[str, str] | None:
    """The tags around each of two calls, if they are JSON objects of a name and arguments with nothing else between."""
    found: list[tuple[str, str]] = []
    decoder = json.JSONDecoder()
    at = 0
    while (at := written.find("{", at)) >= 0:
        try:
            call, end = decoder.raw_decode(written, at)
        except (ValueError, RecursionError):
            return None
        opened, closed = _LAST_TAG.search(written[:at]), _FIRST_TAG.search(written[end:])
        if opened is None or closed is None or set(call) != {"name", "arguments"} or call["name"] != _TOOL:
            return None
        found.append((opened[1], closed[2]))
        if len(found) > 2:
            return None
        at = end
    return found[0] if len(found) == 2 and found[0] == found[1] and found[0][0] != found[0][1] else None
