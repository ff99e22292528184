"""The oracle: a real llama-server, from the `oracle` extra, in a process of its own.

    python -m bloomery.conformance.oracle MODEL.gguf '{"configuration": "strict", ...}'

runs one until it is killed; `Oracle` starts that command and stops it.

The strict configuration computes attention without flash attention and keeps the cache in float32: llama.cpp's nearest
to the equations, and what numbers are compared with tightly. The default one is what users run; on a CPU its flash
attention rounds keys and values to half precision, whatever the cache type.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import Any, Literal
from urllib.parse import urlsplit

from bloomery.conformance.wire import Answer, WireError, ask

PACKAGE = "xllamacpp"
# The llama.cpp build inside a wheel, by the wheel's version; the server itself does not know its own.
BUILDS = {"2026.10.11549": "b11549"}

Configuration = Literal["strict", "default"]


class OracleError(RuntimeError):
    """The oracle is not installed, does not start, or died."""


@dataclass(frozen=True, kw_only=True)
class OracleSettings:
    """How the server is started; everything that is not llama-server's default is here.

    draft_window: how many ids it drafts at once with the model's own draft layer; 0 for none.
    """

    configuration: Configuration
    n_ctx: int = 512
    n_parallel: int = 1
    n_batch: int = 2048
    n_ubatch: int = 512
    n_threads: int = 1
    seed: int = 42
    alias: str = ""
    api_key: str = ""
    draft_window: int = 0


def oracle_version() -> str:
    """The installed oracle, as `package version (llama.cpp build)`.  OracleError when the extra is missing."""
    try:
        found = version(PACKAGE)
    except PackageNotFoundError:
        raise OracleError(
            f"the oracle extra is not installed (no package {PACKAGE}); install it with: pip install 'bloomery[oracle]'"
        ) from None
    return f"{PACKAGE} {found} (llama.cpp {BUILDS.get(found, 'of an unknown build')})"


class Oracle:
    """A running llama-server; a context manager that kills it at the end."""

    def __init__(self, model: Path, settings: OracleSettings) -> None:
        """Start it on a free port and wait until it answers.  OracleError with the end of its log when it does not."""
        oracle_version()
        # The server echoes its model's path, so it gets a name without folders.
        command = [sys.executable, "-m", __spec__.name, model.name, json.dumps(asdict(settings))]
        # It logs at length: to a file, because a pipe nobody reads would fill up and stop it.
        self._log_file = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `close`
        self._process = subprocess.Popen(  # noqa: S603 - our own module, under this interpreter
            command, cwd=model.parent, stdout=subprocess.PIPE, stderr=self._log_file, text=True
        )
        try:
            self.address = self._listening_address()
            self._wait_until_ready()
        except BaseException:
            self.close()
            raise

    def _listening_address(self) -> tuple[str, int]:
        assert self._process.stdout is not None  # noqa: S101 - opened as a pipe above
        parts = urlsplit(self._process.stdout.readline().strip())
        if parts.hostname is None or parts.port is None:
            raise OracleError(f"the oracle did not start:\n{self._log()}")
        return parts.hostname, parts.port

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                if ask(self.address, "GET", "/health").status == 200:
                    return
            except (OSError, WireError):
                if self._process.poll() is not None:
                    raise OracleError(f"the oracle died:\n{self._log()}") from None
            time.sleep(0.05)
        raise OracleError("the oracle did not become ready within a minute")

    def _log(self) -> str:
        self._process.kill()
        self._process.wait()
        self._log_file.seek(0)
        return self._log_file.read().decode(errors="replace")[-2000:]

    def close(self) -> None:
        """Kill the server; idempotent."""
        self._process.kill()
        self._process.communicate()
        self._log_file.close()

    def __enter__(self) -> Oracle:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def n_vocab(self) -> int:
        """How many tokens its model has."""
        return int(json.loads(ask(self.address, "GET", "/v1/models").body)["data"][0]["meta"]["n_vocab"])

    def post(self, path: str, fields: dict[str, Any]) -> Any:
        """The JSON answer to a JSON request.  OracleError when the status is not 200."""
        answer: Answer = ask(self.address, "POST", path, json.dumps(fields).encode())
        if answer.status != 200:
            raise OracleError(f"POST {path} answered {answer.status}: {answer.body[:500]!r}")
        return json.loads(answer.body)


def serve(model: str, settings: OracleSettings) -> None:
    """Run the server in this process, print its address, and never return."""
    import xllamacpp

    p = xllamacpp.CommonParams()
    p.model.path = model
    p.port = 0
    p.n_ctx, p.n_parallel = settings.n_ctx, settings.n_parallel
    p.n_batch, p.n_ubatch = settings.n_batch, settings.n_ubatch
    p.cpuparams.n_threads = p.cpuparams_batch.n_threads = settings.n_threads
    p.sampling.seed = settings.seed
    p.endpoint_metrics = p.endpoint_slots = p.use_jinja = True
    p.warmup = False
    if settings.alias:
        p.model_alias = [settings.alias]
    if settings.api_key:
        p.api_keys = [settings.api_key]
    if settings.configuration == "strict":
        p.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        p.cache_type_k = p.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    if settings.draft_window:
        draft = p.speculative.draft
        p.speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_MTP]
        draft.n_max = settings.draft_window
        draft.cache_type_k, draft.cache_type_v = p.cache_type_k, p.cache_type_v
    server = xllamacpp.Server(p)
    print(server.listening_address, flush=True)
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    serve(sys.argv[1], OracleSettings(**json.loads(sys.argv[2])))
