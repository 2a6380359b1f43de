"""All stages of one step, in their order."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from flatline.errors import NotRecorded
from flatline.live import ranks
from flatline.live.departure.adapters import judge_adapters, judge_beginning
from flatline.live.departure.advantages import judge_advantages
from flatline.live.departure.loss import (
    CORRECTION,
    OLD,
    Pass,
    apart_by,
    both_stages,
    judge_correction,
    judge_loss,
    log_ratio,
    trained,
    ways_apart,
)
from flatline.live.inputs import Inputs
from flatline.live.measure.moving import Move, moved
from flatline.live.measure.passes import no_dropout
from flatline.live.measure.played import Played
from flatline.live.records import DataOrder
from flatline.live.stage_found import NOT_REACHED, StageFound, departs, unknown
from flatline.live.trl.departure import data, rloo, stepped
from flatline.live.trl.departure.asked import (
    asked_of,
    precision_of,
    refuse_other_trainers,
    tolerance_of,
)
from flatline.live.trl.departure.asked_again import judge_again, judge_unmatchable
from flatline.live.trl.departure.exchanged import judge_exchanged
from flatline.live.trl.departure.gold import judge_gold
from flatline.live.trl.departure.next_rows import DEALT, early_end, rows_depart
from flatline.live.trl.departure.passes import judge_logps, run_passes
from flatline.live.trl.departure.sampled import (
    Sampled,
    drawn_rows,
    judge_completions,
    judge_drawing,
    judge_kept,
    judge_limit,
    judge_sampler,
    own_sampler,
    plays_turns,
    prompts_of,
    sample,
    samples_its_own_way,
)
from flatline.live.trl.departure.scored import Row, Scorer
from flatline.live.trl.departure.turns import judge_turns
from flatline.live.trl.departure.unearned import (
    judge_ambiguous,
    judge_dropped,
    judge_labels,
    judge_leaked,
    judge_opened,
    judge_reset,
    judge_shared,
)
from flatline.live.trl.departure.varied import varied_advantages, varied_rows
from flatline.live.trl.measure.scoring import score_again
from flatline.live.trl.settings import stop_ids
from flatline.live.where.package import TRL, library_of
from flatline.spec import STAGES, Asked, NotSpecified
from flatline.spec.numerics import ADVANTAGE_HERE, ADVANTAGE_PENALISED

GENTLE = 0.1
"""Mean change of a log-prob, in nats, by which the weights are moved before a step is looked at:
enough for every difference to be seen, and no exponential of a KL drowns the rest."""
NOTHING = 1e-6
"""Advantages below this are 0: sums of float32 parts differ in their last bit."""
OF_A_STEP = "passes of a step train on"
"""Words of a finding that passes are given at another time than their number says."""
NOT_GIVEN = "The loss is given no old log-probs"
"""How a finding about it begins."""
UNHEARD = "The sampler cannot be heard."

Found = dict[str, StageFound]


def examine(
    trainer: Any,
    order: DataOrder | None,
    whole: Played,
    some: Played,
    move: Move,
    until: float = math.inf,
) -> Found:
    """Every stage by its name. `whole` is the shared batch, `some` are whole groups of it, for what
    needs the model; `move` says how far weights must go to be seen: at its start a policy is its
    own reference and its own past, and nothing could be told apart. No look begins after `until`;
    those that take longer come later."""
    found: Found = {}

    def look() -> None:
        refuse_other_trainers(trainer, whole.inputs)
        asked = asked_of(trainer, trainer.args.per_device_train_batch_size)
        rows = rows_depart(trainer, asked, order, len(whole.rows)) or data.judge_rows(
            order, asked, whole.rows
        )
        found["rows"] = rows if rows.departs else early_end(trainer) or rows
        trainer.model.train()
        no_dropout(trainer)
        step = Step(trainer, order, whole, some, move, found)
        for one in (step.sampling, step.scoring, step.passing):
            if until < math.inf and ranks.anybody(time.perf_counter() > until):
                _fill(found, NOT_REACHED)
                return
            _guarded(one, found)

    _guarded(look, found)
    return {stage: found[stage] for stage in STAGES}


def _guarded(look: Callable[[], None], found: Found) -> None:
    """What one look cannot do must not cost what the others found."""
    try:
        look()
    except NotSpecified as missing:
        _fill(found, f"Not specified: {missing}.")
    except NotRecorded as missing:
        _fill(found, str(missing))
    except Exception as error:
        _fill(found, f"Could not be compared: {type(error).__name__}: {error}.")


def _fill(found: Found, why: str) -> None:
    for stage in STAGES:
        found.setdefault(stage, unknown(stage, why))


class Step:
    """One step of a trainer, looked at in three pieces."""

    rows: list[Row]
    inputs: Inputs
    start: list[Tensor]
    """Log-probs of the rows where the policy began."""
    old: list[Tensor]
    """Where the trainer scored them: a gentle move away."""
    new: list[Tensor]
    """Where the passes are taken: a little further."""
    given_old: list[Tensor] | None = None
    """What the passes are told the old ones were; None where each takes its own."""
    judged_old: StageFound | None = None
    corrected: StageFound | None = None
    """What departs in the weights for the engine that sampled; None for nothing."""
    prompts: Sequence[Any] = ()
    """That were sampled for."""
    drawn: Sampled | None = None
    """What was sampled for them last."""
    heard: data.Heard
    passes: Sequence[Pass] = ()
    kl_B: Tensor | None = None
    """Of each row, where it is in the reward."""
    learns = True
    """Whether the trainer's own advantages of these rows differ from 0."""
    given_optimizer = ""
    """What the user steps with instead of what the arguments say; empty for that."""
    scored: list[Tensor]
    """Log-probs as the trainer took them when it scored the rows."""
    reference: list[Tensor] | None
    """Of the base under the adapters; None without any."""

    def __init__(
        self,
        trainer: Any,
        order: DataOrder | None,
        whole: Played,
        some: Played,
        move: Move,
        found: Found,
    ) -> None:
        some = _two_groups(trainer, whole, some)
        self.trainer, self.order, self.whole, self.some = trainer, order, whole, some
        self.found = found
        self.visible = move.amount
        self.gentle = move.amount * min(1.0, GENTLE / max(move.shift, 1e-9))
        passes, in_generation = _dealt(trainer.args, len(some.rows))
        size = len(some.rows) // in_generation
        trainer.args.per_device_train_batch_size = size
        trainer.args.gradient_accumulation_steps = passes
        trainer.args.steps_per_generation = in_generation
        trainer.current_gradient_accumulation_steps = passes
        self.asked: Asked = asked_of(trainer, size)
        self.limit = tolerance_of(trainer)
        self.scorer = Scorer(trainer, self.asked.temperature)
        if not own_sampler(trainer):
            self.some = varied_rows(self.asked, some, frozenset(data.ends_of(trainer)))
        self.begun = None
        if not trainer.state.global_step:
            self.begun = judge_beginning(trainer.accelerator.unwrap_model(trainer.model))

    # -- prompts, completions, delivery

    def sampling(self) -> None:
        """A few tokens, with the weights as they are and moved."""
        played, args = self.whole.generated, self.trainer.args
        turns = None if played is None else judge_turns(self.trainer, played.result)
        self.found |= {} if turns is None else {"completions": turns}
        if own_sampler(self.trainer):
            prompted = data.judge_asked(self.trainer, self.whole)
            self.found |= {} if prompted is None else {"prompts": prompted}
            self._not_sampled("Not specified: completions that a sampler of its own gives.")
            return
        group = self.asked.group
        asked = [*self.some.rows[::group], *self.some.rows[1::group]]
        self.prompts = prompts = prompts_of(self.trainer, asked)
        self.drawn = drawn = sample(self.trainer, prompts)
        if drawn is None:
            self._not_sampled(UNHEARD)
            return
        self.found["prompts"] = data.judge_prompts(self.trainer, prompts, drawn.prompts)
        rows = drawn_rows(drawn, drawn.prompts)
        policy = self.scorer.all(rows)
        stops, own = stop_ids(self.trainer), samples_its_own_way(self.trainer)
        self.found["completions"] = (
            turns
            or judge_completions(drawn)
            or judge_kept(self.whole, stops, args.max_completion_length, own)
            or judge_drawing(drawn, args)
            or judge_limit(drawn, args)
            or judge_sampler("completions", drawn, rows, policy, policy, self.limit)
        )
        if not self.visible:
            self.found["delivery"] = unknown("delivery", "The weights were not moved.")
            return
        with moved(self.trainer, self.visible):
            after = sample(self.trainer, prompts)
            if after is None:
                self._not_sampled(UNHEARD)
                return
            self.drawn = after
            rows = drawn_rows(after, drawn.prompts)
            policy = self.scorer.all(rows)
        start = self.scorer.all(rows)
        self.found["delivery"] = judge_sampler("delivery", after, rows, policy, start, self.limit)

    def _not_sampled(self, why: str) -> None:
        """Of what is not known yet."""
        for stage in ("prompts", "completions", "delivery"):
            self.found.setdefault(stage, unknown(stage, why))

    # -- mask, rewards, advantages

    def scoring(self) -> None:
        """What the passes are given."""
        trainer, asked = self.trainer, self.asked
        rows, every = (data.rows_of(trainer, asked, one) for one in (self.some, self.whole))
        if rows is None or every is None:
            raise NotSpecified("a sampler that TRL does not know of")
        self.rows = rows
        self.start = self.scorer.all(rows)
        with moved(trainer, self.gentle), data.hearing(trainer) as heard:
            self.heard = heard
            with rloo.hearing_scores(trainer) as self.scored:
                self.inputs = score_again(trainer, self.some)
            self.old = self.scorer.all(rows)
        self.reference = self.scorer.reference(rows) if asked.beta else None
        if asked.kl_place == "reward" and asked.beta:
            self.kl_B = rloo.distances(rows, *self._penalised())
        turns = own_sampler(trainer) or plays_turns(trainer)
        padded = None if turns else data.judge_ends(trainer, every)
        masked = data.judge_mask(self.whole.inputs, every)
        if not masked.departs and len(self.inputs["completion_ids"]) == len(rows):
            masked = data.judge_mask(self.inputs, rows)
        for one in (masked, padded):
            known = None if one is None else self.found.get(one.stage)
            if one is not None and (known is None or not known.departs):
                self.found[one.stage] = one
        self.found.setdefault("mask", unknown("mask", "Could not be tested: other ids are masked."))
        advantages_B = self.inputs["advantages"]
        paid = data.judge_rewards(trainer, asked, heard, self.some, advantages_B)
        self.found["rewards"] = paid if paid.departs else self._truth(heard) or paid
        limit = ADVANTAGE_HERE if self.kl_B is None else ADVANTAGE_PENALISED
        self.found["advantages"] = judge_advantages(
            asked, heard.arrived_BF, advantages_B, self.kl_B, limit
        )

    def _truth(self, heard: data.Heard) -> StageFound | None:
        """Whether rewards belong to their rows and gold to its question; None where they do."""
        return (
            judge_labels(self.trainer)
            or judge_leaked(self.trainer)
            or judge_ambiguous(self.trainer)
            or judge_opened(self.trainer, heard, self.whole)
            or judge_dropped(self.trainer, heard, self.whole)
            or judge_shared(self.trainer, heard, self.whole)
            or judge_reset(self.trainer, heard, self.whole)
            or judge_again(self.trainer, heard, self.whole)
            or judge_gold(self.trainer, heard, self.order, self.whole)
            or judge_unmatchable(self.trainer, heard)
            or judge_exchanged(self.trainer, self.asked, heard)
        )

    # -- log-probs, ratio and KL, loss, gradient, update

    def passing(self) -> None:
        """The passes and the step, a little further away than where the rows were scored."""
        if not trained(self.inputs).any():
            raise NotRecorded("a trained token in the batch")
        if not any(weight.requires_grad for weight in self.trainer.model.parameters()):
            raise NotRecorded("a trainable weight in the model")
        self.asked.refuse_besides()
        self.given_optimizer = stepped.given_optimizer(self.trainer)
        if self.trainer.optimizer is None:
            self.trainer.create_optimizer()
        own_B = self.inputs["advantages"]
        self.learns = float(own_B.abs().max()) >= NOTHING
        if own_B.dim() == 1:
            whole_B = self.whole.inputs["advantages"].flatten().tolist()
            self.inputs["advantages"] = varied_advantages(self.asked, own_B, whole_B)
        with moved(self.trainer, self.gentle), moved(self.trainer, self.gentle / 2):
            self._go_apart()
            self.trainer.model.zero_grad()
            stepped.called(self.trainer, "on_step_begin")
            passes = run_passes(self.trainer, self.inputs, self.some.rows, self.asked.passes)
            self.passes = passes
            self._dealt(passes)
            raw, handed = stepped.gradients(self.trainer, self.asked.largest_norm)
            self.found["log-probs"] = self._logprobs(passes)
            self._loss(passes)
            self.found["gradient"] = self._gradient(passes, raw, handed)
            self.found["update"] = self._update(handed)

    def _dealt(self, passes: Sequence[Pass]) -> None:
        """Each pass of a step has rows of its own, as long as the generation has rows."""
        rows = [row for one in passes for row in one.rows]
        known = self.found.get("rows")
        enough = self.asked.passes <= self.asked.passes_in_generation
        if enough and len(set(rows)) < len(rows) and known is not None and not known.departs:
            each = [one.rows[:4] for one in passes]
            self.found["rows"] = departs(
                "rows",
                f"{DEALT}{len(passes)} {OF_A_STEP} {len(set(rows))} rows, "
                f"{len(rows)} were expected.",
                f"the passes begin with rows {each}",
            )

    def _go_apart(self) -> None:
        """The passes are given old log-probs from which the policy has gone known ways, so that the
        clip has something to do on either side of it and rounding decides nowhere."""
        self.new = self.scorer.all(self.rows)
        if OLD in self.inputs:
            self._go_apart_as_a_whole()
            return
        old_BT = self.inputs.get("old_per_token_logps")
        if old_BT is None:
            return
        self.judged_old = judge_logps("old", old_BT, self.old, self.rows, self.limit)
        self.corrected = judge_correction(self.asked, self.inputs)
        ways = ways_apart(self.asked, self.limit)
        draw = torch.Generator().manual_seed(0)
        size = (len(old_BT), old_BT.shape[1] if self.asked.level == "token" else 1)
        drawn_BT = torch.randint(len(ways), size, generator=draw).expand(old_BT.shape)
        way_BT = torch.tensor(ways)[drawn_BT].to(old_BT)
        each = zip(self.new, way_BT, self.rows, strict=True)
        self.given_old = [
            apart_by(float(way_T[0]), new_T, row.mask_T)
            if self.asked.level == "product"
            else new_T - way_T[: len(new_T)]
            for new_T, way_T, row in each
        ]
        given_BT = old_BT.clone()
        for k, own_T in enumerate(self.given_old):
            given_BT[k, : len(own_T)] = own_T
        self.inputs = {**self.inputs, "old_per_token_logps": given_BT}

    def _go_apart_as_a_whole(self) -> None:
        """The same where a completion has one ratio."""
        old_B = self.inputs[OLD]
        self.judged_old = rloo.judge_old(old_B, self.old, self.rows, self.limit)
        ways, draw = ways_apart(self.asked, self.limit), torch.Generator().manual_seed(0)
        drawn_B = torch.randint(len(ways), (len(old_B),), generator=draw).tolist()
        each = zip(drawn_B, self.new, self.rows, strict=True)
        old = [apart_by(ways[way], new_T, row.mask_T) for way, new_T, row in each]
        self.inputs = {**self.inputs, OLD: rloo.summed(old, self.rows).to(old_B)}

    def _logprobs(self, passes: Sequence[Pass]) -> StageFound:
        """Of the policy in its passes, of the old policy, of the reference."""
        looks = [one for one in (self.begun, self._old_missing(), self.judged_old) if one]
        adapters = judge_adapters(self.trainer.accelerator.unwrap_model(self.trainer.model))
        looks += [] if adapters is None else [adapters]
        rows = [self.rows[k] for one in passes for k in one.rows]
        known = [row_T for one in passes if one.logps_BT is not None for row_T in one.logps_BT]
        if len(known) == len(rows):
            new = [self.new[k] for one in passes for k in one.rows]
            looks.insert(0, judge_logps("policy's", known, new, rows, self.limit))
        looks += self._judged_reference()
        if not looks:
            return unknown("log-probs", "The loss does not ask for TRL's log-probs.")
        return next((one for one in looks if one.departs), looks[0])

    def _old_missing(self) -> StageFound | None:
        """None where the passes are given the log-probs of the policy that sampled, or need none. A
        loss of the user's own may keep them elsewhere."""
        asked = self.asked
        later = asked.iterations > 1 or asked.passes_in_generation > asked.passes
        given = OLD in self.inputs or self.inputs.get("old_per_token_logps") is not None
        if given or self.own_loss or not later:
            return None
        return departs(
            "log-probs",
            f"{NOT_GIVEN}: every ratio is 1, though steps after the first train on completions of "
            "an older policy.",
            f"num_iterations {asked.iterations}; {asked.passes} of the "
            f"{asked.passes_in_generation} passes of a generation are one step",
        )

    @property
    def own_loss(self) -> bool:
        """Whether a class of the user's has a loss of its own."""
        kind = type(self.trainer)
        methods = (kind.compute_loss, kind._compute_loss)
        return any(library_of(one.__module__) not in (TRL, "transformers") for one in methods)

    @property
    def base(self) -> list[Tensor]:
        """Log-probs of the rows under what the policy began with."""
        return self.start if self.reference is None else self.reference

    def _judged_reference(self) -> list[StageFound]:
        """Where the policy began, or the base under its adapters. A reference that is neither that
        nor the policy may be one that was asked for: it is left alone."""
        found_BT = self._trainers_reference()
        if found_BT is None or not self.asked.beta:
            return []
        judged = judge_logps("reference's", found_BT, self.base, self.rows, self.limit)
        follows = judge_logps("reference's", found_BT, self.old, self.rows, self.limit)
        return [judged] if not (judged.departs and follows.departs) else []

    def _trainers_reference(self) -> Tensor | None:
        """As it is handed on to the loss, or heard where it goes into the reward."""
        if self.asked.kl_place == "loss":
            return self.inputs.get("ref_per_token_logps")
        return self.scored[1] if len(self.scored) > 1 else None

    def _penalised(self) -> tuple[Sequence[Tensor], Sequence[Tensor] | None]:
        """The log-probs that a KL in the reward comes from: the trainer's own, which have a stage
        of their own, or the specified ones where it takes none."""
        if len(self.scored) > 1:
            return list(self.scored[0]), list(self.scored[1])
        return self.old, self.base

    def _specified_reference(self) -> list[Tensor] | None:
        """The trainer's own where another may have been asked for."""
        found_BT = self.inputs.get("ref_per_token_logps")
        if found_BT is None or not self.asked.beta:
            return None
        if self._judged_reference():
            return self.base
        pairs = zip(found_BT, self.rows, strict=True)
        return [row_T[: len(row.completion)] for row_T, row in pairs]

    def _loss(self, passes: Sequence[Pass]) -> None:
        """One look for both stages: the first of them that departs is told."""
        tokens = int(trained(self.inputs).sum())
        judged = self.corrected or judge_loss(self.asked, passes, tokens, self.limit)
        owner = f"`{type(self.trainer).__name__}`" if self.own_loss else ""
        self.found |= both_stages(judged, owner)

    def _gradient(
        self, passes: Sequence[Pass], raw: stepped.Held, handed: stepped.Held
    ) -> StageFound:
        if self.found["loss"].added and self.own_loss:
            return unknown("gradient", "The loss has a term of its own, which is not specified.")
        reference = self._specified_reference()
        if self.asked.beta and self.asked.kl_place == "loss" and reference is None:
            return unknown("gradient", "The reference is not known.")
        if self.asked.entropy_share < 1 and precision_of(self.trainer) != "fp32":
            return unknown("gradient", "Rounding decides which tokens have the highest entropy.")
        if not self.learns:
            # Where a policy writes one thing alone, its gradient is the rounding of log-probs.
            return unknown("gradient", "No reward differs in its group.")
        self.trainer.model.zero_grad()
        stepped.specified_gradient(
            self.asked,
            self.scorer,
            self.rows,
            [one.rows for one in passes],
            self.inputs["advantages"],
            self._ratios_of(passes) if self.asked.level == "product" else self.given_old,
            reference,
            self._corrections(),
        )
        return stepped.judge_gradient(self.trainer, raw, handed, self.asked, self.limit)

    def _corrections(self) -> list[Tensor] | None:
        """What each row's tokens are weighted with for the engine that sampled them."""
        given_BT = self.inputs.get(CORRECTION)
        if given_BT is None:
            return None
        given_BT = given_BT.expand(-1, self.inputs["completion_ids"].shape[1])
        pairs = zip(given_BT, self.rows, strict=True)
        return [given_T[: len(row.completion)] for given_T, row in pairs]

    def _ratios_of(self, passes: Sequence[Pass]) -> list[Tensor] | None:
        """Old log-probs from which each completion has gone as far as in its pass: the roundings of
        its tokens add up in a product, and the ratio has a stage of its own."""
        found: dict[int, Tensor] = {}
        for one in passes:
            if one.logps_BT is None:
                return None
            mask_BT = trained(one.inputs)
            ways_B = log_ratio(self.asked, one.inputs, one.logps_BT, mask_BT)[:, 0]
            for way, k in zip(ways_B.tolist(), one.rows, strict=True):
                found[k] = apart_by(way, self.new[k], self.rows[k].mask_T)
        return [found.get(k, new_T) for k, new_T in enumerate(self.new)]

    def _update(self, handed: stepped.Held) -> StageFound:
        schedule = stepped.judge_schedule(self.trainer, self.asked)
        if self.given_optimizer:
            astray = stepped.judge_any_step(self.trainer, handed) or schedule
            return astray or unknown("update", f"Not specified: {self.given_optimizer}.")
        judged = stepped.judge_update(self.trainer, self.asked, handed, self.limit)
        judged = replace(judged, text=f"{judged.text}{self._learned()}")
        return judged if judged.departs or schedule is None else schedule

    def _learned(self) -> str:
        """Whether what was rewarded became more likely, in words; empty where nothing differs."""
        changes = []
        for before_T, after_T, row in zip(
            self.new, self.scorer.all(self.rows), self.rows, strict=True
        ):
            changes.append(float((after_T - before_T)[row.mask_T.to(after_T.device)].sum()))
        advantages_B = self.inputs["advantages"]
        if advantages_B.dim() != 1:
            return ""
        both = torch.tensor([advantages_B.tolist(), changes])
        if not bool((both.std(1) > 0).all()):
            return ""
        return (
            f" Advantages and changes of log-probs have a correlation of "
            f"{float(torch.corrcoef(both)[0, 1]):+.2f} over {both.shape[1]} completions."
        )


def _two_groups(trainer: Any, whole: Played, some: Played) -> Played:
    """With a second group where the whole batch scales advantages: of one, both are the same."""
    asked, group = asked_of(trainer, len(some.rows)), trainer.args.num_generations
    of_batch = asked.scale in ("batch", "advantages") or asked.aggregation == "normalize_then_sum"
    if not of_batch or len(some.rows) > group or len(whole.rows) < 2 * group:
        return some
    spread = whole.inputs["advantages"].abs().reshape(len(whole.rows) // group, -1).amax(1)
    two = sorted(spread.argsort(descending=True, stable=True)[:2].tolist())
    return whole.part([row for at in two for row in range(at * group, (at + 1) * group)])


def _dealt(args: Any, rows: int) -> tuple[int, int]:
    """Passes of a step and of a generation, near to those asked for, that share `rows` evenly."""
    steps = max(1, args.steps_per_generation // args.gradient_accumulation_steps)
    if rows % steps:
        steps = 1
    passes = math.gcd(rows // steps, args.gradient_accumulation_steps)
    return passes, passes * steps
