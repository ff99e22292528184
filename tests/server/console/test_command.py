"""`bloomery-chat` as a user runs it: piped, at a prompt, against a server that runs and with one of its own."""

from __future__ import annotations

import builtins
import contextlib
import io
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bloomery.server.console import command
from bloomery.server.model import ServedModel
from tests.server.chat.templates import HERMES
from tests.server.http.serving import Server, listening
from tests.server.scripted import ScriptedEngine, answering, served

ROOT = Path(__file__).parents[3]
RUN = "from bloomery.server.console.command import main; raise SystemExit(main())"
PYTHON = [sys.executable, "-W", "error", "-c", RUN]
ASKS = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in [name for name in os.environ if name.startswith(("LLAMA_", "BLOOMERY_"))]:
        monkeypatch.delenv(variable)


@contextlib.contextmanager
def serving(answers: dict[str, str], **options: Any) -> Iterator[Server]:
    """A server that knows these answers to first questions."""
    script = answering({ASKS.format(question): text for question, text in answers.items()})
    with listening(served(engine=ScriptedEngine(script)), **options) as server:
        yield server


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


class Piped(io.TextIOWrapper):
    """Standard input with these bytes in it."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data), encoding="utf-8")


@pytest.fixture
def piped(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def run(data: bytes, *argv: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", Piped(data))
        code = command.main(argv)
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Type lines at the prompt; an exception is what the keys of that name raise."""

    def run(lines: list[str | type[BaseException]], *argv: str) -> tuple[int, str, str]:
        left = iter([*lines, EOFError])

        def type_line(_prompt: str) -> str:
            line = next(left)
            if isinstance(line, str):
                return line
            raise line

        monkeypatch.setattr(sys, "stdin", Terminal())
        monkeypatch.setattr(builtins, "input", type_line)
        code = command.main(argv)
        return code, *capsys.readouterr()

    return run


Run = Callable[..., tuple[int, str, str]]


def test_a_piped_question_is_answered_once(piped: Run) -> None:
    with serving({"What is 7 plus 5?": "12"}) as server:
        assert piped(b"What is 7 plus 5?\n", "--url", server.http.url) == (0, "12\n", "")


def test_the_system_message_comes_first(piped: Run) -> None:
    prompt = "<|im_start|>system\nBe brief.<|im_end|>\n" + ASKS.format("hi")
    with listening(served(engine=ScriptedEngine(answering({prompt: "Yo."})))) as server:
        assert piped(b"hi", "--url", server.http.url, "--system", "Be brief.") == (0, "Yo.\n", "")


def thinking(answer: str) -> ServedModel:
    """A model that thinks before it answers "hi"."""
    engine = ScriptedEngine()
    found = served(engine=engine, template=HERMES)
    prompt = found.template.render([{"role": "user", "content": "hi"}]).text
    engine.script = answering({prompt: f"<think>Hm.</think>{answer}"})
    return found


def test_only_the_answer_is_written_where_no_terminal_is(piped: Run) -> None:
    with listening(thinking("Hello\x1b[31m!\n")) as server:
        assert piped(b"hi", "--url", server.http.url) == (0, "Hello\x1b[31m!\n", "")


