"""What is redacted is gone, and what is left still compares as it did."""

from __future__ import annotations

import json

import pytest

from bloomery.conformance.cases import Exchange, Greedy
from bloomery.conformance.recording import load_set, set_names
from bloomery.conformance.redaction import redacted
from bloomery.conformance.serve_checks import compare
from bloomery.conformance.wire import Answer

FOLDER = "/home/ada/secret models"
SETS = [name for name in set_names() if name.startswith("http-")]


def exchange(body: bytes, *, chunks: tuple[bytes, ...] | None = None, headers: object = ()) -> Exchange:
    return Exchange(
        name="e",
        method="GET",
        path="/props",
        headers=headers,  # type: ignore[arg-type]
        body=None,
        status=200,
        response_headers=(("Set-Cookie", "id=5"), ("Process-Start-Time-Unix", "1796126999")),
        response=b"".join(chunks) if chunks is not None else body,
        chunks=chunks,
    )


@pytest.mark.parametrize("name", SETS)
def test_a_redacted_recording_compares_as_the_one_it_was(name: str) -> None:
    for case in load_set(name).cases(Exchange):
        left = redacted(case, "chain-text.gguf")
        assert isinstance(left, Exchange)
        answer = Answer(
            status=left.status, reason="", headers=left.response_headers, body=left.response, chunks=left.chunks
        )
        assert compare(case, answer, name, known=()).verdict == "equal", case.name


def test_keys_go_and_their_headers_stay() -> None:
    case = exchange(b"{}", headers=(("Authorization", "Bearer sk-1"), ("x-api-key", "sk-1"), ("Accept", "a/b")))
    left = redacted(case)
    assert isinstance(left, Exchange)
    assert left.headers == (("Authorization", "redacted"), ("x-api-key", "redacted"), ("Accept", "a/b"))
    assert left.response_headers == (("Set-Cookie", "redacted"), ("Process-Start-Time-Unix", "0"))


def test_folders_and_times_go() -> None:
    body = {
        "model_path": f"{FOLDER}/m.gguf",
        "other_path": "/opt/llama/x.jinja",
        "id": f"{FOLDER}/m.gguf",
        "routes": ["/v1/models"],
        "timings": {"prompt_ms": 1.25, "prompt_n": 4, "predicted_per_second": 7},
        "text": f"in {FOLDER}/ it lies",
    }
    left = redacted(exchange(json.dumps(body).encode()), f"{FOLDER}/m.gguf")
    assert isinstance(left, Exchange)
    assert json.loads(left.response) == {
        "model_path": "m.gguf",
        "other_path": "x.jinja",
        "id": "m.gguf",
        "routes": ["/v1/models"],
        "timings": {"prompt_ms": 0, "prompt_n": 4, "predicted_per_second": 0},
        "text": "in  it lies",
    }
    assert isinstance(json.loads(left.response)["timings"]["prompt_ms"], float)


def test_a_secret_that_two_chunks_share_goes() -> None:
    event = f'data: {{"model":"{FOLDER}/m.gguf"}}\n\n'.encode()
    case = exchange(b"", chunks=(event[:20], event[20:] + b"data: [DONE]\n\n"))
    left = redacted(case, f"{FOLDER}/m.gguf")
    assert isinstance(left, Exchange)
    assert left.chunks == (b'data: {"model":"m.gguf"}\n\n', b"data: [DONE]\n\n")


def test_times_of_metrics_go() -> None:
    left = redacted(exchange(b'# TYPE a_seconds counter\na_seconds 1.5\nb{slot="1"} 2\n'))
    assert isinstance(left, Exchange)
    assert left.response == b'# TYPE a_seconds counter\na_seconds 0\nb{slot="1"} 2\n'


@pytest.mark.parametrize("body", [b'{ "a" : 1 }', b"\xff\xfe", b"", b"plain text"])
def test_an_answer_without_secrets_stays_byte_for_byte(body: bytes) -> None:
    left = redacted(exchange(body), f"{FOLDER}/m.gguf")
    assert isinstance(left, Exchange)
    assert left.response == body


def test_half_a_surrogate_pair_stays_an_escape() -> None:
    left = redacted(exchange(b'{"a_ms":1,"b":"\\ud800"}'))
    assert isinstance(left, Exchange)
    assert left.response == b'{"a_ms":0,"b":"\\ud800"}'


def test_numbers_of_a_model_are_nobody_s_secret() -> None:
    case = Greedy(name="g", prompt=(1,), request={}, ids=(2,), stop_type="eos", first_step=0)
    assert redacted(case, f"{FOLDER}/m.gguf") is case
