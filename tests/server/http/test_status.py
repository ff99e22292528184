"""What the server says of itself, and what its answers have in common."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.http.serving import Client, in_process
from tests.server.http.test_chat import TEMPLATE
from tests.server.scripted import ScriptedEngine, answering, served


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with in_process(served(answering({"A": "yes"}), n_parallel=2, name="org/a+b c")) as client:
        yield client


@pytest.mark.parametrize("path", ["/health", "/v1/health"])
def test_health(client: Client, path: str) -> None:
    assert client.simulate_get(path).json == {"status": "ok"}


def test_a_failed_engine_shows_everywhere() -> None:
    def fail(_spans: object) -> None:
        raise ValueError("the card fell off")

    with in_process(served(engine=ScriptedEngine(before_pass=fail))) as client:
        first = client.ask("/completion", {"prompt": "A"})
        assert (first.status_code, first.json["error"]["type"]) == (500, "server_error")
        health = client.simulate_get("/health")
        assert (health.status_code, health.json["status"]) == (503, "error")
        assert "the card fell off" in health.json["reason"]
        again = client.ask("/completion", {"prompt": "A"})
        assert (again.status_code, again.json["error"]["type"]) == (503, "unavailable_error")


@pytest.mark.parametrize("path", ["/models", "/v1/models", "/api/tags"])
def test_the_models(client: Client, path: str) -> None:
    document = client.simulate_get(path).json
    assert list(document) == ["models", "object", "data"]
    (entry,) = document["data"]
    assert list(entry) == ["id", "aliases", "tags", "object", "architecture", "created", "owned_by", "meta"]
    assert entry["id"] == "org/a+b c"
    assert entry["meta"]["n_ctx"] == 4096
    (ollama,) = document["models"]
    assert (ollama["name"], ollama["details"]["format"]) == ("org/a+b c", "gguf")


def test_a_model_shown_to_ollamas_clients(client: Client) -> None:
    shown = client.ask("/api/show", {"model": "org/a+b c"}).json
    assert shown["template"] == client.simulate_get("/props").json["chat_template"]
    assert {key: shown["details"][key] for key in ("format", "family", "quantization_level")} == {
        "format": "gguf", "family": "scripted", "quantization_level": "all F32",
    }  # fmt: skip
    assert shown["model_info"]["scripted.context_length"] == 4096
    assert shown["capabilities"] == ["completion"]
    (listed,) = client.simulate_get("/api/tags").json["models"]
    assert {key: shown[key] for key in ("details", "capabilities", "modified_at")}.items() <= listed.items()


def test_tools_are_a_capability_where_the_templates_calls_are_read() -> None:
    with in_process(served(template=TEMPLATE, name="caller")) as client:
        assert client.ask("/api/show", {"model": "caller"}).json["capabilities"] == ["completion", "tools"]


@pytest.mark.parametrize(
    ("name", "status"),
    [("org/a%2Bb%20c", 404), ("org/a+b%20c", 404), ("ORG/a+b c", 404), ("", 404), (None, 400), (5, 400)],
)
def test_a_name_in_json_is_matched_letter_for_letter(client: Client, name: Any, status: int) -> None:
    result = client.ask("/api/show", {"model": name})
    assert result.status_code == status
    if status == 404:
        assert result.json["error"]["type"] == "not_found_error"
        assert "org/a+b c" in result.json["error"]["message"]
    else:
        assert result.json["error"]["param"] == "model"


@pytest.mark.parametrize("spelled", ["org/a+b%20c", "org%2Fa+b%20c", "org%2fa%2Bb%20c", "%6Frg/a+b%20c?x=%zz"])
@pytest.mark.parametrize("prefix", ["/models/", "/v1/models/"])
def test_a_model_is_found_by_its_decoded_name(client: Client, prefix: str, spelled: str) -> None:
    path, _, query = f"{prefix}{spelled}".partition("?")
    assert client.simulate_get(path, query_string=query).json["id"] == "org/a+b c"


@pytest.mark.parametrize("spelled", ["x", "org/a%20b%20c", "org%252Fa+b%20c", "ORG/a+b%20c"])
def test_an_unknown_model_is_not_found_and_the_served_one_is_named(client: Client, spelled: str) -> None:
    result = client.simulate_get(f"/v1/models/{spelled}")
    assert (result.status_code, result.json["error"]["type"]) == (404, "not_found_error")
    assert "org/a+b c" in result.json["error"]["message"]


@pytest.mark.parametrize("spelled", ["a%zz", "a%2", "%", "%ff"])
def test_a_badly_escaped_name_is_refused(client: Client, spelled: str) -> None:
    assert client.simulate_get(f"/v1/models/{spelled}").status_code == 400


def test_props(client: Client) -> None:
    props = client.simulate_get("/props").json
    assert props["default_generation_settings"]["n_ctx"] == props["n_ctx"] == 4096
    assert props["default_generation_settings"]["params"]["temperature"] == 0.800000011920929
    assert props["total_slots"] == 2
    assert props["model_alias"] == "org/a+b c"
    assert "<|im_start|>" in props["chat_template"]
    assert not props["chat_template"].endswith("\n")
    assert props["chat_template_caps"]["supports_system_role"]
    assert (props["bos_token"], props["eos_token"]) == ("<|endoftext|>", "<|im_end|>")
    assert "/v1/chat/completions" in props["routes"]
    assert props["engine"]["name"] == "bloomery"


def test_slots_show_what_runs() -> None:
    engine = ScriptedEngine(n_sequences=2)
    with in_process(served(engine=engine)) as client:
        before = client.simulate_get("/slots").json
        assert [list(slot) for slot in before] == [["id", "n_ctx", "speculative", "is_processing", "n_past"]] * 2
        client.ask("/completion", {"prompt": "A", "n_predict": 3, "temperature": 0.5, "id_slot": 1})
        slot = client.simulate_get("/slots").json[1]
        assert slot["params"]["temperature"] == 0.5
        # The prompt's id and the first two picked; the third was never computed.
        assert slot["n_past"] == slot["n_prompt_tokens"] == 3
        assert list(slot["next_token"][0]) == ["has_next_token", "has_new_line", "n_remain", "n_decoded"]
        assert client.simulate_get("/slots", query_string="fail_on_no_slot=1").status_code == 200


def test_metrics_are_prometheus_text(client: Client) -> None:
    client.ask("/completion", {"prompt": "A", "n_predict": 2})
    result = client.simulate_get("/metrics")
    assert result.headers["content-type"] == "text/plain; version=0.0.4"
    assert int(result.headers["process-start-time-unix"]) > 0
    described: set[str] = set()
    for line in result.text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert kind in {"counter", "gauge"}
            assert name not in described
            described.add(name)
        elif not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            assert name.partition("{")[0] in described
            float(value)
    for name in ("prompt_tokens_total", "tokens_predicted_total", "requests_processing", "n_busy_slots_per_decode"):
        assert f"llamacpp:{name}" in described
    assert 'llamacpp:rounds_total{width="1"}' in result.text


def test_tokenize(client: Client) -> None:
    def tokens(**body: Any) -> Any:
        return client.ask("/tokenize", body).json["tokens"]

    assert tokens(content="A<|im_end|>é") == [65, 258, 195, 169]
    assert tokens(content="A<|im_end|>", parse_special=False) == [65, *b"<|im_end|>"]
    assert tokens(content="Aé", with_pieces=True) == [
        {"id": 65, "piece": "A"},
        {"id": 195, "piece": [195]},
        {"id": 169, "piece": [169]},
    ]
    assert tokens(content="") == []


def test_detokenize(client: Client) -> None:
    assert client.ask("/detokenize", {"tokens": [65, 258, 195]}).json == {"content": "A<|im_end|>\ufffd"}
    assert client.ask("/detokenize", {}).json == {"content": ""}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "content"),
        ("/tokenize", {"content": None}, "content"),
        ("/tokenize", {"content": 5}, "content"),
        ("/tokenize", {"content": ["A"]}, "content"),
        ("/tokenize", {"content": "A", "with_pieces": 1}, "with_pieces"),
        ("/tokenize", {"content": "A", "add_special": "x"}, "add_special"),
        ("/detokenize", {"tokens": "x"}, "tokens"),
        ("/detokenize", {"tokens": None}, "tokens"),
        ("/detokenize", {"tokens": [99999]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [True]}, "tokens"),
        ("/detokenize", {"tokens": [1.5]}, "tokens"),
    ],
)
def test_the_tokenizers_routes_refuse_by_name(client: Client, path: str, body: dict[str, Any], param: str) -> None:
    result = client.ask(path, body)
    assert (result.status_code, result.json["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/"), ("GET", "/nope"), ("POST", "/health"), ("GET", "/completion"), ("PUT", "/completion"),
        ("DELETE", "/v1/models"), ("PATCH", "/props"),
        ("GET", "/api/show"), ("POST", "/api/tags"), ("POST", "/api/chat"), ("GET", "/health/"), ("GET", "/Health"),
        ("POST", "/slots"),
    ],
)  # fmt: skip
def test_an_unknown_route_or_method_is_not_found_and_the_routes_are_named(
    client: Client, method: str, path: str
) -> None:
    result = client.simulate_request(method, path, query_string="secret=1")
    assert result.status_code == 404
    error = result.json["error"]
    assert error["type"] == "not_found_error"
    assert error["message"].startswith(f"File Not Found: {method} {path};")
    assert "/v1/chat/completions" in error["message"]
    assert "secret" not in error["message"]


def test_head_is_get_without_the_body(client: Client) -> None:
    result = client.simulate_head("/health")
    assert (result.status_code, result.text) == (200, "")
    assert result.headers["content-length"] == "15"
    assert client.simulate_head("/completion").status_code == 404


@pytest.mark.parametrize("path", ["/completion", "/nope", "/v1/models/x"])
def test_options_is_answered_on_any_path(client: Client, path: str) -> None:
    result = client.simulate_options(path, headers={"Origin": "http://page"})
    assert (result.status_code, result.text) == (200, "")
    assert result.headers["access-control-allow-origin"] == "http://page"
    assert result.headers["access-control-allow-methods"] == "GET, POST, DELETE, OPTIONS"
    assert result.headers["access-control-allow-headers"] == "*"
    assert result.headers["access-control-allow-credentials"] == "true"


def test_every_answer_names_the_origin(client: Client) -> None:
    assert client.simulate_get("/health").headers["access-control-allow-origin"] == ""
    for path in ("/health", "/nope"):
        result = client.simulate_get(path, headers={"Origin": "http://page"})
        assert result.headers["access-control-allow-origin"] == "http://page"


def test_an_unexpected_error_is_a_500_that_tells_nothing(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    original = client.scheduler.slots

    def broken() -> Any:
        raise RuntimeError("sk-secret was here")

    client.scheduler.slots = broken  # type: ignore[method-assign]
    try:
        result = client.simulate_get("/slots")
    finally:
        client.scheduler.slots = original  # type: ignore[method-assign]
    assert (result.status_code, result.json["error"]["type"]) == (500, "server_error")
    assert "secret" not in result.text
    assert "RuntimeError" in caplog.text
