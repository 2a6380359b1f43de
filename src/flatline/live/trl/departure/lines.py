"""Where in the running code a stage was made that departs.

The piece of the step that makes the stage is run once more and followed statement by statement; the
wrong value is known, and so are most of the right ones on the way to it.
"""

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from flatline.live.departure import adapters
from flatline.live.departure.loss import OLD, Pass, trained, worst_pass
from flatline.live.departure.rights import of_pass
from flatline.live.hooks import Patch
from flatline.live.inputs import Inputs
from flatline.live.measure.moving import Move, moved
from flatline.live.measure.passes import no_dropout
from flatline.live.measure.played import Played
from flatline.live.records import DataOrder
from flatline.live.stage_found import StageFound
from flatline.live.trl.departure import data, rights, stepped, turns
from flatline.live.trl.departure.asked import precision_of
from flatline.live.trl.departure.exchanged import OPENING, pay_for_gold
from flatline.live.trl.departure.next_rows import (
    DEALT,
    LENGTH,
    LOADED,
    REPEATED,
    SEED,
    UNMIXED,
    dealt_out,
)
from flatline.live.trl.departure.sampled import CHOOSING, KEPT, plays_turns
from flatline.live.trl.departure.stages import NOT_GIVEN, OF_A_STEP, Step
from flatline.live.trl.departure.turns import wrong_replies
from flatline.live.trl.grpo import scorer_of
from flatline.live.trl.settings import stop_ids
from flatline.live.where.attributes import naming, with_what_was_set
from flatline.live.where.place import Where, place_of
from flatline.live.where.ranking import Trail, is_own
from flatline.live.where.specified import Right, Specified
from flatline.live.where.statements import Statement
from flatline.live.where.tracing import RETURNED, CannotFollow, Event, Follower
from flatline.live.where.values import Copies, Value, says
from flatline.spec.completions import said

SHOWN = 5
"""Lines of a finding."""
TOLERANCE = {"fp32": 1e-3}
"""By precision, of a value's largest element; anything coarser gets `COARSE`."""
COARSE = 0.05
SCHEDULED = 8
"""Steps of a schedule that are followed."""
TURNS_LOOP = "_tool_call_loop"
"""Where TRL plays turns."""
ARRIVE = "._calculate_rewards"
"""Where TRL takes what reward functions pay."""
SAMPLED = ("prompts", "completions", "delivery")
SCORED = ("mask", "rewards", "advantages")
NARROWED = ("advantages", "ratio and KL", "loss")
"""Stages whose findings say by how much a value is another, in sizes of the largest."""
LEAST = {"advantages": 1e-6}
"""What float32 may round of a value of such a stage; of what comes from log-probs, their limit."""
NARROW = 0.2
"""Share of that by which values on the way must agree."""
WITHOUT_KL = "what would come without the KL"
"""Words of a finding that nothing is missing but the KL."""
PASSED = ("log-probs", "ratio and KL", "loss", "gradient")


def lines(
    trainer: Any,
    order: DataOrder | None,
    whole: Played,
    some: Played,
    move: Move,
    found: StageFound,
) -> tuple[Where, ...]:
    """Of a stage that departs, the likeliest first; empty where nothing can be said."""
    if getattr(trainer.args, "torch_compile", False):
        raise CannotFollow("compiled code cannot be followed")
    if not any(weight.requires_grad for weight in trainer.model.parameters()):
        return ()  # no statement of the step makes a weight trainable
    trainer.model.train()
    no_dropout(trainer)
    if found.text.startswith(stepped.KEPT):
        dtype = found.text.removeprefix(stepped.KEPT).split()[0]
        return tuple(dict.fromkeys(place_of(*one) for one in naming(trainer, dtype)))[:SHOWN]
    ready_made = list(_set_before(trainer, found))
    if ready_made:
        return tuple(dict.fromkeys(place_of(*one) for one in ready_made))[:SHOWN]
    search = _Search(Step(trainer, order, whole, some, move, {}), found)
    told = with_what_was_set(trainer, search.events(), lambda name: _not_as_asked(trainer, name))
    return tuple(dict.fromkeys(place_of(*one) for one in told))[:SHOWN]


