"""`flatline.tinker.watch(run_dir)`: records a training loop on the Tinker API.

    with flatline.tinker.watch("runs/x", tokenizer=tokenizer):
        for ...:
            answer = sampling_client.sample(prompt, 8, sampling_params).result()
            flatline.tinker.rewards(rewards, answer.sequences)
            ...
            training_client.forward_backward(data, "importance_sampling")
            training_client.optim_step(adam_params)

The methods of the client classes are listened to, so every client is heard, whoever made it. Calls
and results are passed on as they are. A step is written when the loop samples again, or at the end:
its results must have come by then, and no call waits for them.
"""

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

from flatline.errors import ConfigError, TraceError
from flatline.live.facts import commit, versions
from flatline.live.hooks import Guard
from flatline.live.tinker.data import Drawn, Row, drawn, is_text, read, row_of
from flatline.live.tinker.listening import Heard, Told, clients, listen
from flatline.live.watch.ledger import Ledger
from flatline.live.watch.rows import KEPT
from flatline.trace.announce import say
from flatline.trace.closing import Closing
from flatline.trace.settings import SETTINGS, refuse_unknown
from flatline.trace.writer import MemorySink, Sink, Writer

LOSS_TEMPERATURE = 1.0
"""The API's losses take log-probs of the logits as they are."""
UNHEARD = (
    "Some rewards belong to sequences that were not seen being sampled; they are not recorded. "
    "Give `rewards` the `sequences` of a `SampleResponse`."
)
LAST_WAIT = 60.0
"""Seconds that closing waits for an answer of the server."""
MOST_STEPS = 256
"""Optimizer steps that are kept for a checkup."""
SAMPLED_WITH = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "max_tokens": "max_completion_length",
}
STEPPED_WITH = {
    "learning_rate": "learning_rate",
    "weight_decay": "weight_decay",
    "grad_clip_norm": "max_grad_norm",
}

_watching: "list[TinkerWatch]" = []
"""Those that listen now; the last is told rewards."""


@dataclass(kw_only=True)
class Pass:
    """One call of `forward_backward`."""

    data: Sequence[Any]
    loss_fn: str
    config: Any
    future: Any

    @cached_property
    def rows(self) -> list[Row]:
        """What was given and what came back."""
        outputs = self.future.result(LAST_WAIT).loss_fn_outputs
        return [row_of(one, out) for one, out in zip(self.data, outputs, strict=True)]


@dataclass(slots=True, kw_only=True)
class Step:
    """One call of `optim_step`, with the passes before it."""

    number: int
    passes: list[Pass]
    adam: Any
    future: Any = None

    @property
    def futures(self) -> list[Any]:
        return [*(one.future for one in self.passes), self.future]

    @property
    def is_answered(self) -> bool:
        return all(map(_is_done, self.futures))

    @property
    def rows(self) -> list[Row]:
        """Of all passes."""
        return [row for one in self.passes for row in one.rows]

    def facts(self) -> dict[str, Any]:
        """What the server says of it."""
        answers = [future.result(LAST_WAIT).metrics or {} for future in self.futures]
        metrics = {name: float(value) for one in answers for name, value in one.items()}
        rate, loss = float(self.adam.learning_rate), metrics.get("loss:sum")
        return {"learning_rate": rate, "loss": loss, "metrics": metrics or None}


class Asked(NamedTuple):
    """One call of `sample`."""

    prompt: Any
    params: Any
    version: int
    """Steps behind the client's weights."""
    future: Any


def watch(
    run_dir: str | Path, *, tokenizer: Any = None, settings: Mapping[str, Any] | None = None
) -> "TinkerWatch":
    """Record what is sampled and trained through the clients of `tinker`, until `close`.

    `settings` say what cannot be heard, by the names of a trace: `scale_rewards`, `batches_ahead`.
    """
    if _watching:
        raise TraceError(
            f"This process is recorded already, into {_watching[-1].path or 'memory'}.\n"
            "Two records of one run would disagree on whose rewards are whose.\n"
            "Close the first one, or leave its `with` block."
        )
    run = _run(settings or {})
    sink = Writer(run_dir, run=run)
    return TinkerWatch(sink, run["settings"], tokenizer, path=sink.folder, tell=say)


