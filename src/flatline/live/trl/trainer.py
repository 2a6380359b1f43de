"""A TRL trainer of the GRPO family behind the protocol of a checkup."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar

from torch import Tensor

from flatline.errors import ConfigError
from flatline.live import ranks
from flatline.live.held import steps_in_backward
from flatline.live.hooks import swapped
from flatline.live.inputs import Inputs
from flatline.live.measure.moving import Move
from flatline.live.measure.played import Played, Recorded, without_dropout
from flatline.live.measure.step import Backward
from flatline.live.protocol import Capability, Trainer
from flatline.live.records import AdapterGaps, DataOrder, PaidAgain, Problems, Surprise
from flatline.live.restore.calls import Calls
from flatline.live.restore.snapshot import Snapshot
from flatline.live.stage_found import StageFound
from flatline.live.step_records import Between, ShortStep
from flatline.live.trl.alone import WITHOUT, alone, without_hidden_steps
from flatline.live.trl.departure import examine
from flatline.live.trl.departure.lines import lines
from flatline.live.trl.engine import Rollouts
from flatline.live.trl.grpo import GrpoTrainer
from flatline.live.trl.kept import snapshot_of
from flatline.live.trl.measure import backward
from flatline.live.trl.measure.between import between
from flatline.live.trl.measure.order import data_order, planned_steps, problems, short_step
from flatline.live.trl.measure.recorded import engine_at_hand, record
from flatline.live.trl.measure.rescored import adapter_gaps, surprise
from flatline.live.trl.measure.scoring import (
    paid_again,
    play,
    score_again,
    scoring_logps,
    trained_logps,
)
from flatline.live.trl.recorder.attach import another_algorithm, another_inside
from flatline.live.trl.settings import reward_names, settings, truth
from flatline.live.where.package import part_of_trl
from flatline.live.where.place import Where
from flatline.rollout.engine import Engine
from flatline.rollout.writable import unwritable

HIDDEN_STEPS = (Capability.GRADIENT, Capability.PASSES, Capability.STEP)
"""What DeepSpeed does not let anybody see."""


class TrlTrainer(Trainer):
    """Ours or anyone's."""

    how: ClassVar = dict.fromkeys(HIDDEN_STEPS, WITHOUT)

    def __init__(self, trainer: GrpoTrainer, correct: str | None, gold: str | None) -> None:
        _refuse_what_cannot_be_looked_at(trainer)
        told = truth(trainer, correct, gold)
        self.trl = trainer
        func = getattr(trainer, "rollout_func", None)
        self.rollouts: Rollouts | None = func if isinstance(func, Rollouts) else None
        self._correct, self._gold = told["correct"], told["gold"]

    @property
    def can(self) -> frozenset[Capability]:
        hidden = HIDDEN_STEPS if steps_in_backward(self.trl) else ()
        return frozenset(Capability) - {Capability.GOLD, Capability.EVALUATION, *hidden}

    @property
    def model(self) -> Any:
        return self.trl.model

    @property
    def group(self) -> int:
        return int(self.trl.num_generations)

    @property
    def size(self) -> int:
        return int(self.trl.args.per_device_train_batch_size)

    @property
    def beta(self) -> float:
        return float(self.trl.beta)

    @property
    def temperature(self) -> float:
        return float(self.trl.temperature)

    @property
    def settings(self) -> Mapping[str, Any]:
        return settings(self.trl) | {"correct": self._correct, "gold": self._gold}

    @property
    def epsilon_high(self) -> float | None:
        found = getattr(self.trl, "epsilon_high", None)
        return None if found is None else float(found)

    @property
    def planned_steps(self) -> int | None:
        return planned_steps(self.settings, getattr(self.trl.args, "num_train_epochs", None))

    @property
    def short_step(self) -> ShortStep | None:
        return short_step(self.trl)

    @property
    def tokenizer(self) -> Any:
        return self.trl.processing_class

    @property
    def whole_model(self) -> Any:
        return self.trl.accelerator.unwrap_model(self.trl.model)

    @property
    def keeps_reference(self) -> bool:
        return getattr(self.trl, "ref_model", None) is not None

    @property
    def steps_done(self) -> int:
        return int(self.trl.state.global_step)

    @property
    def may_be_parted(self) -> bool:
        return self.rollouts is not None

    def snapshot(self) -> Snapshot:
        return snapshot_of(self.trl, self.rollouts)

    @contextmanager
    def counting(self, calls: Calls) -> Iterator[None]:
        functions = list(self.trl.reward_funcs)
        named = zip(reward_names(self.trl), functions, strict=True)
        self.trl.reward_funcs[:] = [calls.of(name, function) for name, function in named]
        try:
            yield
        finally:
            self.trl.reward_funcs[:] = functions

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        with alone(self.trl), engine_at_hand(self.rollouts, self.trl):
            yield

    @contextmanager
    def _as_if_begun(self) -> Iterator[None]:
        """Reward functions are given the trainer's state, and divide by its number of steps, which
        is 0 until training begins."""
        state, planned = self.trl.state, self.planned_steps
        known, state.max_steps = state.max_steps, state.max_steps or planned or 0
        try:
            yield
        finally:
            state.max_steps = known

    @contextmanager
    def measuring(self) -> Iterator[None]:
        with alone(self.trl), without_hidden_steps(self.trl), self._as_if_begun():
            yield

    def between(self) -> Between | None:
        return between(self.trl)

    def autocast(self) -> AbstractContextManager[Any]:
        found: AbstractContextManager[Any] = self.trl.accelerator.autocast()
        return found

    def engine(self) -> Engine | None:
        """One that delivers only once has done so now."""
        if self.rollouts is None:
            return None
        with self.rollouts.playing(self.trl) as engine:
            return engine

    def record(self) -> Recorded:
        return record(self.trl, self.rollouts, self._correct, self._gold)

    def play(self, rows: Sequence[Mapping[str, Any]], step: int) -> Played:
        # TRL would score them with the reference as well, and nothing is trained on them. The rest
        # of a measurement goes on like this: its passes have no reference to ask for.
        self.trl.state.global_step, self.trl.beta = step, 0.0
        return play(self.trl, rows)

    def logps(self, inputs: Inputs, size: int | None = None) -> Tensor:
        # What was played without the reference cannot be held against it.
        known = "ref_per_token_logps" in inputs
        with swapped(self.trl, beta=self.beta if known else 0.0):
            return trained_logps(self.trl, inputs, size)

    def plain_logps(self, inputs: Inputs) -> Tensor:
        return scoring_logps(self.trl, inputs)

    def paid_again(self, played: Played) -> PaidAgain:
        return paid_again(self.trl, played)

    def adapter_gaps(self, played: Played, logps_BT: Tensor) -> AdapterGaps:
        with without_dropout(self):
            return adapter_gaps(self.trl, played, logps_BT)

    def surprise(self, played: Played) -> Surprise:
        with without_dropout(self):
            return surprise(self.trl, played)

    def reference_logps(self, played: Played) -> Tensor:
        """TRL's own reference pass; without one, the adapter off, or the adapter that TRL keeps as
        reference, as TRL does it."""
        if "ref_per_token_logps" in played.inputs:
            found: Tensor = score_again(self.trl, played)["ref_per_token_logps"]
            return found
        if self.keeps_reference:
            return scoring_logps(self.trl, played.inputs, self.trl.ref_model)
        use_adapter = part_of_trl("trainer.utils").use_adapter
        name = "ref" if "ref" in self.whole_model.peft_config else None
        with use_adapter(self.whole_model, adapter_name=name), without_dropout(self):
            return scoring_logps(self.trl, played.inputs)

    def backward(
        self, played: Played, *, size: int | None = None, beta: float | None = None
    ) -> Backward:
        with swapped(self.trl, beta=self.beta if beta is None else beta):
            if size is None:
                return backward.backward(self.trl, played)
            return backward.backward_in_passes(self.trl, played, size)

    def backward_short(self, played: Played, *, size: int) -> Backward:
        return backward.backward_short(self.trl, played, size)

    def take_step(self, back: Backward, scale: float) -> float:
        return backward.take_step(self.trl, back, scale)

    def data_order(self, steps: int, hops: Mapping[str, int]) -> DataOrder:
        return data_order(self.trl, steps, hops)

    def problems(self) -> Problems:
        return problems(self.trl)

    def unwritable_tokens(self) -> dict[str, int]:
        head = self.whole_model.get_output_embeddings()
        if self.rollouts is None or head is None or head.weight.requires_grad:
            return {}
        return unwritable(self.whole_model, self.rollouts.chat)

    def departures(
        self, order: DataOrder | None, played: Played, few: Played, move: Move, until: float
    ) -> Mapping[str, StageFound]:
        return examine(self.trl, order, played, few, move, until)

    def lines_of(
        self, order: DataOrder | None, played: Played, few: Played, move: Move, found: StageFound
    ) -> tuple[Where, ...]:
        return lines(self.trl, order, played, few, move, found)