def test_a_terminal_shows_reasoning_dimmed_and_no_control_characters(
    piped: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    with listening(thinking("Hello\x1b[31m\x07\x7f!")) as server:
        assert piped(b"hi", "--url", server.http.url)[0] == 0
    assert screen.getvalue() == "\x1b[2mHm.\x1b[0m\nHello\ufffd[31m\ufffd\ufffd!\n"


def test_an_answer_cut_by_the_limit_says_so_on_stderr(piped: Run) -> None:
    engine = ScriptedEngine(answering({ASKS.format("hi"): "a" * 200}), n_ctx=64)
    with listening(served(engine=engine, n_ctx=64)) as server:
        code, out, err = piped(b"hi", "--url", server.http.url)
    assert code == 0
    assert re.fullmatch("a+\n", out)
    assert err == "bloomery-chat: the answer ends at the limit of tokens or of the context\n"


def test_the_key_comes_from_the_flag_or_the_variable(piped: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving({"hi": "Yo."}, keys=["k1"]) as server:
        url = server.http.url
        assert piped(b"hi", "--url", url)[0] == 1
        assert piped(b"hi", "--url", url, "--api-key", "k1")[:2] == (0, "Yo.\n")
        monkeypatch.setenv("LLAMA_API_KEY", "k1,k2")
        assert piped(b"hi", "--url", url)[:2] == (0, "Yo.\n")


@pytest.mark.parametrize(
    ("data", "argv", "words"),
    [
        (b"", ["--url", "http://127.0.0.1:1"], "standard input holds no question"),
        (b" \n", ["--url", "http://127.0.0.1:1"], "standard input holds no question"),
        (b"\xff", ["--url", "http://127.0.0.1:1"], "byte 0 of standard input, 0xFF, is not UTF-8"),
        (b"hi", ["--url", "here"], '--url "here": it takes an address such as'),
        (b"hi", ["--url"], "--url needs a value"),
        (b"hi", ["--url", "http://a", "--url", "http://b"], "--url is given twice"),
        (b"hi", ["--url", "http://127.0.0.1:1", "-m", "a.gguf"], "-m is a flag of a server"),
        (b"hi", ["--url", "http://127.0.0.1:1", "--api-key"], "--api-key needs one value"),
        (b"hi", ["--url", "http://127.0.0.1:1", "--api-key", '"sk-secret'], "--api-key: a quoted key has no closing"),
        (b"hi", ["--url", "http://127.0.0.1:1", "--api-key", "sk-secr\u00e9t"], "printable ASCII"),
        (b"hi", ["--url", "http://127.0.0.1:1"], "http://127.0.0.1:1: "),
    ],
)
def test_what_is_refused_is_a_sentence_and_code_1(piped: Run, data: bytes, argv: list[str], words: str) -> None:
    code, out, err = piped(data, *argv)
    assert (code, out) == (1, "")
    assert err.startswith("bloomery-chat: ")
    assert err.count("\n") == 1
    assert words in err
    assert "sk-secr" not in err


@pytest.mark.parametrize(("stream", "name"), [("stdin", "input"), ("stdout", "output")])
def test_a_closed_stream_is_refused(
    stream: str, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, stream, None)
    assert command.main(["--url", "http://127.0.0.1:1"]) == 1
    assert capsys.readouterr().err == f"bloomery-chat: standard {name} is closed\n"


def test_a_conversation_goes_on_with_what_was_said(typed: Run) -> None:
    second = ASKS.format("hi") + "Yo.<|im_end|>\n" + ASKS.format("more?")
    engine = ScriptedEngine(answering({ASKS.format("hi"): "Yo.", second: "No."}))
    with listening(served(engine=engine)) as server:
        assert typed(["hi", "  ", "more?"], "--url", server.http.url) == (0, "Yo.\nNo.\n\n", "")


def test_a_refused_question_does_not_end_the_chat_and_is_forgotten(typed: Run) -> None:
    engine = ScriptedEngine(answering({ASKS.format("hi"): "Yo."}), n_ctx=64)
    with listening(served(engine=engine, n_ctx=64)) as server:
        code, out, err = typed(["x" * 100, "hi"], "--url", server.http.url)
    assert (code, out) == (0, "Yo.\n\n")
    assert "context" in err


def test_a_server_that_goes_away_ends_the_chat(typed: Run) -> None:
    with serving({}) as server:
        url = server.http.url
    code, out, err = typed(["hi", "again"], "--url", url)
    assert (code, out) == (1, "")
    assert err.startswith(f"bloomery-chat: {url}: ")
    assert err.count("\n") == 1


def test_ctrl_c_at_the_prompt_ends_the_chat(typed: Run) -> None:
    assert typed([KeyboardInterrupt], "--url", "http://127.0.0.1:1")[0] == 130


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--nonsense", "--version"]) == 0
    assert re.fullmatch(r"bloomery-chat \d+\.\d+\.\d+\n", capsys.readouterr().out)
    assert command.main(["-h"]) == 0
    assert capsys.readouterr().out.startswith("usage: bloomery-chat --url URL")


def read_until(screen: int, text: bytes) -> bytes:
    """What a terminal shows until that text; fails after half a minute."""
    shown = b""
    end = time.monotonic() + 30
    while text not in shown:
        assert select.select([screen], [], [], max(0, end - time.monotonic()))[0], shown
        shown += os.read(screen, 4096)
    return shown


def test_ctrl_c_ends_an_answer_on_the_server_and_ctrl_d_the_chat() -> None:
    engine = ScriptedEngine(seconds=0.01)
    main_end, terminal = pty.openpty()
    with listening(served(engine=engine)) as server, open(terminal, "rb", buffering=0) as child_end:  # noqa: PTH123
        process = subprocess.Popen(
            [*PYTHON, "--url", server.http.url],
            stdin=child_end, stdout=child_end, stderr=child_end, cwd=ROOT, start_new_session=True,
        )  # fmt: skip
        try:
            read_until(main_end, b"> ")
            os.write(main_end, b"hi\n")
            while not any(slot.running for slot in server.scheduler._slots):
                time.sleep(0.01)
            process.send_signal(signal.SIGINT)
            read_until(main_end, b"> ")
            while any(slot.running for slot in server.scheduler._slots):
                time.sleep(0.01)
            os.write(main_end, b"\x04")
            assert process.wait(30) == 0
        finally:
            process.kill()
            process.wait()
            os.close(main_end)


def test_a_server_of_its_own_answers_this_chat_alone_and_ends_with_it() -> None:
    asked = subprocess.run(
        [*PYTHON, "--model", "demo", "--threads", "1"],
        input="What is 7 plus 5?\n", capture_output=True, text=True, cwd=ROOT, check=False, timeout=120,
    )  # fmt: skip
    assert asked.returncode == 0, asked.stderr
    assert asked.stdout.strip()
    assert asked.stdout.endswith("\n")
    *_, last = asked.stderr.splitlines()
    found = re.fullmatch(r"bloomery-serve: listening on http://127\.0\.0\.1:(\d+)", last)
    assert found is not None, asked.stderr
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", int(found[1])))


def test_what_its_server_refuses_ends_it_with_that_code() -> None:
    refused = subprocess.run(
        [*PYTHON, "--model", "glm"],
        input="hi", capture_output=True, text=True, cwd=ROOT, check=False, timeout=120,
    )  # fmt: skip
    assert (refused.returncode, refused.stdout) == (1, "")
    assert 'bloomery-serve: --model "glm": the seat glm' in refused.stderr
    assert "Traceback" not in refused.stderr
