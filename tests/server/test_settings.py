"""The settings table: every flag is read, refused with its name, and explained from one place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bloomery.interface import catalog
from bloomery.server.api_keys import ApiKey, read_key_list
from bloomery.server.flags import ACTION_SPELLINGS, FLAGS, REFUSED, Flag, Refused
from bloomery.server.given import SettingsError
from bloomery.server.seats import BY_WORD, SEATS, served_seats
from bloomery.server.settings import Settings, help_seat, read_settings
from bloomery.server.usage import usage

KEY = "sk-very-secret"


def read(
    *argv: str, environ: dict[str, str] | None = None, notice: Callable[[str], None] = lambda line: None
) -> Settings:
    return read_settings(argv, environ or {}, notice)


def refusal(*argv: str, environ: dict[str, str] | None = None) -> str:
    with pytest.raises(SettingsError) as caught:
        read(*argv, environ=environ)
    return str(caught.value)


def sample(flag: Flag, tmp_path: Path) -> tuple[str, Any]:
    """A value each flag takes, as text and as it is read."""
    keys = tmp_path / "keys"
    keys.write_text("# ours\n\nk1\r\n k2 \n", encoding="utf-8")
    config = tmp_path / "settings.json"
    config.write_text("{}", encoding="utf-8")
    samples: dict[str, tuple[str, Any]] = {
        "--model": ("qwen3", "qwen3"),
        "--config": (str(config), frozenset({"--config"})),
        "--api-key": ("k1,k2", (ApiKey("k1"), ApiKey("k2"))),
        "--api-key-file": (str(keys), (ApiKey("k1"), ApiKey("k2"))),
    }
    if flag.name in samples:
        return samples[flag.name]
    return ("7", 7) if flag.value.startswith("N") and flag.value != "NAME" else ("word", "word")


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.name)
def test_every_spelling_and_the_variable_of_a_flag_read_the_same(flag: Flag, tmp_path: Path) -> None:
    text, value = sample(flag, tmp_path)
    read_by_name = [read(spelling, text) for spelling in flag.spellings]
    if flag.env:
        lines: list[str] = []
        read_by_name.append(read(environ={flag.env: text}, notice=lines.append))
        assert len(lines) == 1
        assert lines[0].startswith(f"{flag.env} is read as {flag.name}")
        assert (text in lines[0]) != flag.secret
    assert all(found.given == {flag.name} for found in read_by_name)
    assert all(found == read_by_name[0] for found in read_by_name)
    assert value in vars(read_by_name[0]).values()


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.name)
def test_a_flag_without_a_value_is_refused_by_name(flag: Flag) -> None:
    assert refusal(flag.name) == f"{flag.name} needs a value: {flag.name} {flag.value}"
    assert f"{flag.name} needs a value" in refusal(flag.name, "--port", "1")


@pytest.mark.parametrize("flag", [flag for flag in FLAGS if not flag.adds], ids=lambda flag: flag.name)
def test_a_flag_given_twice_is_refused_by_name(flag: Flag, tmp_path: Path) -> None:
    text, _ = sample(flag, tmp_path)
    assert refusal(flag.spellings[-1], text, flag.name, text) == f"{flag.name} is given twice; name it once"


def test_the_usage_has_a_line_for_every_flag_and_nothing_twice() -> None:
    lines = usage().splitlines()
    for flag in FLAGS:
        assert sum(line.replace(",", "").split()[:1] == [flag.name] for line in lines) == 1
        assert any(flag.help in line for line in lines)
    spellings = [spelling for flag in FLAGS for spelling in flag.spellings]
    assert len(set(spellings)) == len(spellings)
    assert not set(spellings) & {
        *ACTION_SPELLINGS,
        *(spelling for refused in REFUSED for spelling in refused.spellings),
    }


def test_a_seats_usage_has_its_files_and_the_levers_it_applies() -> None:
    text = usage(BY_WORD["qwen3"])
    assert text.startswith("usage: bloomery-serve --model qwen3 -m PATH")
    assert "qwen3moe" in text
    assert "BLOOMERY_QWEN3_UBATCH=N" in text
    assert "BLOOMERY_QWEN3_UBATCH" not in usage(BY_WORD["nemotron"])


def test_the_usages_seat_comes_from_the_command_line_or_its_settings_file(tmp_path: Path) -> None:
    config = tmp_path / "settings.json"
    config.write_text('{"model": "nemotron"}', encoding="utf-8")
    assert help_seat(["--nonsense", "--help"]) is None
    assert help_seat(["--model", "demo", "--help"]) is None
    assert help_seat(["--help", "--config", str(config)]) == BY_WORD["nemotron"]
    assert help_seat(["--model", "qwen3", "--help", "--config", str(config)]) == BY_WORD["qwen3"]
    config.write_text("[]", encoding="utf-8")
    with pytest.raises(SettingsError, match=r"settings.json: a settings file is one JSON object"):
        help_seat(["--help", "--config", str(config)])
    with pytest.raises(SettingsError, match="the seat glm is not part of this version yet"):
        help_seat(["--model", "glm", "-h"])


@pytest.mark.parametrize("refused", REFUSED, ids=lambda refused: refused.name)
def test_a_flag_that_is_not_honoured_and_its_variable_end_the_start(refused: Refused) -> None:
    for spelling in refused.spellings:
        assert refusal(spelling, "1") == f"{spelling} {refused.why}"
    if refused.env:
        assert refusal(environ={refused.env: "1"}).startswith(f"{refused.env} is set, and {refused.name} {refused.why}")


def test_llama_servers_variable_of_a_switch_may_leave_it_off() -> None:
    for word in ("off", "disabled", "false", "0"):
        lines: list[str] = []
        read(environ={"LLAMA_ARG_CPU_MOE": word}, notice=lines.append)
        assert lines == ["LLAMA_ARG_CPU_MOE is read as off"]


def test_defaults() -> None:
    found = read("-m", "model.gguf")
    assert (found.host, found.port, found.parallel, found.waiting(1)) == ("127.0.0.1", 8080, 1, 63)
    assert (found.ctx_size, found.alias, found.api_keys, found.seat) == (None, None, (), None)
    assert (found.engine, found.numerics, found.ubatch_size) == ("auto", "exact", 512)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--port", "70000"), ['--port "70000"', "0 to 65535"]),
        (("--port", "080"), ['--port "080"', "whole number"]),
        (("--port", "-1"), ["--port", "whole number"]),
        (("--port", "٣"), ["--port", "whole number"]),
        (("-c", "0"), ['-c "0"', "1 to"]),
        (("-np", "0"), ['-np "0"', "1 to 64"]),
        (("-np", "-1"), ['-np "-1"', "whole number"]),
        (("-np", "auto", "--queue-depth", "57"), ['--queue-depth "57"', "8 slots", "room for 56"]),
        (("-np", "auto", "-c", "4096"), ["-np auto beside -c", "--slot-ctx"]),
        (("--slot-ctx", "64", "-c", "64"), ["--slot-ctx beside -c", "name one"]),
        (("--slot-ctx", "0"), ['--slot-ctx "0"', "1 to"]),
        (("-ub", "4097"), ['-ub "4097"', "1 to 4096"]),
        (("-np", "4", "--queue-depth", "61"), ['--queue-depth "61"', "room for 60"]),
        (("--host", ""), ["--host", "not empty"]),
        (("--hf", "a/b"), ["--hf is not part of this version yet"]),
        (("-ngl", "99"), ["-ngl places a model on cards"]),
        (("--jinja",), ['unknown flag "--jinja"']),
        (("--port=80",), ["--port=...", "two arguments", "--port N"]),
        (("model.gguf",), ['unknown argument "model.gguf"', "-m PATH"]),
        (("--por", "80"), ['unknown flag "--por"']),
        (("--model", "model.gguf"), ["--model", "a model file is named with -m"]),
        (("--model", "glm"), ["the seat glm is not part of this version yet"]),
        (("--model", "qwen3:Q8_0"), ["downloading qwen3:Q8_0 is not part of this version yet"]),
        (("--api-key", ""), ["--api-key", "names no key"]),
        (("--api-key", '"open'), ["--api-key", "no closing quote"]),
        (("--api-key-file", "/no/such/file"), ["--api-key-file", "/no/such/file", "cannot read it"]),
    ],
)
def test_what_is_refused_is_named_with_what_would_be_taken(argv: tuple[str, ...], words: list[str]) -> None:
    message = refusal(*argv)
    assert all(word in message for word in words), message


def test_a_refused_variable_is_named_as_such() -> None:
    assert refusal(environ={"LLAMA_ARG_PORT": "x"}).startswith('LLAMA_ARG_PORT "x": it takes')
    assert "names no key" in refusal(environ={"LLAMA_API_KEY": ""})


def test_the_command_line_replaces_a_variable_and_one_line_says_so() -> None:
    lines: list[str] = []
    found = read("-c", "2048", environ={"LLAMA_ARG_CTX_SIZE": "junk", "LLAMA_ARG_NUMA": "4"}, notice=lines.append)
    assert found.ctx_size == 2048
    assert lines == [
        "LLAMA_ARG_CTX_SIZE is not read: -c on the command line replaces it",
        "LLAMA_ARG_NUMA is not read: it stands for no flag of this server",
    ]


def test_keys_add_and_are_never_shown(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("k3\nk1\n", encoding="utf-8")
    lines: list[str] = []
    found = read(
        "--api-key", KEY, "--api-key", "k1,k2", "--api-key-file", str(file),
        environ={"LLAMA_API_KEY": "k0"}, notice=lines.append,
    )  # fmt: skip
    assert [key.secret for key in found.api_keys] == ["k0", KEY, "k1", "k2", "k3"]
    assert lines == ["LLAMA_API_KEY is read as --api-key"]
    assert KEY not in repr(found)


@pytest.mark.parametrize("argv", [(f"--api-key={KEY}",), (f"--api_key={KEY}",), ("--api-key", f'"{KEY}')])
def test_a_key_is_in_no_refusal(argv: tuple[str, ...]) -> None:
    assert KEY not in refusal(*argv)


def test_a_key_given_twice_with_other_fields_is_refused_by_its_places(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"k1\n{KEY} scope=read\n", encoding="utf-8")
    message = refusal("--api-key", KEY, "--api-key-file", str(file))
    assert f"line 2 of {file}: the key is also that of --api-key" in message
    assert KEY not in message
    assert KEY not in refusal("--api-key-file", str(file), environ={"LLAMA_API_KEY": KEY})


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("a,b", ("a", "b")),
        (",a,,b,", ("a", "b")),
        ('"a,b",c', ("a,b", "c")),
        ('"say ""hi""",c', ('say "hi"', "c")),
        ('a"b,c', ('a"b', "c")),
        ("a b", ("a b",)),
    ],
)
def test_a_key_list(text: str, keys: tuple[str, ...]) -> None:
    assert tuple(key.secret for key in read_key_list(text)) == keys


