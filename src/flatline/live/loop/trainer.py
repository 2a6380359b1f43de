"""A `flatline.Loop` behind the protocol of a checkup.

A batch keeps the layout of the loop: measurements cut and change it by rows and by tokens, and the
loop's functions are given tensors as wide as their own, or what is left of these.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from flatline.errors import ConfigError, TraceError
from flatline.live.departure.adapters import (
    MERGED,
    OPENING,
    judge_adapters,
    judge_beginning,
    judge_merging,
)
from flatline.live.held import give_gradients, gradient_copies
from flatline.live.inputs import Inputs, rows_of
from flatline.live.loop.agree import refuse_if_other, refuse_other_logps
from flatline.live.loop.departure import ASKS, examine, judge_padding, lines
from flatline.live.loop.leftovers import judge_leftovers
from flatline.live.loop.loop import Batch, Loop, refuse_lost
from flatline.live.loop.stated import judge_settings
from flatline.live.loop.written import Written, written
from flatline.live.measure.moving import Move, moved
from flatline.live.measure.played import Played, Recorded
from flatline.live.measure.step import Backward, census_of
from flatline.live.protocol import PLAYS_AND_STEPS, Capability, Trainer
from flatline.live.records import DataOrder
from flatline.live.restore.calls import Calls
from flatline.live.restore.snapshot import Snapshot
from flatline.live.stage_found import StageFound
from flatline.live.watch.head import head_of
from flatline.live.watch.heard import ends_of
from flatline.live.watch.watch import Watch, watch_in_memory
from flatline.live.where.place import Where
from flatline.trace.settings import SETTINGS
from flatline.trace.writer import MemorySink

PROMPT = "loop_prompt"
"""Of a row: what `sample` is given."""
WIDEST = 1_000_000
"""Rows of a pass, at most: a place is the number of its pass times this, and that of the row."""


class _Pass(NamedTuple):
    """What was sampled for one pass of the loop."""

    batch: Batch
    start: int
    """Token of its rows with which the first completion begins."""
    begins: Sequence[int]
    """That of each row."""


def hold(trainer: Any, correct: str | None) -> "LoopTrainer | None":
    """A `flatline.Loop`, held."""
    return LoopTrainer(trainer) if isinstance(trainer, Loop) else None


class LoopTrainer(Trainer):
    """The loop's own functions, called one at a time."""

    how: ClassVar = {
        Capability.REFERENCE: (
            "Give the batches of `sample` the reference's log-probs (`reference`), or say "
            '`settings={"beta": 0}` where the loss has no KL term'
        ),
        Capability.SPECIFICATION: (
            'Say what was asked for: `settings={"loss_type": "grpo", "scale_rewards": "group", '
            '"epsilon": 0.2, "beta": 0.04}`, as far as it is so'
        ),
        Capability.DATA_ORDER: (
            'Record a run with `flatline.watch(model, optimizer, "runs/x")`, which shows what is '
            "visited"
        ),
    }

    def __init__(self, loop: Loop) -> None:
        head_of(loop.model, loop.optimizer)  # refuses a model without one
        self._loop = loop
        self._passes: dict[int, _Pass] = {}
        """By their number; places of rows hold it."""
        self._settings: dict[str, Any] = dict.fromkeys(SETTINGS)
        self._group = 0
        self._has_reference = False

    @property
    def can(self) -> frozenset[Capability]:
        told = self._loop.settings
        reference = told.get("beta") == 0 or self._has_reference
        specified = any(told.get(name) is not None for name in ASKS)
        more = {Capability.REFERENCE: reference, Capability.SPECIFICATION: specified}
        return PLAYS_AND_STEPS | {capability for capability, known in more.items() if known}

    @property
    def beta(self) -> float:
        told = self._loop.settings.get("beta")
        return float("nan") if told is None else float(told)

    @property
    def model(self) -> nn.Module:
        return self._loop.model

    @property
    def group(self) -> int:
        return self._group

    @property
    def size(self) -> int:
        """A pass of the loop is as large as it is."""
        return max(len(one.batch["ids"]) for one in self._passes.values())

    @property
    def settings(self) -> Mapping[str, Any]:
        return self._settings | dict(self._loop.settings)

    @property
    def planned_steps(self) -> int | None:
        steps = self._loop.settings.get("max_steps")
        return None if steps is None else int(steps)

    @property
    def tokenizer(self) -> Any:
        return self._loop.tokenizer

    @property
    def may_be_parted(self) -> bool:
        return True

    def snapshot(self) -> Snapshot:
        loop = self._loop
        functions = ("sample", "logprobs", "loss", "step", "prompts")
        return Snapshot(
            models=[self.model],
            optimizer=loop.optimizer,
            users={f"your `{name}`": getattr(loop, name) for name in functions},
            machinery={"your tokenizer": loop.tokenizer},
        )

    @contextmanager
    def counting(self, calls: Calls) -> Iterator[None]:
        loop = self._loop
        own = {name: calls.of(name, getattr(loop, name)) for name in ("sample", "step")}
        self._loop = replace(loop, **own)  # type: ignore[arg-type]
        try:
            yield
        finally:
            self._loop = loop

    def record(self) -> Recorded:
        """One step of the loop, and one of its functions from the same random numbers; the second
        is the batch, once it does what the first does."""
        own = self._own_step()
        sink, watch = self._watch()
        with watch:
            batches = self._sampled(self._loop.prompts)
            rewards = torch.cat([batch["rewards"] for batch in batches]).tolist()
            with suppress(TraceError):  # another engine samples: rewards have no row to stand in
                watch.rewards(rewards, parts=_parts(batches), gold=_gold(batches))
            played = self._played(batches, self._loop.prompts, watch)
            self._loop.optimizer.zero_grad()
            logps_BT, loss = self._through_loss(played.inputs)
            if not math.isfinite(loss):
                refuse_lost(batches, len(self._loop.prompts))
            self._clip()
            self._loop.optimizer.step()
        trace, rows = sink.trace(), sink.written("tokens")
        if trace.settings["temperature"] in (None, 1.0):  # recorded at 1, whatever the loop has
            used_BT = logps_BT.masked_fill(~played.trained_BT, torch.nan)
            each = zip(used_BT.numpy(), played.mask_BT.numpy(), strict=True)
            logps = [logps_T[mask_T] for logps_T, mask_T in each]
            refuse_other_logps(rows, played.completions, logps)
        refuse_if_other(own, rows)
        self._settings |= {**trace.settings, **self._counted(played, len(batches))}
        sink.update_run(settings=dict(self.settings))
        return Recorded(played, logps_BT, sink.trace(), {})

    def play(self, rows: Sequence[Mapping[str, Any]], step: int) -> Played:
        prompts = [row[PROMPT] for row in rows[:: self._group]]
        _, watch = self._watch()
        with watch, torch.no_grad():
            return self._played(self._sampled(prompts), prompts, watch)

    def logps(self, inputs: Inputs, size: int | None = None) -> Tensor:
        with torch.enable_grad():
            return self._scored(inputs)

    def plain_logps(self, inputs: Inputs) -> Tensor:
        with torch.no_grad():
            return self._scored(inputs)

    def reference_logps(self, played: Played) -> Tensor:
        """The adapter off: what a loop says of its reference is not taken again."""
        with self.model.disable_adapter():  # type: ignore[operator]
            return self.plain_logps(played.inputs)

    def backward(
        self, played: Played, *, size: int | None = None, beta: float | None = None
    ) -> Backward:
        self._loop.optimizer.zero_grad()
        loss = self._through_loss(played.inputs)[1]
        clip = self._settings["max_grad_norm"]
        census = census_of(self.model, self._loop.optimizer, clip)
        self._clip()
        return Backward(gradient_copies(self.model), census, loss, list(range(len(played.rows))))

    def take_step(self, back: Backward, scale: float) -> float:
        give_gradients(self.model, back.gradients)
        groups = self._loop.optimizer.param_groups
        for group in groups:
            group["lr"] = group.get("initial_lr", group["lr"]) * scale
        self._loop.optimizer.step()
        return max((float(group["lr"]) for group in groups), default=0.0)

    def departures(
        self, order: DataOrder | None, played: Played, few: Played, move: Move, until: float
    ) -> Mapping[str, StageFound]:
        passes = [self._passes[number] for number in self._numbers(played)]
        found = examine(self._loop, self._loop.settings, self._batches(played), self._group)
        padded = judge_padding(self._loop, [(one.batch, one.begins) for one in passes])
        begun = judge_beginning(self.model)
        with moved(self, move.amount):
            looks = [padded, judge_adapters(self.model), judge_merging(self.model), begun]
        looks.append(judge_settings(self._loop))
        looks.append(judge_leftovers(self._loop, self.snapshot()))
        return found | {one.stage: one for one in looks if one is not None}

    def lines_of(
        self, order: DataOrder | None, played: Played, few: Played, move: Move, found: StageFound
    ) -> tuple[Where, ...]:
        with moved(self, move.amount if found.text.startswith((OPENING, MERGED)) else 0.0):
            return lines(self._loop, self._loop.settings, self._batches(played), found, played)

    def _batches(self, played: Played) -> list[Batch]:
        return [self._passes[number].batch for number in self._numbers(played)]

    def _numbers(self, played: Played) -> list[int]:
        """Of the passes that it is made of."""
        return list(dict.fromkeys(place // WIDEST for place in played.inputs["place"].tolist()))

    def _watch(self) -> tuple[MemorySink, Watch]:
        loop = self._loop
        return watch_in_memory(loop.model, loop.optimizer, loop.tokenizer)

    def _own_step(self) -> Sequence[Mapping[str, Any]]:
        """The tokens that one step of the loop itself trains; the step is undone."""
        sink, watch = self._watch()
        try:
            with self.snapshot().kept(), watch:
                self._loop.step()
        except Exception:  # a second update that samples with weights that are NaN says only that
            with self.snapshot().kept():
                refuse_lost(self._loop.batches(self._loop.prompts), len(self._loop.prompts))
            raise
        if not sink.written("steps"):
            raise ConfigError(
                "`step` of this Loop ran, and its optimizer never stepped.\n"
                "What the loop trains is read from one of its own steps.\n"
                "Let `step` run the loop until `optimizer.step()` of the optimizer that is given."
            )
        self._settings["max_grad_norm"] = sink.trace().settings.get("max_grad_norm")
        return sink.written("tokens")

    def _sampled(self, prompts: Sequence[Any]) -> list[Batch]:
        """Sample, and know how many rows a prompt has."""
        batches = self._loop.batches(prompts)
        self._group = sum(len(batch["ids"]) for batch in batches) // len(prompts)
        self._has_reference = all("reference" in batch for batch in batches)
        return batches

    def _played(self, batches: Sequence[Batch], prompts: Sequence[Any], watch: Watch) -> Played:
        """The batch as measurements take it: completions of all passes begin at one token."""
        ends = ends_of(self.model, self.tokenizer)
        samples = watch.sampled()
        parts, first = [], len(self._passes)
        for at, batch in enumerate(batches, first):
            rows = written(_numpy(batch["ids"]), _numpy(batch["trained"]), samples, ends)
            start = max(1, min(row.begin for row in rows))
            begins = [row.begin for row in rows]
            self._passes[at] = _Pass(batch, min(start, batch["ids"].shape[1] - 1), begins)
            parts.append(_inputs(self._passes[at], at, rows))
        inputs = _joined(parts)
        rows_of_data = [{PROMPT: prompt} for prompt in prompts for _ in range(self._group)]
        return Played(rows_of_data, inputs, by_trained=bool(samples))

    def _scored(self, inputs: Inputs) -> Tensor:
        found = torch.zeros(inputs["completion_ids"].shape)
        for rows, batch, width in self._given(inputs):
            logps = self._loop.scored(batch)[:, -width:].detach().float().cpu()
            found[rows, :width] = logps
        return found

    def _through_loss(self, inputs: Inputs) -> tuple[Tensor, float]:
        """Forward and backward through the loop's loss: log-probs, and the sum of the losses."""
        found, total = torch.zeros(inputs["completion_ids"].shape), 0.0
        for rows, batch, width in self._given(inputs):
            logps = self._loop.scored(batch)
            loss = self._loop.loss(batch, logps)
            if loss.requires_grad:  # a batch without any advantage may have none
                loss.backward()  # type: ignore[no-untyped-call]
            found[rows, :width] = logps[:, -width:].detach().float().cpu()
            total += float(loss.detach())
        return found, total

    def _given(self, inputs: Inputs) -> Iterator[tuple[list[int], Batch, int]]:
        """Rows of each pass, as the loop's functions take them, and how many tokens of completions
        they have."""
        places = inputs["place"].tolist()
        before, tokens = inputs["prompt_ids"].shape[1], inputs["completion_ids"].shape[1]
        for number in dict.fromkeys(place // WIDEST for place in places):
            rows = [at for at, place in enumerate(places) if place // WIDEST == number]
            batch, start, _ = self._passes[number]
            whole, length = batch["ids"].shape
            cut = slice(max(0, start - before), min(length, start + tokens))
            width = cut.stop - start
            kept = rows_of(batch, [places[at] % WIDEST for at in rows], whole)
            narrow = {name: _cut(value, cut, length) for name, value in kept.items()}
            prompt = inputs["prompt_ids"][rows][:, before - (start - cut.start) :]
            narrow["ids"] = torch.cat([prompt, inputs["completion_ids"][rows][:, :width]], dim=1)
            narrow["advantages"] = inputs["advantages"][rows].to(batch["advantages"])
            yield rows, narrow, width

    def _clip(self) -> None:
        norm = self._settings["max_grad_norm"]
        if norm:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), norm)

    def _counted(self, played: Played, passes: int) -> dict[str, Any]:
        rows = len(played.rows)
        return {
            "num_generations": self._group,
            "prompts_per_step": rows // self._group,
            "per_device_batch_size": self.size,
            "gradient_accumulation_steps": passes,
            "world_size": 1,
        }


def _parts(batches: Sequence[Batch]) -> dict[str, list[float]] | None:
    """What the rewards are made of, where every batch says so."""
    given = [batch.get("parts") for batch in batches]
    if not all(given):
        return None
    names = given[0] or {}
    return {name: [float(v) for one in given for v in (one or {})[name]] for name in names}


def _gold(batches: Sequence[Batch]) -> list[str] | None:
    """The right answer of every row, where every batch says so."""
    given = [batch.get("gold") for batch in batches]
    return None if None in given else [str(one) for part in given for one in part or ()]


def _inputs(one: _Pass, number: int, rows: Sequence[Written]) -> Inputs:
    """A pass by TRL's names."""
    ids_BL, start = one.batch["ids"], one.start
    columns = np.arange(ids_BL.shape[1])
    inside_BL = np.stack([(columns >= row.begin) & (columns < row.end) for row in rows])
    trained_BL = one.batch["trained"].bool()
    told = one.batch.get("reference")
    reference = {} if told is None else {"ref_per_token_logps": told[:, start - 1 :].cpu()}
    return {
        **reference,
        "prompt_ids": ids_BL[:, :start],
        "prompt_mask": torch.from_numpy(_in_prompt(one.batch, rows)[:, :start]).long(),
        "completion_ids": ids_BL[:, start:],
        "completion_mask": torch.from_numpy(inside_BL[:, start:]).long(),
        "tool_mask": trained_BL[:, start:].long().cpu(),
        "authors": torch.from_numpy(np.stack([row.author_L for row in rows])[:, start:]).long(),
        "sampling_per_token_logps": torch.from_numpy(
            np.stack([row.sampler_L for row in rows])[:, start:]
        ).float(),
        "advantages": one.batch["advantages"].detach().float().cpu(),
        "place": torch.arange(len(rows)) + number * WIDEST,
    }


def _in_prompt(batch: Batch, rows: Sequence[Written]) -> np.ndarray:
    """Tokens in front of the completion, without padding: what the loop hides at the left."""
    shape = batch["ids"].shape
    seen = batch.get("attended")
    hidden_BL = np.zeros(shape, dtype=bool) if seen is None else _numpy(seen) == 0
    left_BL = np.cumprod(hidden_BL, axis=1).astype(bool)
    before_BL = np.arange(shape[1])[None] < np.array([row.begin for row in rows])[:, None]
    return np.asarray(before_BL & ~left_BL)


def _joined(parts: Sequence[Inputs]) -> Inputs:
    """All passes in one: prompts end, and completions begin, at one token."""
    before = max(one["prompt_ids"].shape[1] for one in parts)
    behind = max(one["completion_ids"].shape[1] for one in parts)

    def wide(name: str, value: Tensor) -> Tensor:
        if value.dim() == 1:
            return value
        if name.startswith("prompt"):
            return pad(value, (before - value.shape[1], 0))
        fill = float("nan") if value.is_floating_point() else 0
        return pad(value, (0, behind - value.shape[1]), value=fill)

    return {name: torch.cat([wide(name, one[name]) for one in parts]) for name in parts[0]}


def _cut(value: Any, columns: slice, length: int) -> Any:
    """Tensors with an entry for each token, or for each but the first, narrowed to some."""
    if not isinstance(value, Tensor) or value.dim() < 2:
        return value
    if value.shape[1] == length:
        return value[:, columns]
    if value.shape[1] == length - 1:
        return value[:, columns.start : columns.stop - 1]
    return value


def _numpy(values: Tensor) -> np.ndarray:
    return np.asarray(values.detach().cpu().numpy())