def _set_before(trainer: Any, found: StageFound) -> Iterator[tuple[Statement, str]]:
    """What was set before the step and does not run again in it."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    yield from adapters.set_before(model, found)
    if found.text.startswith(DEALT) and trainer._step and not trainer.state.global_step:
        yield from naming(trainer, "self._step = ")


def _not_as_asked(trainer: Any, name: str) -> bool:
    """Whether the trainer keeps another value than the arguments have under the same name."""
    asked, kept = getattr(trainer.args, name, None), getattr(trainer, name, None)
    if name == "generation_config":
        return _draws_otherwise(trainer, kept)
    kept = kept.tolist() if isinstance(kept, Tensor) else kept
    plain = isinstance(asked, bool | int | float | str | list)
    return plain and type(kept) in (bool, int, float, str, list) and not _equal(asked, kept)


def _draws_otherwise(trainer: Any, config: Any) -> bool:
    """Whether `generate` is told anything else than the arguments say."""
    told = {"do_sample": True, "max_new_tokens": trainer.args.max_completion_length}
    told |= {name: getattr(trainer.args, name, None) for name in ("temperature", *CHOOSING)}
    told |= getattr(trainer.args, "generation_kwargs", None) or {}
    return any(
        value is not None and getattr(config, name, value) != value for name, value in told.items()
    )


def _equal(asked: Any, kept: Any) -> bool:
    if isinstance(asked, list):
        return len(asked) == len(kept) and all(map(_equal, asked, kept))
    both = isinstance(asked, int | float) and isinstance(kept, int | float)
    return math.isclose(asked, kept, rel_tol=1e-6) if both else bool(asked == kept)


class _Search:
    """One stage, run once more and followed."""

    def __init__(self, step: Step, found: StageFound) -> None:
        self.step, self.found = step, found
        self.follower = Follower()

    def events(self) -> list[Event]:
        stage = self.found.stage
        handed_on = any(words in self.found.text for words in data.HANDED_ON)
        if stage in SAMPLED and not handed_on:
            return self._sampled()
        if stage in SCORED or handed_on:
            return self._scored()
        if stage in PASSED:
            return self._passed()
        if self.found.text.startswith(stepped.OTHER_SCHEDULE):
            return self._scheduled()
        return self._rows() if stage == "rows" else self._own(self._stepped)

    def _turns(self) -> list[Event]:
        """Who made what stands between turns, then TRL's loop over them."""
        trainer, played, drawn = self.step.trainer, list[Any](), list[Specified]()
        stops = stop_ids(trainer)

        def listening(generate: Any, *args: Any, **kwargs: Any) -> Any:
            played.append(generate(*args, **kwargs))
            return played[-1]

        def drawing(generate: Any, *args: Any, **kwargs: Any) -> Any:
            found = generate(*args, **kwargs)
            new = found[:, kwargs["input_ids"].shape[1] :].tolist()
            rows = tuple(torch.tensor(said(ids, stops)).double() for ids in new)
            drawn.append(Specified("drawn", rows))
            return found

        model = trainer.accelerator.unwrap_model(trainer.model)
        with (
            Patch(model, "generate", drawing),
            Patch(trainer, "_generate", listening),
            self.follower.following(),
        ):
            trainer._generate_and_score_completions(copy.deepcopy(list(self.step.some.rows)))
        loop = [one for one in self.follower.events if one.function.endswith(f".{TURNS_LOOP}")]
        return [*self._between(played[0], drawn), *loop]

    def _between(self, result: Any, drawn: Sequence[Specified]) -> list[Event]:
        right = Right(drawn, self._tolerance)
        trail, text = Trail(self.follower.events, right), self.found.text
        if text.startswith(KEPT):
            whole = [row.tolist() for one in drawn for row in one.content]
            written = [turn for pair in zip(*result[1:3], strict=True) for turn in turns.own(*pair)]
            return self._ranked(right, [turn for turn in written if turn not in whole])
        if turns.UNTOLD in text:
            messages = self.follower.copies.of(result[3])
            return [] if messages is None else trail.writing(messages)
        if turns.BEYOND in text:
            return trail.left(TURNS_LOOP)
        if turns.NOT_RUN in text:
            return self._first_of_loop(trail, _tells_error)
        if turns.OTHERS_REPLY in text:
            return self._first_of_loop(trail, _is_reply)
        if self.found.row is not None:
            return trail.dropped(self.found.row) or trail.left(TURNS_LOOP)
        wrong = [
            self.follower.copies.of(ids) for ids, _ in wrong_replies(self.step.trainer, result)
        ]
        made = [trail.maker(one) for one in wrong if one is not None]
        return [two for one in made[:1] if one is not None for two in trail.behind(one)]

    def _first_of_loop(self, trail: Trail, wrote: Callable[[Value], bool]) -> list[Event]:
        """The first statement of TRL's loop over turns that wrote such a thing, the condition that
        chose it, and what is behind it."""
        inside = (one for one in self.follower.events if one.function.endswith(f".{TURNS_LOOP}"))
        first = next((one for one in inside if any(map(wrote, one.writes.values()))), None)
        return [] if first is None else [first, *trail.chosen_by(first), *trail.behind(first)]

    def _sampled(self) -> list[Event]:
        if self.found.text.startswith(turns.OPENING):
            return self._turns()
        step, asked, generated = self.step, list[Any](), list[Specified]()
        calls = list[Any]()
        model = step.trainer.accelerator.unwrap_model(step.trainer.model)

        def listening(generate: Any, *args: Any, **kwargs: Any) -> Any:
            asked.extend(kwargs.get(name) for name in ("input_ids", "attention_mask"))
            asked.append(self.follower.now())
            drawn = generate(*args, **kwargs)
            calls.append(drawn[:, kwargs["input_ids"].shape[1] :].tolist())
            generated.append(Specified("generated ids", drawn.detach().double().cpu()))
            return drawn

        if self.found.text.startswith(KEPT) and plays_turns(step.trainer):
            return self._turns()
        if self.found.text.startswith(KEPT):
            return self._not_kept(model, listening, generated, calls, asked)
        with Patch(model, "generate", listening), self.follower.following():
            step.sampling()
        if step.drawn is None:
            return []
        right = Right([*rights.of_sampling(step), *generated], self._tolerance)
        if self.found.stage == "prompts":
            return self._ranked(right, [step.drawn.prompts])
        called = [one for one in asked if isinstance(one, Event)][:1]
        if "trains on other completions" in self.found.text:
            return self._ranked(right, [step.drawn.given]) or self._behind(called)
        given = [self.follower.copies.of(one) for one in asked[:2]]
        wrong = [one for one in given if one is not None and not right.name(one)]
        return [*self._ranked(right, wrong), *called] if wrong else [*self._own_events(), *called]

    def _behind(self, called: Sequence[Event]) -> list[Event]:
        """What ran in the same function after a call, the last first."""
        ran = [
            one
            for one in self.follower.events
            for call in called
            if one.function == call.function and one.number > call.number
        ]
        return [*reversed(ran), *called]

    def _not_kept(
        self,
        model: Any,
        listening: Any,
        generated: list[Specified],
        calls: list[Any],
        asked: list[Any],
    ) -> list[Event]:
        """Of whole completions: where what was drawn for them is cut."""
        trainer, stops = self.step.trainer, stop_ids(self.step.trainer)
        prompts = [row["prompt"] for row in self.step.some.rows]
        with Patch(model, "generate", listening), self.follower.following():
            given = trainer._generate(copy.deepcopy(prompts))[1]
        drawn = [torch.tensor(said(ids, stops)).double() for ids in calls[0]]
        ends = torch.tensor([len(ids) - 1 for ids in drawn]).double()
        right = [*generated, Specified("completion ids", tuple(drawn)), Specified("ends", ends)]
        right.append(Specified("drawn", torch.tensor(calls[0]).double()))
        called = [one for one in asked if isinstance(one, Event)][:1]
        return self._ranked(Right(right, self._tolerance), [given]) or self._behind(called)

    def _own(self, act: Callable[[], None]) -> list[Event]:
        """The statements of the piece that are the user's own."""
        with self.follower.following():
            act()
        return self._own_events()

    def _scheduled(self) -> list[Event]:
        """The user's own statements, else those of the function that gives the rates."""
        from transformers import optimization

        step = self.step
        self.follower = Follower(optimization.__file__ or "")
        with self.follower.following():
            list(islice(stepped.rates(step.trainer, step.asked), SCHEDULED))
        warmup = getattr(step.trainer.args, "get_warmup_steps", lambda _: None)(step.asked.steps)
        told = {"num_training_steps": step.asked.steps, "num_warmup_steps": warmup}
        events = self.follower.events
        return self._own_events() or [*_last_to_know(events, told), *_last_first(events)]

    def _rows(self) -> list[Event]:
        """The user's own statements, else TRL's: where rows are dealt out, or put in order."""
        trainer, text = self.step.trainer, self.found.text
        if text.startswith(DEALT):
            return self._dealt()
        if text.startswith(LENGTH):
            return self._of_length()
        with self.follower.following():
            trainer.get_train_dataloader()
            for _ in islice(trainer._get_train_sampler(), 4 * trainer.num_generations):
                pass
        told, last = self._told_otherwise(), _last_first(self.follower.events)
        order = self.step.order
        broken = order is not None and not order.groups_whole
        if broken or text.startswith(REPEATED):
            last = [*(one for one in last if one.statement.kind == "For"), *last]
        last = [*told, *last]
        if text.startswith(LOADED) or (
            text.startswith(data.MIXED) and order is not None and order.groups_whole
        ):
            last = [*reversed(self._of_method("get_train_dataloader")), *last]
        if text.startswith(SEED) and not _is_seeded(trainer):
            seeded = [one for one in last if _reads(one, trainer.args.seed)]
            last = [*sorted(seeded, key=lambda one: -one.number), *last]
        return self._own_events() or last

    def _of_length(self) -> list[Event]:
        """Who counts an epoch; or, where it is counted rightly, who repeats its rows otherwise."""
        trainer, told = self.step.trainer, _asked_of_sampler(self.step.trainer.args)
        prompts = len(trainer.train_dataset)
        prompts -= prompts % told["batch_size"]
        rows = prompts * told["mini_repeat_count"] * told["repeat_count"]
        with self.follower.following():
            sampler = trainer._get_train_sampler()
            counted_rightly = len(sampler) == rows
            if counted_rightly:
                next(iter(sampler))
        last = _last_first(self.follower.events)
        loops = [one for one in last if counted_rightly and one.statement.kind == "For"]
        return [*self._told_otherwise(), *loops, *last]

    def _told_otherwise(self) -> list[Event]:
        """Who keeps something else in the sampler than it was told, or tells it something else than
        was asked for; none where it holds what was asked for."""
        asked = _asked_of_sampler(self.step.trainer.args)
        for event in self.follower.events:
            for (_, *steps), value in event.writes.items():
                name = steps[-1].removeprefix(".") if len(steps) == 1 else ""
                if name not in asked or value.content == asked[name]:
                    continue
                told = event.reads.get((name,))
                kept_wrongly = told is None or told.content == asked[name]
                return [event] if kept_wrongly else self._of_method("_get_train_sampler")[::-1]
        return []

    def _of_method(self, name: str) -> list[Event]:
        return [one for one in self.follower.events if one.function.endswith(f".{name}")]

    def _dealt(self) -> list[Event]:
        """What a pass is given is cut wrongly; or it is cut rightly and given at another time, by
        whoever deals it out; or that is right too, and who asks for it does not count."""
        step = self.step
        if OF_A_STEP in self.found.text:
            with self.follower.following():
                step.scoring()
                step.passing()
            return [one for one in self.follower.events if one.function.endswith(".training_step")]
        with self.follower.following():
            dealt = dealt_out(step.trainer, step.asked)
        size = step.asked.rows_in_pass
        wrong = [rows for rows in dealt if len(rows) != size or len(set(rows)) != size]
        trail = Trail(self.follower.events, Right((), 0.0))
        if UNMIXED in self.found.text:
            whole = torch.arange(size * step.asked.passes_in_generation)
            return self._own_events() or _from(trail.maker(self._value(whole)), self.follower)
        cut = trail.cutter([self._value(torch.tensor(rows)) for rows in dealt]) if wrong else []
        dealer = [one for one in self.follower.events if one.function.endswith("._prepare_inputs")]
        return self._own_events() or [*cut, *dealer]

    def _value(self, tensor: Tensor) -> Value:
        found = self.follower.copies.of(tensor)
        assert found is not None
        return found

    def _stepped(self) -> None:
        self.step.scoring()
        self.follower.events.clear()
        self.step.passing()

    def _pays(self, event: Event) -> bool:
        """Whether it belongs to a reward function."""
        paying = [getattr(one, "__qualname__", "") for one in self.step.trainer.reward_funcs]
        return event.function in [name.replace(".<locals>", "") for name in paying]

    def _scored(self) -> list[Event]:
        if self.found.text.startswith(OPENING):
            return self._answer_lost()
        with self.follower.following():
            self.step.scoring()
        step, text = self.step, self.found.text
        paying = self.found.stage == "rewards" and _pay_of_named(step, text)
        arrived = not paying and "do not get what" not in text
        known = rights.of_scoring(step, paid=not paying, arrived=arrived)
        right = Right(known, self._tolerance)
        summed = self._summed() if text.startswith(data.OTHER_SUM) else []
        ranked = self._ranked(right, summed or _scored_wrong(step, self.found))
        if "do not get what" not in text:
            return self._where_kl_is_missing(ranked)
        inside = [one for one in self.follower.events if one.function.endswith(ARRIVE)]
        return sorted(
            [*ranked, *reversed(inside)], key=lambda one: not one.function.endswith(ARRIVE)
        )

    def _summed(self) -> list[Value]:
        """What was made of the rows' pay and has the mean that the trainer says."""
        heard = self.step.heard
        assert heard.arrived_BF is not None and heard.mean is not None
        values = [one for event in self.follower.events for one in event.writes.values()]
        sums = [one for one in values if _is_of_rows(one, len(heard.arrived_BF))]
        means = [float(one.content.nanmean()) for one in sums]
        pairs = zip(sums, means, strict=True)
        return [one for one, mean in pairs if math.isclose(mean, heard.mean, rel_tol=1e-6)]

    def _where_kl_is_missing(self, ranked: list[Event]) -> list[Event]:
        """Behind the likeliest statement, where the KL alone is missing: the conditions that ask
        for it and what they let run, the last first. No wrong value leads to what was left out."""
        if WITHOUT_KL not in self.found.text or not ranked:
            return ranked
        ran = [one for one in self.follower.events if one.frame == ranked[0].frame]
        ran = [one for one in ran if one.number < ranked[0].number]
        asking = {one.statement.line for one in ran if _asks_for_kl(one)}
        about = [one for one in ran if asking & {one.statement.line, *one.statement.guards}]
        heads = sorted(asking, reverse=True)
        each = [one for head in heads for one in about if _is_of(one, head)]
        return [*ranked[:1], *each, *ranked[1:]]

    def _answer_lost(self) -> list[Event]:
        """Where what says the right answer goes in, and what comes out says it no longer."""
        step = self.step
        step.scoring()
        again = pay_for_gold(step.trainer, step.asked, step.heard)
        with self.follower.following():
            answer = again()
        events = sorted(self.follower.events, key=lambda event: event.ended)
        losing = [one for one in events if one.writes and _loses(one, answer)]
        return losing or _deaf(events, answer)

    def _adapter(self) -> list[Event]:
        step = self.step
        model = step.trainer.accelerator.unwrap_model(step.trainer.model)
        with moved(step.trainer, step.gentle):
            return adapters.lines(model, self.found, self._tolerance)

    def _passed(self) -> list[Event]:
        if self.found.text.startswith(adapters.OPENING):
            return self._adapter()
        step, losses = self.step, list[Any]()
        with self.follower.following():
            step.scoring()
        scored, scored_events = dict(step.inputs), len(self.follower.events)
        with _slopes(step.trainer, self.follower.copies, losses), self.follower.following():
            step.passing()
        if self.found.text.startswith(NOT_GIVEN):
            word = "old_per_token_logps"
            ran = self.follower.events[:scored_events]
            made = [one for one in ran if word in one.statement.source]
            lines = {line for one in made for line in one.statement.guards}
            heads = [one for one in ran if one.statement.line in lines]
            trail = Trail(ran, Right((), 0.0))
            told = [two for one in heads for two in trail.assigned(one)]
            return [*made[:1], *heads, *told, *made[1:]]
        if self.found.stage == "log-probs":
            right = Right(rights.of_logprobs(step), self._tolerance)
            wrong = _wrong_logps(step, scored, self.found.text)
            return self._ranked(right, wrong, scorer_of(step.trainer))
        at = worst_pass(step.asked, step.passes, int(trained(step.inputs).sum()))
        one = step.passes[at]
        known = [*of_pass(step.asked, one, step.inputs), *rights.of_scoring(step)]
        wrong = losses[at : at + 1]
        if self.found.stage == "gradient":
            wrong = [*_dealt_wrong(step, one), *wrong]
        own = self._own_events(scored_events) if self.found.stage == "gradient" else []
        return [
            *own,
            *self._where_kl_is_missing(self._ranked(Right(known, self._tolerance), wrong)),
        ]

    def _own_events(self, since: int = 0) -> list[Event]:
        """The user's own statements that ran, but for those of reward functions."""
        ran = self.follower.events[since:]
        return [one for one in ran if is_own(one) and not self._pays(one)]

    @property
    def _tolerance(self) -> float:
        """What is apart by less than the finding is told apart as well, if it is no rounding."""
        usual = TOLERANCE.get(precision_of(self.step.trainer), COARSE)
        found = self.found.measured
        least = LEAST.get(self.found.stage, self.step.limit.weight)
        if self.found.stage not in NARROWED or found is None:
            return usual
        return min(usual, max(NARROW * found, least))

    def _ranked(self, right: Right, wrong: Sequence[Any], given_by: str = "") -> list[Event]:
        found = [one if isinstance(one, Value) else self.follower.copies.of(one) for one in wrong]
        trail = Trail(self.follower.events, right)
        return trail.ranked([one for one in found if one is not None], given_by)


