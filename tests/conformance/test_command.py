"""The command: exit codes, selections, reports, and errors that name the flag and the remedy."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from bloomery.conformance import command
from bloomery.conformance.command import COMMANDS, main
from bloomery.conformance.commands import UsageError
from bloomery.conformance.finding import Check, Finding
from tests.conformance.fake_checks import aborts, fails, finding, hangs, is_running, passes, skips

Install = Callable[..., None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Makes `fake` a command that lists the given checks."""

    def put(*checks: Check, **attributes: object) -> None:
        module = ModuleType("bloomery.conformance.commands.fake", "A fake.")
        module.add_arguments = lambda parser: parser.add_argument("--word", default="none")  # type: ignore[attr-defined]
        if not attributes:
            module.checks = lambda _arguments: list(checks)  # type: ignore[attr-defined]
        for name, value in attributes.items():
            setattr(module, name, value)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setattr(command, "COMMANDS", {**COMMANDS, "fake": "a fake"})

    return put


@pytest.mark.parametrize(
    ("checks", "code"),
    [
        ([passes("a")], 0),
        ([passes("a"), skips("b")], 0),
        ([passes("a"), fails("b")], 1),
        ([passes("a"), aborts("b")], 1),
        ([skips("a")], 2),
        ([], 2),
    ],
)
def test_exit_codes(install: Install, checks: list[Check], code: int) -> None:
    install(*checks)
    assert main(["fake"]) == code


def test_a_run_prints_progress_apart_from_its_report(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install(passes("a"), fails("b"))
    assert main(["fake", "--seed", "5", "-j", "1"]) == 1
    out, err = capsys.readouterr()
    assert out.splitlines()[:2] == ["      a     b", "fake  ok    FAIL"]
    assert out.splitlines()[-1].endswith("(seed 5)")
    assert [line.split(" (")[0] for line in err.splitlines()] == ["[1/2] fake: a passed", "[2/2] fake: b failed"]
    assert main(["fake", "--quiet"]) == 1
    assert capsys.readouterr().err == ""


def test_k_selects_by_subject_and_name(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install(passes("ties", "norm"), passes("shapes", "norm"), fails("shapes", "rope"))
    assert main(["fake", "-k", "norm and not ties", "--list"]) == 0
    assert capsys.readouterr().out == "norm shapes\n"
    assert main(["fake", "-k", "norm"]) == 0
    assert main(["fake", "-k", "nothing"]) == 2
    assert "-k 'nothing' selects none of them" in capsys.readouterr().err
    assert main(["fake", "-k", "a ("]) == 2
    assert "'and' or 'or' is missing before '('" in capsys.readouterr().err


def test_reports_are_written(install: Install, tmp_path: Path) -> None:
    install(passes("a"), fails("b"))
    assert main(["fake", "--junit", str(tmp_path / "r.xml"), "--html", str(tmp_path / "r.html")]) == 1
    assert ET.parse(tmp_path / "r.xml").getroot().attrib["failures"] == "1"
    page = (tmp_path / "r.html").read_text()
    assert "Does not conform" in page
    assert f"bloomery-conformance fake --junit {tmp_path / 'r.xml'}" in page


@pytest.mark.parametrize("flag", ["--junit", "--html"])
def test_a_report_that_cannot_be_written_is_refused_before_the_run(
    install: Install, tmp_path: Path, capsys: pytest.CaptureFixture[str], flag: str
) -> None:
    install(hangs("forever"))
    assert main(["fake", flag, str(tmp_path / "no" / "r")]) == 2
    assert main(["fake", flag, str(tmp_path)]) == 2
    assert capsys.readouterr().err.count(f"{flag} {tmp_path}") == 2


def test_a_command_that_is_one_piece_of_work_survives_its_crash(install: Install) -> None:
    def run(_arguments: argparse.Namespace) -> list[Finding]:
        os.abort()

    install(run=run)
    assert main(["fake"]) == 1
    install(run=lambda arguments: [finding(arguments.word)])
    assert main(["fake", "--word", "well"]) == 0


def test_a_refusal_is_a_sentence(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(_arguments: argparse.Namespace) -> list[Check]:
        raise UsageError("--word: say another")

    install(checks=refuse)
    assert main(["fake"]) == 2
    assert capsys.readouterr().err == "bloomery-conformance: --word: say another\n"


@pytest.mark.parametrize(
    "arguments", [["--jobs", "0"], ["--budget", "-1"], ["--budget", "nan"], ["--timeout", "inf"], ["--wor", "x"]]
)
def test_values_out_of_range_and_abbreviations_are_usage_errors(install: Install, arguments: list[str]) -> None:
    install(passes("a"))
    with pytest.raises(SystemExit) as ended:
        main(["fake", *arguments])
    assert ended.value.code == 2


def test_an_unknown_command_is_refused_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["serv"])
    assert ended.value.code == 2
    assert "no command is named serv; there are all, parts, ops, seat" in capsys.readouterr().err


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    overview = capsys.readouterr().out
    assert all(f"  {name} " in overview for name in COMMANDS)
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("bloomery-conformance ")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_its_module_and_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert "--junit FILE" in capsys.readouterr().out


_HANGING = """
import signal
import sys
from pathlib import Path
from types import ModuleType
from bloomery.conformance import command
from tests.conformance.fake_checks import hangs
# As in a job that a shell starts in the background, where Ctrl-C is ignored unless the command asks for it.
signal.signal(signal.SIGINT, signal.SIG_IGN)
module = ModuleType("fake")
module.add_arguments = lambda parser: None
module.checks = lambda arguments: [hangs("h", Path(sys.argv[1]))]
sys.modules["bloomery.conformance.commands.fake"] = module
command.COMMANDS = {**command.COMMANDS, "fake": ""}
sys.exit(command.main(["fake"]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_signal_ends_the_run_and_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    note = tmp_path / "id"
    running = subprocess.Popen(
        [sys.executable, "-c", _HANGING, str(note)],
        cwd=Path(__file__).parents[2],
        stderr=subprocess.PIPE,
        text=True,
    )
    while not (note.exists() and note.read_text()) and running.poll() is None:
        time.sleep(0.01)
    assert running.poll() is None
    running.send_signal(number)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "interrupted" in err
    assert not is_running(int(note.read_text()))


def test_without_hypothesis_the_extra_is_named() -> None:
    # In a process of its own, where nothing that needs hypothesis has been imported yet.
    code = "import sys; sys.modules['hypothesis'] = None; from bloomery.conformance.command import main; "
    ran = subprocess.run(
        [sys.executable, "-c", code + "sys.exit(main(['ops', '--list']))"], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 2
    assert "pip install 'bloomery[conformance]'" in ran.stderr
