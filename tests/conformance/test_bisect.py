"""The bisection is checked: each planted fault is named with its layer, op and label, and a right pair has none."""

from __future__ import annotations

import argparse
from collections.abc import Sequence as Items
from pathlib import Path

import numpy as np
import pytest

from bloomery.conformance.commands import UsageError
from bloomery.conformance.commands import bisect as command
from bloomery.conformance.engines.bisect import bisect
from bloomery.conformance.engines.opening import EngineName, Model
from bloomery.conformance.finding import Effort, Finding
from bloomery.conformance.fixtures import fixture
from bloomery.conformance.ops import checks as op_checks
from bloomery.conformance.ops import replay as op_replay
from bloomery.interface import registry
from bloomery.interface.engine import Rows, Span, Tap, TapSink
from docs.examples.faulty_ops import BlockwiseOps
from tests.conformance import faulty_ops
from tests.conformance.faulty_engines import HeldRows, WrappedEngine

IDS = [int(i) for i in np.random.default_rng(0).integers(0, 300, 20)]
REFERENCE = EngineName(engine="reference")


def found(b: str, model: str, replays: Path, a: str = "reference", ids: Items[int] = IDS) -> dict[str, list[Finding]]:
    """The findings by check."""
    by_check: dict[str, list[Finding]] = {}
    for finding in bisect(
        EngineName.parse(a), EngineName.parse(b), Model(fixture(model)), ids, Effort(replays=replays)
    ):
        by_check.setdefault(finding.check, []).append(finding)
    return by_check


