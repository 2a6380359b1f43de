"""The batch as a trace of one step, recorded by the same hooks that record a whole run."""

from typing import Any

from torch import Tensor

from flatline.subject.scoring import Played, first_rows, play, trained_logps
from flatline.trace import Trace
from flatline.trace.attach import attach
from flatline.trace.writer import MemorySink


def record(trainer: Any) -> tuple[Played, Tensor, Trace]:
    """Sample the first batch, pass it through the loss as in training, and keep all of it."""
    sink = MemorySink()
    attachment = attach(trainer, sink)
    try:
        played = play(trainer, first_rows(trainer))
        logps_BT = trained_logps(trainer, played.inputs)
        row = attachment.work("end_step", trainer.state.global_step + 1)
        if row is not None:
            attachment.work("write_step", row)
    finally:
        attachment.detach()
    return played, logps_BT, sink.trace()
