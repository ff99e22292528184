"""The op checks: every op has one, the references pass all, every planted fault is found, small, and played again."""

from __future__ import annotations

import io
import json
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bloomery.conformance.command import main
from bloomery.conformance.finding import Effort, Finding
from bloomery.conformance.ops import checks as op_checks
from bloomery.conformance.ops.case import HostWeight, OpCase, Stored
from bloomery.conformance.ops.checks import UnknownOpError, checks, replay
from bloomery.conformance.ops.claims import ClaimError, claims_of
from bloomery.conformance.ops.entries import ENTRIES
from bloomery.conformance.ops.replay import OpReplayError, load, save, to_bytes
from bloomery.conformance.ops.values import WEIGHT_FORMATS
from bloomery.interface.files.quants.activations import ACTIVATION_FORMATS
from bloomery.interface.ops import OpSet
from bloomery.interface.spec import Rope
from bloomery.reference.ggml_fa_ops import GgmlFaOps, GgmlFaRowsOps
from bloomery.reference.weights import StoredWeight
from tests.conformance.op_faults import (
    FAULTS,
    BlasAsItComes,
    EpsilonOutsideTheRoot,
    ExactOps,
    Float32Ops,
    LosesTheLastColumn,
    RoundingOps,
    SwapsTheNibbles,
    SwapsThePairing,
    TheExpertBehind,
    WindowOffByOne,
    WritesTheNextCell,
    WrongHeadMap,
)

# Of the products, which have a check a format of the weights, those that every run of these tests makes.
SOME_FORMATS = {"F32", "F16", "BF16", "Q8_0", "Q4_1", "Q6_K", "IQ2_XXS", "MXFP4"}


# Faults whose whole way, to the replayed case, every run of these tests goes.
THOROUGH = [
    each
    for each in FAULTS
    if each[2]
    in {
        EpsilonOutsideTheRoot,
        LosesTheLastColumn,
        SwapsTheNibbles,
        SwapsThePairing,
        TheExpertBehind,
        WindowOffByOne,
        WritesTheNextCell,
        WrongHeadMap,
    }
]


def public(kind: type) -> set[str]:
    return {name for name in vars(kind) if not name.startswith("_")}


def _name(each: Any) -> str:
    return str(getattr(each, "__name__", each))


def findings(ops: Callable[[], Any], op: str, check: str, effort: Effort) -> list[Finding]:
    return [found for each in checks(ops, [op]) if each.name == check for found in each.run(effort)]


def test_every_op_of_the_op_set_has_an_entry_and_no_other() -> None:
    assert set(ENTRIES) == public(OpSet)


def test_every_argument_that_an_op_changes_is_one_of_its_own() -> None:
    for op, entry in ENTRIES.items():
        assert set(entry.changes) <= set(OpSet.__dict__[op].__code__.co_varnames)


def test_weights_come_in_every_format_that_llama_cpp_multiplies_with() -> None:
    assert set(ACTIVATION_FORMATS) <= set(WEIGHT_FORMATS)


def test_a_host_weight_offers_what_the_reference_engines_weights_offer() -> None:
    stored = Stored("Q4_1", (2, 3, 32), np.zeros((6, 20), np.uint8))
    weight = HostWeight("w", stored)
    assert public(StoredWeight) <= public(HostWeight)
    assert weight.values().shape == (2, 3, 32) and weight.field("m", 1).shape == (3, 1)


@pytest.fixture
def few_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    """One short round of cases a check."""
    monkeypatch.setattr(op_checks, "ENTRIES", {op: replace(entry, rounds=1) for op, entry in ENTRIES.items()})
    monkeypatch.setattr(op_checks, "_HOW", settings(op_checks._HOW, max_examples=8))


@pytest.mark.usefixtures("few_cases")
@pytest.mark.parametrize("ops", [ExactOps, RoundingOps, Float32Ops])
def test_the_references_and_a_float32_port_pass(ops: Callable[[], Any], tmp_path: Path) -> None:
    ran = 0
    for check in checks(ops):
        formats = ENTRIES[check.subject.removeprefix("op ")].formats
        if formats == ("",) or check.name in {*SOME_FORMATS, "rows alone"}:
            for found in check.run(Effort(replays=tmp_path)):
                assert not found.wrong, found
                assert found.measured["cases"] > 0
                ran += 1
    assert ran > 60
    assert not list(tmp_path.iterdir())


