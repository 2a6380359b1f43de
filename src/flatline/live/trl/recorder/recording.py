"""What the hooks hear, on the side of the training: as little as possible is done here.

Tensors are sent to the host without waiting for them, and what is to be made of them is handed to
the thread that writes (`Scribe`).
"""

import copy
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flatline.live.batch import to_numpy
from flatline.live.held import steps_in_backward
from flatline.live.hooks import Guard
from flatline.live.merged import adapter_layers, merged_in_training
from flatline.live.transfer import Transfer
from flatline.live.trl.gold import gold_names
from flatline.live.trl.grpo import GrpoTrainer
from flatline.live.trl.recorder.heard import HELD_OUT, ROLLOUT, Generation, Pass
from flatline.live.trl.recorder.reference import anchor_of
from flatline.live.trl.recorder.rows import Reader, Row, kept_rows
from flatline.live.trl.recorder.scribe import Scribe
from flatline.live.trl.recorder.seen_gold import FitOfGold, SeenGold
from flatline.live.trl.recorder.steps import Clip
from flatline.live.trl.sampler import Calls
from flatline.live.trl.settings import (
    RLOO,
    TRANSFORMERS,
    algorithm_of,
    engine_of,
    one_turn,
    reward_names,
    stop_ids,
)
from flatline.live.weights import Census
from flatline.trace.writer import Sink

USUAL_CLIP = 0.2
"""TRL's own, where a trainer does not say."""


@dataclass(slots=True)
class Clock:
    """Seconds of the step that is under way."""

    start: float = field(default_factory=time.perf_counter)
    generating: float = 0.0
    """Sampling and scoring together."""
    sampling: float | None = 0.0
    """None where the trainer does not tell sampling from scoring."""
    backward_end: float | None = None

    def generated(self, total: float, sampling: float | None) -> None:
        self.generating += total
        before = self.sampling
        self.sampling = None if before is None or sampling is None else before + sampling

    def row(self) -> Row:
        end, sampling = self.backward_end, self.sampling
        return {
            "time": time.time(),
            "seconds": time.perf_counter() - self.start,
            "seconds_sampling": sampling,
            "seconds_scoring": None if sampling is None else self.generating - sampling,
            "seconds_backward": None if end is None else end - self.start - self.generating,
        }