def _is_of_rows(value: Value, rows: int) -> bool:
    """Whether it is one number for each row."""
    return isinstance(value.content, Tensor) and value.content.shape == (rows,)


def _asks_for_kl(event: Event) -> bool:
    return event.statement.kind == "If" and ("self", ".beta") in event.statement.reads


def _is_of(event: Event, head: int) -> bool:
    """Whether it is the condition of a line, or let run by that."""
    return head == event.statement.line or head in event.statement.guards


def _tells_error(value: Value) -> bool:
    """Whether a mapping in it says `error`."""
    if isinstance(value.content, dict):
        return "error" in value.content
    return isinstance(value.content, tuple) and any(map(_tells_error, value.content))


def _is_reply(value: Value) -> bool:
    """Whether it is the message of a tool."""
    role = value.content.get("role") if isinstance(value.content, dict) else None
    return role is not None and role.content == "tool"


def _from(first: Event | None, follower: Follower) -> list[Event]:
    """A statement and what ran after it in the same call."""
    ran = [] if first is None else follower.events
    return [one for one in ran if first and one.frame == first.frame and one.number >= first.number]


def _asked_of_sampler(args: Any) -> dict[str, Any]:
    """What TRL's sampler holds where it does what the arguments ask for, by its own names."""
    return {
        "mini_repeat_count": args.num_generations,
        "batch_size": args.generation_batch_size // args.num_generations,
        "repeat_count": args.num_iterations * args.steps_per_generation,
        "shuffle": args.shuffle_dataset,
        "seed": args.seed,
    }


