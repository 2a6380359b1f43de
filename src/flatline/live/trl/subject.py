"""`Subject`: one method per measurement, each taken once."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from torch import Tensor

from flatline.errors import ConfigError, NotRecorded
from flatline.live.measure.tokenizer import tokenizer_fit
from flatline.live.records import (
    AloneVsBatch,
    Batch,
    ContextEffect,
    DataOrder,
    Delivery,
    Floats,
    GoldTurns,
    HeldoutPath,
    OneStep,
    Oracle,
    Problems,
    ReferenceGap,
    Replay,
    ScoredTwice,
    TokenizerFit,
)
from flatline.live.step_records import Accumulation, KlPull, SteppedDelivery
from flatline.live.trl.departure import StageFound, examine
from flatline.live.trl.engine import Rollouts
from flatline.live.trl.measure import passes, replay, step, stepped
from flatline.live.trl.measure.context import Which, context_effect
from flatline.live.trl.measure.few import few, half, together
from flatline.live.trl.measure.moving import Move, visible_move
from flatline.live.trl.measure.order import data_order, planned_steps, problems
from flatline.live.trl.measure.recorded import Recorded, engine_at_hand, record
from flatline.live.trl.measure.scoring import Played, batch_of, fixed_logps
from flatline.live.trl.measure.untouched import Snapshot
from flatline.live.trl.recorder.attach import another_algorithm
from flatline.live.trl.settings import settings, truth
from flatline.rollout.writable import unwritable
from flatline.trace import Trace

T = TypeVar("T")


class Subject:
    """A live GRPOTrainer, ours or anyone's. Cheap measurements first, as in a checkup.

    A measurement that this trainer cannot give (no tools, no sampler log-probs, not one of ours)
    raises `NotRecorded`, which a checkup turns into "cannot tell"; where the docstring says so it
    returns None or empty arrays instead, because that itself is the answer.
    """

    def __init__(
        self, trainer: Any, *, correct: str | None = None, gold: str | None = None
    ) -> None:
        _refuse_what_cannot_be_looked_at(trainer)
        truth(trainer, correct, gold)
        self.trainer = trainer
        self.correct = correct
        """The reward function that says whether an answer is right, as the user named it."""
        self.gold = gold
        """The column of the dataset with the right answer, as the user named it."""
        func = getattr(trainer, "rollout_func", None)
        self._rollouts = func if isinstance(func, Rollouts) else None
        self._taken: dict[Any, Any] = {}
        self._snapshot: Snapshot | None = None
        """What measurements go back to while nobody trains."""

    # -- settings: free

    @property
    def ours(self) -> bool:
        """Whether task, problems and engine are known."""
        return False

    @property
    def requested(self) -> Mapping[str, Any] | None:
        """`RunConfig.to_dict()` of what was asked for; None for a user's trainer."""
        return None

    @property
    def effective(self) -> Mapping[str, Any] | None:
        """What was built, by part (`flatline.training.effective`); None for a user's trainer."""
        return None

    @property
    def settings(self) -> Mapping[str, Any]:
        """Canonical settings, as in `run.json` of a trace."""
        return settings(self.trainer) | {"correct": self.correct, "gold": self.gold}

    @property
    def epsilon_high(self) -> float | None:
        """How far the ratio may rise above 1; None where only `epsilon` is known."""
        found = getattr(self.trainer, "epsilon_high", None)
        return None if found is None else float(found)

    @property
    def planned_steps(self) -> int | None:
        """Optimizer steps of the run; None where neither they nor what an epoch has are known."""
        return planned_steps(self.settings, getattr(self.trainer.args, "num_train_epochs", None))

    # -- data and reward: no model

    def data_order(self, steps: int = 20) -> DataOrder:
        """What the trainer's sampler will visit in its first steps, and over an epoch."""
        return self._take(("order", steps), data_order, self.trainer, steps, self._hops())

    def problems(self) -> Problems:
        """What names the training problems, and the held-out ones."""
        return self._take("problems", problems, self.trainer)

    def tokenizer_fit(self) -> TokenizerFit:
        """What tokenizer and chat template do, and whether they are the model's."""
        model = self.trainer.accelerator.unwrap_model(self.trainer.model)
        return self._take("tokenizer", tokenizer_fit, self.trainer.processing_class, model)

    def oracle(self, problems: int = 16) -> Oracle:
        """Gold and corruptions through the trainer's reward functions. Ours only."""
        raise NotRecorded("task.gold")

    def gold_turns(self, problems: int) -> GoldTurns:
        """How many turns gold takes, of a task with tools. Ours only."""
        raise NotRecorded("task.gold")

    # -- one batch, no update

    @property
    def batch(self) -> Batch:
        """The batch that all measurements share."""
        return self._take("batch", batch_of, self.trainer, self._played, self._logps_BT)

    @property
    def trace(self) -> Trace:
        """That batch as a trace of one step, so that every sign on one batch can be read."""
        return self._recorded.trace

    def scored_twice(self) -> ScoredTwice:
        """Two identical passes, as trained through and as scored."""
        return self._take("twice", passes.scored_twice, self.trainer, self._fewer, self._move)

    def context_effect(self, which: Which) -> ContextEffect:
        """Replace the question, or the tools' output, and score again. Empty without any."""
        before = (self._few_logps_BT, self._together)
        given = (self.trainer, self._played, self._few_rows, *before, which)
        return self._take(("context", which), context_effect, *given)

    def reference_gap(self) -> ReferenceGap | None:
        """Policy minus reference; None where there is no reference and no adapter."""
        # What another sampler left behind may not be cut down to some of the rollouts.
        some = self._played if self._rollouts is None else self._few
        moving = (self._move, some) if passes.has_adapters(self.trainer) else None
        given = (self.trainer, self._played, self.batch, self._logps_BT, moving)
        return self._take("reference", passes.reference_gap, *given)

    def alone_vs_batch(self, rollouts: int = 4) -> AloneVsBatch:
        """Some rollouts scored alone and inside the padded batch."""
        given = (self.trainer, self._played, self._logps_BT, rollouts)
        return self._take(("alone", rollouts), passes.alone_vs_batch, *given)

    def unwritable_tokens(self) -> dict[str, int]:
        """Tokens of the format that frozen output rows cannot tell from others. Ours only."""
        model = self.trainer.accelerator.unwrap_model(self.trainer.model)
        head = model.get_output_embeddings()
        if self._rollouts is None or head is None or head.weight.requires_grad:
            return {}
        return unwritable(model, self._rollouts.chat)

    # -- one update

    def one_step(self, lr_scale: float = 1.0) -> OneStep:
        """One optimizer step on the batch, measured and undone. Each scale is measured once."""
        return self._stepped(lr_scale).found

    def fitting_step(self) -> OneStep | None:
        """A step of a sound size, at a rate that was tried; None where no plausible rate has one.
        The backward pass is shared, so a further rate is cheap."""
        return step.fitting(self.one_step)

    def accumulation(self) -> Accumulation | None:
        """The gradient of some rollouts in more passes; None where a pass cannot be halved."""
        return self._take("accumulation", stepped.accumulation, self.trainer, self._fewer)

    def gradient_twice(self) -> float:
        """Cosine of two gradients of the batch: 1 unless a pass draws; NaN without a gradient."""
        given = (self.trainer, self._played, self._backward)
        return self._take("gradient twice", stepped.gradient_twice, *given)

    def kl_pull(self) -> KlPull | None:
        """Reward and KL parts of the gradient after one step; None where beta is 0."""
        given = (self.trainer, self._few, self._backward)
        return self._take("kl pull", stepped.kl_pull, *given)

    def departures(self) -> Mapping[str, StageFound]:
        """One real step beside the specified one, stage by stage (`flatline.spec.STAGES`)."""
        order = None
        with suppress(Exception):  # data that cannot be counted, such as a stream
            order = self.data_order()
        given = (self.trainer, order, self._played, self._few, self._move)
        return self._take("departures", examine, *given)

    # -- more play

    def stepped_delivery(self) -> SteppedDelivery:
        """Take one optimizer step and play: does the sampler follow a change of real size?"""
        some, after_BT = self._some, self._stepped(1.0).after_BT
        visible = stepped.mean_change(self._played, len(some.rows), self._logps_BT, after_BT)
        given = (self.trainer, self._rollouts, some, self._backward, visible, self._gap)
        return self._take("stepped", stepped.stepped_delivery, *given)

    def delivery(self) -> Delivery:
        """Move the weights, play, restore, play: does the sampler follow there and back?"""
        return self._there_and_back[0]

    def play_again(self) -> Replay:
        """Some of the prompts, as the next optimizer step would play them."""
        return self._there_and_back[1]

    def heldout_path(self, problems: int = 4) -> HeldoutPath:
        """Training against held-out evaluation on prompts of the batch. Ours only."""
        raise NotRecorded("steps.heldout_reward")

    def solved(self, first: int, last: int) -> Floats:
        """Whether each of some training problems is solved, played once. Ours only."""
        raise NotRecorded("task.problems")

    @contextmanager
    def untouched(self) -> Iterator[None]:
        """What happens inside leaves no mark on the trainer."""
        # What is inside another measurement goes back to the middle of that, not to the start.
        snapshot, self._snapshot = self._snapshot, None
        try:
            with (snapshot or Snapshot(self.trainer, self._rollouts)).kept():
                yield
        finally:
            self._snapshot = snapshot

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """Nobody trains inside: every measurement goes back to one and the same snapshot, which
        takes longer to make than many a measurement. They share the engine too: on a GPU it records
        its steps, and a new one would have to record them anew."""
        with engine_at_hand(self._rollouts, self.trainer):
            self._snapshot = Snapshot(self.trainer, self._rollouts)
            try:
                yield
            finally:
                self._snapshot = None

    # -- what the measurements share

    @property
    def _recorded(self) -> Recorded:
        """The first batch of the trainer's own loader."""
        return self._take("recorded", record, self.trainer, self._rollouts, self.correct, self.gold)

    @property
    def _played(self) -> Played:
        """That batch, as tensors."""
        return self._recorded.played

    @property
    def _there_and_back(self) -> tuple[Delivery, Replay]:
        """Plays at the next steps, which tell both of the delivery and of the next step."""
        with suppress(NotRecorded):
            self.heldout_path()  # a sampler that does not come back would spoil a later play
        given = (self.trainer, self._rollouts, self._some, self._move, self._gap)
        return self._take("delivery", replay.there_and_back, *given)

    @property
    def _backward(self) -> step.Backward:
        """The gradients of one optimizer step on the batch."""
        return self._take("backward", step.backward, self.trainer, self._played)

    def _stepped(self, lr_scale: float) -> step.Stepped:
        """The step, with what it does to every token."""
        given = (self.trainer, self._played, self._logps_BT, self._backward, lr_scale)
        return self._take(("step", lr_scale), step.one_step, *given)

    @property
    def _some(self) -> Played:
        """The first groups of the batch, whose prompts are played again."""
        rows = range(replay.PROMPTS * self.trainer.num_generations)
        return self._take("some", self._played.part, rows)

    @property
    def _gap(self) -> float:
        """How far sampler and trainer are apart on these, before anything is changed."""
        return self._take("gap", replay.played_gap, self.trainer, self._some)

    @property
    def _few_rows(self) -> list[int]:
        """Rollouts that stand for the batch where all of it would only cost."""
        return self._take("few rows", few, self._played, self.trainer.num_generations)

    @property
    def _few(self) -> Played:
        """These, as a batch of their own. What is compared on them is compared on trained tokens:
        where a batch has none, nothing can be told."""
        if not self._played.trained_B.any():
            raise NotRecorded("a trained token in the batch")
        return self._take("few", self._played.part, self._few_rows)

    @property
    def _fewer(self) -> Played:
        """Half of these, for what one pass could tell."""
        return self._take("fewer", lambda: self._few.part(half(self._few)))

    @property
    def _few_logps_BT(self) -> Tensor:
        """The trainer's log-probs of these alone: in another shape they round otherwise."""
        given = (self.trainer, self._few.inputs, self._together)
        return self._take("few logps", fixed_logps, *given)

    @property
    def _together(self) -> int:
        """How many of these are scored at a time."""
        size = int(self.trainer.args.per_device_train_batch_size)
        return together(size, self._played, self._few)

    @property
    def _logps_BT(self) -> Tensor:
        """The trainer's log-probs of the batch, dropout off."""
        if passes.dropout(self.trainer) == 0:
            return self._recorded.logps_BT
        return self._take("logps", fixed_logps, self.trainer, self._played.inputs)

    @property
    def _move(self) -> Move:
        """How far the trainable weights must be moved to be seen."""
        given = (self.trainer, self._few, self._few_logps_BT, self._together)
        return self._take("move", visible_move, *given)

    def _take(self, name: Any, measure: Callable[..., T], *given: Any) -> T:
        """Measure once, without leaving a mark; what failed once is not tried again."""
        if name not in self._taken:
            try:
                with self.untouched():
                    self._taken[name] = measure(*given)
            except Exception as error:
                self._taken[name] = error
        found: T | Exception = self._taken[name]
        if isinstance(found, Exception):
            raise found
        return found

    def _hops(self) -> Mapping[str, int]:
        """Hops of each problem, where problems are known."""
        return {}


def _refuse_what_cannot_be_looked_at(trainer: Any) -> None:
    another = another_algorithm(trainer)
    if another:
        raise ConfigError(another)
    missing = [
        name
        for name in ("_generate_and_score_completions", "_compute_loss", "accelerator")
        if not hasattr(trainer, name)
    ]
    if missing:
        raise ConfigError(
            f"A {type(trainer).__name__} has no {', '.join(missing)}: it is no GRPOTrainer.\n"
            "A checkup looks at how TRL samples, scores and steps.\n"
            "Give the trainer itself: `flatline.checkup(trainer)`."
        )
    sharded = trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled
    if sharded or trainer.accelerator.num_processes > 1:
        raise ConfigError(
            f"This trainer runs on {trainer.accelerator.num_processes} processes"
            f"{' with sharded weights' if sharded else ''}.\n"
            "A checkup moves the weights and puts them back, and needs all of them in one place.\n"
            "Run it in one process without DeepSpeed or FSDP, on the same model and data."
        )
