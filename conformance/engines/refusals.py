"""What an engine must refuse, and that a refusal changes nothing.

Every case puts one sequence in a known state, asks for what is not allowed, and expects an EngineError; then the
sequence must hold the ids it held, and its next row must be a fresh sequence's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from bloomery.conformance.engines.bands_between import alone
from bloomery.conformance.engines.law_checks import Held
from bloomery.conformance.engines.story_player import Subject
from bloomery.conformance.finding import Finding
from bloomery.interface.engine import Engine, EngineError, SavedSequence, Span
from bloomery.interface.engine import Sequence as EngineSequence

_TEXT = (1, 2, 3, 4, 5, 6)
_NEXT = 3


@dataclass(frozen=True)
class _Refusal:
    """What is asked, and how it is asked of an engine whose `sequence` holds _TEXT.  trial: the text's last inputs
    still on trial."""

    asked: str
    ask: Callable[[Engine, EngineSequence], object]
    trial: int = 0


def _span(make: Callable[[Engine, EngineSequence], Sequence[Span]]) -> Callable[[Engine, EngineSequence], object]:
    return lambda engine, sequence: engine.run(make(engine, sequence))


def _beside(engine: Engine, ask: Callable[[EngineSequence], object]) -> object:
    """Ask with a second sequence, which is given back."""
    other = engine.sequence()
    try:
        return ask(other)
    finally:
        other.release()


def _released(engine: Engine, ask: Callable[[EngineSequence], object]) -> object:
    other = engine.sequence()
    engine.run([Span(sequence=other, ids=[1])])
    other.release()
    return ask(other)


def _too_many(engine: Engine) -> object:
    """One sequence more than there is room for."""
    opened: list[EngineSequence] = []
    try:
        # One by one: what was opened before the refusal must be given back.
        opened.extend(engine.sequence() for _ in range(engine.options.n_sequences))
        return opened
    finally:
        for sequence in opened:
            sequence.release()


def _load(saved: SavedSequence, _engine: Engine, sequence: EngineSequence) -> None:
    sequence.load(saved)


def _altered(saved: SavedSequence) -> Iterator[tuple[str, SavedSequence]]:
    """Saved sequences that this engine must not take."""
    yield "a saved sequence of another engine", replace(saved, engine="another engine")
    for name, array in list(saved.arrays.items())[:1]:
        without = {key: value for key, value in saved.arrays.items() if key != name}
        yield "a saved sequence without one of its arrays", replace(saved, arrays=without)
        if array.shape[0] > 1:
            cut = {**saved.arrays, name: array[:-1]}
            yield "a saved sequence with an array cut short", replace(saved, arrays=cut)
    yield "a saved sequence with an id less than it has cells for", replace(saved, ids=saved.ids[:-1])


REFUSALS: Sequence[_Refusal] = (
    _Refusal("a span without inputs", _span(lambda _, s: [Span(sequence=s, ids=[])])),
    _Refusal("an id past the vocabulary", _span(lambda e, s: [Span(sequence=s, ids=[0, e.spec.n_vocab])])),
    _Refusal("a negative id", _span(lambda _, s: [Span(sequence=s, ids=[-1])])),
    _Refusal("more inputs than n_ctx", _span(lambda e, s: [Span(sequence=s, ids=[0] * e.options.n_ctx)])),
    _Refusal("one sequence in two spans", _span(lambda _, s: [Span(sequence=s, ids=[0]), Span(sequence=s, ids=[0])])),
    _Refusal("a wanted row past the span", _span(lambda _, s: [Span(sequence=s, ids=[0], wanted=[1])])),
    _Refusal("a wanted row before the span", _span(lambda _, s: [Span(sequence=s, ids=[0], wanted=[-2])])),
    _Refusal("a trial longer than its span", _span(lambda _, s: [Span(sequence=s, ids=[0], trial=2)])),
    _Refusal("a negative trial", _span(lambda _, s: [Span(sequence=s, ids=[0], trial=-1)])),
    _Refusal(
        "more on trial than n_trial",
        _span(
            lambda e, s: [Span(sequence=s, ids=[0] * (e.options.n_trial + 1), trial=e.options.n_trial + 1)],
        ),
    ),
    _Refusal(
        "a wrong span beside a right one",
        lambda e, s: _beside(e, lambda o: e.run([Span(sequence=s, ids=[0]), Span(sequence=o, ids=[])])),
    ),
    _Refusal("a released sequence", lambda e, _: _released(e, lambda o: e.run([Span(sequence=o, ids=[0])]))),
    _Refusal("keep on a released sequence", lambda e, _: _released(e, lambda o: o.keep(0))),
    _Refusal("save on a released sequence", lambda e, _: _released(e, lambda o: o.save())),
    _Refusal("load on a released sequence", lambda e, s: _released(e, lambda o: o.load(s.save()))),
    _Refusal("one sequence more than n_sequences", lambda e, _: _too_many(e)),
    _Refusal("a commit without a trial", lambda _, s: s.commit(0)),
    _Refusal("keep of a negative length", lambda _, s: s.keep(-1)),
    _Refusal("a commit of more than the trial", lambda _, s: s.commit(3), trial=2),
    _Refusal("a commit of a negative number", lambda _, s: s.commit(-1), trial=2),
    _Refusal("a span before the commit", _span(lambda _, s: [Span(sequence=s, ids=[0])]), trial=2),
    _Refusal("keep before the commit", lambda _, s: s.keep(1), trial=2),
    _Refusal("save before the commit", lambda _, s: s.save(), trial=2),
)


def check_refusals(subject: Subject, held: Held) -> Iterator[Finding]:
    """Every case of REFUSALS, saved sequences that do not fit, another engine's sequence, and a closed engine."""
    wrong: list[str] = []
    refusals = [one for one in REFUSALS if _possible(one, subject.engine)]
    saved = _saved(subject.engine)
    refusals += [_Refusal(asked, partial(_load, bad)) for asked, bad in _altered(saved)]
    for refusal in refusals:
        wrong += _asked(refusal, subject, held)
    wrong += _foreign(subject)
    wrong += _closed(subject)
    yield Finding(subject=held.subject, check="refusals", measured={"asked": len(refusals) + 2}, wrong=tuple(wrong))


