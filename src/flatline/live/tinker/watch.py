"""`flatline.tinker.watch(run_dir)`: records a training loop on the Tinker API.

    with flatline.tinker.watch("runs/x", tokenizer=tokenizer):
        for ...:
            answer = sampling_client.sample(prompt, 8, sampling_params).result()
            flatline.tinker.rewards(rewards, answer.sequences)
            ...
            training_client.forward_backward(data, "importance_sampling")
            training_client.optim_step(adam_params)

The methods of the client classes are listened to, so every client is heard, whoever made it. Calls
and results are passed on as they are. A step is written when the loop samples anew, or at the end:
its results must have come by then, and no call waits for them.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flatline.errors import ConfigError, TraceError
from flatline.live.facts import commit, versions
from flatline.live.hooks import Guard
from flatline.live.tinker.data import Drawn, Row, drawn, is_text, read, row_of
from flatline.live.tinker.listening import clients, listen
from flatline.live.watch.ledger import Ledger
from flatline.live.watch.rows import KEPT, Read
from flatline.trace.announce import say, say_recorded
from flatline.trace.closing import Closing
from flatline.trace.settings import SETTINGS
from flatline.trace.writer import MemorySink, Sink, Writer

LOSS_TEMPERATURE = 1.0
"""The API's losses take log-probs of the logits as they are."""
LAST_WAIT = 60.0
"""Seconds that closing waits for an answer of the server."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One call of `forward_backward`."""

    data: Sequence[Any]
    loss_fn: str
    config: Any
    future: Any

    def rows(self) -> list[Row]:
        outputs = self.future.result(LAST_WAIT).loss_fn_outputs
        return [row_of(one, out) for one, out in zip(self.data, outputs, strict=True)]


@dataclass(slots=True, kw_only=True)
class Step:
    """One call of `optim_step`, with the passes before it."""

    number: int
    passes: list[Pass]
    adam: Any
    future: Any = None
    rows: list[Row] = field(default_factory=list)
    """Of all passes; filled when the step is written."""

    @property
    def is_answered(self) -> bool:
        return all(_is_done(one.future) for one in (*self.passes, self))


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
    given = [float(value) for value in values]
    named = {name: [float(value) for value in part] for name, part in (parts or {}).items()}
    answers = None if gold is None else [str(answer) for answer in gold]
    each = list(sequences)
    counts = {"sequences": len(each), **{name: len(part) for name, part in named.items()}}
    if answers is not None:
        counts["gold"] = len(answers)
    for name, count in counts.items():
        if count != len(given):
            raise TraceError(
                f"There are {len(given)} rewards, and `{name}` has {count} entries.\n"
                "Give one entry for each sampled sequence."
            )
    if _watching:
        _watching[-1].paid(each, given, named, answers)


