"""One real optimizer step of a live TRL trainer against the specification, stage by stage.

`flatline.spec` says what a step must be; here is everything that knows how to read the same values
off a trainer: hooks on what it samples, pays, scores and steps, all of them taken away again. Each
stage is judged on what the trainer itself handed to it, so that an earlier departure does not make
a later stage look wrong; the gradient alone is judged from the beginning.
"""

from flatline.live.stage_found import StageFound
from flatline.live.trl.departure.stages import examine

__all__ = ["StageFound", "examine"]