def _possible(refusal: _Refusal, engine: Engine) -> bool:
    """Whether the engine's room lets it be asked."""
    n_trial, n_ctx = engine.options.n_trial, engine.options.n_ctx
    if refusal.asked == "more on trial than n_trial":
        return n_trial + 1 + len(_TEXT) <= n_ctx
    return refusal.trial <= n_trial


def _saved(engine: Engine) -> SavedSequence:
    sequence = engine.sequence()
    engine.run([Span(sequence=sequence, ids=_TEXT)])
    saved = sequence.save()
    sequence.release()
    return saved


def _asked(refusal: _Refusal, subject: Subject, held: Held) -> list[str]:
    """What is wrong with how it was refused, and with what is left after it."""
    engine = subject.engine
    sequence = engine.sequence()
    engine.run([Span(sequence=sequence, ids=_TEXT, trial=refusal.trial)])
    try:
        refusal.ask(engine, sequence)
    except EngineError as error:
        wrong = [] if str(error) else [f"{refusal.asked} is refused without a word"]
    except Exception as error:
        # Whatever it raises is a finding about it.
        wrong = [f"{refusal.asked} raises {type(error).__name__} in place of EngineError: {error}"]
    else:
        wrong = [f"{refusal.asked} is not refused"]
    if not wrong:
        wrong = [f"after {refusal.asked} was refused: {change}" for change in _left(subject, sequence, refusal, held)]
    with contextlib.suppress(Exception):
        sequence.release()
    if wrong:
        # What an engine does after a fault of its own is no other case's matter.
        subject.close()
    return wrong


def _left(subject: Subject, sequence: EngineSequence, refusal: _Refusal, held: Held) -> Iterator[str]:
    if tuple(sequence.ids) != _TEXT:
        yield f"the sequence holds {list(sequence.ids)}, not {list(_TEXT)}"
        return
    try:
        if refusal.trial:
            sequence.commit(refusal.trial)
        [rows] = subject.engine.run([Span(sequence=sequence, ids=[_NEXT])])
        row = np.array(rows.logits(0))
        sequence.release()
        fresh = subject.engine.sequence()
        [expected] = subject.engine.run([Span(sequence=fresh, ids=(*_TEXT, _NEXT))])
        distance = np.abs(row - expected.logits(0)).max()
        fresh.release()
    except Exception as error:
        yield f"the sequence does not go on: {type(error).__name__}: {error}"
        return
    band = alone(subject.engine, held.weights)
    if not distance <= (0.0 if band.bits else 2 * band.most):
        yield f"the next row is another, by {distance:.3g}"


def _foreign(subject: Subject) -> list[str]:
    """A sequence of another engine of the same making."""
    another = subject.another()
    try:
        sequence = another.sequence()
        another.run([Span(sequence=sequence, ids=_TEXT)])
        try:
            subject.engine.run([Span(sequence=sequence, ids=[_NEXT])])
        except EngineError:
            return []
        except Exception as error:
            return [f"another engine's sequence raises {type(error).__name__} in place of EngineError: {error}"]
        return ["another engine's sequence is not refused"]
    finally:
        another.close()


def _closed(subject: Subject) -> list[str]:
    """A closed engine runs nothing; closing twice is no error."""
    engine = subject.another()
    sequence = engine.sequence()
    engine.close()
    try:
        engine.close()
        engine.run([Span(sequence=sequence, ids=[_NEXT])])
    except EngineError:
        return []
    except Exception as error:
        return [f"a closed engine raises {type(error).__name__} in place of EngineError: {error}"]
    return ["a closed engine runs on"]
