"""verl's trainer, heard in its own process: one recording of a whole run.

_update_actor      the batch as the update gets it, fetched from verl's queue
_compute_metrics   everything that verl logs of the step
fit                the end of the run
"""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from flatline.live.facts import commit, versions
from flatline.live.hooks import Guard, Patch
from flatline.live.texts import Texts, Vocabulary
from flatline.live.verl.rows import FIELDS, Rollout, Row, join, placed
from flatline.live.verl.settings import settings
from flatline.live.verl.steps import logged, measured
from flatline.trace.writer import Writer

ASK = "flatline_heard"
"""What the workers are asked for."""


class TrainerEar:
    """The hooks on one `PPOTrainer`, once it is initialised."""

    def __init__(self, trainer: Any, folder: str, config: Mapping[str, Any]) -> None:
        known = settings(config)
        self._trainer, self._settings = trainer, known
        self._sink = Writer(folder, run=_run(known), beside=True)
        self._guard = Guard(self._sink.stop)
        self._texts, self._vocabulary = Texts(trainer.tokenizer), Vocabulary(trainer.tokenizer)
        self._ends = frozenset({trainer.tokenizer.eos_token_id} - {None})
        self._rollouts: list[Rollout] = []
        self._sent: dict[str, float] = {}
        self._told: dict[str, float] = {}
        """What is known of the step beside its rollouts."""
        self.patches = [
            Patch(trainer, "_update_actor", self._update_actor),
            Patch(trainer, "_compute_metrics", self._compute_metrics),
            Patch(trainer, "fit", self._fit),
        ]

    def _update_actor(self, original: Callable[..., Any], batch: Any, *args: Any, **kw: Any) -> Any:
        found: list[list[Rollout]] = []
        self._guard(lambda: found.append(_fetched(batch)))
        result = original(batch, *args, **kw)
        if found:
            self._guard(self._updated, found[0])
        return result

    def _updated(self, rollouts: list[Rollout]) -> None:
        heard = getattr(self._trainer.actor_rollout_wg, ASK)()
        if not self._rollouts:  # what a later part of a step sees has been moved by the first
            join(rollouts, [row for one in heard for row in one["rows"]])
            step = int(self._trainer.global_steps)
            self._sink.write("weights", [{**row, "step": step} for row in heard[0]["weights"]])
        self._rollouts += rollouts
        done = self._told.get("flatline/updates", 0.0)
        self._told["flatline/updates"] = done + heard[0]["updates"]
        if sent := heard[0]["sent"]:
            self._told |= _delivered(sent, self._sent)
            self._sent = sent

    def _compute_metrics(
        self,
        original: Callable[..., Any],
        batch: Any,
        metrics: dict[str, Any],
        *args: Any,
        **kw: Any,
    ) -> Any:
        result = original(batch, metrics, *args, **kw)
        self._guard(self._write, int(self._trainer.global_steps), dict(metrics))
        return result

    def _write(self, step: int, metrics: dict[str, Any]) -> None:
        rollouts, self._rollouts = self._rollouts, []
        longest = self._settings.get("max_completion_length") or 0
        pairs = placed(rollouts, step)
        rows = [one.rollout_row(place, self._ends, longest) for place, one in pairs]
        tokens = [one.token_row(place) for place, one in pairs]
        self._texts.learn([ids for one in rollouts for ids in (one.prompt, one.ids)])
        for row, (_, one) in zip(rows, pairs, strict=True):
            row |= {"prompt": self._texts.of(one.prompt), "completion": self._texts.of(one.ids)}
        self._texts.forget()
        facts = logged({**metrics, **self._told}) | measured(rollouts, rows)
        self._told = {}
        if any(one.of_tokens for one in rollouts):
            self._sink.update_run(advantages_of_tokens=True)
        self._sink.write("rollouts", rows)
        self._sink.write("tokens", tokens)
        self._sink.write("vocabulary", self._vocabulary.rows(tokens))
        self._sink.write("steps", [{"step": step, **facts}])
        self._sink.end_step()

    def _fit(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        clean = False
        try:
            result = original(*args, **kwargs)
            clean = True
            return result
        except BaseException as error:
            self._sink.died(error)
            raise
        finally:
            self._end(clean)

    def _end(self, clean: bool) -> None:
        self._sink.close(clean=clean and not self._guard.broken)
        self._sink.say_recorded()


def _run(known: Mapping[str, Any]) -> Row:
    return {
        "source": "verl",
        "versions": versions(),
        "commit": commit(),
        "seed": known.get("seed"),
        "fault": None,
        "settings": dict(known),
    }


def _fetched(batch: Any) -> list[Rollout]:
    """The batch as it stands in the queue; rows that only fill it up are none of it."""
    get = import_module("transfer_queue").kv_batch_get
    data = get(keys=batch.keys, partition_id=batch.partition_id, select_fields=list(FIELDS))
    there = set(data.keys())
    columns = {name: _rows_of(data[name]) for name in FIELDS if name in there}
    rows = [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]
    pairs = zip(rows, batch.tags, strict=True)
    return [Rollout(row, tags) for row, tags in pairs if not tags.get("is_padding", False)]


def _rows_of(values: Any) -> Sequence[Any]:
    """Of a nested tensor its parts, of anything else its entries."""
    if getattr(values, "is_nested", False):
        return [part.detach().cpu().numpy() for part in values.unbind()]
    return list(values.tolist())


def _delivered(now: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    """How much of what was sent to the rollout server differs from what was sent before."""
    told = {"flatline/sent_tensors": float(len(now))}
    if before:
        changed = [before.get(name) != norm for name, norm in now.items()]
        told["flatline/sent_changed_share"] = sum(changed) / len(changed)
    return told
