"""`bloomery-tokenize`: the tokens of a text, with llama-tokenize's flags and output (llama.cpp, tools/tokenize)."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import BinaryIO, NoReturn, TextIO

from bloomery.interface import catalog
from bloomery.interface.files.gguf import open_gguf
from bloomery.interface.files.model_file_error import ModelFileError
from bloomery.interface.tokenizer.errors import TokenizerError
from bloomery.interface.tokenizer.load import load_tokenizer
from bloomery.interface.tokenizer.tokenizer import Tokenizer

_NAME = "bloomery-tokenize"
_ESCAPE = re.compile(rb"\\(?:([nrt'\"\\])|x([0-9A-Fa-f]{2}))")
# Flags that take the next argument, whatever it looks like.
_WITH_VALUE = {flag: flag for flag in ("--model", "--prompt", "--file")} | {
    "-m": "--model",
    "-p": "--prompt",
    "-f": "--file",
}
_ESCAPED = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"'": b"'", b'"': b'"', b"\\": b"\\"}


class _Refused(Exception):  # noqa: N818  A refusal is an answer, not a fault.
    """The command line, the file or the text cannot be used; the message is a sentence."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _Refused(f"{message} (--help lists the flags)")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code: 0, or 1 for a refusal, whose reason is on stderr."""
    try:
        arguments = _parser().parse_args(_values_joined(sys.argv[1:] if argv is None else argv))
        data = _prompt(arguments)
        output = _open(sys.stdout, "output")
        tokenizer = _tokenizer(arguments.model)
        # Standard input is read when the model is known to be good.
        text = _text(_standard_input() if data is None else data, escapes=arguments.escape)
        ids = tokenizer.encode(
            text,
            add_special=tokenizer.add_bos and not arguments.no_bos,
            parse_special=not arguments.no_parse_special,
        )
        output.write(_listing(ids) if arguments.ids else _table(tokenizer, ids))
        if arguments.show_count:
            output.write(f"Total number of tokens: {len(ids)}\n".encode())
        output.flush()
    except BrokenPipeError:
        # Whoever read the output has enough of it; nothing more is to be flushed at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (_Refused, ModelFileError, TokenizerError, OSError) as error:
        sys.stderr.write(f"{_NAME}: {error}\n")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog=_NAME, description="Show the tokens of a text.", allow_abbrev=False)
    add = parser.add_argument
    add("-m", "--model", required=True, metavar="FILE", help=f"a GGUF file, or one of: {', '.join(catalog.words())}")
    add("-p", "--prompt", default="", metavar="TEXT", help="the text")
    add("-f", "--file", metavar="FILE", help="a file with the text; before --prompt")
    add("--stdin", action="store_true", help="the text is standard input; before --file")
    add("--ids", action="store_true", help="only the ids, as a list")
    add("--no-bos", action="store_true", help="add no BOS token, whatever the model asks for")
    add("-e", "--escape", action="store_true", default=True, help=r"read \n, \r, \t, \', \", \\ and \xNN in the text")
    add("--no-escape", action="store_false", dest="escape", help="take backslashes as they are")
    add("--no-parse-special", action="store_true", help="take the spelling of a control token as text")
    add("--show-count", action="store_true", help="say how many tokens there are")
    add("--log-disable", action="store_true", help="accepted; there is no log")
    add("--version", action="version", version=f"{_NAME} {version('bloomery')}")
    return parser


def _prompt(arguments: argparse.Namespace) -> bytes | None:
    """The bytes of --file or --prompt, None for standard input."""
    if arguments.stdin:
        return None
    if arguments.file is not None:
        try:
            return Path(arguments.file).read_bytes()
        except OSError as error:
            raise _Refused(f"--file {arguments.file} cannot be read: {error.strerror}") from None
    if not arguments.prompt:
        raise _Refused("there is no text; give --prompt, --file or --stdin")
    return os.fsencode(arguments.prompt)


def _values_joined(argv: Sequence[str]) -> list[str]:
    """The arguments with each value tied to its flag, so that argparse takes one that begins with a dash too."""
    joined: list[str] = []
    arguments = iter(argv)
    for argument in arguments:
        value = next(arguments, None) if argument in _WITH_VALUE else None
        joined.append(argument if value is None else f"{_WITH_VALUE[argument]}={value}")
    return joined


def _standard_input() -> bytes:
    return _open(sys.stdin, "input").read()


def _open(stream: TextIO | None, name: str) -> BinaryIO:
    """The bytes of a standard stream, which a shell may have closed."""
    if stream is None:
        raise _Refused(f"standard {name} is closed")
    return stream.buffer


def _tokenizer(model: str) -> Tokenizer:
    with open_gguf(catalog.path(model) if model in catalog.words() else Path(model)) as file:
        return load_tokenizer(file.metadata)


def _text(data: bytes, *, escapes: bool) -> str:
    if escapes:
        data = _ESCAPE.sub(_unescaped, data)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise _Refused(f"byte {error.start} of the text, 0x{data[error.start]:02X}, is not UTF-8") from None


def _unescaped(escape: re.Match[bytes]) -> bytes:
    letter, digits = escape.groups()
    return bytes([int(digits, 16)]) if digits else _ESCAPED[letter]


def _listing(ids: Sequence[int]) -> bytes:
    return f"[{', '.join(map(str, ids))}]\n".encode()


def _table(tokenizer: Tokenizer, ids: Sequence[int]) -> bytes:
    """A line a token. Its text ends at a NUL, as a C program prints it."""
    pieces = (tokenizer.token_to_piece(token_id).partition(b"\0")[0] for token_id in ids)
    return b"".join(b"%6d -> '%s'\n" % (token_id, piece) for token_id, piece in zip(ids, pieces, strict=True))