def watch_in_memory(settings: Mapping[str, Any], only: Any) -> "tuple[MemorySink, TinkerWatch]":
    """The same for a step or two that nobody keeps; nobody but one client may train."""
    run = _run(settings)
    sink = MemorySink(run=run)
    return sink, TinkerWatch(sink, run["settings"], None, only=only)


def rewards(
    values: Iterable[float],
    sequences: Iterable[Any],
    *,
    parts: Mapping[str, Iterable[float]] | None = None,
    gold: Iterable[str] | None = None,
) -> None:
    """The rewards of some sampled sequences; before `optim_step`. Without a recording, nothing.

    `sequences` are those of a `SampleResponse`, in the order of the rewards; of an episode of
    several turns, any one. `parts` are what a reward is made of, `gold` the right answers.
    """
    columns: dict[str, list[Any]] = {"reward": [float(value) for value in values]}
    named = {name: [float(value) for value in part] for name, part in (parts or {}).items()}
    if gold is not None:
        columns["gold"] = [str(answer) for answer in gold]
    each = list(sequences)
    for name, one in {"sequences": each, **named, **columns}.items():
        if len(one) != len(columns["reward"]):
            raise TraceError(
                f"There are {len(columns['reward'])} rewards, and `{name}` has {len(one)} entries."
                "\nGive one entry for each sampled sequence."
            )
    if named:
        columns["parts"] = [
            {name: part[at] for name, part in named.items()} for at in range(len(each))
        ]
    told = [{name: one[at] for name, one in columns.items()} for at in range(len(each))]
    if _watching:
        _watching[-1].paid(each, told)


def _run(given: Mapping[str, Any]) -> dict[str, Any]:
    refuse_unknown(given, "`settings`")
    known = {**dict.fromkeys(SETTINGS), "loss_temperature": LOSS_TEMPERATURE, **given}
    return {
        "source": "tinker",
        "versions": versions(),
        "commit": commit(),
        "fault": None,
        "settings": known,
    }