def _run(given: Mapping[str, Any]) -> dict[str, Any]:
    unknown = sorted(set(given) - set(SETTINGS))
    if unknown:
        raise ConfigError(
            f"`settings` has no {', '.join(unknown)}.\nThere are: {', '.join(SETTINGS)}."
        )
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
        self.latest: deque[Step] = deque(maxlen=2)
        self._steps: list[Step] = []
        """Those that are not written yet."""
        self._tell, self._only, self._trainer = tell, only, only
        self._sink, self._settings, self._told = sink, dict(settings), dict(settings)
        self._guard = Guard(sink.stop)
        self._lock = threading.RLock()
        self._ledger = Ledger(sink, tokenizer, frozenset())
        self._asked: list[tuple[Any, Any, Any, int]] = []
        """Calls of `sample` that were not answered when last looked at."""
        self.samples: deque[Drawn] = deque(maxlen=KEPT)
        self._passes: list[Pass] = []
        self._calls = self._done = 0
        """Optimizer steps that were asked for."""
        self._versions: dict[int, tuple[Any, int]] = {}
        """Sampling clients by identity, and the steps behind their weights."""
        self._saved: list[tuple[Any, int]] = []
        """Saved weights that are to come, and the steps behind them."""
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
        if self.path is not None and not self._guard.broken:
            say_recorded(self.path)

    def paid(
        self,
        sequences: Sequence[Any],
        values: Sequence[float],
        parts: Mapping[str, Sequence[float]],
        gold: Sequence[str] | None,
    ) -> None:
        """Told by `rewards`."""
        with self._lock:
            self._guard(self._collect)
            known = {id(one.sequence): one for one in self.samples}
            for at, sequence in enumerate(sequences):
                sample = known.get(id(sequence))
                if sample is None:
                    self._note(
                        "Some rewards are of sequences that were not heard to be sampled, so they "
                        "are not recorded. Give `rewards` the `sequences` of a `SampleResponse`."
                    )
                    continue
                sample.reward = values[at]
                sample.parts = {name: part[at] for name, part in parts.items()} or None
                sample.gold = None if gold is None else gold[at]

    # -- what is heard

    def _listen(self) -> list[Callable[[], None]]:
        api = clients()
        sampler, trainer, service = api.SamplingClient, api.TrainingClient, api.ServiceClient
        heard: list[tuple[type, str, Any]] = [
            (sampler, "sample", self._sample),
            (trainer, "forward_backward", self._forward_backward),
            (trainer, "optim_step", self._optim_step),
            (trainer, "load_state", self._loaded),
            (trainer, "load_state_with_optimizer", self._loaded),
            (trainer, "save_weights_for_sampler", self._save),
            (trainer, "save_weights_and_get_sampling_client", self._client_of_now),
            (trainer, "save_weights_and_get_sampling_client_async", self._client_of_now),
            *((kind, "create_sampling_client", self._client_of) for kind in (trainer, service)),
            *((kind, "create_sampling_client_async", self._client_of) for kind in (trainer, service)),
        ]  # fmt: skip
        changes = {"forward_backward", "optim_step", "load_state", "load_state_with_optimizer"}
        return [
            listen(kind, name, self._locked(hear), self._guard, self._refuse_other)
            if name in changes
            else listen(kind, name, self._locked(hear), self._guard, lambda _: None)
            for kind, name, hear in heard
        ]

    def _locked(self, hear: Callable[..., Any]) -> Callable[..., Any]:
        """Clients are called in threads of their own, too."""

        def alone(*args: Any) -> Any:
            with self._lock:
                return hear(*args)

        return alone

    def _refuse_other(self, client: Any) -> None:
        if self._only is not None and client is not self._only:
            raise ConfigError(
                "`step` trains another client than the one that it is given.\n"
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

    def _sample(self, client: Any, given: dict[str, Any]) -> Callable[[Any], None] | None:
        self._collect()
        if all(one.is_answered for one in self._steps):
            self._write()
        if not is_text(given["prompt"]):
            self._note("Prompts with images are not recorded: they have no token ids.")
            return None
        # A client that was made before anybody listened has the weights of that time.
        _, version = self._versions.setdefault(id(client), (client, self._done))
        prompt, params = given["prompt"], given["sampling_params"]
        return lambda future: self._asked.append((future, prompt, params, version))

    def _collect(self) -> None:
        """Take what was sampled by now."""
        waiting = []
        for future, prompt, params, version in self._asked:
            if not _is_done(future):
                waiting.append((future, prompt, params, version))
            elif future.exception() is None:
                self._calls += 1
                fresh = drawn(prompt, params, future.result(), version, self._calls)
                self.samples.extend(fresh)
                self._sink.do(lambda fresh=fresh: self._ledger.sampled(fresh))  # type: ignore[misc]
        self._asked = waiting

    def _forward_backward(self, client: Any, given: dict[str, Any]) -> Callable[[Any], None] | None:
        if not self._is_ours(client):
            return None
        data = [one for one in given["data"] if is_text(one.model_input)]
        if len(data) < len(given["data"]):
            self._note("Data with images are not recorded: they have no token ids.")
            return None

        def told(future: Any) -> None:
            self._passes.append(
                Pass(
                    data=data,
                    loss_fn=given["loss_fn"],
                    config=given["loss_fn_config"],
                    future=future,
                )
            )

        return told

    def _optim_step(self, client: Any, given: dict[str, Any]) -> Callable[[Any], None] | None:
        if not self._is_ours(client):
            return None
        self._collect()
        self._done += 1
        step = Step(number=self._done, passes=self._passes, adam=given["adam_params"])
        self._passes = []
        self._steps.append(step)
        self.latest.append(step)
        return lambda future: setattr(step, "future", future)

    def _loaded(self, client: Any, given: dict[str, Any]) -> None:
        if client is self._trainer and self._done:
            self._note("The loop loads saved weights while it trains; steps are counted on.")

    def _save(self, client: Any, given: dict[str, Any]) -> Callable[[Any], None] | None:
        version = self._done
        if client is not (self._trainer or client):
            return None
        return lambda future: self._saved.append((future, version))

    def _client_of_now(self, client: Any, given: dict[str, Any]) -> Callable[[Any], None] | None:
        version = self._done
        if client is not (self._trainer or client):
            return None
        return lambda sampler: self._versions.update({id(sampler): (sampler, version)})

    def _client_of(self, client: Any, given: dict[str, Any]) -> Callable[[Any], None]:
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
        samples = [one for one in self.samples if one.place is None]
        if not self._settings["steps_per_generation"] and len(steps) > 1:
            self._settle(steps_per_generation=len(steps), gradient_accumulation_steps=1)
        for step in steps:
            step.rows = [row for one in step.passes for row in one.rows()]
            last = step is steps[-1]
            self._sink.do(lambda s=step, last=last: self._guard(self._step, s, samples, last))  # type: ignore[misc]
        if steps:
            self._sink.do(lambda: self._guard(self._heard, steps[-1], samples))
            self._sink.end_step()

    def _step(self, step: Step, samples: Sequence[Drawn], last: bool) -> None:
        passes: list[Read] = []
        at = 0
        for one in step.passes:
            rows = step.rows[at : at + len(one.data)]
            at += len(one.data)
            if rows:
                passes.append(read(rows, one.loss_fn, one.config))
        left_out = [one for one in samples if one.reward is not None] if last else []
        self._ledger.stepped(step.number, passes, _facts(step), left_out)

    def _heard(self, step: Step, samples: Sequence[Drawn]) -> None:
        """What the loop samples and steps with, as far as all of it agrees."""
        used = [one for one in samples if one.place is not None]
        found: dict[str, Any] = {}
        for name, setting in SAMPLED_WITH.items():
            values = {getattr(one.params, name, None) for one in used}
            found[setting] = values.pop() if len(values) == 1 else None
        for name, setting in STEPPED_WITH.items():
            found[setting] = getattr(step.adam, name, None)
        sizes = {}
        for one in used:
            sizes[one.key] = sizes.get(one.key, 0) + 1
        found["num_generations"] = max(sizes.values(), default=None)
        found["prompts_per_step"] = len(sizes) or None
        fresh = {name: value for name, value in found.items() if self._told[name] is None}
        if any(self._settings[name] is None and fresh[name] is not None for name in fresh):
            self._settle(**fresh)

    def _settle(self, **values: Any) -> None:
        self._settings |= values
        self._sink.update_run(settings=dict(self._settings))

    def _note(self, text: str) -> None:
        """Said once: on stderr, and above every diagnosis."""
        if text not in self._notes:
            self._notes.append(text)
            self._tell(text)
            self._sink.update_run(notes=list(self._notes))


def _facts(step: Step) -> dict[str, Any]:
    answers = [one.future.result().metrics or {} for one in (*step.passes, step)]
    metrics = {name: float(value) for one in answers for name, value in one.items()}
    return {
        "learning_rate": float(step.adam.learning_rate),
        "loss": metrics.get("loss:sum"),
        "metrics": metrics or None,
    }


def _is_done(future: Any) -> bool:
    """Without waiting. The API has two kinds of futures, one around the other."""
    inner = future.future() if callable(getattr(future, "future", None)) else future
    done = getattr(inner, "done", None)
    return bool(done()) if callable(done) else False
