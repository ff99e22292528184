"""The settings file: what the command line would have said, refused by key and file where it would not have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bloomery.interface import catalog
from bloomery.server.config_file import read_config
from bloomery.server.flags import FLAGS, REFUSED
from bloomery.server.given import SettingsError
from bloomery.server.settings import Settings, read_settings

KEY = "sk-very-secret"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "settings.json"


def read(config: Path, value: Any, *argv: str, environ: dict[str, str] | None = None) -> tuple[Settings, list[str]]:
    """The settings with a file that holds `value`, and the lines of the start without the file's name."""
    config.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    lines: list[str] = []
    settings = read_settings(["--config", str(config), *argv], environ or {}, lines.append)
    return settings, [line.removeprefix(f"{config}: ") for line in lines]


def refusal(config: Path, value: Any) -> str:
    with pytest.raises(SettingsError) as caught:
        read(config, value)
    message = str(caught.value)
    assert message.startswith(f"{config}: ")
    return message.removeprefix(f"{config}: ")


def test_a_file_starts_as_its_flags_do(config: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("k1\n", encoding="utf-8")
    entries = {"model-file": "m.gguf", "ctx-size": 65536, "parallel": 2, "host": "0.0.0.0", "api-key-file": str(keys)}
    found, lines = read(config, entries)
    flags = ["-m", "m.gguf", "--ctx-size", "65536", "--parallel", "2", "--host", "0.0.0.0", "--api-key-file", str(keys)]
    said = read_settings(flags, {}, lambda line: None)
    assert found.given == said.given | {"--config"}
    assert {**vars(found), "given": said.given} == vars(said)
    assert lines == [
        "model-file is read as --model-file",
        "ctx-size is read as --ctx-size 65536",
        "parallel is read as --parallel 2",
        "host is read as --host 0.0.0.0",
        f"api-key-file is read as --api-key-file {keys}",
    ]


def test_a_list_gives_the_flag_once_for_each_value_and_prints_no_key(config: Path) -> None:
    found, lines = read(config, {"api-key": ["k1", "k2"]}, environ={"LLAMA_API_KEY": "k0"})
    assert [key.secret for key in found.api_keys] == ["k0", "k1", "k2"]
    assert lines == ["api-key is read as --api-key", "LLAMA_API_KEY is read as --api-key"]


def test_the_command_lines_keys_replace_the_files_and_not_the_variables(config: Path) -> None:
    found, lines = read(config, {"api-key": ["k1", "k2"]}, "--api-key", "k3", environ={"LLAMA_API_KEY": "k0"})
    assert [key.secret for key in found.api_keys] == ["k0", "k3"]
    assert lines[0] == "api-key is not read: --api-key on the command line replaces it"


@pytest.mark.parametrize(
    ("entries", "argv", "by"),
    [
        ({"ctx-size": 64}, ["-c", "32"], "-c"),
        ({"ctx-size": 64}, ["--slot-ctx", "32"], "--slot-ctx"),
        ({"slot-ctx": 64}, ["--ctx", "32"], "--ctx"),
        ({"model-file": "a.gguf"}, ["--model", "demo"], "--model"),
        ({"model": "demo"}, ["-m", "a.gguf"], "-m"),
        ({"model": "qwen3"}, ["--model", "nemotron"], "--model"),
    ],
)
def test_a_flag_replaces_the_entry_that_sets_the_same(
    config: Path, monkeypatch: pytest.MonkeyPatch, entries: dict[str, Any], argv: list[str], by: str
) -> None:
    monkeypatch.setattr(catalog, "path", lambda word: config.with_name(f"{word}.gguf"))
    found, lines = read(config, entries, *argv)
    (key,) = entries
    assert lines == [f"{key} is not read: {by} on the command line replaces it"]
    alone = read_settings(argv, {}, lambda line: None)
    assert {**vars(found), "given": alone.given} == vars(alone)


def test_a_seats_word_in_the_file_stays_beside_a_model_of_the_command_line(config: Path) -> None:
    found, _ = read(config, {"model": "qwen3"}, "-m", "a.gguf")
    assert (found.seat, found.model_file) == ("qwen3", "a.gguf")


def test_a_file_counts_as_the_command_line_against_variables_and_levers(config: Path) -> None:
    environ = {"LLAMA_ARG_CTX_SIZE": "junk", "LLAMA_ARG_UBATCH": "7", "BLOOMERY_QWEN3_UBATCH": "9"}
    found, lines = read(config, {"slot-ctx": 64, "ubatch-size": "48"}, environ=environ)
    assert (found.slot_ctx, found.ctx_size, found.ubatch_size) == (64, None, 48)
    assert lines[2:] == [
        "LLAMA_ARG_CTX_SIZE is not read: --slot-ctx on the command line replaces it",
        "LLAMA_ARG_UBATCH is not read: --ubatch-size on the command line replaces it",
        "BLOOMERY_QWEN3_UBATCH is not read: --ubatch-size on the command line replaces it",
    ]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([], ["one JSON object"]),
        ("7", ["one JSON object"]),
        ("", ["no JSON at line 1"]),
        ('{"port": NaN}', ["no JSON"]),
        ("{" + '"a":{' * 100_000, ["no JSON"]),
        ('{"port": 1, "port": 1}', ['"port" is named twice']),
        ({"--port": 1}, ['"--port" is written with its dashes', '"port"']),
        ({"c": 64}, ['"c" is a short spelling', '"ctx-size"']),
        ({"ctx": 64}, ['"ctx" is a short spelling', '"ctx-size"']),
        ({"port": False}, ['"port" is false', "a string or a number"]),
        ({"port": None}, ['"port" is null']),
        ({"port": True}, ['"port" is true']),
        ({"port": {}}, ['"port" is an object']),
        ({"port": []}, ['"port" is a list of 0']),
        ({"port": [1, 2]}, ['"port" is a list of 2', "one value"]),
        ({"api-key": []}, ['"api-key" is a list of 0']),
        ({"api-key": [["k"]]}, ['"api-key" is a list, and']),
        ({"port": 65536}, ['"port" "65536": it takes 0 to 65535']),
        ('{"port": 80.0}', ['"port" "80.0": it takes a whole number']),
        ('{"port": 1e3}', ['"port" "1e3": it takes a whole number']),
        ('{"port": %s}' % ("9" * 10_000), ['"port"', "whole number"]),
        ({"hf": "a/b"}, ["--hf is not part of this version"]),
        ({"device": "CUDA0"}, ["--device places a model on cards"]),
        ({"temp": 1}, ['"temp" is no setting: there is no flag --temp']),
        ({"slot-ctx": 1, "config": "x"}, ['"config" asks the start to do something']),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_refused_is_named_with_the_file(config: Path, value: Any, words: list[str]) -> None:
    message = refusal(config, value)
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    "key",
    "plan levers help version list-devices records-schema recommend dry-run json config".split(),  # noqa: SIM905
)
def test_what_asks_the_start_to_do_something_is_no_entry(config: Path, key: str) -> None:
    assert f'"{key}" asks the start to do something' in refusal(config, {key: True})


