"""What a checkup needs of somebody's training, in capabilities, each optional.

A `Trainer` here is not TRL's: it is what flatline can hold of one (`flatline.live.trl.trainer`), or
of a loop of the user's own (`flatline.live.loop`). A measurement of the `Subject` declares what it
needs; where a capability is missing it raises `Lacking`, which says how to give it, and a checkup
turns that into "cannot tell".
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, Protocol, TypeVar

from flatline.errors import Lacking

if TYPE_CHECKING:
    from torch import Tensor, nn

    from flatline.live.inputs import Inputs
    from flatline.live.measure.moving import Move
    from flatline.live.measure.played import Played, Recorded
    from flatline.live.measure.step import Backward
    from flatline.live.records import AdapterGaps, DataOrder, PaidAgain, Problems, Surprise
    from flatline.live.restore.calls import Calls
    from flatline.live.restore.snapshot import Snapshot
    from flatline.live.stage_found import StageFound
    from flatline.live.step_records import Between, ShortStep
    from flatline.live.where.place import Where
    from flatline.rollout.engine import Engine

P = ParamSpec("P")
T = TypeVar("T")


class Capability(StrEnum):
    """One thing that a training may let others do with it."""

    BATCH = "a batch"
    """Sample a first batch: ids, who wrote what, the loss mask, rewards and advantages."""
    TOKENIZER = "the tokenizer"
    """Its template and vocabulary."""
    SCORE = "scoring given ids"
    """Log-probs of ids with any context, as the loss takes them."""
    REFERENCE = "the reference"
    """Log-probs that the policy is held close to."""
    REWARD = "asking the reward functions again"
    """About completions of the batch."""
    ENTROPY = "the entropy of the policy"
    """At every token of a rollout."""
    ADAPTERS = "scoring with another adapter"
    """One after the other, where a model has several."""
    GRADIENT = "the loss and its gradient"
    """The backward passes of one optimizer step."""
    PASSES = "backward passes of another size"
    """The same step in more and smaller passes."""
    STEP = "an optimizer step"
    """Taken, and undone."""
    WEIGHTS = "moving the weights"
    """Noise on them, and off again."""
    SAMPLE = "sampling again"
    """Prompts of the batch, played with other weights."""
    DATA_ORDER = "the order of the data"
    """Which prompts are visited when."""
    HELDOUT = "the held-out problems"
    """What is evaluated on, beside what is trained on."""
    GOLD = "a task of flatline's own, with gold answers"
    """Scripted episodes through the reward functions; only such a task can be scripted."""
    EVALUATION = "a task of flatline's own, with an evaluation"
    """Held-out play as the evaluation does it."""
    SPECIFICATION = "arguments that specify a step"
    """What every stage of a step ought to be."""


PLAYS_AND_STEPS = frozenset(
    {
        Capability.BATCH,
        Capability.TOKENIZER,
        Capability.SCORE,
        Capability.GRADIENT,
        Capability.STEP,
        Capability.WEIGHTS,
        Capability.SAMPLE,
    }
)
"""What a trainer can do of which every part of a step can be called."""


def needs(*asked: Capability) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Marks a measurement of the Subject with the capabilities that it takes."""

    def mark(measure: Callable[P, T]) -> Callable[P, T]:
        @wraps(measure)
        def checked(*args: P.args, **kwargs: P.kwargs) -> T:
            subject: Any = args[0]
            subject.live.require(*asked)
            return measure(*args, **kwargs)

        vars(checked)["needs"] = asked
        return checked

    return mark


class HasModel(Protocol):
    """Something that trains a model."""

    @property
    def model(self) -> Any:
        """As it is trained."""


