"""What the Subject's measurements return: plain numbers and numpy arrays, no torch.

Arrays end in their axes where it is not plain: R over rollouts of the batch, T flat over the
completion tokens of all rollouts. `rollout_T` says whose token it is and indexes the arrays over R.
Differences of log-probs are in nats.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Texts = NDArray[np.object_]

VISIBLE_STEP = (1e-4, 1e-2)
"""KL per token, in nats, of one optimizer step that moves the policy and does not break it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The batch that all measurements share: played once, in the order it was played."""

    prompt_id_R: Texts
    """The problem's id, or a hash of the prompt."""
    group_R: Ints
    """As GRPO forms them: position // num_generations."""
    advantage_R: Floats
    """As the trainer got it."""
    rollout_T: Ints
    """Which rollout a token belongs to."""
    position_T: Ints
    """Its place in the completion, from 0."""
    ids_T: Ints
    """Token ids."""
    author_T: Ints
    """`flatline.rollout.record.Author`; without records, 2 (TOOL) where the mask says not ours."""
    trained_T: Bools
    """Whether it carries a loss: completion mask times tool mask."""
    sampler_T: Floats | None
    """Log-prob when it was sampled; None where the sampler gives none."""
    trainer_T: Floats
    """Log-prob in the pass that is trained through, dropout off."""

    @property
    def rollouts(self) -> int:
        """How many there are."""
        return len(self.advantage_R)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextEffect:
    """How far the trainer's log-probs move when a part of the context is replaced.

    Healthy: above 0.1 nat on average. Exactly 0: the trainer cannot see that part.
    """

    which: str
    """`prompt` or `tool`."""
    rollouts: Ints
    """Rollouts that have such a context with trained tokens after it; may be empty."""
    replaced: Ints
    """For each of them, how many tokens were replaced by another id."""
    change: Floats
    """For each of them, mean absolute change over the trained tokens after the replaced ones."""
    change_T: Floats
    """Absolute change of every such token, all rollouts in order."""

    @property
    def mean(self) -> float:
        """Over those tokens; NaN where there are none."""
        return float(self.change_T.mean()) if self.change_T.size else float("nan")

    @property
    def max(self) -> float:
        """Of one token; NaN where there are none."""
        return float(self.change_T.max()) if self.change_T.size else float("nan")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredTwice:
    """Largest difference of two identical passes over the batch, on trained tokens.

    Adapters that are still zero hide dropout in front of them, so each pass is also measured with
    the trainable weights moved visibly (`moved_*`).
    """

    trained: float
    """Two passes that would be trained through (model in training mode, gradients on)."""
    scoring: float
    """Two passes without gradients, as TRL takes old and reference log-probs."""
    moved_trained: float
    """As `trained`, weights moved."""
    moved_scoring: float
    """As `scoring`, weights moved."""
    dropout: float
    """Largest p in the model, of layers and of attention."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceGap:
    """Policy minus reference, per trained token, at the current weights."""

    source: str
    """`trainer` (its own reference pass, beta > 0), or `adapter off` (beta is 0; what it would
    be)."""
    rollout_T: Ints
    """Which rollout a token belongs to."""
    position_T: Ints
    """Its place in the completion."""
    ids_T: Ints
    """Token ids."""
    gap_T: Floats
    """Policy minus reference log-prob."""
    untrained: bool | None
    """LoRA: whether every B is still zero, so that the gap must be 0; None without LoRA."""
    moved_gap: float | None
    """LoRA: mean |policy - reference| after the adapters are moved visibly; 0 means that the
    reference moves along. None without LoRA."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AloneVsBatch:
    """The same rollouts scored one at a time without padding, and inside the padded batch."""

    rollouts: Ints
    """Which ones: those with the most padding first."""
    padding: Ints
    """Padding tokens of each inside the batch."""
    difference: Floats
    """Largest absolute difference of each, on trained tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BesideOthers:
    """The same rollouts in the same passes, beside neighbours that say something else."""

    rollouts: int
    """How many were looked at; 0 where every pass has one."""
    change: float
    """Largest change of a log-prob of theirs, on trained tokens. The neighbours are as long as
    before, so that nothing rounds otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """One completion of which some words were changed, a place at a time."""

    prompt: int
    """Tokens in front of it."""
    places: Ints
    """Where each change ends, in tokens of the completion."""
    logp_T: Floats
    """Log-probs without any change."""
    moved_CT: Bools
    """For every change, which tokens have another log-prob after it, if by the last bit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """Experts that the sampler says it chose, against those of the trainer, token by token."""

    layers: int
    """That have experts."""
    differing_R: Floats
    """Share of the choices that differ, of each rollout whose sampler tells its own; empty where
    none does."""
    gap_T: Floats
    """Sampler against trainer on trained tokens of these."""
    rerouted_T: Bools
    """Of these, whether some layer of the token in front of it went to other experts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """Does the sampler follow the trainer's weights, there and back?

    The same few prompts are played at three following steps: with the weights as they are, with
    every trainable weight moved, and with the old ones restored. Gaps are the mean
    |sampler - trainer| over the model's tokens, each play scored with the weights of its state;
    NaN where the sampler gives no log-probs. Where `gap_before` is large already, sampler and
    trainer differ for another reason, which grows and shrinks with the weights too.
    """

    visible: float
    """How far the move shifts the trainer's own log-probs: what there is to be seen."""
    gap_before: float
    """Weights as they are."""
    gap_moved: float
    """Weights moved. A sampler that kept the old ones shows about `visible`."""
    gap_restored: float
    """Weights restored."""
    same_by_chance: float | None
    """Where the moved weights gave the very same tokens: how likely those are, at most, for a
    sampler that follows. None where they gave others, and for our engine, whose random numbers
    depend on the step and whose gaps tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientCensus:
    """Gradients of one optimizer step, before clipping. One entry per trainable tensor."""

    names: tuple[str, ...]
    """Parameter names."""
    kinds: tuple[str, ...]
    """`lora_A`, `lora_B` or `weight`."""
    missing: Bools
    """No gradient at all (`grad is None`)."""
    norms: Floats
    """Norm of the gradient; 0 where missing."""
    in_optimizer: Bools
    """Whether the optimizer holds it."""
    total_norm: float
    """Norm of all gradients together."""
    max_grad_norm: float
    """Where it is clipped; 0 for never."""
    lora_untrained: bool
    """Every B is zero."""
    zero: Bools
    """All elements are 0, as of what is added to a model and must change nothing at first."""
    frozen: int
    """Tensors of the model that are not trainable."""
    sizes: Ints
    """Elements of each tensor."""
    epsilon: float | None
    """What Adam adds to the root of its second moment; None where the optimizer has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OneStep:
    """One real optimizer step on the batch, looked at and undone.

    The optimizer is fresh, as the trainer would create it (or the one it has), and the rate is the
    configured one, without warm-up, times `lr_scale`.
    """

    lr_scale: float
    """What the rate was multiplied with."""
    learning_rate: float
    """The rate of the step."""
    loss: float
    """Sum over the step's backward passes."""
    gradients: GradientCensus
    """What the backward passes left."""
    changed_share: float
    """Share of the trainable elements that are not what they were."""
    changed_share_of: Floats
    """The same per tensor, in the order of `gradients.names`."""
    update_norms: Floats
    """Norm of the change per tensor."""
    rollouts: Ints
    """Rollouts of the batch that the step trained on; those without a loss are none of them."""
    advantage: Floats
    """Of each of them."""
    change: Floats
    """Of each: sum over model-authored tokens of the log-prob after minus before."""
    tokens: Ints
    """Of each: how many model-authored tokens."""
    correlation: float
    """Of `advantage` with `change`; NaN where either does not vary."""
    kl: float
    """Of the step, per model-authored token: mean of exp(d) - d - 1, d = after - before."""
    kl_at_least: float
    """What it certainly is, between rollouts and without what single tokens make of it."""
    change_T: Floats
    """Log-prob after minus before of every trained token."""
    advantage_T: Floats
    """Advantage of each of them."""
    room_T: Floats
    """1 - p of each before the step: how far a gradient can move it."""

    def stopped(self, low: float, high: float) -> float:
        """Share of a second update that a clip to 1 - low and 1 + high would stop: tokens that the
        first has moved beyond, in units of what they could still move; NaN without a gradient."""
        up_T = self.change_T > np.log1p(high)
        down_T = self.change_T < np.log1p(-min(low, 1 - 1e-12))
        beyond_T = np.where(self.advantage_T > 0, up_T, down_T)
        weight_T = np.abs(self.advantage_T) * self.room_T
        return float((weight_T * beyond_T).sum() / weight_T.sum()) if weight_T.any() else np.nan

    @property
    def change_up(self) -> float:
        """Mean change where the advantage is positive."""
        return _mean(self.change[self.advantage > 0])

    @property
    def change_down(self) -> float:
        """Mean change where the advantage is negative."""
        return _mean(self.change[self.advantage < 0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Some prompts of the batch played again, as the next optimizer step would."""

    versions: Ints
    """Weight versions of the next step's rollouts; empty where none is recorded."""
    version_expected: int
    """Optimizer step that they should name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaidAgain:
    """The completions of the batch, paid again by the same reward functions, in weighted sums."""

    before_R: Floats
    """Of one asking after the first, which alone a function that remembers pays otherwise; of the
    first where a judge takes too long to be asked twice more."""
    now_R: Floats
    """Of the next."""
    group_R: Ints
    """Group of each rollout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterGaps:
    """Log-probs of some rollouts beside those with each adapter, and with `none`: mean distance."""

    trained: tuple[str, ...]
    """Adapters that are trained; none where the model has fewer than two."""
    sampler: dict[str, float]
    """From the sampler's; empty where it gives none."""
    scorer: dict[str, float]
    """From those that the loss is taken of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surprise:
    """How likely sampled tokens are, beside how likely the policy's tokens are: sums by rollout."""

    off_R: Floats
    """Log-prob plus entropy: 0 in the mean where tokens are drawn from the policy."""
    entropy_R: Floats
    """Of the policy at these tokens."""
    variance_R: Floats
    """Of the first, where tokens are drawn from the policy."""
    group_R: Ints
    """Group of each rollout."""
    tokens: int
    """Trained tokens of all of them."""
    apart: float
    """Mean distance of the sampler's log-probs from these; 0 where it gives none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageGaps:
    """Mean distances of log-probs with one choice of images from those with another."""

    seen: float
    """Of blank images from a rollout's own."""
    own: float | None
    """Of the sampler's log-probs from those with a rollout's own; None where it gives none."""
    others: tuple[float, ...]
    """The same with the images of the next prompt, of the one after it and so on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldoutPath:
    """Training and held-out evaluation on the same problems with the same random numbers."""

    problems: int
    """How many problems were played."""
    prompts_equal: bool
    """Whether both paths give the model the same prompt tokens."""
    same_completion: float
    """Share of plays in which both paths gave the same completion tokens."""
    training_reward: Floats
    """Reward of each play on the training path, after the trainer's reward functions."""
    heldout_reward: Floats
    """Reward of the same play on the evaluation path."""
    rescored: Floats
    """Evaluation's completions, each scored alone by the trainer's reward functions."""
    limits: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    """Sampling and limits that differ: name -> (training, evaluation)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleCase:
    """A scripted play that the trainer's reward functions get wrong."""

    problem: str
    """Id of the problem."""
    script: str
    """`gold`, or what is wrong with the play."""
    reward: float
    """What the trainer pays for it."""
    gold_reward: float
    """What it pays for gold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Oracle:
    """Scripted episodes scored by the reward functions and weights that the trainer really has."""

    problems: int
    """How many problems were played."""
    gold_R: Floats
    """Reward of gold on each; the maximum is 1."""
    hops_R: Floats
    """Hops of each."""
    below_maximum: tuple[OracleCase, ...]
    """Gold that does not earn the maximum."""
    not_below_gold: tuple[OracleCase, ...]
    """Corruptions that earn no less than gold."""
    played: int
    """Corruptions played in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldTurns:
    """The turns that gold takes, and those that there are."""

    needed: Ints
    """Turns of gold, problem by problem."""
    limit: int
    """Turns of an episode, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problems:
    """What names the problems: their questions, or their prompts."""

    training: tuple[str, ...]
    """Rows of the training data."""
    heldout: tuple[str, ...]
    """Rows that are held out; empty where none are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFit:
    """What the tokenizer and its chat template do, and whether they are the model's."""

    highest_id: int
    """Of all tokens; -1 without any."""
    rows: int
    """Ids that the model has embeddings for."""
    drops_thinking: bool | None
    """Whether the template drops the thinking of earlier turns; None where there is no template, or
    it cannot be tried."""
    doubled: str
    """The token that a templated prompt begins with twice if it is encoded with special tokens;
    empty without any."""
    before_user: str = ""
    """What the template writes in front of a user's first message; empty without a template."""
    unopened: str = ""
    """What the template writes between a prompt and an answer, and leaves out of the prompt
    where the opening of the model's turn is asked for; empty where it leaves out nothing."""
    turn_end: int | None = None
    """The special token with which the template ends the model's turn."""
    end: int | None = None
    """The token that the tokenizer ends a text with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataOrder:
    """Which prompts the trainer will visit, in which order, read off its sampler."""

    step_N: Ints
    """Optimizer step (from 1) of each generated prompt, rising; covers the first steps only."""
    prompt_N: Ints
    """Row of the training data; one entry per group, in order."""
    hops_N: Floats | None
    """Difficulty, where it is known."""
    unique_per_step: Ints
    """Distinct prompts of each of those steps."""
    groups_per_step: Ints
    """Groups of each of those steps; more than distinct prompts means duplicates."""
    groups_whole: bool
    """Whether every run of `num_generations` rows in a generation is one prompt."""
    dataset_size: int
    """Prompts in the training data."""
    visited_share: float
    """Share of them that one epoch generates for."""
    epoch_complete: bool
    """Whether the whole epoch was looked at; a very long one is cut."""
    weighted: bool = False
    """Whether a sampler of the user's own draws as many rows as the data has, some of them several
    times."""


def _mean(values: Floats) -> float:
    return float(values.mean()) if values.size else float("nan")
