"""What is investigated, and by which criterion."""

from dataclasses import dataclass
from pathlib import Path

from flatline.config import RunConfig
from flatline.experiment import Arm, Role
from flatline.experiment.plan import HELDOUT, refuse_unknown_outcome
from flatline.verdict import Rule

AS_IT_IS = "as it is"
"""Name of the control arm while no hypothesis has given it another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The run whose reward is flat."""

    config: RunConfig
    """Its settings."""
    runs: Path
    """Where runs are kept; hypotheses share those of the control arm."""
    experiments: Path
    """Where plans and results are kept."""
    outcome: str = HELDOUT
    """What an effect is an effect on."""
    smallest_effect: float = 0.05
    """The least gain of the outcome that would matter."""
    looks: tuple[int, ...] = (3, 4, 5, 6)
    """Numbers of matched seeds at which an effect is looked at."""
    alpha: float = 0.05
    """Error rate of all hypotheses together."""
    train_anyway: bool = False
    """Run the experiment even where the mechanism is absent."""
    name: str | None = None
    """Of the experiment; that of the hypothesis where absent."""
    as_it_is: Arm | None = None
    """The control arm where it is not `flatline train` with the config: a script of the user's."""

    def __post_init__(self) -> None:
        # The control runs come before any plan, and must not be made in vain.
        refuse_unknown_outcome(self.outcome)
        _ = self.rule

    @property
    def control(self) -> Arm:
        """The setup as it is."""
        return self.as_it_is or Arm(name=AS_IT_IS, role=Role.CONTROL, config=self.config)

    @property
    def rule(self) -> Rule:
        """The criterion for one hypothesis alone."""
        return Rule(smallest_effect=self.smallest_effect, looks=self.looks, alpha=self.alpha)