def _is_seeded(trainer: Any) -> bool:
    """Whether the sampler holds chance that begins with the seed: then it makes no use of it."""
    held = vars(trainer._get_train_sampler()).values()
    chance = [one for one in held if isinstance(one, torch.Generator)]
    return any(one.initial_seed() == trainer.args.seed for one in chance)


def _reads(event: Event, number: int) -> bool:
    return any(one.content == number for one in event.reads.values() if type(one.content) is int)


def _loses(event: Event, answer: str) -> bool:
    """Whether what goes into it says the answer, and what it makes does not."""
    told = [one.writes[RETURNED] for one in event.calls if RETURNED in one.writes]
    given = any(says(one, answer) for one in (*event.reads.values(), *told))
    return given and not any(says(one, answer) for one in event.writes.values())


def _deaf(events: Sequence[Event], answer: str) -> list[Event]:
    """Of the innermost call that was told the answer and returns something else, the last first."""
    for end in (one for one in events if RETURNED in one.writes):
        inside = [one for one in events if one.frame == end.frame]
        told = any(says(value, answer) for one in inside for value in one.reads.values())
        if told and not says(end.writes[RETURNED], answer):
            return inside[::-1]
    return []


def _last_to_know(events: Sequence[Event], told: Mapping[str, Any]) -> list[Event]:
    """Who read a number as it was asked for, before another was read under its name, and what the
    same call did then, the last first; or nobody."""
    for name, number in told.items():
        knew: Event | None = None
        for event in events:
            read = event.reads.get((name,))
            if read is not None and read.content == number:
                knew = event
            elif read is not None and knew is not None:
                near = range(knew.number, event.number)
                ran = [one for one in events if one.frame == knew.frame and one.number in near]
                return ran[::-1]
    return []