class TinkerWatch(Closing):
    """What is heard of the clients; also a context manager, which stops listening."""

    def __init__(
        self,
        sink: Sink,
        settings: Mapping[str, Any],
        tokenizer: Any,
        *,
        path: Path | None = None,
        only: Any = None,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.path = path
        """The run's folder; None where it is kept in memory."""
        self.latest: deque[Step] = deque(maxlen=MOST_STEPS if only is not None else 0)
        """For a checkup: the steps that were taken."""
        self.samples: deque[Drawn] = deque(maxlen=KEPT)
        self._tell, self._only, self._trainer = tell, only, only
        self._sink, self._settings, self._told = sink, dict(settings), dict(settings)
        self._guard, self._lock = Guard(sink.stop), threading.RLock()
        self._ledger = Ledger(sink, tokenizer, frozenset())
        self._asked: list[Asked] = []
        """Calls of `sample` that were not answered when last looked at."""
        self._passes: list[Pass] = []
        self._steps: list[Step] = []
        """Those that are not written yet."""
        self._calls = self._done = 0
        """Calls of `sample` that were answered, and optimizer steps that were asked for."""
        self._versions: dict[int, tuple[Any, int]] = {}
        """Sampling clients by identity, and the steps behind their weights."""
        self._saved: list[tuple[Any, int]] = []
        """Weights that are saved, and the steps behind them."""
        self._notes: list[str] = []
        self._undo = self._listen()
        _watching.append(self)

    def close(self, *, clean: bool = True) -> None:
        """Stop listening, and write what has been answered."""
        if self not in _watching:
            return
        _watching.remove(self)
        for undo in self._undo:
            undo()
        self._guard(self._collect)
        self._guard(self._write)
        self._sink.close(clean=clean and not self._guard.broken)
        if isinstance(self._sink, Writer):
            self._sink.say_recorded()

    def paid(self, sequences: Iterable[Any], told: Iterable[dict[str, Any]]) -> None:
        """What `rewards` was told of each sequence."""
        with self._lock:
            self._guard(self._collect)
            known = {id(one.sequence): one for one in self.samples}
            for sequence, facts in zip(sequences, told, strict=True):
                sample = known.get(id(sequence))
                if sample is None:
                    self._note(UNHEARD)
                    continue
                for name, value in facts.items():
                    setattr(sample, name, value)

    # -- what is heard

    def _listen(self) -> list[Callable[[], None]]:
        api = clients()
        trainer, both = api.TrainingClient, (api.TrainingClient, api.ServiceClient)
        heard: list[tuple[type, str, Heard, Callable[[Any], None]]] = [
            (api.SamplingClient, "sample", self._sample, _allow),
            (trainer, "forward_backward", self._forward_backward, self._refuse_other),
            (trainer, "optim_step", self._optim_step, self._refuse_other),
            (trainer, "load_state", self._load, self._refuse_other),
            (trainer, "load_state_with_optimizer", self._load, self._refuse_other),
            (trainer, "save_weights_for_sampler", self._save, _allow),
        ]
        for kind in ("", "_async"):
            name = f"save_weights_and_get_sampling_client{kind}"
            heard.append((trainer, name, self._client_of_now, _allow))
            name = f"create_sampling_client{kind}"
            heard += [(one, name, self._client_of_path, _allow) for one in both]
        return [
            listen(kind, name, partial(self._alone, hear), self._guard, refuse)
            for kind, name, hear, refuse in heard
        ]

    def _alone(self, hear: Heard, client: Any, given: dict[str, Any]) -> Told | None:
        """Clients are called in threads of their own, too."""
        with self._lock:
            return hear(client, given)

    def _refuse_other(self, client: Any) -> None:
        if self._only is not None and client is not self._only:
            raise ConfigError(
                "`step` does not train the client that it is given.\n"
                "A checkup gives it a copy, since a step of the API cannot be taken back; nothing "
                "was trained.\n"
                "Let `step(training_client)` call `forward_backward` and `optim_step` of its "
                "argument."
            )

    def _is_ours(self, client: Any) -> bool:
        """One training is recorded: that of the client that trains first."""
        self._trainer = self._trainer or client
        if client is not self._trainer:
            self._note("Several training clients train; only the first one is recorded.")
        return client is self._trainer

    def _sample(self, client: Any, given: dict[str, Any]) -> Told | None:
        self._collect()
        if all(one.is_answered for one in self._steps):
            self._write()
        if not is_text(given["prompt"]):
            self._note("Prompts with images are not recorded: they have no token ids.")
            return None
        # A client that was made before anybody listened has the weights of that time.
        _, version = self._versions.setdefault(id(client), (client, self._done))
        known = given["prompt"], given["sampling_params"], version
        return lambda future: self._asked.append(Asked(*known, future))

    def _collect(self) -> None:
        """Take what was sampled by now."""
        waiting = [one for one in self._asked if not _is_done(one.future)]
        ready = [one for one in self._asked if _is_done(one.future)]
        self._asked = waiting
        for one in ready:
            if one.future.exception() is None:
                self._calls += 1
                response = one.future.result()
                fresh = drawn(one.prompt, one.params, response, one.version, self._calls)
                self.samples.extend(fresh)
                self._sink.do(partial(self._ledger.sampled, fresh))

    def _forward_backward(self, client: Any, given: dict[str, Any]) -> Told | None:
        if not self._is_ours(client):
            return None
        if not all(is_text(one.model_input) for one in given["data"]):
            self._note("Data with images are not recorded: they have no token ids.")
            return None
        names = {"data": "data", "loss_fn": "loss_fn", "config": "loss_fn_config"}
        known = {name: given[own] for name, own in names.items()}
        return lambda future: self._passes.append(Pass(**known, future=future))

    def _optim_step(self, client: Any, given: dict[str, Any]) -> Told | None:
        if not self._is_ours(client):
            return None
        self._collect()
        self._done += 1
        step = Step(number=self._done, passes=self._passes, adam=given["adam_params"])
        self._passes = []
        self._steps.append(step)
        self.latest.append(step)
        return lambda future: setattr(step, "future", future)

    def _load(self, client: Any, given: dict[str, Any]) -> None:
        if client is self._trainer and self._done:
            self._note("The loop loads saved weights while it trains; steps are counted on.")

    def _save(self, client: Any, given: dict[str, Any]) -> Told | None:
        version = self._done
        return lambda future: self._saved.append((future, version))

    def _client_of_now(self, client: Any, given: dict[str, Any]) -> Told | None:
        version = self._done
        return lambda sampler: self._versions.update({id(sampler): (sampler, version)})

    def _client_of_path(self, client: Any, given: dict[str, Any]) -> Told | None:
        path = given["model_path"]
        # Weights that somebody else saved are taken for the newest; a bare model has no step yet.
        version = 0 if path is None else self._done
        for future, known in self._saved:
            if _is_done(future) and future.result().path == path:
                version = known
        return lambda sampler: self._versions.update({id(sampler): (sampler, version)})

    # -- what is written

    def _write(self) -> None:
        """All steps since the last time; what none of them trains was left out on purpose."""
        steps, self._steps = self._steps, []
        if not steps:
            return
        samples = [one for one in self.samples if one.place is None]
        for step in steps:
            left_out = [one for one in samples if one.reward is not None and step is steps[-1]]
            _ = step.rows  # here, where an error ends the recording and waits for nobody
            self._sink.do(partial(self._guard, self._write_step, step, left_out))
        self._sink.do(partial(self._guard, self._settle, steps, samples))
        self._sink.end_step()

    def _write_step(self, step: Step, left_out: Sequence[Drawn]) -> None:
        passes = [read(one.rows, one.loss_fn, one.config) for one in step.passes if one.rows]
        self._ledger.stepped(step.number, passes, step.facts(), left_out)

    def _settle(self, steps: Sequence[Step], samples: Sequence[Drawn]) -> None:
        """What the loop samples and steps with, as far as all of it agrees."""
        used = [one for one in samples if one.place is not None]
        sizes = Counter(one.key for one in used)
        found: dict[str, Any] = {
            "num_generations": max(sizes.values(), default=None),
            "prompts_per_step": len(sizes) or None,
            "steps_per_generation": len(steps),
            "gradient_accumulation_steps": 1,
        }
        for name, setting in SAMPLED_WITH.items():
            values = {getattr(one.params, name, None) for one in used}
            found[setting] = values.pop() if len(values) == 1 else None
        for name, setting in STEPPED_WITH.items():
            found[setting] = getattr(steps[-1].adam, name, None)
        fresh = {name: one for name, one in found.items() if self._told[name] is None}
        if any(self._settings[name] is None for name in fresh if fresh[name] is not None):
            self._settings |= fresh
            self._sink.update_run(settings=dict(self._settings))

    def _note(self, text: str) -> None:
        """Said once: on stderr, and above every diagnosis."""
        if text not in self._notes:
            self._notes.append(text)
            self._tell(text)
            self._sink.update_run(notes=list(self._notes))


def _allow(_: Any) -> None:
    """Whoever calls it."""


def _is_done(future: Any) -> bool:
    """Without waiting. The API has two kinds of futures, one around the other."""
    inner = future.future() if callable(getattr(future, "future", None)) else future
    done = getattr(inner, "done", None)
    return bool(done()) if callable(done) else False
