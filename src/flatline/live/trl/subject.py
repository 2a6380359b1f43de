"""A TRL trainer under the checkup."""

from flatline.live.subject import Subject
from flatline.live.trl.grpo import GrpoTrainer
from flatline.live.trl.trainer import TrlTrainer


class TrlSubject(Subject):
    """A trainer of the GRPO family, ours or anyone's."""

    live: TrlTrainer

    def __init__(
        self, trainer: GrpoTrainer, *, correct: str | None = None, gold: str | None = None
    ) -> None:
        """`correct` names the reward function that says whether an answer is right, `gold` the
        column of the dataset with the right answer."""
        super().__init__(TrlTrainer(trainer, correct, gold))
        self.trainer = trainer
