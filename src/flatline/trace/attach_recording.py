"""From what the hooks heard to rows: all of it at the end of an optimizer step.

A rollout's tokens are written with the pass that first trains them, so several passes over one
batch leave one record. `step` is the first optimizer step that trains on the generation a rollout
came from: groups stay whole where one generation feeds several steps.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from flatline.trace.attach_batch import ROLLOUT, Generation, Pass, to_numpy
from flatline.trace.attach_rows import (
    Held,
    Reader,
    Row,
    Vocabulary,
    hold,
    rollout_rows,
    token_row,
)
from flatline.trace.attach_steps import PassFacts, reward_facts, rollout_facts
from flatline.trace.attach_weights import Census
from flatline.trace.writer import Sink


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
    """What was heard since the last optimizer step, and the rollouts that wait to be trained."""

    def __init__(self, trainer: Any, sink: Sink) -> None:
        self.sink = sink
        self.clock = Clock()
        self._trainer = trainer
        self._rank = int(trainer.accelerator.process_index)
        self._census: Census | None = None
        self._vocabulary = Vocabulary(trainer.processing_class)
        self._generations: list[Generation] = []
        self._passes: list[Pass] = []
        self._held: dict[int, Held] = {}
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
        return Generation(step=done + 1, weights=done, first=first, rows=rows)

    def generated(self, one: Generation, output: dict[str, Any]) -> None:
        numbers = range(self._numbered, self._numbered + len(one.rows))
        self._numbered = numbers.stop
        device = output["completion_ids"].device
        output.setdefault(ROLLOUT, torch.tensor(numbers, device=device))
        one.output = dict(output)
        one.events = _events(self._trainer, len(one.rows))
        self._generations.append(one)
        self._last = one

    def begin_step(self) -> None:
        self.clock = Clock()

    def took(self, seconds: float, sampling: float | None) -> None:
        self.clock.generated(seconds, sampling)

    def passed(self, one: Pass) -> None:
        self._passes.append(one)

    def gradients_are_whole(self) -> None:
        """After the last backward pass, before anything is clipped."""
        if self.clock.backward_end is not None:
            return
        self.clock.backward_end = time.perf_counter()
        step = int(self._trainer.state.global_step) + 1
        if self._rank == 0 and self._counted().is_due(step):
            scaled = getattr(self._trainer.accelerator, "scaler", None) is not None
            self._counted().before_step(scaled=scaled)

    def clipped(self, norm: Any) -> None:
        if self._grad_norm is None:
            self._grad_norm = norm

    def before_optimizer(self, optimizer: Any) -> None:
        self.gradients_are_whole()
        if self._grad_norm is None and self._census is not None:
            self._grad_norm = self._census.grad_norm()
        if optimizer is not None:
            self._learning_rate = float(optimizer.param_groups[0]["lr"])

    # -- written ------------------------------------------------------------------------------

    def end_step(self, step: int) -> Row:
        """Write all but the row of the step itself, which may wait for the trainer's log."""
        row = {"step": step, **self.clock.row()}
        generations = self._generations
        reader = _reader(self._trainer, self._rank)
        rollouts, facts = self._drain(reader)
        row |= {**reward_facts(generations, reader), **rollout_facts(rollouts), **facts.row()}
        row["learning_rate"] = self._learning_rate
        row["grad_norm"] = None if self._grad_norm is None else float(self._grad_norm)
        if self._census is not None:
            self.sink.write("weights", self._census.after_step(step))
        self._grad_norm = self._learning_rate = None
        self.clock = Clock()
        return row

    def write_step(self, row: Row) -> None:
        if self._rank == 0:
            self.sink.write("steps", [row])
        self.sink.end_step()

    def flush(self) -> None:
        """Write what was never trained, without the trainer's log-probs."""
        reader = _reader(self._trainer, self._rank)
        self._drain(reader)
        self._write_tokens(list(self._held.values()), reader)
        self._held.clear()
        self.sink.end_step()

    def _drain(self, reader: Reader) -> tuple[list[Row], PassFacts]:
        fresh = [one for generation in self._generations for one in self._hold(generation, reader)]
        facts = PassFacts(_epsilon(self._trainer))
        trained = [one for each in self._passes for one in self._train(each, reader, facts)]
        self._generations, self._passes = [], []
        rows = rollout_rows(fresh, reader) if fresh else []
        self.sink.write("rollouts", rows)
        self._write_tokens(trained, reader)
        return rows, facts

    def _hold(self, generation: Generation, reader: Reader) -> list[Held]:
        rollouts = hold(generation, reader)
        numbers = to_numpy(generation.output[ROLLOUT]).tolist()
        self._held.update(zip(numbers, rollouts, strict=True))
        return rollouts

    def _train(self, one: Pass, reader: Reader, facts: PassFacts) -> list[Held]:
        """The rollouts that this pass is the first to train."""
        batch = reader.batch(one.inputs)
        logps = None if one.logps is None else to_numpy(one.logps)
        if logps is not None and logps.shape != batch["completion_ids"].shape:
            logps = None
        facts.add(one, batch, logps)
        attention = one.attention(batch)
        numbers: list[int] = batch[ROLLOUT].tolist() if ROLLOUT in batch else []
        found = [(at, self._held.pop(number, None)) for at, number in enumerate(numbers)]
        for at, rollout in found:
            if rollout is not None:
                rollout.trained_by(batch, at, logps, attention)
        return [rollout for _, rollout in found if rollout is not None]

    def _write_tokens(self, rollouts: Sequence[Held], reader: Reader) -> None:
        rows = [token_row(one, reader) for one in rollouts]
        self.sink.write("tokens", rows)
        self.sink.write("vocabulary", self._vocabulary.rows(rows))

    def _counted(self) -> Census:
        """Made at the first step: only then are the weights where they are trained."""
        if self._census is None:
            model = self._trainer.accelerator.unwrap_model(self._trainer.model)
            self._census = Census(model, self._trainer.optimizer)
            self.sink.update_run(weights_every=self._census.every)
        return self._census


def _reader(trainer: Any, rank: int) -> Reader:
    """How rows are read now; reward functions may have been changed since `attach`."""
    processing = trainer.processing_class
    tokenizer = getattr(processing, "tokenizer", processing)
    eos = getattr(trainer, "eos_token_ids", None) or [getattr(tokenizer, "eos_token_id", None)]
    weights = getattr(trainer, "reward_weights", None)
    names = list(trainer.reward_func_names)
    return Reader(
        tokenizer=processing,
        eos=frozenset(id for id in eos if id is not None),
        pad=getattr(tokenizer, "pad_token_id", None),
        rank=rank,
        group_size=int(trainer.num_generations),
        reward_names=names,
        reward_weights=np.ones(len(names)) if weights is None else to_numpy(weights),
    )


def _epsilon(trainer: Any) -> tuple[float, float]:
    low = float(getattr(trainer, "epsilon_low", 0.2) or 0.2)
    return low, float(getattr(trainer, "epsilon_high", low) or low)


def _events(trainer: Any, rows: int) -> list[Mapping[str, int]]:
    """Counts that an environment's episode keeps; copied, since environments are used again."""
    environments = getattr(trainer, "environments", None) or ()
    episodes = [getattr(environment, "episode", None) for environment in environments]
    counts = [getattr(episode, "events", None) for episode in episodes]
    whole = len(counts) == rows and all(isinstance(count, Mapping) for count in counts)
    return [dict(count) for count in counts if count is not None] if whole else []