class Recording:
    """Hears one trainer and hands on what it heard."""

    def __init__(
        self, trainer: GrpoTrainer, sink: Sink, guard: Guard, gold: str | None = None
    ) -> None:
        self.sink = sink
        self.clock = Clock()
        self._trainer = trainer
        self._guard = guard
        self._gold_names = gold_names(trainer) if gold is None else (gold,)
        data = getattr(trainer, "train_dataset", None)
        found = SeenGold(self._gold_names, None if gold is not None else data)
        fit = FitOfGold(data, lambda **known: sink.update_run(gold_of_data=known))
        self._scribe = Scribe(sink, _copied(trainer.processing_class), found, fit)
        self._rank = int(trainer.accelerator.process_index)
        self._anchor = anchor_of(trainer, lambda **known: sink.update_run(reference=known))
        self._census: Census | None = None
        self._layers: list[Any] | None = None
        """Of an adapter; none are left once some of them were found merged."""
        self._numbered = 0
        self._last: Generation | None = None
        self._learning_rate: float | None = None
        self._grad_norm: Any = None

    # -- heard while the step is under way ----------------------------------------------------

    def begin_generation(self, rows: Sequence[Mapping[str, Any]]) -> Generation:
        """Positions go on where another generation feeds the same step."""
        done = int(self._trainer.state.global_step)
        processes = int(self._trainer.accelerator.num_processes)
        first = self._rank * len(rows)
        last = self._last
        if last is not None and last.step == done + 1:
            first = last.first + len(last.rows) * processes
        # What vLLM or a player of somebody's own samples with is theirs to say.
        weights = done if engine_of(self._trainer) == TRANSFORMERS else None
        return Generation(step=done + 1, weights=weights, first=first, rows=rows)

    def generated(
        self, one: Generation, output: dict[str, Any], calls: Calls | None = None
    ) -> None:
        """`calls` are those of `generate`; other trainers' samplers say for themselves."""
        calls = Calls() if calls is None else calls
        if calls.bent and not self._numbered:
            nats = float(np.mean(calls.bent))
            bent = {"parameters": calls.bending, "unasked": calls.unasked, "nats": nats}
            self.sink.update_run(sampling_bent=bent)
        reader = self._reader()
        self._keep_rows(one, output, reader)
        numbers = range(self._numbered, self._numbered + len(one.kept))
        self._numbered = numbers.stop
        device = output["completion_ids"].device
        output.setdefault(ROLLOUT, torch.arange(numbers.start, numbers.stop, device=device))
        one.output = dict(output)
        heard = [call for call in calls if call is not None]
        one.calls = heard if len(heard) == len(calls) else []
        one.events = _events(self._trainer, len(one.rows))
        self._last = one
        size = one.send()
        self._hand_on(lambda: self._scribe.generated(one, reader), size=size)

    def handed_on(self, output: Any) -> None:
        """What a subclass made of a generation: rows that lost their numbers get them back, as long
        as none is missing."""
        last = self._last
        if isinstance(output, dict) and last is not None and ROLLOUT not in output:
            numbers = last.output[ROLLOUT]
            if len(output["completion_ids"]) == len(numbers):
                output[ROLLOUT] = numbers

    def evaluated(self, output: Any) -> None:
        """Rows that must not be trained on, and are known again where they are."""
        like = output.get("completion_ids") if isinstance(output, dict) else None
        if isinstance(like, Tensor):
            output.setdefault(ROLLOUT, torch.full((len(like),), HELD_OUT, device=like.device))

    def begin_step(self) -> None:
        self.clock = Clock()
        if steps_in_backward(self._trainer):
            self._look(readable=False)

    def took(self, seconds: float, sampling: float | None) -> None:
        self.clock.generated(seconds, sampling)

    def passed(self, one: Pass) -> None:
        self._note_merged()
        sent, reader, clip = one.send(), self._reader(), _clip(self._trainer)
        numbers = sent.part(ROLLOUT)
        self._hand_on(
            lambda: self._scribe.passed(one, reader, clip),
            size=sent.nbytes,
            token_rows=len(numbers),
            otherwise=lambda: self._scribe.passed_over(numbers),
        )

    def gradients_are_whole(self) -> None:
        """After the last backward pass, before anything is clipped."""
        if self.clock.backward_end is not None:
            return
        self.clock.backward_end = time.perf_counter()
        if not steps_in_backward(self._trainer):
            self._look(readable=getattr(self._trainer.accelerator, "scaler", None) is None)

    def clipped(self, norm: Any) -> None:
        if self._grad_norm is None:
            self._grad_norm = norm

    def before_optimizer(self, optimizer: Any) -> None:
        self.gradients_are_whole()
        if self._anchor is not None:
            self._anchor.look()
        if self._grad_norm is None and self._census is not None:
            self._grad_norm = self._census.grad_norm()
        if optimizer is not None:
            self._learning_rate = float(optimizer.param_groups[0]["lr"])

    # -- written ------------------------------------------------------------------------------

    def end_step(self, step: int) -> Row:
        """Hand on all but the row of the step itself, which may wait for the trainer's log."""
        row = {"step": step, **self.clock.row(), "learning_rate": self._learning_rate}
        looked = None if self._census is None else self._census.after_step(step)
        norm, reader = _sent(self._grad_norm), self._reader()
        self._hand_on(lambda: self._scribe.end_step(step, reader, looked, norm))
        self._grad_norm = self._learning_rate = None
        self.clock = Clock()
        return row

    def keep(self) -> None:
        """What was handed on is safe from a kill."""
        self.sink.end_step()

    def write_step(self, row: Row) -> None:
        self._hand_on(lambda: self._scribe.write_step(row, self._rank))
        self.sink.end_step()

    def flush(self) -> None:
        """Write what was never trained, without the trainer's log-probs."""
        reader = self._reader()
        self._hand_on(lambda: self._scribe.flush(reader))
        self.sink.end_step()

    def _hand_on(self, work: Callable[[], None], **how: Any) -> None:
        """What goes wrong in it ends the recording, in whatever thread it is."""
        self.sink.do(lambda: self._guard(work), **how)

    def _look(self, *, readable: bool) -> None:
        """At the weights, before they are stepped."""
        step = int(self._trainer.state.global_step) + 1
        if self._rank == 0 and self._counted().is_due(step):
            self._counted().before_step(readable=readable)

    def _keep_rows(self, one: Generation, output: Mapping[str, Any], reader: Reader) -> None:
        """Rows that are sampled and not handed on are not recorded, which is said once."""
        rows = len(one.rows)
        if len(output["completion_ids"]) == rows:
            one.kept, one.sampled = range(rows), None
            return
        one.kept = kept_rows(one, reader.batch(output))
        if not self._numbered:
            told = f"Only {len(one.kept)} of {rows} sampled rows at a time are trained"
            self.sink.update_run(rows_left_out=f"{told}; the others were not recorded.")

    def _note_merged(self) -> None:
        """Said once: an adapter that is merged while the loss is computed gets no gradient."""
        if self._layers is None:
            model = self._trainer.accelerator.unwrap_model(self._trainer.model)
            self._layers = adapter_layers(model)
        merged, of = merged_in_training(self._layers), len(self._layers)
        if merged:
            step = int(self._trainer.state.global_step) + 1
            self.sink.update_run(adapter_merged={"layers": merged, "of": of, "step": step})
            self._layers = []

    def _counted(self) -> Census:
        """Made at the first step: only then are the weights where they are trained."""
        if self._census is None:
            model = self._trainer.accelerator.unwrap_model(self._trainer.model)
            self._census = Census(model, self._trainer.optimizer)
            self.sink.update_run(weights_every=self._census.every)
        return self._census

    def _reader(self) -> Reader:
        """How rows are read now; reward functions may have been changed since `attach`."""
        trainer, processing = self._trainer, self._trainer.processing_class
        tokenizer = getattr(processing, "tokenizer", processing)
        weights = getattr(trainer, "reward_weights", None)
        names = reward_names(trainer)
        return Reader(
            eos=frozenset(stop_ids(trainer)),
            one_turn=one_turn(trainer),
            pad=getattr(tokenizer, "pad_token_id", None),
            longest=getattr(trainer, "max_completion_length", None),
            longest_turn=_turn_limit(trainer),
            rank=self._rank,
            group_size=int(trainer.num_generations),
            gold_names=self._gold_names,
            reward_names=names,
            reward_weights=np.ones(len(names)) if weights is None else to_numpy(weights),
        )


