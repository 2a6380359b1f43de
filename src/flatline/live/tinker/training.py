"""`flatline.tinker.Training`: a training on the Tinker API, for a checkup.

    training = flatline.tinker.Training(service_client, training_client, step)
    flatline.checkup(training)

`step(training_client)` is one step of the loop: it samples, tells `flatline.tinker.rewards`, trains
and steps the client that it is given. A step of the API cannot be taken back, so it is given a copy
of the training, made from its saved state; the client itself only scores.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from flatline.errors import ConfigError
from flatline.live.inputs import Inputs
from flatline.live.measure.played import Played, Recorded
from flatline.live.protocol import Capability, Trainer
from flatline.live.restore.calls import Calls
from flatline.live.restore.snapshot import Snapshot
from flatline.live.stage_found import StageFound
from flatline.live.tinker.data import column
from flatline.live.tinker.listening import clients
from flatline.live.tinker.stages import Seen, stages
from flatline.live.tinker.watch import Step, watch_in_memory
from flatline.live.where.place import Where
from flatline.rollout.record import Author
from flatline.trace.settings import SETTINGS

NAME = "flatline-checkup"
"""Of the saved state, on the server."""
KEPT_FOR = 3600
"""Seconds after which a server may delete it."""
STEPS = 2
"""Steps of the copy: the second shows whether the sampler follows the first."""
RECORD = "Record some steps with `flatline.tinker.watch` and diagnose them"


@dataclass(frozen=True, slots=True)
class Training:
    """A training on the Tinker API, in the words of a checkup."""

    service_client: Any
    """Makes the copy that is stepped."""
    training_client: Any
    """Of the training; it is only asked to save its state and to score."""
    step: Callable[[Any], object]
    """One step of the loop, with the training client that it is given."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What was asked for, by the names of a trace: `scale_rewards`, `beta`."""

    def copied(self) -> Any:
        """A second training with the same weights and optimizer."""
        saved = self.training_client.save_state(NAME, ttl_seconds=KEPT_FOR).result()
        return self.service_client.create_training_client_from_state_with_optimizer(saved.path)


class TinkerTrainer(Trainer):
    """The protocol of a checkup, as far as the API goes."""

    how: ClassVar = {
        Capability.REFERENCE: 'Say `settings={"beta": 0}` where the loss has no KL term',
        **dict.fromkeys((Capability.SAMPLE, Capability.DATA_ORDER), RECORD),
    }

    def __init__(self, training: Training) -> None:
        self._training = training
        self._settings: dict[str, Any] = dict.fromkeys(SETTINGS)
        self._group = 1
        self._seen: Seen | None = None

    @property
    def can(self) -> frozenset[Capability]:
        told = {Capability.REFERENCE} if self._training.settings.get("beta") == 0 else set()
        return frozenset({Capability.BATCH, Capability.SCORE, Capability.SPECIFICATION, *told})

    @property
    def model(self) -> nn.Module:
        """None of it is here."""
        return nn.Module()

    @property
    def group(self) -> int:
        return self._group

    @property
    def size(self) -> int:
        return 1_000_000

    @property
    def settings(self) -> Mapping[str, Any]:
        return self._settings

    def snapshot(self) -> Snapshot:
        """Of what the step keeps here: nothing on the server is changed."""
        training = self._training
        clients = [training.service_client, training.training_client]
        users = {"your `step`": training.step}
        return Snapshot(models=[self.model], users=users, machinery={}, without=clients)

    @contextmanager
    def counting(self, calls: Calls) -> Iterator[None]:
        given = self._training
        self._training = replace(given, step=calls.of("step", given.step))
        try:
            yield
        finally:
            self._training = given

    def record(self) -> Recorded:
        """Steps of the loop on a copy; the first is the batch."""
        training = self._training
        copy = training.copied()
        sink, watch = watch_in_memory(training.settings, copy)
        steps: list[Step] = []
        after: list[np.ndarray] = []
        with watch:
            for _ in range(STEPS):
                before = len(watch.latest)
                training.step(copy)
                steps += _first_of(list(watch.latest)[before:])
                after = after or _scored(copy, steps[0])
            own = [_scored(training.training_client, steps[0]) for _ in range(2)]
        trace = sink.trace()
        self._settings |= trace.settings
        self._group = int(trace.settings["num_generations"] or 1)
        self._seen = Seen(
            steps=steps,
            samples=list(watch.samples),
            after=after,
            again=own,
            group=self._group,
            settings=training.settings,
        )
        played = Played([{} for _ in self._seen.rows], _inputs(self._seen))
        logps_BT = played.inputs.pop("trainer")
        return Recorded(played, logps_BT, trace, {})

    def logps(self, inputs: Inputs, size: int | None = None) -> Tensor:
        """By the training client, forward only."""
        types = clients().types
        found = torch.zeros(inputs["completion_ids"].shape)
        data, spans = [], []
        for row in range(len(found)):
            prompt = inputs["prompt_ids"][row][inputs["prompt_mask"][row].bool()].tolist()
            own = inputs["completion_ids"][row][inputs["completion_mask"][row].bool()].tolist()
            ids = [*prompt, *own]
            given = {"target_tokens": ids[1:], "weights": [1.0] * (len(ids) - 1)}
            chunk = types.ModelInput.from_ints(ids[:-1])
            data.append(types.Datum(model_input=chunk, loss_fn_inputs=given))
            spans.append(len(own))
        answer = self._training.training_client.forward(data, "cross_entropy").result()
        for row, (output, span) in enumerate(zip(answer.loss_fn_outputs, spans, strict=True)):
            logps = column(output, "logprobs")
            assert logps is not None
            found[row, :span] = torch.from_numpy(logps[len(logps) - span :])
        return found

    def plain_logps(self, inputs: Inputs) -> Tensor:
        return self.logps(inputs)

    def departures(self, *_: Any) -> Mapping[str, StageFound]:
        """Of the steps that were recorded; nothing is moved for it."""
        assert self._seen is not None
        return stages(self._seen)

    def lines_of(self, *_: Any) -> tuple[Where, ...]:
        """The step is the user's and the server's: no line is followed."""
        return ()