@pytest.mark.parametrize(
    ("fault", "model", "told"),
    [
        (faulty_ops.OneElementOfLayerOne, "qwen3-b-f32", "layer 1, swiglu (swiglu.0): y[2, 7] is"),
        (faulty_ops.LargerEpsilon, "qwen3-b-f32", "layer 0, rms_norm (blk.0.attn_norm): "),
        (faulty_ops.PositionsFromOne, "qwen3-b-f32", "layer 0, rope (rope.0): "),
        (faulty_ops.WindowOfOneMore, "gemma3-b-f32", "layer 0, attention (attention.0): "),
        (faulty_ops.AppendsTheFirstTwice, "qwen3-b-f32", "layer 0, attention (attention.0): "),
        (faulty_ops.SharesAreNotNormalised, "qwen3moe-b-f32", "layer 0, route (route.0): "),
        (faulty_ops.NextExpert, "qwen3moe-b-f32", "layer 0, expert_linear (blk.0.ffn_down_exps): "),
        (faulty_ops.NextId, "qwen3-b-q8_0", "outside the layers, embed (token_embd): "),
        (faulty_ops.NoBias, "qwen3moe-b-f32", "layer 0, linear (blk.0.attn_q): "),
        (faulty_ops.HalfTheGelu, "gemma3-b-f32", "layer 0, geglu (geglu.0): "),
        (faulty_ops.LosesAResidual, "qwen3-b-f32", "layer 0, add (add.1): "),
        (faulty_ops.SwapsHeads, "qwen3-b-f32", "layer 0, merge_heads (merge_heads.0): "),
        (faulty_ops.LastRowFirst, "qwen3-b-f32", "outside the layers, take_rows (take_rows.0): "),
        (faulty_ops.RoughHead, "qwen3-b-q8_0", "outside the layers, linear (output): "),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_fault_is_named_where_it_is(fault: type, model: str, told: str, tmp_path: Path) -> None:
    by_check = found(f"reference:{fault.__module__}:{fault.__name__}", model, tmp_path)
    right, wrong = by_check["first op out of its band"]
    assert right.verdict == "passed", right.wrong
    assert wrong.wrong[0].startswith(told), wrong.wrong
    assert wrong.measured["widest error, in bands"] > 1
    assert [plot.kind for plot in wrong.plots][-1] == "heat"
    # The file holds the op's inputs, and the definition's own op set is right on them.
    saved = op_replay.load(wrong.replay or tmp_path)
    assert saved.case.op in told
    assert op_checks.replay(wrong.replay or tmp_path, registry.op_set("exact")()).verdict == "passed"


@pytest.mark.parametrize("model", ["qwen3-a-q4km", "qwen3moe-a-q8_0", "gemma3-a-f32", "qwen3-b-f32"])
def test_two_right_numerics_have_no_op_out_of_its_band(model: str, tmp_path: Path) -> None:
    by_check = found("reference:ggml", model, tmp_path)
    assert {finding.verdict for findings in by_check.values() for finding in findings} == {"passed"}
    heat = by_check["distance along the program"][0].plots[0]
    layers = len(Model(fixture(model)).description.spec.layers)
    assert heat.names == (*(f"layer {i}" for i in range(layers)), "outside")
    assert len({len(row) for row in heat.rows}) == 1
    assert "attn_norm, attn_q" in heat.x
    assert not list(tmp_path.iterdir())


def test_an_inherited_error_is_not_an_ops_own(tmp_path: Path) -> None:
    """Everything behind the fault differs, and only the faulty op is out."""
    by_check = found("reference:tests.conformance.faulty_ops:NextId", "qwen3-b-f32", tmp_path)
    wrong = by_check["first op out of its band"][1]
    out = [value for row in wrong.plots[-1].rows for value in row if value > 1]
    assert len(out) == 1
    assert by_check["distance along the program"][0].measured["farthest, relative"] > 0.1
    assert by_check["rows"][0].verdict == "failed"


def test_a_fault_of_the_first_engine_is_named_on_it(tmp_path: Path) -> None:
    by_check = found("reference", "qwen3-b-f32", tmp_path, a="reference:tests.conformance.faulty_ops:SwapsHeads")
    first, second = by_check["first op out of its band"]
    assert (first.subject, first.verdict, second.verdict) == (
        "reference:tests.conformance.faulty_ops:SwapsHeads",
        "failed",
        "passed",
    )


class Cut(WrappedEngine):
    """Reads every span in passes of seven inputs, and reports each pass."""

    def run(self, spans: Items[Span], *, taps: TapSink | None = None) -> list[Rows]:
        [span] = spans
        rows = []
        for start in range(0, len(span.ids), 7):
            part = Span(
                sequence=span.sequence, ids=span.ids[start : start + 7], wanted=range(len(span.ids[start:][:7]))
            )
            [some] = super().run([part], taps=taps)
            rows += [some.logits(i) for i in range(len(some))]
        return [HeldRows(rows)]


class LayersOnly(WrappedEngine):
    """Reports what comes out of each layer, and nothing else."""

    def run(self, spans: Items[Span], *, taps: TapSink | None = None) -> list[Rows]:
        def layer_outputs(tap: Tap) -> None:
            if taps is not None and tap.label == "add.1":
                taps(tap)

        return super().run(spans, taps=layer_outputs)


class LogitsOnly(WrappedEngine):
    def run(self, spans: Items[Span], *, taps: TapSink | None = None) -> list[Rows]:
        return super().run(spans, taps=None)


class RefusesTaps(WrappedEngine):
    def run(self, spans: Items[Span]) -> list[Rows]:  # type: ignore[override]
        return super().run(spans)


@pytest.fixture
def wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines by the names of the classes here, each around the reference."""
    known = {kind.__name__: kind for kind in (Cut, LayersOnly, LogitsOnly, RefusesTaps)}
    engine = registry.engine

    class Provider:
        preference = 0

        def __init__(self, name: str) -> None:
            self.name = name

        def unusable(self, *_: object) -> None:
            return None

        def open(self, *args: object) -> WrappedEngine:
            return known[self.name](engine("reference").open(*args))  # type: ignore[arg-type]

    monkeypatch.setattr(registry, "engine", lambda name: Provider(name) if name in known else engine(name))


@pytest.mark.usefixtures("wrapped")
def test_passes_are_joined(tmp_path: Path) -> None:
    by_check = found("Cut", "gemma3-b-f32", tmp_path)
    assert {finding.verdict for findings in by_check.values() for finding in findings} == {"passed"}
    assert by_check["distance along the program"][0].measured["farthest, relative"] == 0
    wrong = found("Cut:tests.conformance.faulty_ops:WindowOfOneMore", "gemma3-b-f32", tmp_path)
    assert "attention (attention.0)" in wrong["first op out of its band"][1].wrong[0]


@pytest.mark.usefixtures("wrapped")
def test_an_engine_that_reports_layers_is_compared_layer_by_layer(tmp_path: Path) -> None:
    by_check = found("LayersOnly:tests.conformance.faulty_ops:LosesAResidual", "qwen3-b-f32", tmp_path)
    ops = by_check["first op out of its band"]
    assert [finding.verdict for finding in ops] == ["passed", "skipped"]
    assert "the program calls embed and the engine reports add in layer 0" in str(ops[1].skipped)
    [layers] = by_check["distance along the program"]
    assert layers.wrong[0].startswith("layer 0, add.1: the outputs are")
    later = found("LayersOnly:tests.conformance.faulty_ops:RoughHead", "qwen3-b-f32", tmp_path)
    assert later["distance along the program"][0].verdict == "passed"
    assert later["rows"][0].verdict == "failed"


@pytest.mark.usefixtures("wrapped")
@pytest.mark.parametrize("engine", ["LogitsOnly", "RefusesTaps"])
def test_an_engine_of_logits_alone_is_compared_row_by_row(engine: str, tmp_path: Path) -> None:
    right = found(engine, "qwen3-b-f32", tmp_path)
    assert right["first op out of its band"][1].skipped is not None
    assert right["distance along the program"][0].verdict == "skipped"
    assert right["rows"][0].verdict == "passed"
    wrong = found(f"{engine}:tests.conformance.faulty_ops:AppendsTheFirstTwice", "qwen3-b-f32", tmp_path)
    # The first row reads one cell, which is right.
    assert "the first row that is out is after 2 ids" in wrong["rows"][0].wrong
    assert wrong["rows"][0].plots[0].kind == "line"


# The example of the documentation.


def test_the_examples_fault_is_found_and_shrunk(tmp_path: Path) -> None:
    values = op_checks.checks(BlockwiseOps, ["attention"])[0]
    findings = (finding for seed in range(4) for finding in values.run(Effort(seed=seed, replays=tmp_path)))
    wrong = next(finding for finding in findings if finding.verdict == "failed")
    smallest = op_replay.load(wrong.replay or tmp_path).case
    assert np.count_nonzero(smallest.arrays["q"]) <= 2


def test_the_examples_fault_is_bisected(tmp_path: Path) -> None:
    by_check = found("reference:docs.examples.faulty_ops:BlockwiseOps", "qwen3-b-f32", tmp_path)
    wrong = by_check["first op out of its band"][1]
    assert wrong.wrong[0].startswith("layer 0, attention (attention.0): ")
    # Two cells are one block, which has nothing to shrink.
    assert "the first row that is out is after 3 ids" in by_check["rows"][0].wrong


# The command.


def asked(*words: str) -> list[Finding]:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    [check] = command.checks(parser.parse_args(list(words)))
    return list(check.run(Effort()))


def test_the_command_reads_texts_and_ids() -> None:
    path = str(fixture("qwen3-b-f32"))
    by_text = asked("--b", "reference:ggml", "--model", path, "--prompt", "What is 12 plus 30?")
    by_ids = asked("--b", "reference:ggml", "--model", path, "--ids", "87,10,11")
    assert {finding.verdict for finding in (*by_text, *by_ids)} == {"passed"}
    assert by_ids[-1].measured["rows"] == 3


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--b", "reference"), "both reference:exact"),
        (("--b", ":ggml"), "--b: ':ggml' names no engine"),
        (("--b", "reference:ggml", "--ids", "1,x"), "--ids 1,x: numbers with commas"),
        (("--b", "reference:ggml", "--prompt", ""), "--prompt: 0 ids; a bisection reads 1 to 512"),
        (("--b", "reference:nowhere:Ops"), "no op set is at 'nowhere:Ops'"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(words: tuple[str, ...], told: str) -> None:
    with pytest.raises((UsageError, registry.UnknownNameError), match=told):
        asked(*words, "--model", str(fixture("qwen3-b-f32")))
