"""`bloomery-tokenize` as a shell calls it. The output format is llama-tokenize's."""

import io
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from bloomery.interface.tokenizer import command
from tests.interface.tokenizer.recorded import metadata_of, tokenizer_of

TOKENIZER = tokenizer_of("overlapping")
RUN = "from bloomery.interface.tokenizer.command import main; raise SystemExit(main())"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The recorded vocabulary `overlapping`, which adds BOS and EOS, as a file."""
    import gguf

    path = tmp_path_factory.mktemp("model") / "vocabulary.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    metadata = metadata_of("overlapping")
    metadata["tokenizer.ggml.token_type"] = metadata["tokenizer.ggml.token_type"].tolist()
    for key, value in metadata.items():
        add = {list: writer.add_array, bool: writer.add_bool, int: writer.add_uint32, str: writer.add_string}
        add[type(value)](key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)


@pytest.fixture
def run(model, monkeypatch):
    """Runs the command and gives its exit code, its output and what it said on stderr."""

    def call(*arguments, stdin=b"", model=model):
        out, err = io.BytesIO(), io.StringIO()
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(stdin)))
        monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=out))
        monkeypatch.setattr(sys, "stderr", err)
        code = command.main(["-m", model, *arguments])
        return code, out.getvalue(), err.getvalue()

    return call


def listed(text, *, add_special=True, parse_special=True):
    ids = TOKENIZER.encode(text, add_special=add_special, parse_special=parse_special)
    return f"[{', '.join(map(str, ids))}]\n".encode()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("-p", "don't <|a|>"), listed("don't <|a|>")),
        (("--prompt", "x", "--log-disable", "-e"), listed("x")),
        (("-p", "x", "--no-bos"), listed("x", add_special=False)),
        (("-p", "<|a|>x", "--no-parse-special"), listed("<|a|>x", parse_special=False)),
        (("-p", r"a\n\t\r\'\"\\ \x41\xc3\xa9 \q \x4"), listed("a\n\t\r'\"\\ Aé \\q \\x4")),
        (("-p", r"a\nb", "--no-escape"), listed(r"a\nb")),
    ],
)
def test_ids(run, arguments, expected):
    assert run(*arguments, "--ids") == (0, expected, "")


def test_a_table_of_ids_and_their_bytes(run):
    code, out, _ = run("-p", "smith\n", "--no-bos", "--show-count")
    ids = TOKENIZER.encode("smith\n", add_special=False, parse_special=True)
    rows = [b"%6d -> '%s'\n" % (token_id, TOKENIZER.token_to_piece(token_id)) for token_id in ids]
    assert (code, out) == (0, b"".join(rows) + f"Total number of tokens: {len(ids)}\n".encode())


def test_a_file_is_read_as_it_is_and_standard_input_goes_before_it(run, tmp_path):
    file = tmp_path / "text"
    file.write_bytes(b"weigh the bloom\n")
    assert run("-f", str(file), "-p", "no", "--ids")[1] == listed("weigh the bloom\n")
    assert run("--stdin", "-f", str(file), "--ids", stdin=b"from a pipe")[1] == listed("from a pipe")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "there is no text; give --prompt, --file or --stdin"),
        (("-f", "missing"), "--file missing cannot be read: No such file or directory"),
        (("-p", r"ab\xff"), "byte 2 of the text, 0xFF, is not UTF-8"),
        (("-p", "x", "--idz"), "unrecognized arguments: --idz (--help lists the flags)"),
        (("-p",), "argument -p/--prompt: expected one argument (--help lists the flags)"),
    ],
)
def test_refusals(run, arguments, message):
    assert run(*arguments) == (1, b"", f"bloomery-tokenize: {message}\n")


def test_a_file_that_is_no_model_is_refused(run, tmp_path):
    file = tmp_path / "text"
    file.write_text("no model")
    code, out, err = run("-p", "x", model=str(file))
    assert (code, out) == (1, b"")
    assert err.startswith(f"bloomery-tokenize: {file}: ")


def test_as_a_process(model):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", RUN, "-m", model, "--stdin", "--ids"],
        input="쇳덩이 é".encode(),
        capture_output=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == (listed("쇳덩이 é"), b"")


def test_a_reader_that_goes_away_is_no_fault(model):
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-c", RUN, "-m", model, "-p", "x"], stdout=writing, stderr=subprocess.PIPE, check=False
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.parametrize("text", ["-x", "--flag", "--ids", "-p", "-5"])
def test_a_text_may_look_like_a_flag(run, text):
    code, out, err = run("-p", text, "--ids", "--no-bos")
    assert (code, err) == (0, "")
    assert out == f"[{', '.join(map(str, TOKENIZER.encode(text, add_special=False, parse_special=True)))}]\n".encode()


@pytest.mark.parametrize(("closed", "name"), [("<&-", "input"), (">&-", "output")])
def test_a_closed_standard_stream_is_refused(model, closed, name):
    shell = ["sh", "-c", f'"$@" {closed}', "sh", sys.executable, "-c", RUN, "-m", model, "--stdin"]
    done = subprocess.run(shell, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, f"bloomery-tokenize: standard {name} is closed\n")