@pytest.mark.fuzz
@pytest.mark.parametrize("ops", [ExactOps, RoundingOps, Float32Ops])
@pytest.mark.parametrize("seed", range(3))
def test_the_references_and_a_float32_port_pass_in_every_format(
    ops: Callable[[], Any], seed: int, tmp_path: Path
) -> None:
    for check in checks(ops):
        for found in check.run(Effort(replays=tmp_path, seed=seed, seconds=3)):
            assert not found.wrong, found


@pytest.mark.parametrize(("op", "check", "ops"), THOROUGH, ids=_name)
def test_a_planted_fault_is_found_made_small_saved_and_played_again(
    op: str, check: str, ops: type[ExactOps], tmp_path: Path
) -> None:
    _holds_up(op, check, ops, Effort(replays=tmp_path))


@pytest.mark.fuzz
@pytest.mark.parametrize(("op", "check", "ops"), [each for each in FAULTS if each not in THOROUGH], ids=_name)
def test_every_other_planted_fault_too(op: str, check: str, ops: type[ExactOps], tmp_path: Path) -> None:
    _holds_up(op, check, ops, Effort(replays=tmp_path))


def _holds_up(op: str, check: str, ops: type[ExactOps], effort: Effort) -> None:
    (found,) = findings(ops, op, check, effort)
    assert found.verdict == "failed" and found.replay is not None, found
    assert "the smallest case found" in found.wrong[-1]
    case = load(found.replay).case
    has_blocks = any(stored.format_name not in {"F32", "F16"} for stored in case.weights.values())
    # A few rows and numbers, or a block of weights and its row: what a person can follow.
    assert sum(np.count_nonzero(array) for array in case.arrays.values()) <= (320 if has_blocks else 40)
    assert replay(found.replay, ops()).verdict == "failed"
    assert replay(found.replay, ExactOps()).verdict == "passed"


def test_the_same_seed_finds_the_same_case_and_another_draws_others(tmp_path: Path) -> None:
    names = []
    for folder, seed in (("a", 1), ("b", 1), ("c", 2)):
        (found,) = findings(EpsilonOutsideTheRoot, "rms_norm", "values", Effort(replays=tmp_path / folder, seed=seed))
        assert found.replay is not None
        names.append((found.replay.read_bytes(), found.measured["cases"], found.measured["elements"]))
    assert names[0] == names[1] != names[2]


def test_rows_that_do_not_stand_alone_are_fine_where_nobody_claims_it(tmp_path: Path) -> None:
    class Modest(BlasAsItComes):
        rows_stand_alone = False

    (claimed,) = findings(BlasAsItComes, "linear", "rows alone", Effort(replays=tmp_path))
    (modest,) = findings(Modest, "linear", "rows alone", Effort(replays=tmp_path))
    assert (claimed.verdict, modest.verdict) == ("failed", "passed")


def test_an_op_set_that_rounds_activations_passes_only_if_it_says_so(tmp_path: Path) -> None:
    class Silent(RoundingOps):
        numerics = "exact"

    for check in ("BF16", "Q8_0"):
        (said,) = findings(RoundingOps, "linear", check, Effort(replays=tmp_path))
        (silent,) = findings(Silent, "linear", check, Effort(replays=tmp_path))
        assert (said.verdict, silent.verdict) == ("passed", "failed"), check


def test_what_ggml_cannot_multiply_with_is_skipped_by_name(tmp_path: Path) -> None:
    (found,) = findings(RoundingOps, "linear", "F64", Effort(replays=tmp_path))
    assert found.verdict == "skipped" and found.skipped is not None and "F64" in found.skipped


