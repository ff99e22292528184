"""A `bloomery-serve` of our own, for checks of the server that is installed beside this suite."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from bloomery.conformance.fixtures import fixture
from bloomery.conformance.recording import RecordingSet

COMMAND = "bloomery-serve"
_START_SECONDS = 60.0
_LISTENING = re.compile(rb"listening on (http://\S+)")


class OwnServerError(RuntimeError):
    """The server is not installed, or did not start; the message has the end of its log."""


def arguments_of(recording: RecordingSet) -> list[str]:
    """What starts it as the recorded server was started, its model's fixture made first."""
    settings = recording.manifest.settings
    arguments = ["--model-file", str(fixture(recording.manifest.model))]
    for flag, name in (("--ctx-size", "n_ctx"), ("--parallel", "n_parallel"), ("--ubatch-size", "n_ubatch")):
        arguments += [flag, str(settings[name])]
    for flag, name in (("--alias", "alias"), ("--api-key", "api_key")):
        if settings[name]:
            arguments += [flag, str(settings[name])]
    return arguments


def start_command(recording: RecordingSet) -> str:
    """The same as a line for a shell."""
    return shlex.join([COMMAND, *arguments_of(recording)])


@contextlib.contextmanager
def own_server(arguments: Sequence[str]) -> Iterator[str]:
    """Its URL, on a free port; it is killed at the end.  Raises OwnServerError."""
    found = shutil.which(COMMAND, path=str(Path(sys.executable).parent)) or shutil.which(COMMAND)
    if found is None:
        raise OwnServerError(f"{COMMAND} is not installed beside {sys.executable}; pip install bloomery brings it")
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(  # noqa: S603 - the command that was installed with this suite
            [found, *arguments, "--engine", "reference", "--port", "0"],
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
        )
        try:
            yield _url(process, log.fileno())
        finally:
            process.kill()
            process.wait()


def _url(process: subprocess.Popen[bytes], log: int) -> str:
    deadline = time.monotonic() + _START_SECONDS
    said = b""
    while time.monotonic() < deadline:
        ended = process.poll() is not None
        said = _everything(log)
        if listening := _LISTENING.search(said):
            return listening[1].decode()
        if ended:
            break
        time.sleep(0.02)
    raise OwnServerError(f"{COMMAND} did not start:\n{said[-1500:].decode(errors='replace')}")


def _everything(log: int) -> bytes:
    # The server writes where its copy of this descriptor stands, so it is read without moving it.
    return os.pread(log, 1 << 20, 0)
