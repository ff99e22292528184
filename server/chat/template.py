"""A chat template: from a conversation to the prompt the model was trained on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from jinja2 import TemplateSyntaxError

from bloomery.server.chat import guard
from bloomery.server.chat.budget import Budget, BudgetError, spending
from bloomery.server.chat.sandbox import ChatSandbox, TemplateRefusalError
from bloomery.server.chat.sourced import is_clients, origin_of, plain, sourced
from bloomery.server.errors import ApiError, invalid_request

# What a model file without a template is served with, as llama-server does.
CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

LONGEST_SOURCE = 128 * 1024
_LONGEST_MESSAGE = 2000


class ChatTemplateError(ValueError):
    """A template that cannot be used at all; the message says where it fails and what to do."""


@dataclass(frozen=True)
class Rendered:
    """A prompt as text; `traced` is the same text with the origin of each character (sourced.py)."""

    traced: str

    @cached_property
    def text(self) -> str:
        """The prompt."""
        return plain(self.traced)

    @cached_property
    def spans(self) -> list[tuple[str, bool]]:
        """The prompt in stretches (text, parse_special), for `Tokenizer.encode_spans`."""
        return guard.spans(self.traced)

    @cached_property
    def tail(self) -> str:
        """What the template itself wrote last; a `ChatParser` reads from it whether the think span is open."""
        return guard.template_tail(self.traced)

    def __add__(self, text: str) -> Rendered:
        """The prompt with more text of the template's or the model's own after it."""
        return Rendered(sourced(self.text + text, origin_of(self.traced) + origin_of(text)))


class ChatTemplate:
    """A compiled template; any number of threads may render it."""

    def __init__(
        self,
        source: str,
        *,
        bos_token: str = "",
        eos_token: str = "",
        add_bos: bool = False,
        add_eos: bool = False,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """Compile `source`.

        bos_token, eos_token: the special tokens' text, as the template may print them.  add_bos, add_eos: whether the
        tokenizer adds them to a prompt; then the one the template prints at its beginning or end is left out, as in
        llama-server (common/chat.cpp).  now: the clock of `strftime_now`.

        Raises ChatTemplateError when the source is no template. llama-server does not start on such a file either.
        """
        if len(source) > LONGEST_SOURCE:
            raise ChatTemplateError(
                f"the chat template has {len(source)} characters, and at most {LONGEST_SOURCE} are read; "
                "give another one with --chat-template-file"
            )
        self.source = source
        self._bos = bos_token if add_bos else ""
        self._eos = eos_token if add_eos else ""
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._now = now
        self._probes = Budget.of_probes()
        try:
            with spending(Budget()):
                self._template = ChatSandbox(lambda form: now().strftime(form)).from_string(source)
        except TemplateSyntaxError as error:
            raise ChatTemplateError(
                f"the chat template cannot be read: line {error.lineno}: {error.message}; "
                "give another one with --chat-template-file"
            ) from None
        except Exception as error:
            raise ChatTemplateError(
                f"the chat template cannot be compiled: {type(error).__name__}: {_shortened(str(error))}; "
                "give another one with --chat-template-file"
            ) from None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        /,
        **variables: Any,
    ) -> Rendered:
        """The prompt of a conversation.

        `messages` and `tools` are in the shape templates expect (messages.py reads a request into it); `variables` are
        what else a client gives the template, and win over the names above and over `bos_token` and `eos_token`, as in
        llama-server. Raises a 400 with the template's own message where it calls `raise_exception`, and a named 400
        where it fails or does not end soon enough.
        """
        now = self._now()
        context: dict[str, Any] = {
            **self._tokens,
            "messages": [guard.marked_message(message) for message in messages],
            "datetime": now.strftime("%b %d %Y"),
            "date_string": now.strftime("%d %b %Y"),
        }
        if tools:
            context["tools"] = guard.marked(tools)
        context |= {name: guard.marked(value) for name, value in variables.items()}
        if add_generation_prompt:
            context["add_generation_prompt"] = True
        return Rendered(self._without_added(self._run(context, Budget())))

    def try_raw(self, variables: Mapping[str, Any]) -> str | None:
        """What the template makes of these very objects, None when it refuses them. For probes: nothing is guarded.

        All probes of a template share one budget. Raises ChatTemplateError when they have spent it.
        """
        try:
            return plain(self._run({**self._tokens, **variables}, self._probes))
        except ApiError as error:
            if isinstance(error.__cause__, BudgetError):
                raise ChatTemplateError(
                    f"the chat template {error.__cause__} on short conversations; "
                    "give another one with --chat-template-file"
                ) from None
            return None

    def _run(self, context: dict[str, Any], budget: Budget) -> str:
        try:
            with spending(budget):
                return self._template.render(context)
        except TemplateRefusalError as error:
            raise invalid_request(
                f"the chat template refuses the conversation: {_shortened(str(error))}", "messages"
            ) from None
        except BudgetError as error:
            raise invalid_request(f"the chat template {error} on this conversation", "messages") from error
        except RecursionError:
            raise invalid_request("the chat template nests too deep on this conversation", "messages") from None
        except Exception as error:
            raise _failed(error) from None

    def _without_added(self, text: str) -> str:
        if self._bos and text.startswith(self._bos) and not is_clients(text[: len(self._bos)]):
            text = text[len(self._bos) :]
        if self._eos and text.endswith(self._eos) and not is_clients(text[len(text) - len(self._eos) :]):
            text = text[: len(text) - len(self._eos)]
        return text


def _failed(error: Exception) -> ApiError:
    return invalid_request(
        f"the chat template failed on this conversation: {type(error).__name__}: {_shortened(str(error))}", "messages"
    )


def _shortened(message: str) -> str:
    return message if len(message) <= _LONGEST_MESSAGE else f"{message[:_LONGEST_MESSAGE]}…"