@given(st.lists(st.text(min_size=1).filter(lambda key: "\n" not in key), min_size=1))
def test_every_key_can_be_quoted(keys: list[str]) -> None:
    text = ",".join('"' + key.replace('"', '""') + '"' for key in keys)
    assert [key.secret for key in read_key_list(text)] == list(dict.fromkeys(keys))


@given(st.lists(st.sampled_from([*[flag.name for flag in FLAGS], "--hf", "x", "-1", "80", "", "a,b"]), max_size=6))
def test_any_command_line_is_read_or_refused_in_a_sentence(argv: list[str]) -> None:
    try:
        read(*argv)
    except SettingsError as error:
        assert str(error)


def test_the_model_is_named_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(catalog, "path", lambda word: tmp_path / f"{word}.gguf")
    assert read("--model", "demo").model_file == str(tmp_path / "demo.gguf")
    assert read("--model", "qwen3", "-m", "a.gguf").seat == "qwen3"
    assert read(environ={"BLOOMERY_REF_MODEL": "a.gguf"}).model_file == "a.gguf"
    assert read("-m", "a.gguf", environ={"BLOOMERY_REF_MODEL": "a.gguf"}).model_file == "a.gguf"
    assert read("-m", "a.gguf", environ={"BLOOMERY_REF_MODEL": ""}).model_file == "a.gguf"
    assert refusal("-m", "a.gguf", "--model", "demo").startswith("the model is named twice: -m a.gguf and --model demo")
    assert "named twice" in refusal("-m", "a.gguf", environ={"BLOOMERY_REF_MODEL": "b.gguf"})


