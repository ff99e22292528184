"""A server of a chat's own: started for it, answering nobody else, and ended with it."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TextIO, cast

from bloomery.server.console.client import Address, read_address

_RUN = "from bloomery.server.command import main; raise SystemExit(main())"
_LISTENING = re.compile(r"bloomery-serve: listening on (http://\S+)\n")
_END_SECONDS = 10.0


class NotServingError(Exception):
    """The server ended before it listened. It has said why; `code` is its exit code, 0 when it was not to serve."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@contextlib.contextmanager
def own_server(flags: Sequence[str], said: TextIO) -> Iterator[Address]:
    """A server with these flags of `bloomery-serve`, on a free port unless they name one.

    said: where its start lines go, as they come. Raises NotServingError.
    """
    # A fresh key beside whatever keys the settings name: no other user of the machine can ask this server.
    key = secrets.token_urlsafe(24)
    keys = ",".join(filter(None, (os.environ.get("LLAMA_API_KEY"), key)))
    port = [] if "--port" in flags else ["--port", "0"]
    process = subprocess.Popen(  # noqa: S603  It runs this interpreter with this package.
        [sys.executable, "-P", "-c", _RUN, *flags, *port],
        env={**os.environ, "LLAMA_API_KEY": keys},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="replace",
        # Ctrl-C in the terminal ends an answer, and must not reach the server.
        start_new_session=True,
    )
    stderr = cast(TextIO, process.stderr)
    # A pipe that nobody reads would fill and stop the server; its lines about requests would only disturb the chat.
    drain = threading.Thread(target=deque, args=(stderr, 0), name="server's stderr", daemon=True)
    try:
        url = _listening(stderr, said)
        if url is None:
            raise NotServingError(process.wait())
        drain.start()
        yield read_address(url, key)
    finally:
        process.terminate()
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if drain.ident is not None:
            drain.join()
        stderr.close()


def _listening(stderr: TextIO, said: TextIO) -> str | None:
    """Pass the start lines on up to the one with the address, which is returned; None when the server ends first."""
    for line in stderr:
        said.write(line)
        said.flush()
        if found := _LISTENING.fullmatch(line):
            return found[1]
    return None
