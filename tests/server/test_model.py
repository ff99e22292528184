"""From a file and settings to a served model, or to a refusal that names what does not fit."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import gguf
import pytest

from bloomery.conformance.fixtures import make, qwen3
from bloomery.conformance.fixtures.gguf_writer import write_gguf
from bloomery.interface.engine import EngineError
from bloomery.interface.files.gguf import ModelFileError
from bloomery.interface.registry import UnknownNameError, engine
from bloomery.server import model as module
from bloomery.server.chat.template import ChatTemplateError
from bloomery.server.context import ContextError
from bloomery.server.given import SettingsError
from bloomery.server.model import ServedModel, load_model
from bloomery.server.settings import read_settings

Load = Callable[..., ServedModel]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make("qwen3-a-f32", tmp_path_factory.mktemp("models"))


def load(path: Path | str, *argv: str, lines: list[str] | None = None) -> ServedModel:
    model = load_model(
        read_settings(["-m", str(path), *argv], {}, lambda line: None), (lines if lines is not None else []).append
    )
    model.engine.close()
    return model


def test_a_file_is_served_under_its_own_name_at_its_limit(path: Path) -> None:
    lines: list[str] = []
    model = load(path, lines=lines)
    spec = model.description.spec
    assert model.name == model.file.get_str("general.name")
    assert (model.n_ctx, model.n_parallel) == (spec.n_ctx_train, 1)
    assert model.engine.name == "reference"
    assert model.tokenizer.n_vocab == spec.n_vocab
    assert model.path == str(path)
    assert [line.split()[0] for line in lines] == ["model", "engine", "ctx", "parallel", "ubatch"]
    assert "rule=target" in lines[2]


def test_the_facts_are_those_the_gguf_package_reads(path: Path) -> None:
    meta = load(path).meta
    reader = gguf.GGUFReader(path)
    assert meta["n_params"] == sum(int(tensor.n_elements) for tensor in reader.tensors)
    assert meta["size"] == sum(int(tensor.n_bytes) for tensor in reader.tensors)
    assert meta["n_embd"] == reader.fields["qwen3.embedding_length"].contents()
    assert meta["n_vocab"] == len(reader.fields["tokenizer.ggml.tokens"].data)
    assert meta["ftype"] == "all F32"


def test_settings_reach_the_model(path: Path, tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{{ messages[0].content }}!", encoding="utf-8")
    lines: list[str] = []
    model = load(
        path, "--alias", "mine", "-c", "48", "-np", "3", "-ub", "8", "--chat-template-file", str(template), lines=lines
    )
    assert model.name == "mine"
    assert (model.n_ctx, model.engine.options.n_ctx, model.engine.options.n_sequences) == (16, 16, 3)
    assert model.engine.options.n_ubatch == 8
    assert model.template.source == "{{ messages[0].content }}!"
    assert lines[3:] == ["parallel rule=slots slots=3 slot_ctx=16 total=48 from=flag", "ubatch size=8 from=flag"]


def test_a_set_context_without_slots_says_what_it_means(path: Path) -> None:
    lines: list[str] = []
    load(path, "-c", "32", lines=lines)
    assert "add --parallel N" in lines[-1]


@pytest.mark.parametrize(
    ("argv", "kind", "words"),
    [
        (("--engine", "abacus"), UnknownNameError, "abacus"),
        (("--numerics", "wild"), EngineError, "wild"),
        (("-c", "1000000000"), ContextError, '--ctx-size "1000000000"'),
        (("--chat-template-file", "/no/such/file"), SettingsError, "--chat-template-file /no/such/file"),
    ],
)
def test_a_setting_that_does_not_fit_is_refused_by_name(
    path: Path, argv: tuple[str, ...], kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind) as caught:
        load(path, *argv)
    assert words in str(caught.value)


def test_a_template_file_that_is_none_is_refused(path: Path, tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match="not UTF-8"):
        load(path, "--chat-template-file", str(template))
    template.write_text("{% for %}", encoding="utf-8")
    with pytest.raises(ChatTemplateError):
        load(path, "--chat-template-file", str(template))
    template.write_text("x" * (2**20 + 1), encoding="utf-8")
    with pytest.raises(SettingsError, match="more than 1048576 bytes"):
        load(path, "--chat-template-file", str(template))


def test_no_model_is_refused_with_the_ways_to_name_one() -> None:
    with pytest.raises(SettingsError, match="-m PATH"):
        load_model(read_settings([], {}, lambda line: None), print)


def test_an_unknown_architecture_is_refused_with_those_that_are_served(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "other.gguf", "llama9")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelFileError, match=r"other.gguf is a llama9 file.*qwen3, .*qwen3moe"):
        load(tmp_path / "other.gguf")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"none.gguf"):
        load(tmp_path / "none.gguf")


def test_the_seat_must_be_the_files(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load(path, "--model", "qwen3").name
    monkeypatch.setattr(module, "seat_of", lambda architecture: "glm")
    with pytest.raises(SettingsError, match="--model qwen3 on a qwen3 file, which serves --model glm"):
        load(path, "--model", "qwen3")


def test_a_context_is_fitted_to_the_memory_there_is(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "available_memory", functools.partial(int, 1000))
    with pytest.raises(ContextError, match="of the 1000 bytes"):
        load(path)


def test_a_lever_the_files_seat_does_not_act_on_ends_the_start(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = read_settings(["-m", str(path)], {"BLOOMERY_QWEN3_UBATCH": "8"}, lambda line: None)
    lines: list[str] = []
    load_model(settings, lines.append)
    assert lines[-1] == "ubatch size=8 from=lever"
    monkeypatch.setattr(module, "seat_of", lambda architecture: "nemotron")
    with pytest.raises(SettingsError, match="BLOOMERY_QWEN3_UBATCH is refused: the seat nemotron does not act on it"):
        load_model(settings, lines.append)


def slots_line(path: Path, room: int, *argv: str) -> str:
    """What a start in `room` bytes of memory says of its slots."""
    lines: list[str] = []
    settings = read_settings(["-m", str(path), *argv], {"BLOOMERY_HOST_ROOM": str(room)}, lambda line: None)
    model = load_model(settings, lines.append)
    model.engine.close()
    (line,) = [line for line in lines if line.startswith("parallel")]
    assert f" slots={model.n_parallel} slot_ctx={model.n_ctx} " in line
    return line.removeprefix("parallel rule=slots ")


def test_the_slots_line_says_how_many_there_are_and_from_where(path: Path) -> None:
    spec = load(path).description.spec
    limit = spec.n_ctx_train
    cell = engine("reference").bytes_per_cell(spec)
    auto = ("-np", "auto")
    assert slots_line(path, 1 << 30, *auto) == f"slots=8 slot_ctx={limit} total={8 * limit} from=auto"
    assert slots_line(path, 7 * limit * cell, *auto) == f"slots=3 slot_ctx={limit} total={3 * limit} from=auto"
    assert slots_line(path, 5 * 16 * cell, *auto, "--slot-ctx", "16") == "slots=5 slot_ctx=16 total=80 from=auto"
    assert slots_line(path, 1 << 30, "-np", "2", "--slot-ctx", "16") == "slots=2 slot_ctx=16 total=32 from=flag"
    assert slots_line(path, 1 << 30, "--slot-ctx", "16") == "slots=1 slot_ctx=16 total=16 from=ctx"
    assert slots_line(path, 1 << 30, "-c", "16") == "slots=1 slot_ctx=16 total=16 from=ctx"
    assert slots_line(path, 1 << 30) == f"slots=1 slot_ctx={limit} total={limit} from=default"


def test_a_file_without_a_template_is_served_with_chatml(tmp_path: Path) -> None:
    shape = qwen3.SHAPES["qwen3-a"]
    metadata = {key: value for key, value in qwen3.metadata(shape, "f32").items() if key != "tokenizer.chat_template"}
    bare = tmp_path / "bare.gguf"
    write_gguf(bare, metadata, qwen3.tensors(shape, "f32"))
    model = load(bare)
    prompt = model.template.render([{"role": "user", "content": "hi"}]).text
    assert prompt == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