def test_a_catalog_model_that_was_not_packed_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(word: str) -> Path:
        raise FileNotFoundError(f"the catalog's model {word} is not in this installation")

    monkeypatch.setattr(catalog, "path", missing)
    assert "not in this installation" in refusal("--model", "demo")


def test_the_served_seats_are_those_with_a_family() -> None:
    words = {seat.word for seat in served_seats()}
    assert {"qwen3", "nemotron", "gemma3"} <= words < {seat.word for seat in SEATS}
    architectures = [architecture for seat in SEATS for architecture in seat.architectures]
    assert len(set(architectures)) == len(architectures)


def test_a_slots_context_replaces_the_variable_of_the_total() -> None:
    lines: list[str] = []
    found = read("--slot-ctx", "64", environ={"LLAMA_ARG_CTX_SIZE": "128"}, notice=lines.append)
    assert (found.slot_ctx, found.ctx_size) == (64, None)
    assert lines == ["LLAMA_ARG_CTX_SIZE is not read: --slot-ctx on the command line replaces it"]
    assert "auto beside LLAMA_ARG_CTX_SIZE" in refusal("-np", "auto", environ={"LLAMA_ARG_CTX_SIZE": "128"})


def test_a_flag_replaces_the_variable_and_the_variable_the_lever() -> None:
    environ = {"LLAMA_ARG_UBATCH": "48", "BLOOMERY_QWEN3_UBATCH": "64"}
    lines: list[str] = []
    assert read(environ=environ, notice=lines.append).ubatch_size == 48
    assert lines[-1] == "BLOOMERY_QWEN3_UBATCH is not read: LLAMA_ARG_UBATCH replaces it"
    assert read("-ub", "32", environ=environ, notice=lines.append).ubatch_size == 32
    assert lines[-1] == "BLOOMERY_QWEN3_UBATCH is not read: -ub on the command line replaces it"
    del environ["LLAMA_ARG_UBATCH"]
    assert read(environ=environ).ubatch_size == 64
