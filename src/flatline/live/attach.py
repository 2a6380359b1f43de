"""`flatline.attach`: records whichever trainer it is given."""

from pathlib import Path
from typing import Any

from flatline.live.trl.recorder import attach as trl
from flatline.live.verifiers import attach as verifiers
from flatline.live.verifiers import rl
from flatline.trace.writer import Sink


def attach(
    trainer: Any,
    run_dir: str | Path | Sink,
    *,
    correct: str | None = None,
    gold: str | None = None,
    alarms: trl.StepListener | None = None,
) -> trl.Attachment:
    """Record everything that this trainer trains from now on.

    `run_dir` is a folder, made if it does not exist; or a sink, which its owner closes. The trace
    is complete when training ends, and can be read at any time before. `correct` names the reward
    function that says whether an answer is right, `gold` the column of the dataset with the right
    answer; a diagnosis reads both from the trace. `alarms=flatline.Alarms()` looks at the trace
    while the run trains, and says what is wrong at the step where it shows.
    """
    attached: trl.Attachment = _kind(trainer).attach(trainer, run_dir, correct=correct, gold=gold)
    return attached.telling(alarms)


def can_be_recorded(trainer: Any) -> bool:
    """Whether it is a trainer that `attach` knows."""
    return _kind(trainer) is not trl or trl.why_not(trainer) is None


def _kind(trainer: Any) -> Any:
    if verifiers.is_of_verifiers(trainer):
        return verifiers
    return rl if rl.is_of_verifiers_rl(trainer) else trl
