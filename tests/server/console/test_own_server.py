"""The server that a chat starts: its lines pass, its pipe never fills, and it is asked to end in order."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from bloomery.server.console import own_server as module
from bloomery.server.console.own_server import NotServingError, own_server

# Says what a server says, then more than a pipe holds, and ends in order when it is asked to.
STUB = """
import os, pathlib, signal, sys
mark = pathlib.Path(sys.argv[1])
def end(*_):
    mark.write_text(mark.read_text() + "asked")
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
sys.stderr.write("bloomery-serve: model\\nbloomery-serve: listening on http://127.0.0.1:1\\n")
sys.stderr.write("bloomery-serve: request\\n" * 50000)
mark.write_text(" ".join([os.environ["LLAMA_API_KEY"], *sys.argv[2:], ""]))
signal.pause()
"""


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LLAMA_API_KEY", raising=False)


def test_start_lines_pass_and_the_end_is_in_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    monkeypatch.setattr(module, "_RUN", STUB)
    monkeypatch.setenv("LLAMA_API_KEY", "k1,k2")
    said = io.StringIO()
    with own_server([str(mark)], said) as address:
        while not (mark.exists() and mark.read_text().endswith(" ")):
            pass
    assert str(address) == "http://127.0.0.1:1"
    assert address.key is not None
    assert len(address.key) >= 32
    assert mark.read_text() == f"k1,k2,{address.key} --port 0 asked"
    assert said.getvalue().splitlines()[-1] == "bloomery-serve: listening on http://127.0.0.1:1"


def test_a_port_that_is_named_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    monkeypatch.setattr(module, "_RUN", STUB)
    with own_server([str(mark), "--port", "7"], io.StringIO()) as address:
        while not (mark.exists() and mark.read_text().endswith(" ")):
            pass
    assert mark.read_text() == f"{address.key} --port 7 asked"


def test_a_server_that_ends_before_it_listens_says_why_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RUN", "import sys; sys.stderr.write('bloomery-serve: no\\n'); sys.exit(3)")
    said = io.StringIO()
    with pytest.raises(NotServingError) as ended, own_server([], said):
        pass
    assert (ended.value.code, said.getvalue()) == (3, "bloomery-serve: no\n")