def _copied(processing: Any) -> Any:
    """A tokenizer of our own: a fast one must not be used by two threads at once."""
    try:
        return copy.deepcopy(processing)
    except Exception:  # whatever a class of the user's does not like about it
        return processing


def _sent(norm: Any) -> Transfer:
    known = norm if isinstance(norm, Tensor) or norm is None else torch.tensor(float(norm))
    return Transfer({} if known is None else {"grad_norm": known})


def _clip(trainer: GrpoTrainer) -> Clip:
    below, above = (getattr(trainer, f"epsilon_{side}", None) for side in ("low", "high"))
    low = float(USUAL_CLIP if below is None else below)
    high = float(low if above is None else above)
    if algorithm_of(trainer) == "gmpo":  # whose bounds are those of the log-ratio
        return Clip(low=-math.expm1(-low), high=math.expm1(high))
    levels = ("sequence", "sequence_token")
    by_sequence = getattr(trainer, "importance_sampling_level", None) in levels
    return Clip(low=low, high=high, by_sequence=by_sequence or algorithm_of(trainer) == RLOO)


def _turn_limit(trainer: GrpoTrainer) -> int | None:
    """Tokens that the trainer lets its sampler write at once, where that is less than all."""
    given = getattr(trainer.args, "generation_kwargs", None) or {}
    return given.get("max_tokens", given.get("max_new_tokens"))


def _events(trainer: GrpoTrainer, rows: int) -> list[Mapping[str, int]]:
    """Counts that an environment's episode keeps; copied, since environments are used again."""
    environments = getattr(trainer, "environments", None) or ()
    episodes = [getattr(environment, "episode", None) for environment in environments]
    counts = [getattr(episode, "events", None) for episode in episodes]
    whole = len(counts) == rows and all(isinstance(count, Mapping) for count in counts)
    return [dict(count) for count in counts if count is not None] if whole else []