class Trainer:
    """What is held of a training. What is not overridden is lacking."""

    how: ClassVar[Mapping[Capability, str]] = {}
    """How the user gives what is lacking, as something to do."""

    @property
    def can(self) -> frozenset[Capability]:
        """What it lets others do with it."""
        raise NotImplementedError

    @property
    def model(self) -> "nn.Module":
        """As it is trained."""
        raise NotImplementedError

    @property
    def group(self) -> int:
        """Rollouts of a prompt."""
        raise NotImplementedError

    @property
    def size(self) -> int:
        """Rollouts of one pass."""
        raise NotImplementedError

    @property
    def beta(self) -> float:
        """Weight of the KL."""
        return 0.0

    @property
    def temperature(self) -> float:
        """What logits are divided by, in the sampler and in the loss."""
        return 1.0

    def require(self, *asked: Capability) -> None:
        """`Lacking` where one of these is missing."""
        for capability in asked:
            if capability not in self.can:
                raise Lacking(capability, self.how.get(capability, ""))

    @property
    def settings(self) -> Mapping[str, Any]:
        """Canonical settings, as in `run.json` of a trace."""
        raise NotImplementedError

    @property
    def epsilon_high(self) -> float | None:
        """How far the ratio may rise above 1; None where only `epsilon` is known."""
        return None

    @property
    def planned_steps(self) -> int | None:
        """Optimizer steps of the run; None where nobody knows."""
        return None

    @property
    def short_step(self) -> "ShortStep | None":
        """The step of an epoch that has fewer passes than the others; None where none has, or the
        run ends before it."""
        return None

    @property
    def tokenizer(self) -> Any:
        """Turns text into ids."""
        raise NotImplementedError

    @property
    def whole_model(self) -> Any:
        """The model without what wraps it."""
        return self.model

    @property
    def keeps_reference(self) -> bool:
        """Whether it has a reference model of its own, even where a batch has none of its
        log-probs."""
        return False

    @property
    def steps_done(self) -> int:
        """Optimizer steps until now."""
        return 0

    @property
    def may_be_parted(self) -> bool:
        """Whether what its sampler left behind may be cut down to some of the rollouts."""
        return False

    def snapshot(self) -> "Snapshot":
        """Everything that a measurement may change, as it is now."""
        raise NotImplementedError

    def counting(self, calls: "Calls") -> AbstractContextManager[None]:
        """Inside, it is counted how often functions of the user's are called."""
        return nullcontext()

    def standing_still(self) -> AbstractContextManager[None]:
        """Nobody trains inside; what is costly to make is made once."""
        return nullcontext()

    def measuring(self) -> AbstractContextManager[None]:
        """Around each measurement: what is looked at is one process with whole steps."""
        return nullcontext()

    def between(self) -> "Between | None":
        """One real step of all processes together, looked at before they are taken as one; None
        where there is one."""
        return None

    def autocast(self) -> AbstractContextManager[Any]:
        """The precision of passes."""
        return nullcontext()

    def engine(self) -> "Engine | None":
        """Our own sampler, where the trainer samples with it."""
        return None

    def record(self) -> "Recorded":
        """Sample the first batch, pass it through the loss, and keep all of it."""
        raise NotImplementedError

    def play(self, rows: Sequence[Mapping[str, Any]], step: int) -> "Played":
        """Sample these rows again, as at this optimizer step; nothing is trained on them."""
        raise NotImplementedError

    def logps(self, inputs: "Inputs", size: int | None = None) -> "Tensor":
        """Log-probs as the loss takes them, in passes of the trainer's size unless told."""
        raise NotImplementedError

    def plain_logps(self, inputs: "Inputs") -> "Tensor":
        """Log-probs without gradients, as those of the old policy are taken."""
        raise NotImplementedError

    def paid_again(self, played: "Played") -> "PaidAgain":
        """The completions of the batch, paid again by the same reward functions."""
        raise NotImplementedError

    def adapter_gaps(self, played: "Played", logps_BT: "Tensor") -> "AdapterGaps":
        """How far the sampler's log-probs and these are from those with each adapter."""
        raise NotImplementedError

    def surprise(self, played: "Played") -> "Surprise":
        """How likely sampled tokens are beside the entropy of the policy."""
        raise NotImplementedError

    def reference_logps(self, played: "Played") -> "Tensor":
        """Log-probs of the reference, taken with the weights as they are now."""
        raise NotImplementedError

    def backward(
        self, played: "Played", *, size: int | None = None, beta: float | None = None
    ) -> "Backward":
        """The gradients of one optimizer step on these. With a size, in passes of it and not
        clipped; with a beta, with that weight of the KL."""
        raise NotImplementedError

    def backward_short(self, played: "Played", *, size: int) -> "Backward":
        """The same in passes of this size, as a step that lacks half of its passes: the last of an
        epoch."""
        raise NotImplementedError

    def take_step(self, back: "Backward", scale: float) -> float:
        """Take the optimizer step, at a multiple of the rate; the rate in force."""
        raise NotImplementedError

    def data_order(self, steps: int, hops: Mapping[str, int]) -> "DataOrder":
        """What the first steps will visit, and an epoch."""
        raise NotImplementedError

    def problems(self) -> "Problems":
        """What names the training problems, and the held-out ones."""
        raise NotImplementedError

    def unwritable_tokens(self) -> dict[str, int]:
        """Tokens of the format that frozen output rows cannot tell from others."""
        return {}

    def departures(
        self,
        order: "DataOrder | None",
        played: "Played",
        few: "Played",
        move: "Move",
        until: float,
    ) -> "Mapping[str, StageFound]":
        """One real step beside the specified one, stage by stage, as far as it gets by `until`."""
        raise NotImplementedError

    def lines_of(
        self,
        order: "DataOrder | None",
        played: "Played",
        few: "Played",
        move: "Move",
        found: "StageFound",
    ) -> "tuple[Where, ...]":
        """Lines of the running code that may have made a stage what it is, likeliest first."""
        raise NotImplementedError