def _refuse_what_cannot_be_looked_at(trainer: GrpoTrainer) -> None:
    another = another_algorithm(trainer) or another_inside(trainer)
    if another:
        raise ConfigError(another)
    missing = [
        name
        for name in ("_generate_and_score_completions", "_compute_loss", "accelerator")
        if not hasattr(trainer, name)
    ]
    if missing:
        raise ConfigError(
            f"A {type(trainer).__name__} has no {', '.join(missing)}: it is not a GRPOTrainer.\n"
            "A checkup looks at how TRL samples, scores and steps.\n"
            "Give the trainer itself: `flatline.checkup(trainer)`."
        )
    if not trainer.accelerator.gradient_state.sync_gradients:
        raise ConfigError(
            "This trainer is in the middle of an optimizer step: some of its backward passes are "
            "done, and others are not.\n"
            "A checkup takes its own step, and would leave half a step behind.\n"
            "Call it before `trainer.train()`, or from `on_step_end` of a callback."
        )
    if ranks.count() > 1 and getattr(trainer, "use_vllm", False):
        raise ConfigError(
            f"This trainer samples with vLLM and trains on {ranks.count()} processes.\n"
            "A checkup has every process sample the same prompts, and only one of them speaks to "
            "vLLM.\nRun it on one process (`accelerate launch --num-processes 1`), or on these "
            "with `use_vllm=False`."
        )
