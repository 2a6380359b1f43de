"""A live trainer -> what every hypothesis says about it, most likely cause first.

Nothing is trained: one batch is played, scored, moved by one step and put back (`Subject`). Every
hypothesis that has a probe looks at that. Where its probe cannot tell, or it has none, its sign
looks at the trace of the batch, if it needs no history. The others need a recorded run:
`flatline diagnose`.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from flatline.diagnosis.chosen import Chosen, chosen
from flatline.diagnosis.lacking import Origin
from flatline.diagnosis.report import Report, asked, guarded, rank
from flatline.errors import ConfigError, FlatlineError, NotReached, needing
from flatline.hypotheses.base import Finding, HasProbe, HasSign, Hypothesis, Level
from flatline.hypotheses.departure import Departure, named_by_the_catalogue, placed
from flatline.live import ranks
from flatline.live.loop.loop import Loop
from flatline.live.restore.tell import PutBack
from flatline.live.stage_found import NOT_REACHED
from flatline.live.subject import Subject
from flatline.live.tinker.training import Training
from flatline.live.trainers import held
from flatline.live.trl.begun import once
from flatline.live.trl.subject import TrlSubject
from flatline.releases import note_on
from flatline.trace.announce import say

if TYPE_CHECKING:
    from flatline.training.trainer import Built

MORE_TIME = "Give the checkup more seconds with `budget=`, or leave it out"

_ORIGINS = {Loop: Origin.LOOP, Training: Origin.TINKER}
Look = Callable[[Subject], Finding]
Heard = Callable[[Hypothesis], None]


def checkup(
    trainer: "Any | Built",
    *,
    correct: str | None = None,
    gold: str | None = None,
    budget: float | None = None,
    hypotheses: Sequence[Hypothesis] | None = None,
    on_probe: Heard | None = None,
) -> Report:
    """Look at a TRL `GRPOTrainer`, a `flatline.Loop`, a `flatline.verl.Engine`, a
    `flatline.tinker.Training`, or at what `training.trainer.build` made.

    Everything that can be reached from the trainer is put back bit for bit, and a digest verifies
    it. What cannot be, such as a generator that a reward function draws from, is said on stderr
    before anything is tried, and in the report (`put_back`).

    `correct` names the reward function that says whether an answer is right, `gold` the column of
    the dataset with the right answer. After `budget` seconds nothing more is measured but the first
    batch: what is cheap comes first, and what was not reached is said. `on_probe` is told of each
    hypothesis before it looks. Without `hypotheses`, all are asked, as `flatline.toml` says. Of
    several processes each must ask for it; all get the same report.
    """
    begun = time.perf_counter()
    subject = subject_of(trainer, correct=correct, gold=gold)
    known = note_on(getattr(trainer, "trainer", trainer))
    if known:
        say(known)
    origin = _ORIGINS.get(type(trainer), Origin.LIVE)
    until = math.inf if budget is None else begun + budget
    choice = chosen(hypotheses)
    if budget is not None:
        choice = replace(choice, hypotheses=sorted(choice.hypotheses, key=_cost))
    look = partial(_look, subject, choice, on_probe, origin, until, budget)
    return once(subject.trainer, look) if isinstance(subject, TrlSubject) else look()


def _look(
    subject: Subject,
    choice: Chosen,
    on_probe: Heard | None,
    origin: Origin,
    until: float,
    budget: float | None,
) -> Report:
    findings = []
    with subject.standing_still():
        _play_first_batch(subject)
        subject.until = until
        for hypothesis in choice.hypotheses:
            looks = _looks(hypothesis)
            if looks and on_probe:
                on_probe(hypothesis)
            findings += _first_that_tells(hypothesis, looks, subject, origin)
        judged = [choice.judged(one) for one in findings]
        named = rank(named_by_the_catalogue(judged, choice.hypotheses))
        named = placed(named, choice.hypotheses, subject)
    put_back = _of_all(subject.put_back)
    return Report(
        subject="this trainer",
        findings=tuple(named),
        trend=None,
        caveats=(*put_back.caveats, *choice.remarks, *_not_reached(named, budget)),
        put_back=put_back,
        question=asked(findings, subject.trace),
    )


def _of_all(own: PutBack | None) -> PutBack:
    """That of all processes: what one of them did not put back, the training has lost."""
    assert own is not None
    differs = ranks.told(list(own.differs))
    where = [f"{place} (process {number})" for number, each in enumerate(differs) for place in each]
    calls = ranks.told(dict(own.calls))[0]
    return replace(own, differs=tuple(where if len(differs) > 1 else differs[0]), calls=calls)


def _cost(hypothesis: Hypothesis) -> int:
    """First what only reads the batch, then the stages of a step, which see the most."""
    if isinstance(hypothesis, Departure):
        return 1
    return 2 if isinstance(hypothesis, HasProbe) else 0


def _not_reached(findings: Sequence[Finding], budget: float | None) -> tuple[str, ...]:
    left = [one.hypothesis for one in findings if NOT_REACHED in one.text]
    if not left:
        return ()
    return (f"Not reached within {budget:g} s: {', '.join(sorted(left))}.",)


def subject_of(trainer: Any, *, correct: str | None = None, gold: str | None = None) -> Subject:
    """The Subject of a trainer, or of one of ours with all that is known about it."""
    live = held(trainer, correct)
    if live is not None:
        return Subject(live)
    inner = getattr(trainer, "trainer", None)
    if inner is not None:
        with needing("A checkup of a trainer of flatline's own"):  # a Loop may do without TRL
            from flatline.training.subject import OurSubject

        return OurSubject(trainer, correct=correct, gold=gold)
    return TrlSubject(trainer, correct=correct, gold=gold)


def _looks(hypothesis: Hypothesis) -> list[Look]:
    """How a hypothesis can look at a live trainer, best first; none where it needs history."""
    looks: list[Look] = [hypothesis.probe] if isinstance(hypothesis, HasProbe) else []
    if isinstance(hypothesis, HasSign) and hypothesis.on_one_batch:
        sign = hypothesis.sign
        looks.append(lambda subject: sign(subject.trace))
    return looks


def _first_that_tells(
    hypothesis: Hypothesis, looks: Sequence[Look], subject: Subject, origin: Origin
) -> list[Finding]:
    """One finding, none where there is no way to look. Where none tells, one with a remedy."""
    findings = []
    for look in looks:
        findings.append(_in_time(hypothesis, look, subject, origin))
        if findings[-1].level is not Level.UNKNOWN:
            return findings[-1:]
    return sorted(findings, key=lambda finding: not finding.needs)[:1]


def _in_time(hypothesis: Hypothesis, look: Look, subject: Subject, origin: Origin) -> Finding:
    """What it finds, or that it was not reached."""

    def watched(at: Subject) -> Finding:
        try:
            return look(at)
        except NotReached:
            return hypothesis.found(Level.UNKNOWN, NOT_REACHED, needs=MORE_TIME)

    return guarded(hypothesis, watched, subject, origin=origin)


def _play_first_batch(subject: Subject) -> None:
    """All probes share it. Where it fails, training would fail in the same place."""
    try:
        _ = subject.batch
    except FlatlineError:
        raise
    except StopIteration as error:
        raise ConfigError(
            "The trainer's dataset gives no batch, so there is nothing to check.\n"
            "Training would end before its first step, without raising an error.\n"
            "Give it at least as many prompts as one step takes: `per_device_train_batch_size` x "
            "`gradient_accumulation_steps` / `num_generations`."
        ) from error
    except Exception as error:
        raise ConfigError(
            "The trainer cannot sample and score its first batch: "
            f"{type(error).__name__}: {error}.\n"
            "Training would most likely stop at the same place, so there is nothing to check yet.\n"
            "Fix that first; `trainer.train()` shows the whole traceback. If it trains all the "
            'same, record it: `flatline.attach(trainer, "runs/x")`.'
        ) from error