def _last_first(events: Sequence[Event]) -> list[Event]:
    """The function that ran last first, each in the order of its statements: it gave the rows."""
    order = list(dict.fromkeys(one.function for one in reversed(events)))
    return sorted(events, key=lambda one: order.index(one.function))


def _scored_wrong(step: Step, found: StageFound) -> list[Any]:
    if data.OTHER_MARKS in found.text:
        return [step.inputs["prompt_mask"]]
    if found.stage == "mask" or data.OTHER_IDS in found.text:
        ids = ("completion_ids", "prompt_ids", "prompt_mask")
        names = ("completion_mask", "tool_mask") if found.stage == "mask" else ids
        return [step.inputs[name] for name in names if name in step.inputs]
    if found.stage == "advantages":
        return [step.inputs["advantages"]]
    if "do not get what" in found.text:
        assert step.heard.arrived_BF is not None
        columns = [
            step.heard.arrived_BF[:, at]
            for at in step.heard.calls
            if f"`{data._name(step.trainer, at)}`" in found.text
        ]
        return [*columns, step.heard.arrived_BF]
    return _pay_of_named(step, found.text) or [step.inputs["advantages"]]


def _pay_of_named(step: Step, text: str) -> list[Any]:
    """What was given to and paid by the function that the finding is about."""
    for at, (given, paid) in sorted(step.heard.calls.items()):
        if "do not get what" not in text and f"`{data._name(step.trainer, at)}`" in text:
            return [given[name] for name in given if f"`{name}`" in text] or [paid]
    return []


