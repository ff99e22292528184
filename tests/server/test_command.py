"""`bloomery-serve` as a user starts and ends it: a process, its stderr, its exit code."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bloomery.conformance.fixtures import make
from bloomery.server import command
from bloomery.server.model import ServedModel
from bloomery.server.settings import Settings
from tests.server.scripted import ScriptedEngine, served

ROOT = Path(__file__).parents[2]
PYTHON = [sys.executable, "-W", "error", "-c"]
RUN = "from bloomery.server.command import main; raise SystemExit(main())"
# The command with an engine that takes a while for each id.
SCRIPTED = """
from bloomery.server import command
from tests.server.scripted import ScriptedEngine, served
command.load_model = lambda settings, notice: served(engine=ScriptedEngine(seconds={seconds}))
command._ENGINE_STOP_SECONDS = {patience}
raise SystemExit(command.main())
"""
LISTENING = re.compile(r"bloomery-serve: listening on (http://127\.0\.0\.1:\d+)\n")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make("qwen3-a-f32", tmp_path_factory.mktemp("models"))


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in [name for name in os.environ if name.startswith(("LLAMA_", "BLOOMERY_"))]:
        monkeypatch.delenv(variable)


class Server:
    """A started server: its address, and the lines of its stderr."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self.connections: list[socket.socket] = []
        assert process.stderr is not None
        for line in process.stderr:
            self.lines.append(line)
            if found := LISTENING.fullmatch(line):
                self.url = found[1]
                return
        pytest.fail("it never listened:\n" + "".join(self.lines))

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=60) as answer:
            return json.load(answer)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(self.url + path, json.dumps(body).encode())
        return urllib.request.urlopen(request, timeout=60)

    def rest(self) -> str:
        """What it still prints until its end."""
        assert self.process.stderr is not None
        return self.process.stderr.read()


