"""A live trainer -> what every hypothesis says about it, most likely cause first.

Nothing is trained: one batch is played, scored, moved by one step and put back (`Subject`). Every
hypothesis that has a probe looks at that. Where its probe cannot tell, or it has none, its sign
looks at the trace of the batch, if it needs no history. The others need a recorded run:
`flatline diagnose`.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from flatline.diagnosis import Report, guarded, rank
from flatline.errors import ConfigError, FlatlineError
from flatline.hypotheses import HYPOTHESES
from flatline.hypotheses.base import Finding, HasProbe, HasSign, Hypothesis, Level
from flatline.hypotheses.departure import named_by_the_catalogue
from flatline.lacking import Origin
from flatline.live.subject import Subject
from flatline.live.trl.subject import TrlSubject
from flatline.training.subject import OurSubject

if TYPE_CHECKING:
    from flatline.training.trainer import Built

Look = Callable[[Subject], Finding]
Heard = Callable[[Hypothesis], None]


def checkup(
    trainer: "Any | Built",
    *,
    correct: str | None = None,
    gold: str | None = None,
    hypotheses: Sequence[Hypothesis] = HYPOTHESES,
    on_probe: Heard | None = None,
) -> Report:
    """Look at a TRL `GRPOTrainer`, or at what `flatline.training.trainer.build` made.

    The trainer is left as it was, bit for bit, but for what a reward function of yours keeps for
    itself. `correct` names the reward function that says whether an answer is right, `gold` the
    column of the dataset with the right answer. `on_probe` is told of each hypothesis
    before it looks.
    """
    subject = subject_of(trainer, correct=correct, gold=gold)
    findings = []
    with subject.standing_still():
        _play_first_batch(subject)
        for hypothesis in hypotheses:
            looks = _looks(hypothesis)
            if looks and on_probe:
                on_probe(hypothesis)
            findings += _first_that_tells(hypothesis, looks, subject)
    named = named_by_the_catalogue(findings, hypotheses)
    return Report(subject="this trainer", findings=tuple(rank(named)), trend=None)


def subject_of(
    trainer: "Any | Built", *, correct: str | None = None, gold: str | None = None
) -> Subject:
    """The Subject of a trainer, or of one of ours with all that is known about it."""
    inner = getattr(trainer, "trainer", None)
    if inner is not None:
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
    hypothesis: Hypothesis, looks: Sequence[Look], subject: Subject
) -> list[Finding]:
    """One finding, none where there is no way to look. Where none tells, one with a remedy."""
    findings = []
    for look in looks:
        findings.append(guarded(hypothesis, look, subject, origin=Origin.LIVE))
        if findings[-1].level is not Level.UNKNOWN:
            return findings[-1:]
    return sorted(findings, key=lambda finding: not finding.needs)[:1]


def _play_first_batch(subject: Subject) -> None:
    """All probes share it. Where it fails, training would fail in the same place."""
    try:
        _ = subject.batch
    except FlatlineError:
        raise
    except StopIteration as error:
        raise ConfigError(
            "The trainer's dataset gives no batch, so there is nothing to look at.\n"
            "Training would end before its first step, without an error of its own.\n"
            "Give it at least as many prompts as one step takes: `per_device_train_batch_size` x "
            "`gradient_accumulation_steps` / `num_generations`."
        ) from error
    except Exception as error:
        raise ConfigError(
            f"The trainer cannot play and score its first batch: {type(error).__name__}: {error}.\n"
            "Training would stop at the same place, so there is nothing to look at yet.\n"
            "Mend that first; `trainer.train()` shows the whole traceback."
        ) from error
