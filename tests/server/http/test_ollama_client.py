"""Ollama's own client against a listening server: it reads times, sizes and names strictly."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import ollama
import pytest

from tests.server.http.serving import listening
from tests.server.http.test_chat import TEMPLATE
from tests.server.scripted import served

KEY = "sk-test"


@pytest.fixture(scope="module")
def client() -> Iterator[ollama.Client]:
    with (
        listening(served(template=TEMPLATE, name="org/a+b c"), keys=[KEY]) as server,
        ollama.Client(server.http.url, headers={"Authorization": f"Bearer {KEY}"}) as client,
    ):
        yield client


def test_list(client: ollama.Client) -> None:
    (model,) = client.list().models
    assert model.model == "org/a+b c"
    assert model.size == 0
    assert model.modified_at is not None
    assert abs(datetime.now(UTC) - model.modified_at) < timedelta(hours=1)
    assert model.details is not None
    assert (model.details.format, model.details.family) == ("gguf", "scripted")


def test_show(client: ollama.Client) -> None:
    model = client.show("org/a+b c")
    assert model.template is not None
    assert "<|im_start|>" in model.template
    assert model.modelinfo is not None
    assert model.modelinfo["scripted.context_length"] == 4096
    assert model.capabilities == ["completion", "tools"]
    assert model.details is not None
    assert model.details.quantization_level == "all F32"


def test_show_of_a_model_that_is_not_served_names_the_one_that_is(client: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError, match=r"org/a\+b c") as caught:
        client.show("llama3")
    assert caught.value.status_code == 404