def test_an_op_that_is_not_there_is_skipped_and_wrong_where_it_was_asked_for(tmp_path: Path) -> None:
    class OneOp:
        numerics = "exact"

        def from_host(self, values: Any) -> Any:
            return values

        def to_host(self, x: Any) -> Any:
            return x.copy()

        def add(self, a: Any, b: Any) -> Any:
            return a + b

    effort = Effort(replays=tmp_path, seconds=0.1)
    verdicts = {
        check.subject: found.verdict for check in checks(OneOp) if check.name == "values" for found in check.run(effort)
    }
    assert [op for op, verdict in verdicts.items() if verdict == "passed"] == ["op from_host", "op to_host", "op add"]
    assert set(verdicts.values()) == {"passed", "skipped"}
    (asked,) = findings(OneOp, "swiglu", "values", effort)
    assert asked.wrong == ("the op set has no op swiglu",)


def test_an_op_that_raises_or_answers_another_shape_or_type_is_wrong(tmp_path: Path) -> None:
    class Raises(ExactOps):
        def add(self, a: Any, b: Any) -> Any:
            raise RuntimeError("no kernel for one row")

    class Flat(ExactOps):
        def add(self, a: Any, b: Any) -> Any:
            return (a + b).reshape(-1)

    class Wide(ExactOps):
        def add(self, a: Any, b: Any) -> Any:
            return a.astype(np.float64) + b

    effort = Effort(replays=tmp_path, seconds=1)
    for ops, words in ((Raises, "no kernel for one row"), (Flat, "shape"), (Wide, "is float64, not float32")):
        (found,) = findings(ops, "add", "values", effort)
        assert words in found.wrong[0]


def test_a_seconds_budget_ends_the_drawing(tmp_path: Path) -> None:
    (short,) = findings(ExactOps, "add", "values", Effort(replays=tmp_path, seconds=1e-6))
    assert short.measured["cases"] == 1


def test_the_histogram_is_of_errors_in_bands(tmp_path: Path) -> None:
    (found,) = findings(ExactOps, "swiglu", "values", Effort(replays=tmp_path))
    (plot,) = found.plots
    assert plot.kind == "histogram" and plot.band == 1.0
    assert max(plot.rows[0]) == found.measured["largest error in bands"] <= 1.0


def test_names_that_mean_nothing_are_refused() -> None:
    with pytest.raises(UnknownOpError, match=r"kv_append.*rms_norm"):
        checks(ExactOps, ["kv_append"])
    with pytest.raises(ClaimError, match="decides_in is one of 'float32', 'float64', not 'bfloat16'"):
        claims_of(type("Odd", (), {"decides_in": "bfloat16"})())


def test_the_command_checks_an_op_and_plays_a_case_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ops, folder = "tests.conformance.op_faults:EpsilonOutsideTheRoot", str(tmp_path)
    common = ["-q", "-j", "1", "--replays", folder]
    assert main(["ops", "--ops", ops, "--op", "rms_norm", "-k", "values", *common]) == 1
    assert "eps = " in capsys.readouterr().out
    (saved,) = tmp_path.iterdir()
    assert main(["ops", "--ops", ops, "--replay", str(saved), *common]) == 1
    assert main(["ops", "--replay", str(saved), *common]) == 0
    nowhere = str(tmp_path / "nowhere.npz")
    for wrong in (["--op", "nothing"], ["--ops", "nothing"], ["--ops", "no.module:Ops"], ["--replay", nowhere]):
        assert main(["ops", *wrong, *common]) == 2


def a_case() -> OpCase:
    turn = Rope(n_dims=4, base=1e4, style="neox", sections=(1, 1, 0, 0))
    x = np.arange(8, dtype=np.float32).reshape(2, 1, 4)
    arrays = {"x": x, "positions": np.array([3, 4], np.int32)}
    return OpCase("rope", arrays, params={"rope": turn}, layouts={"x": "columns"})