@contextmanager
def server(*argv: str, code: str = RUN) -> Iterator[Server]:
    command_line = [*PYTHON, code, "--port", "0", *argv]
    process = subprocess.Popen(command_line, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    connections: list[socket.socket] = []
    try:
        started = Server(process)
        connections = started.connections
        yield started
    finally:
        for connection in connections:
            connection.close()
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def ask_in_background(started: Server) -> None:
    """Have the engine work on an answer that nobody waits for."""
    connection = socket.create_connection(("127.0.0.1", int(started.url.rpartition(":")[2])))
    connection.sendall(b'POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: 15\r\n\r\n{"prompt":"hi"}')
    while not any(slot["is_processing"] for slot in started.get("/slots")):
        pass
    started.connections.append(connection)


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    """The command in this process: exit code, stdout, stderr."""
    code = command.main(argv)
    return code, *capsys.readouterr()


def test_a_start_says_what_it_chose_and_its_address_last(path: Path) -> None:
    with server("-m", str(path), "-np", "2", "--alias", "mine") as started:
        heads = [line.removeprefix("bloomery-serve: ").split()[0] for line in started.lines]
        assert heads == ["model", "engine", "ctx", "parallel", "ubatch", "listening"]
        assert started.get("/health") == {"status": "ok"}
        assert started.get("/v1/models")["data"][0]["id"] == "mine"
        assert len(started.get("/slots")) == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_in_order_with_one_line_naming_it(path: Path, number: signal.Signals) -> None:
    with server("-m", str(path)) as started:
        started.process.send_signal(number)
        assert started.rest() == f"bloomery-serve: shutdown ({number.name})\n"
        assert started.process.wait(30) == 0


def test_a_signal_ends_a_running_stream_with_an_error_event() -> None:
    with server(code=SCRIPTED.format(seconds=0.01, patience=5.0)) as started:
        with started.post("/completion", {"prompt": "hi", "stream": True}) as answer:
            assert answer.readline().startswith(b"data: ")
            started.process.send_signal(signal.SIGTERM)
            *_, last = [line for line in answer if line.strip()]
        assert json.loads(last.removeprefix(b"data: "))["error"] == {
            "code": 503,
            "message": "the server is shutting down (SIGTERM); no new request is admitted",
            "type": "unavailable_error",
        }
        assert re.search(r"stop error; ctx \d+/4096\nbloomery-serve: shutdown \(SIGTERM\)\n$", started.rest())
        assert started.process.wait(30) == 0


def test_an_engine_that_does_not_come_back_does_not_hold_the_end() -> None:
    with server(code=SCRIPTED.format(seconds=600, patience=0.1)) as started:
        ask_in_background(started)
        started.process.send_signal(signal.SIGTERM)
        assert "shutdown (SIGTERM); the engine thread did not end within 0 s" in started.rest()
        assert started.process.wait(30) == 0


def test_a_second_signal_ends_it_at_once() -> None:
    with server(code=SCRIPTED.format(seconds=600, patience=600)) as started:
        ask_in_background(started)
        started.process.send_signal(signal.SIGTERM)
        started.process.send_signal(signal.SIGINT)
        assert "is the second signal; terminating at once" in started.rest()
        assert started.process.wait(30) == 1


def test_a_taken_port_is_a_named_refusal(path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = subprocess.run(
            [*PYTHON, RUN, "-m", str(path), "--port", str(port)], capture_output=True, text=True, check=False
        )
    assert process.returncode == 1
    assert process.stderr.splitlines()[-1].startswith(f"bloomery-serve: cannot listen on 127.0.0.1:{port}: ")
    assert "Traceback" not in process.stderr


def test_version_and_help_read_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "--nonsense", "--version")
    assert (code, err) == (0, "")
    assert re.fullmatch(r"bloomery-serve \d+\.\d+\.\d+\n", out)
    code, out, err = run(capsys, "--nonsense", "--help")
    assert (code, err) == (0, "")
    assert out.startswith("usage: bloomery-serve")
    code, out, err = run(capsys, "--nonsense", "--list-devices")
    assert (code, out, err) == (0, "Available devices:\n  (none)\n", "")


def test_help_of_a_seat_and_a_refused_settings_file_beside_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, out, err = run(capsys, "--model", "nemotron", "--help")
    assert (code, err) == (0, "")
    assert out.startswith("usage: bloomery-serve --model nemotron")
    config = tmp_path / "settings.json"
    code, out, err = run(capsys, "--config", str(config), "--help")
    assert (code, out) == (1, "")
    assert err.startswith(f"bloomery-serve: --config {config}: cannot read it: ")


def test_levers_are_listed_after_they_were_judged(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = run(capsys, "--model", "qwen3", "-ub", "48", "--levers")
    assert (code, err) == (0, "")
    assert re.search(r"^BLOOMERY_QWEN3_UBATCH +set 48 +applied$", out, re.MULTILINE)
    monkeypatch.setenv("BLOOMERY_SPIN", "1")
    monkeypatch.setenv("BLOOMERY_THREADS", "no")
    code, out, err = run(capsys, "--levers")
    assert (code, out) == (1, "")
    assert [line.split("=")[0] for line in err.splitlines()[:-1]] == [
        "bloomery-serve: BLOOMERY_SPIN",
        "bloomery-serve: BLOOMERY_THREADS",
    ]


def test_a_bare_start_shows_the_usage_and_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys)
    assert (code, out) == (1, "")
    assert err.startswith("usage: bloomery-serve")
    assert "no model file" in err


def test_a_refused_setting_is_named_with_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "--port", "eighty")
    assert code == 1
    assert err == (
        'bloomery-serve: --port "eighty": it takes a whole number from 0 to 65535\n'
        "bloomery-serve: --help lists the flags\n"
    )


def test_a_file_that_is_no_model_is_refused_in_a_sentence(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\xff" * 60)
    code, _, err = run(capsys, "-m", str(broken))
    assert code == 1
    assert err.count("\n") == 1
    assert str(broken) in err


def test_a_broken_engine_ends_the_server_with_its_own_exit_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_spans: object) -> None:
        raise ZeroDivisionError("division by zero")

    def load(_settings: Settings, _notice: object) -> ServedModel:
        return served(engine=ScriptedEngine(before_pass=broken))

    monkeypatch.setattr(command, "load_model", load)
    monkeypatch.setattr(command, "_FAILURE_SECONDS", 0.0)
    address: list[str] = []
    listening = threading.Event()
    say = command.say

    def listen(line: str) -> None:
        say(line)
        if line.startswith("listening on "):
            address.append(line.removeprefix("listening on "))
            listening.set()

    monkeypatch.setattr(command, "say", listen)
    codes: list[int] = []
    serving = threading.Thread(target=lambda: codes.append(command.main(["-m", "scripted.gguf", "--port", "0"])))
    serving.start()
    assert listening.wait(30)
    request = urllib.request.Request(address[0] + "/completion", json.dumps({"prompt": "hi"}).encode())
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=60)
    assert caught.value.code == 500
    assert "ZeroDivisionError" in json.load(caught.value)["error"]["message"]
    serving.join(30)
    assert codes == [command.ENGINE_FAILED]
    assert "the engine failed; the server stops instead of serving it" in capsys.readouterr().err
