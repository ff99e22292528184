"""`serve`: recorded sets of the server that was started for them, other sets skipped, two servers compared."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from bloomery.conformance.cases import Exchange
from bloomery.conformance.commands import UsageError, serve
from bloomery.conformance.finding import Effort, Finding
from bloomery.conformance.fixtures import fixture
from bloomery.conformance.oracle import Oracle, OracleSettings
from bloomery.conformance.own_server import arguments_of, own_server, start_command
from bloomery.conformance.peer import About
from bloomery.conformance.recording import load_set


def asked(*flags: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=2)
    serve.add_arguments(parser)
    return parser.parse_args(flags)


def found(*flags: str) -> dict[str, Finding]:
    """The findings of sets, by set."""
    checks = [check for check in serve.checks(asked(*flags)) if check.subject != "laws"]
    return {finding.subject: finding for check in checks for finding in check.run(Effort())}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with own_server(arguments_of(load_set("http-alias"))) as address:
        yield address


def test_the_set_that_a_server_was_started_for_is_asked_and_others_say_how_to_start_one(url: str) -> None:
    first = found("--url", url, "--set", "http-alias", "--set", "http-text", "--set", "http-keys")
    assert first["http-alias"].verdict == "passed", first["http-alias"].wrong
    assert first["http-alias"].measured["known"] > 0
    for name in ("http-text", "http-keys"):
        assert first[name].skipped == f"it wants a server started with: {start_command(load_set(name))}"
    again = found("--url", url, "--set", "http-alias")
    assert "answered nothing yet; start again: bloomery-serve" in str(again["http-alias"].skipped)


ABOUT = About(
    model="chain-text",
    model_path="m/chain-text.gguf",
    alias="chain-text",
    build="b1",
    n_ctx=512,
    n_slots=1,
    n_vocab=392,
    bloomery=True,
)


@pytest.mark.parametrize(
    ("changes", "asks"),
    [
        ({}, True),
        ({"alias": "chain-text.gguf"}, True),
        ({"model": "chain-think"}, False),
        ({"n_ctx": 1024}, False),
        ({"n_slots": 2, "n_ctx": 256}, False),
        ({"alias": "forge"}, False),
    ],
    ids=str,
)
def test_only_a_server_that_was_started_as_recorded_is_asked(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], asks: bool
) -> None:
    monkeypatch.setattr(serve, "about", lambda _peer: replace(ABOUT, **changes))
    finding = found("--url", "http://127.0.0.1:1", "--set", "http-text")["http-text"]
    # Nobody answers at that address, so to ask is to fail.
    assert finding.verdict == ("failed" if asks else "skipped")


def test_a_key_belongs_to_its_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "about", lambda _peer: ABOUT)
    key = load_set("http-keys").manifest.settings["api_key"]
    words = ("--url", "http://127.0.0.1:1", "--set", "http-text", "--set", "http-keys")
    assert {name: each.verdict for name, each in found(*words).items()} == {
        "http-text": "failed",
        "http-keys": "skipped",
    }
    keyed = found(*words, "--api-key", key)
    assert {name: each.verdict for name, each in keyed.items()} == {"http-text": "skipped", "http-keys": "failed"}


def test_two_servers_are_compared(url: str) -> None:
    arguments = arguments_of(load_set("http-text"))
    with own_server(arguments) as one, own_server(arguments) as other:
        same = found("--url", one, "--against", other, "--set", "http-refusals")["http-refusals"]
        assert same.verdict == "passed", same.wrong
        assert same.measured["equal"] == sum(same.measured.values())
        differs = found("--url", url, "--against", other, "--set", "http-text")["http-text"]
        assert differs.verdict == "failed"
        assert any("forge" in sentence for sentence in differs.wrong)


def test_a_server_that_is_not_there_fails() -> None:
    nowhere = "http://127.0.0.1:1"
    for flags in (("--url", nowhere), ("--url", nowhere, "--against", "http://127.0.0.1:2")):
        for finding in found(*flags).values():
            assert "was not answered" in finding.wrong[0]


@pytest.mark.oracle
@pytest.mark.parametrize("name", serve.http_sets())
def test_a_llama_server_is_equal_to_its_recordings(name: str) -> None:
    recording = load_set(name)
    with Oracle(fixture(recording.manifest.model), OracleSettings(**recording.manifest.settings)) as oracle:
        url = "http://{}:{}".format(*oracle.address)
        finding = found("--url", url, "--set", name, "--api-key", str(recording.manifest.settings["api_key"]))[name]
    assert finding.verdict == "passed", finding.wrong or finding.skipped
    assert finding.measured["equal"] == len(recording.cases(Exchange))


def test_laws_come_after_sets() -> None:
    subjects = [check.subject for check in serve.checks(asked("--url", "http://127.0.0.1:1"))]
    assert subjects == sorted(subjects, key=lambda subject: subject == "laws")
    assert "laws" in subjects
    assert [check.subject for check in serve.own_checks()] == subjects


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--url", "127.0.0.1:8080"], "--url 127.0.0.1:8080: not the address"),
        (["--url", "http://127.0.0.1:8080/v1"], "--url http://127.0.0.1:8080/v1: not the address"),
        (["--url", "http://a", "--against", "b"], "--against b: not the address"),
        (["--url", "http://a", "--against", "http://a:80"], "--against http://a:80: the same server as --url"),
        (["--url", "http://a", "--jobs", "4"], "--jobs"),
    ],
)
def test_usage_errors_name_the_flag(flags: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        serve.checks(asked(*flags))


@pytest.mark.parametrize("name", serve.http_sets())
def test_the_start_command_says_all_that_the_set_was_started_with(name: str) -> None:
    settings = load_set(name).manifest.settings
    command = start_command(load_set(name))
    assert f"--ctx-size {settings['n_ctx']} --parallel {settings['n_parallel']}" in command
    assert ("--alias" in command, "--api-key" in command) == (bool(settings["alias"]), bool(settings["api_key"]))