@pytest.mark.parametrize("op", ["rope", "linear", "attention", "route", "ssm_scan", "split", "causal_conv"])
@given(data=st.data())
@settings(max_examples=5)
def test_every_case_survives_being_saved(op: str, data: st.DataObject) -> None:
    entry = ENTRIES[op]
    case = data.draw(st.sampled_from(entry.formats).flatmap(entry.cases))
    with tempfile.TemporaryDirectory() as folder:
        path = save(Path(folder), case, "values", {"why": "a note"})
        loaded = load(path)
        with np.load(path) as packed:
            assert {name.split("/")[-1] for name in packed.files} >= set(case.arrays)
    assert loaded.case.key() == case.key() and loaded.check == "values"


def rewritten(raw: bytes, change: Callable[[dict[str, Any]], None], **members: bytes | None) -> bytes:
    """A saved case with its case.json changed, and members replaced or left out."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(raw)) as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            content: bytes | None = old.read(name)
            if name == "case.json":
                head = json.loads(old.read(name))
                change(head)
                content = json.dumps(head).encode()
            for suffix, replacement in members.items():
                content = replacement if suffix in name else content
            if content is not None:
                new.writestr(name, content)
    return out.getvalue()


def npy(shape: str, data: bytes, kind: str = "<f4") -> bytes:
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data


@pytest.mark.parametrize(
    ("change", "members", "words"),
    [
        (lambda head: head.update(format="zip"), {}, "not of the format"),
        (lambda head: head.update(version=2), {}, "version is 2"),
        (lambda head: head.update(op="exec"), {}, "no op 'exec'"),
        (lambda head: head.update(op="__init__"), {}, "no op"),
        (lambda head: head.update(op="linear"), {}, "linear takes"),
        (lambda head: head.update(params={}), {}, "rope takes"),
        (lambda head: head["params"]["rope"]["rope"].update(evil=1), {}, "evil"),
        (lambda head: head.pop("layouts"), {}, "layouts"),
        (lambda head: None, {"positions": None}, "rope takes"),
        (lambda head: None, {"positions": b"nothing"}, "not a saved case"),
        (lambda head: None, {"positions": npy("(1000000000, 1000)", b"")}, "takes 4000000000000 bytes, not 0"),
        (lambda head: None, {"positions": npy("(1,)", b"\x00" * 8, "|O")}, "object"),
        (lambda head: None, {"case.json": b"{"}, "not a saved case"),
        (lambda head: None, {"case.json": b"[" * 100_000}, "not a saved case"),
    ],
)
def test_a_file_that_is_no_case_is_refused_by_name(
    change: Callable[[dict[str, Any]], None], members: dict[str, bytes | None], words: str, tmp_path: Path
) -> None:
    path = tmp_path / "case.npz"
    path.write_bytes(rewritten(to_bytes(a_case()), change, **members))
    with pytest.raises(OpReplayError, match=words) as error:
        load(path)
    assert str(path) in str(error.value)


def test_a_file_that_unpacks_to_too_much_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "case.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("case.json", b" " * (65 << 20))
    with pytest.raises(OpReplayError, match="unpacked"):
        load(path)
    path.write_bytes(b"PK nothing")
    with pytest.raises(OpReplayError, match="not a saved case"):
        load(path)


def test_a_case_that_no_op_could_have_is_a_finding_and_no_crash(tmp_path: Path) -> None:
    case = OpCase("take_rows", {"x": np.ones((2, 2), np.float32), "rows": np.array([9], np.int32)})
    assert replay(save(tmp_path, case, "values", {}), ExactOps()).verdict == "failed"


@pytest.mark.parametrize("ops", [GgmlFaOps, GgmlFaRowsOps])
def test_a_cache_and_an_attention_in_half_precision_pass_as_claimed_and_only_so(
    ops: type[GgmlFaOps], tmp_path: Path
) -> None:
    class Silent(ops):  # type: ignore[misc, valid-type]
        cache = attends_in = "float32"

    for op in ("append", "attention"):
        (said,) = findings(ops, op, "values", Effort(replays=tmp_path))
        (silent,) = findings(Silent, op, "values", Effort(replays=tmp_path))
        shows = op == "append" or ops is GgmlFaRowsOps
        assert (said.verdict, silent.verdict) == ("passed", "failed" if shows else "passed"), op
