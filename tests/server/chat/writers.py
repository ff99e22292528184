"""Writers of calls as models write them, which know nothing of the readers."""

from __future__ import annotations

import json
from collections.abc import Mapping

from tests.server.chat.replies import Piece
from tests.server.chat.tagged_replies import Argument


def function_call(name: str, arguments: Mapping[str, Argument], line: str, special: bool) -> list[Piece]:
    """A call in function tags; `line` is the line end of the framing, or nothing.

    Only the outer tags can be special tokens. What values spell is ordinary tokens, whatever it is.
    """
    body = f"{line}<function={name}>{line}"
    for key, (_, value, _) in arguments.items():
        body += f"<parameter={key}>{line}{value}{line}</parameter>{line}"
    return [("<tool_call>", special), (f"{body}</function>{line}", False), ("</tool_call>", special)]


def typed(argument: Argument) -> Argument:
    """A bare text under a schema of texts and integers, where a text that reads as a number is one."""
    is_bare, value, _ = argument
    try:
        number = json.loads(value)
    except ValueError:
        return argument
    is_number = isinstance(number, int | float) and not isinstance(number, bool) and value == value.strip()
    # Python's reader takes three words for numbers that JSON does not have.
    return (is_bare, value, value) if is_number and value[-1].isdigit() else argument