def _wrong_logps(step: Step, scored: Inputs, text: str) -> list[Any]:
    if "the old log-probs" in text:
        return [scored[OLD if OLD in scored else "old_per_token_logps"]]
    if "the reference's log-probs" in text:
        return [scored["ref_per_token_logps"]]
    return [step.passes[0].logps_BT]


def _dealt_wrong(step: Step, one: Pass) -> list[Any]:
    """What a pass was given that is not of the rows that it was dealt."""
    wrong = []
    for name, value in one.inputs.items():
        given = step.inputs.get(name)
        if isinstance(value, Tensor) and isinstance(given, Tensor) and given.dim():
            dealt = given[one.rows]
            if dealt.shape != value.shape or not torch.equal(dealt, value):
                wrong.append(value)
    return wrong


@contextmanager
def _slopes(trainer: Any, copies: Copies, losses: list[Any]) -> Iterator[None]:
    """While a loss is computed, values are also told by how they move with the log-probs."""
    name = scorer_of(trainer)

    def scoring(score: Any, *args: Any, **kwargs: Any) -> Any:
        found = score(*args, **kwargs)
        logps = found[0] if isinstance(found, tuple) else found
        copies.leaf = logps if logps.requires_grad else None
        return found

    def computing(compute: Any, *args: Any, **kwargs: Any) -> Any:
        loss = compute(*args, **kwargs)
        losses.append(copies.of(loss))
        copies.leaf = None
        return loss

    with Patch(trainer, name, scoring), Patch(trainer, "_compute_loss", computing):
        yield