@pytest.mark.parametrize("entries", [{"api_key": KEY}, {"api-key": [True, KEY]}, {"api-key": f'"{KEY}'}])
def test_a_key_is_in_no_refusal(config: Path, entries: dict[str, Any]) -> None:
    assert KEY not in refusal(config, entries)


def test_two_ways_to_say_one_thing_in_one_file_are_refused(config: Path) -> None:
    with pytest.raises(SettingsError, match="--slot-ctx beside --ctx-size"):
        read(config, {"ctx-size": 64, "slot-ctx": 64})
    with pytest.raises(SettingsError, match="the model is named twice"):
        read(config, {"model-file": "a.gguf", "model": "demo"})


def test_a_file_that_cannot_be_read_or_is_given_twice_is_refused(config: Path) -> None:
    with pytest.raises(SettingsError, match=rf"--config {config}: cannot read it"):
        read_settings(["--config", str(config)], {}, lambda line: None)
    with pytest.raises(SettingsError, match="--config is given twice"):
        read_settings(["--config", "a", "--config", "b"], {}, lambda line: None)
    config.write_bytes(b'{"alias": "\xff"}')
    with pytest.raises(SettingsError, match="not UTF-8"):
        read_config(str(config))
    config.write_bytes(b" " * (2**20 + 1))
    with pytest.raises(SettingsError, match="at most 1048576 bytes"):
        read_config(str(config))


_KEYS = st.sampled_from([flag.name[2:] for flag in FLAGS if flag.name != "--api-key-file"]) | st.sampled_from(
    [refused.name[2:] for refused in REFUSED]
)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
)


@given(value=st.dictionaries(_KEYS | st.text(max_size=8), _VALUES, max_size=4) | _VALUES)
def test_any_json_is_read_or_refused_in_a_sentence(tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
    config = tmp_path_factory.getbasetemp() / "any.json"
    config.write_text(json.dumps(value), encoding="utf-8")
    try:
        given_ = read_config(str(config))
    except SettingsError as error:
        assert str(config) in str(error)
    else:
        assert isinstance(value, dict)
        assert {name[2:] for name in given_} == set(value)