def hold(trainer: Any, correct: str | None) -> Trainer | None:
    """A `flatline.tinker.Training`, held."""
    return TinkerTrainer(trainer) if isinstance(trainer, Training) else None


def _first_of(steps: Sequence[Step]) -> list[Step]:
    """The first optimizer step of one step of the loop; an error where it took none."""
    if steps and steps[0].passes:
        return [steps[0]]
    raise ConfigError(
        "`step` returned, and the client that it was given took no optimizer step with data.\n"
        "What the loop trains is read from one of its own steps.\n"
        "Let `step(training_client)` sample, call `forward_backward` and then `optim_step` of its "
        "argument."
    )


def _scored(client: Any, step: Step) -> list[np.ndarray]:
    """Log-probs of a step's targets with the weights that a client has now."""
    found = []
    for one in step.passes:
        answer = client.forward(list(one.data), one.loss_fn, one.config).result()
        found += [column(output, "logprobs") for output in answer.loss_fn_outputs]
    return [one for one in found if one is not None]


def _inputs(seen: Seen) -> Inputs:
    """The first step's rows by TRL's names, those of a group together."""
    rows = [seen.rows[at] for at in seen.order]
    starts = [seen.start(at) for at in seen.order]
    before = max(starts)
    behind = max(len(row.ids) - start for row, start in zip(rows, starts, strict=True))

    def wide(values: Sequence[np.ndarray], width: int, *, left: bool, fill: float = 0) -> Tensor:
        made = np.full((len(rows), width), fill, dtype=float)
        for at, one in enumerate(values):
            made[at, slice(width - len(one), width) if left else slice(0, len(one))] = one
        return torch.from_numpy(made)

    def parted(values: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Of the completion alone: value t is that of token t + 1."""
        return [one[start - 1 :] for one, start in zip(values, starts, strict=True)]

    def completions(values: Sequence[np.ndarray], fill: float = 0) -> Tensor:
        return wide(parted(values), behind, left=False, fill=fill)

    prompts = [row.ids[:start] for row, start in zip(rows, starts, strict=True)]
    samplers = [seen.sampler(at) for at in seen.order]
    return {
        "prompt_ids": wide(prompts, before, left=True).long(),
        "prompt_mask": wide([np.ones(len(one)) for one in prompts], before, left=True).long(),
        "completion_ids": completions([row.ids[1:] for row in rows]).long(),
        "completion_mask": completions([np.ones(len(row.target)) for row in rows]).long(),
        "tool_mask": completions([row.trained for row in rows]).long(),
        "authors": completions(
            [np.where(np.isfinite(one), Author.MODEL, Author.TOOL) for one in samplers]
        ).long(),
        "sampling_per_token_logps": completions(samplers, np.nan).float(),
        "advantages": torch.tensor([row.mean_advantage for row in rows]),
        "trainer": completions([row.trainer for row in rows]).float(),
    }
