"""`Subject`: one method per measurement, each taken once."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from torch import Tensor

from flatline.errors import NotReached, NotRecorded
from flatline.live import ranks
from flatline.live.facts import dropout_of
from flatline.live.measure import passes, replay, step, stepped
from flatline.live.measure.context import Which, context_effect
from flatline.live.measure.images import image_gaps
from flatline.live.measure.moving import Move, visible_move
from flatline.live.measure.part_of_batch import few, half, together
from flatline.live.measure.played import Played, Recorded, batch_of, fixed_logps
from flatline.live.measure.reach import reaches
from flatline.live.measure.routing import routing
from flatline.live.measure.tokenizer import tokenizer_fit
from flatline.live.protocol import Capability, Trainer, needs
from flatline.live.records import (
    AdapterGaps,
    AloneVsBatch,
    Batch,
    BesideOthers,
    ContextEffect,
    DataOrder,
    Delivery,
    Floats,
    GoldTurns,
    HeldoutPath,
    ImageGaps,
    OneStep,
    Oracle,
    PaidAgain,
    Problems,
    Reach,
    ReferenceGap,
    Replay,
    Routing,
    ScoredTwice,
    Surprise,
    TokenizerFit,
)
from flatline.live.restore.calls import Calls
from flatline.live.restore.snapshot import Snapshot, differing, digest_of
from flatline.live.restore.tell import PutBack, beforehand, listed
from flatline.live.stage_found import StageFound
from flatline.live.step_records import Accumulation, Between, KlPull, SteppedDelivery
from flatline.live.where.place import Where
from flatline.trace import Trace
from flatline.trace.announce import say

T = TypeVar("T")


class Subject:
    """A live training, TRL's or a loop of one's own. Cheap measurements first, as in a checkup.

    A measurement that this trainer cannot give (no tools, no sampler log-probs, not one of ours)
    raises `NotRecorded`, which a checkup turns into "cannot tell"; where the docstring says so it
    returns None or empty arrays instead, because that itself is the answer.
    """

    def __init__(self, live: Trainer) -> None:
        self.live = live
        self.until = math.inf
        """No measurement begins after this, by `time.perf_counter()`."""
        self._taken: dict[Any, Any] = {}
        self._snapshot: Snapshot | None = None
        """What measurements go back to while nobody trains."""
        self._told = False
        """Whether it was said what cannot be put back."""
        self.put_back: PutBack | None = None
        """How this process was left; None until somebody stood still."""

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
        return self.live.settings

    @property
    def epsilon_high(self) -> float | None:
        """How far the ratio may rise above 1; None where only `epsilon` is known."""
        return self.live.epsilon_high

    @property
    def planned_steps(self) -> int | None:
        """Optimizer steps of the run; None where neither they nor what an epoch has are known."""
        return self.live.planned_steps

    # -- data and reward: no model

    @needs(Capability.DATA_ORDER)
    def data_order(self, steps: int = 20) -> DataOrder:
        """What the trainer's sampler will visit in its first steps, and over an epoch."""
        return self._take(("order", steps), self.live.data_order, steps, self._hops())

    @needs(Capability.HELDOUT)
    def problems(self) -> Problems:
        """What names the training problems, and the held-out ones."""
        return self._take("problems", self.live.problems)

    @needs(Capability.TOKENIZER)
    def tokenizer_fit(self) -> TokenizerFit:
        """What tokenizer and chat template do, and whether they are the model's."""
        return self._take("tokenizer", tokenizer_fit, self.live.tokenizer, self.live.whole_model)

    @needs(Capability.GOLD)
    def oracle(self, problems: int = 16) -> Oracle:
        """Gold and corruptions through the trainer's reward functions. Ours only."""
        raise NotRecorded("task.gold")

    @needs(Capability.GOLD)
    def gold_turns(self, problems: int) -> GoldTurns:
        """How many turns gold takes, of a task with tools. Ours only."""
        raise NotRecorded("task.gold")

    # -- one batch, no update

    @property
    @needs(Capability.BATCH)
    def batch(self) -> Batch:
        """The batch that all measurements share."""
        return self._take("batch", batch_of, self._played, self._logps_BT, self.live.group)

    @property
    @needs(Capability.BATCH)
    def trace(self) -> Trace:
        """That batch as a trace of one step, so that every sign on one batch can be read."""
        return self._recorded.trace

    @needs(Capability.SCORE, Capability.WEIGHTS)
    def scored_twice(self) -> ScoredTwice:
        """Two identical passes, as trained through and as scored."""
        return self._take("twice", passes.scored_twice, self.live, self._fewer, self._move)

    @needs(Capability.SCORE)
    def context_effect(self, which: Which) -> ContextEffect:
        """Replace the question, or the tools' output, and score again. Empty without any."""
        before = (self._few_logps_BT, self._together)
        given = (self.live, self._played, self._few_rows, *before, which)
        return self._take(("context", which), context_effect, *given)

    @needs(Capability.REWARD)
    def paid_again(self) -> PaidAgain:
        """The completions of the batch, paid again by the same reward functions."""
        return self._take("paid", self.live.paid_again, self._played)

    @needs(Capability.SCORE)
    def image_gaps(self) -> ImageGaps | None:
        """Whose images the sampler saw; None where the model is shown none."""
        return self._take("images", image_gaps, self.live, self._few)

    @needs(Capability.ENTROPY)
    def surprise(self) -> Surprise:
        """How likely sampled tokens are beside the entropy of the policy."""
        return self._take("surprise", self.live.surprise, self._played)

    @needs(Capability.ADAPTERS)
    def adapter_gaps(self) -> AdapterGaps:
        """Whose log-probs the sampler's are, and those that the loss is taken of."""
        given = (self._few, self._few_logps_BT)
        return self._take("adapters", self.live.adapter_gaps, *given)

    @needs(Capability.REFERENCE)
    def reference_gap(self) -> ReferenceGap | None:
        """Policy minus reference; None where there is no reference and no adapter."""
        # What another sampler left behind may not be cut down to some of the rollouts.
        some = self._few if self.live.may_be_parted else self._played
        moving = (self._move, some) if passes.has_adapters(self.live) else None
        given = (self.live, self._played, self.batch, self._logps_BT, moving)
        return self._take("reference", passes.reference_gap, *given)

    @needs(Capability.SCORE)
    def alone_vs_batch(self, rollouts: int = 4) -> AloneVsBatch:
        """Some rollouts scored alone and inside the padded batch."""
        given = (self.live, self._played, self._logps_BT, rollouts)
        return self._take(("alone", rollouts), passes.alone_vs_batch, *given)

    @needs(Capability.SCORE)
    def beside_others(self) -> BesideOthers:
        """Some rollouts, after their neighbours in the pass were given other words."""
        given = (self.live, self._few, max(1, min(self._together, self.live.size)))
        return self._take("beside", passes.beside_others, *given)

    @needs(Capability.SCORE)
    def reaches(self) -> tuple[Reach, ...]:
        """The longest completions: which later tokens a change of some of their words reaches."""
        return self._take("reaches", reaches, self.live, self._played)

    @needs(Capability.SCORE)
    def routing(self) -> Routing | None:
        """Experts of the sampler against those of the trainer; None of a model without any."""
        return self._take("routing", routing, self.live, self._played)

    def unwritable_tokens(self) -> dict[str, int]:
        """Tokens of the format that frozen output rows cannot tell from others. Ours only."""
        return self.live.unwritable_tokens()

    # -- one update

    @needs(Capability.GRADIENT, Capability.STEP)
    def one_step(self, lr_scale: float = 1.0) -> OneStep:
        """One optimizer step on the batch, measured and undone. Each scale is measured once."""
        return self._stepped(lr_scale).found

    @needs(Capability.GRADIENT, Capability.STEP)
    def fitting_step(self) -> OneStep | None:
        """A step of a sound size, at a rate that was tried; None where no plausible rate has one.
        The backward pass is shared, so a further rate is cheap."""
        return step.fitting(self.one_step)

    @needs(Capability.PASSES)
    def accumulation(self) -> Accumulation | None:
        """The gradient of some rollouts in more passes; None where a pass cannot be halved."""
        return self._take("accumulation", stepped.accumulation, self.live, self._fewer)

    @needs(Capability.GRADIENT)
    def gradient_twice(self) -> float:
        """Cosine of two gradients of the batch: 1 unless a pass draws; NaN without a gradient."""
        given = (self.live, self._played, self._backward)
        return self._take("gradient twice", stepped.gradient_twice, *given)

    @needs(Capability.GRADIENT, Capability.STEP, Capability.REFERENCE)
    def kl_pull(self) -> KlPull | None:
        """Reward and KL parts of the gradient after one step; None where beta is 0."""
        if self.live.beta == 0:
            return None
        self.live.require(Capability.PASSES)  # with another weight of the KL
        given = (self.live, self._few, self._backward)
        return self._take("kl pull", stepped.kl_pull, *given)

    @needs(Capability.SPECIFICATION)
    def departures(self) -> Mapping[str, StageFound]:
        """One real step beside the specified one, stage by stage (`flatline.spec.STAGES`)."""
        given = (self._countable_order(), self._played, *self._specified_on, self.until)
        return self._take("departures", self.live.departures, *given)

    @needs(Capability.SPECIFICATION)
    def lines_of(self, found: StageFound) -> tuple[Where, ...]:
        """Lines of the running code that may have made a stage what it is, likeliest first."""
        given = (self._countable_order(), self._played, *self._specified_on, found)
        return self._take(("lines", found.stage), self.live.lines_of, *given)

    # -- more play

    @needs(Capability.SAMPLE, Capability.STEP)
    def stepped_delivery(self) -> SteppedDelivery:
        """Take one optimizer step and play: does the sampler follow a change of real size?"""
        some, after_BT = self._some, self._stepped(1.0).after_BT
        visible = stepped.mean_change(self._played, len(some.rows), self._logps_BT, after_BT)
        given = (self.live, some, self._backward, visible, self._gap)
        return self._take("stepped", stepped.stepped_delivery, *given)

    @needs(Capability.SAMPLE, Capability.WEIGHTS)
    def delivery(self) -> Delivery:
        """Move the weights, play, restore, play: does the sampler follow there and back?"""
        return self._there_and_back[0]

    @needs(Capability.SAMPLE, Capability.WEIGHTS)
    def play_again(self) -> Replay:
        """Some of the prompts, as the next optimizer step would play them."""
        return self._there_and_back[1]

    @needs(Capability.EVALUATION)
    def heldout_path(self, problems: int = 4) -> HeldoutPath:
        """Training against held-out evaluation on prompts of the batch. Ours only."""
        raise NotRecorded("steps.heldout_reward")

    @needs(Capability.GOLD)
    def solved(self, first: int, last: int) -> Floats:
        """Whether each of some training problems is solved, played once. Ours only."""
        raise NotRecorded("task.problems")

    @contextmanager
    def untouched(self) -> Iterator[None]:
        """What happens inside leaves no mark on the trainer."""
        # What is inside another measurement goes back to the middle of that, not to the start.
        snapshot, self._snapshot = self._snapshot, None
        try:
            with self.live.measuring(), (snapshot or self.live.snapshot()).kept():
                yield
        finally:
            self._snapshot = snapshot

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """Nobody trains inside: every measurement goes back to one and the same snapshot, which
        takes longer to make than many a measurement. They share the engine too: on a GPU it records
        its steps, and a new one would have to record them again."""
        calls = Calls()
        with self.live.counting(calls):
            with suppress(Exception):
                self.between()
            with self.live.standing_still():
                snapshot = self._snapshot = self._said(self.live.snapshot())
                before = snapshot.digests()
                try:
                    yield
                finally:
                    self._snapshot = None
                    after = snapshot.digests()
                    self.put_back = PutBack(
                        kept=snapshot.size,
                        before=digest_of(before),
                        after=digest_of(after),
                        differs=differing(before, after),
                        not_kept=snapshot.not_kept,
                        not_looked_into=snapshot.not_looked_into,
                        calls=dict(calls.counted),
                    )
                    if self.put_back.differs:
                        say(f"not put back as it was: {listed(self.put_back.differs)}.")

    def _said(self, snapshot: Snapshot) -> Snapshot:
        """What it cannot keep is said once, before anything is tried."""
        text = "" if self._told or ranks.number() else beforehand(snapshot.not_kept)
        self._told = True
        if text:
            say(text)
        return snapshot

    def between(self) -> Between | None:
        """One real step of all processes together; None where there is one. It is taken before
        these are looked at as one."""
        if ranks.count() == 1:
            return None
        if "between" not in self._taken:
            try:
                with ranks.agreeing(), self._said(self.live.snapshot()).kept():
                    self._taken["between"] = self.live.between()
            except Exception as error:
                self._taken["between"] = error
        return self._take("between", self.live.between)

    # -- what the measurements share

    @property
    def _recorded(self) -> Recorded:
        """The first batch of the trainer's own loader."""
        return self._take("recorded", self.live.record)

    @property
    def _played(self) -> Played:
        """That batch, as tensors."""
        return self._recorded.played

    @property
    def _there_and_back(self) -> tuple[Delivery, Replay]:
        """Plays at the next steps, which tell both of the delivery and of the next step."""
        with suppress(NotRecorded):
            self.heldout_path()  # a sampler that does not come back would spoil a later play
        given = (self.live, self._some, self._move, self._gap)
        return self._take("delivery", replay.there_and_back, *given)

    @property
    def _backward(self) -> step.Backward:
        """The gradients of one optimizer step on the batch."""
        return self._take("backward", self.live.backward, self._played)

    def _stepped(self, lr_scale: float) -> step.Stepped:
        """The step, with what it does to every token."""
        given = (self.live, self._played, self._logps_BT, self._backward, lr_scale)
        return self._take(("step", lr_scale), step.one_step, *given)

    @property
    def _some(self) -> Played:
        """The first groups of the batch, whose prompts are played again."""
        played = self._played
        return self._take("some", played.part, range(replay.PROMPTS * self.live.group))

    @property
    def _gap(self) -> float:
        """How far sampler and trainer are apart on these, before anything is changed."""
        return self._take("gap", replay.played_gap, self.live, self._some)

    @property
    def _few_rows(self) -> list[int]:
        """Rollouts that stand for the batch where all of it would only cost."""
        return self._take("few rows", few, self._played, self.live.group)

    @property
    def _few(self) -> Played:
        """These, as a batch of their own. What is compared on them is compared on trained tokens:
        where a batch has none, nothing can be determined."""
        if not self._played.trained_B.any():
            raise NotRecorded("a trained token in the batch")
        return self._take("few", self._played.part, self._few_rows)

    @property
    def _specified_on(self) -> tuple[Played, Move]:
        """Some rollouts, and how far to move the weights. Where no token is trained there is no
        reason to move them, and the stages up to the mask can still be tested."""
        if self._played.trained_B.any():
            return self._few, self._move
        return self._take("few", self._played.part, self._few_rows), Move(0.0, 0.0)

    @property
    def _fewer(self) -> Played:
        """Half of these, for what one pass could tell."""
        return self._take("fewer", lambda: self._few.part(half(self._few)))

    @property
    def _few_logps_BT(self) -> Tensor:
        """The trainer's log-probs of these alone: in another shape they round otherwise."""
        given = (self.live, self._few.inputs, self._together)
        return self._take("few logps", fixed_logps, *given)

    @property
    def _together(self) -> int:
        """How many of these are scored at a time."""
        size = self.live.size
        return together(size, self._played, self._few)

    @property
    def _logps_BT(self) -> Tensor:
        """The trainer's log-probs of the batch, dropout off."""
        if dropout_of(self.live.model) == 0:
            return self._recorded.logps_BT
        return self._take("logps", fixed_logps, self.live, self._played.inputs)

    @property
    def _move(self) -> Move:
        """How far the trainable weights must be moved to be seen; not at all where they cannot."""
        if Capability.WEIGHTS not in self.live.can:
            return Move(0.0, 0.0)
        given = (self.live, self._few, self._few_logps_BT, self._together)
        return self._take("move", visible_move, *given)

    def _countable_order(self) -> DataOrder | None:
        """None for data that cannot be counted, such as a stream."""
        with suppress(Exception):
            return self.data_order()
        return None

    def _take(self, name: Any, measure: Callable[..., T], *given: Any) -> T:
        """Measure once, without leaving a mark; what failed once is not tried again."""
        if name not in self._taken:
            if self.until < math.inf and ranks.anybody(time.perf_counter() > self.until):
                raise NotReached
            try:
                with ranks.agreeing(), self.untouched():
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
