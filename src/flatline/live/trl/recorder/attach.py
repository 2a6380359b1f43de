"""`flatline.attach(trainer, run_dir)`: one line that records any TRL GRPO run.

The trainer's own methods are wrapped on the instance. They run exactly once, with the arguments
and the result they would have had: no random number is drawn, no weight or gradient is touched, and
the trained weights are the same bit for bit. What goes wrong in the recording is said once on
stderr and never reaches the training.

    _generate_and_score_completions   rows, tokens, masks; rewards and time of sampling inside it,
                                      and the log-probs that transformers' `generate` drew with
    _compute_loss                     loss mask and advantages really used; log-probs and attention
                                      mask of the pass that is trained through
    accelerator.clip_grad_norm_       gradients before they are clipped

Releases before 0.19 lack some of these: what stands in their place is listened to.
"""

import atexit
import functools
import inspect
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from torch import nn

from flatline.errors import FlatlineError, TraceError
from flatline.live.hooks import Guard, Once, Patch, listening, nested_models, watching_attention
from flatline.live.trl.grpo import GrpoTrainer, scorer_of
from flatline.live.trl.recorder.callback import StepEnd, StepWatch
from flatline.live.trl.recorder.heard import Generation, Pass
from flatline.live.trl.recorder.recording import Recording
from flatline.live.trl.sampler import Calls, hearing
from flatline.live.trl.settings import ALGORITHMS, run_facts, settings, truth
from flatline.live.where.package import TRL, library_of
from flatline.releases import note_on
from flatline.trace.announce import say
from flatline.trace.files import table_files
from flatline.trace.reader import Trace
from flatline.trace.writer import MemorySink, Sink, Writer

PLAYS = ("_generate_and_score_completions", "_prepare_inputs")
"""The method that makes a batch: since TRL 0.16, and in 0.15."""
LOSES = ("_compute_loss", "compute_loss")
"""The method that makes a loss of it: since TRL 0.17, and before."""


class StepListener(Protocol):
    """Hears of every step that is recorded; `flatline.Alarms` is one. It must not raise."""

    def attached(self, attachment: "Attachment") -> None:
        """It is listening from now on; what it cannot do with this trainer it refuses here."""

    def step_ended(self, attachment: "Attachment", control: Any) -> None:
        """A step is in the trace; `control` is the trainer's, which may be told to stop."""

    def training_ended(self, attachment: "Attachment") -> None:
        """All steps are in the trace."""


def attach(
    trainer: GrpoTrainer,
    run_dir: str | Path | Sink,
    *,
    correct: str | None = None,
    gold: str | None = None,
) -> "Attachment":
    """See `flatline.attach`."""
    refused = why_not(trainer)
    if refused:
        raise TraceError(refused)
    return Attachment(trainer, run_dir, truth(trainer, correct, gold))


def why_not(trainer: Any) -> str | None:
    """What to say where nothing of this trainer can be recorded; None where it can."""
    another = another_algorithm(trainer) or another_inside(trainer)
    # TRL 0.14 has neither of the two: all of a step is one method there.
    if another or (scorer_of(trainer) and hasattr(trainer, "reward_funcs")):
        return another
    return (
        f"A {type(trainer).__name__} has no method that scores completions alone.\n"
        "`attach` records TRL's GRPOTrainer from 0.15 on, and trainers built on it.\n"
        "Any loop can be recorded: `flatline.watch(model, optimizer, run_dir)`."
    )


def another_algorithm(trainer: GrpoTrainer) -> str | None:
    """What to say of a TRL trainer that is neither GRPO nor RLOO; None for these, and for what is
    not TRL's."""
    kinds = [kind for kind in type(trainer).__mro__ if kind.__name__.endswith("Trainer")]
    names = [kind.__name__ for kind in kinds if library_of(kind.__module__) == TRL]
    if not names or any(name in ALGORITHMS for name in names):
        return None
    return (
        f"This is TRL's {names[0]}; flatline knows GRPO, RLOO and trainers built on them.\n"
        "Its checks of their groups, advantages and ratios would be wrong here.\n"
        "Any other loop can be recorded: `flatline.watch(model, optimizer, run_dir)`."
    )


def another_inside(trainer: Any) -> str | None:
    """What to say of a trainer that is built on TRL's and whose batches have another form, as those
    of ms-swift have; None for others."""
    loss = getattr(trainer, "_compute_loss", None)
    if loss is None or _takes_two(loss):
        return None
    package = type(trainer).__module__.partition(".")[0]
    return (
        f"The {type(trainer).__name__} of `{package}` is built on TRL's and replaces its inside: "
        "its loss takes other arguments.\n"
        "What flatline would read as a batch of TRL's is something else here.\n"
        "Its model and optimizer can be recorded: `flatline.watch(trainer.model, "
        "trainer.optimizer, run_dir)` once training has begun; and its log can be diagnosed."
    )


def _takes_two(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind("model", "inputs")
    except TypeError:
        return False
    return True


class _Generated(NamedTuple):
    """One call of a generation, heard to its end."""

    one: Generation | None
    """None of an evaluation."""
    output: Any
    calls: Calls
    seconds: float
    sampling: list[float]


class Attachment:
    """The hooks on one trainer."""

    def __init__(
        self, trainer: GrpoTrainer, run_dir: str | Path | Sink, told: Mapping[str, str | None]
    ) -> None:
        self.trainer = trainer
        self._told = told
        """What says which answers are right, as the user named it."""
        self.alarms: StepListener | None = None
        """Told of every step."""
        self.path = Path(run_dir) if isinstance(run_dir, str | Path) else None
        """The run's folder; None for a sink."""
        self._guard = Guard(self._tell_stop)
        self._sink: Sink | None = None if isinstance(run_dir, str | Path) else run_dir
        self._written: Writer | None = None
        """What writes into the folder, or did until it was closed."""
        self._replaces = False
        """Whether the folder had steps before this start."""
        self._recording: Recording | None = self._open()
        self._say_beside(_folders(trainer))
        self._say_known()
        self._begun = False
        self._unwrapped: tuple[Any, Any] | None = None
        """The trainer's model, and what is inside its wrappers."""
        self.says_what_is_next = True
        """Whether the end of training tells the person what to type."""
        self._patches = self._install()
        self._watch = StepWatch(self)
        self._listeners = (self._watch, StepEnd(self._watch))
        _listen(trainer, *self._listeners)
        self._forget = _at_exit(self)

    def telling(self, alarms: StepListener | None) -> "Attachment":
        """The same, which tells a listener of every step."""
        try:
            if alarms is not None:
                alarms.attached(self)
        except FlatlineError:
            self.detach()
            raise
        self.alarms = alarms
        return self

    @property
    def trace(self) -> Trace:
        """What is written so far; `flush` first for what still waits to be trained."""
        if isinstance(self._sink, MemorySink):
            return self._sink.trace()
        if self.path is None:
            raise TraceError("Only a folder or a `MemorySink` can be read back.")
        return Trace.open(self.path)

    @property
    def failed(self) -> bool:
        """Whether the recording stopped because of an error of its own."""
        return self._guard.broken

    def note(self, **facts: Any) -> None:
        """Add facts about the run to `run.json`."""
        if self._recording is not None:
            sink = self._recording.sink
            self._guard(lambda: sink.update_run(**facts))

    def flush(self) -> None:
        """Write what waits to be trained as it is now; a later pass adds nothing to it."""
        if self._recording is not None:
            self._guard(self._recording.flush)

    def close(self, *, clean: bool = True) -> None:
        """Write everything; a folder is compacted if the run ended well."""
        if self._recording is None:
            return
        self._guard(self._watch.write_pending)
        self._guard(self.flush)
        recording, self._recording = self._recording, None
        if self.path is not None:
            try:
                recording.sink.close(clean=clean and not self.failed)
            except Exception as error:
                self._guard.stop(error)

    def say_what_is_next(self) -> None:
        """Training is over: where the recording is, and what to type."""
        first = int(self.trainer.accelerator.process_index) == 0
        if self._written is not None and first and self.says_what_is_next:
            self._written.say_recorded()

    def detach(self) -> None:
        """Leave the trainer as it was before."""
        self.close()
        for patch in reversed(self._patches):
            patch.undo()
        for listener in self._listeners:
            self.trainer.remove_callback(listener)
        self._forget()

    def watch(self, heard: Callable[[], None]) -> None:
        """What the training loop says is heard; the training does not notice what goes wrong."""
        self._guard(heard)

    def begin(self) -> None:
        """Training starts; a second `train()` is a new segment of the same trace."""
        if self._begun:  # a training that broke off left its last step half recorded
            self.close(clean=False)
        self._begun = True
        if self._recording is None:
            self._recording = self._open()
        self._recording.sink.update_run(settings={**settings(self.trainer), **self._told})
        if self._replaces and self.trainer.state.global_step == 0:
            say(
                f"{self.path} has the steps of an earlier training. This one begins at step 0 and "
                "replaces them in the trace; to read both, give it a separate folder."
            )

    def work(self, name: str, *args: Any) -> Any:
        """Have the recording do one of its methods, if there is one that still works."""
        if self._recording is not None:
            found: list[Any] = []
            self._guard(lambda: found.append(getattr(self._recording, name)(*args)))
            return found[0] if found else None
        return None

    def _tell_stop(self, why: str) -> None:
        if self._recording is not None:
            self._recording.sink.stop(why)

    def _say_beside(self, others: list[Path]) -> None:
        if self.path is not None and others and self.trainer.accelerator.process_index == 0:
            say(
                f"this trainer is recorded into {others[0]} as well as into {self.path}. "
                "If only one is meant, `detach()` the other."
            )

    def _say_known(self) -> None:
        known = note_on(self.trainer)
        # A checkup listens to a sink of its own, and has said it.
        if known and self.path is not None and self.trainer.accelerator.process_index == 0:
            say(known)

    def _open(self) -> Recording:
        if self._sink is not None:
            self._sink.update_run(**run_facts(self.trainer, self._told))
            return Recording(self.trainer, self._sink, self._guard, self._told["gold"])
        assert self.path is not None
        rank = int(self.trainer.accelerator.process_index)
        self._replaces = rank == 0 and _has_steps(self.path)
        on_cpu = self.trainer.accelerator.device.type == "cpu"
        facts = run_facts(self.trainer, self._told)
        self._written = sink = Writer(self.path, rank=rank, run=facts, beside=not on_cpu)
        return Recording(self.trainer, sink, self._guard, self._told["gold"])

    def _install(self) -> list[Patch]:
        trainer = self.trainer
        return [
            self._patch(trainer, "train", self._train, always=True),
            self._patch(trainer, _first_of(trainer, PLAYS), self._generate),
            self._patch(trainer, _first_of(trainer, LOSES), self._compute_loss),
            self._patch(trainer.accelerator, "clip_grad_norm_", self._clip),
        ]

    def _patch(
        self, owner: Any, name: str, hook: Callable[..., None], *, always: bool = False
    ) -> Patch:
        """`always` also where nothing is recorded at the time of the call."""

        def around(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            if not always and (self._recording is None or self._guard.broken):
                return original(*args, **kwargs)
            return Once(original, self._guard).through(hook, *args, **kwargs)

        return Patch(owner, name, around)

    def _train(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """All of a training: what it ends with is told in the trace."""
        try:
            original(*args, **kwargs)
        except BaseException as error:
            if self._recording is not None:
                self._recording.sink.died(error)
                self.close(clean=False)
            raise

    def _generate(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """What TRL generates, before a subclass does something to it: rows keep the numbers that
        they are found again by, whatever becomes of them."""
        with self._inside() as heard:
            seen = self._generate_one(original, *args, **kwargs)
        if heard:
            self.work("handed_on", seen.output)
        elif seen.one is not None:
            self.work("generated", seen.one, seen.output, seen.calls)
        if seen.one is not None:
            self.work("took", seen.seconds, sum(seen.sampling) if seen.sampling else None)

    def _generate_inside(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        seen = self._generate_one(original, *args, **kwargs)
        if seen.one is not None:
            self.work("generated", seen.one, seen.output, seen.calls)

    def _generate_one(
        self, original: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> "_Generated":
        """Evaluation plays other problems and trains nothing: what it sampled is marked as such."""
        rows = args[0] if args else kwargs.get("inputs")
        training = self.trainer.model.training
        one = self.work("begin_generation", rows) if training else None
        if one is None:
            output = original(*args, **kwargs)
            if not training:
                self.work("evaluated", output)
            return _Generated(None, output, Calls(), 0.0, [])
        sampling: list[float] = []

        def heard_sampling(_args: Any, _kwargs: Any, result: Any, spent: float) -> None:
            sampling.append(spent)
            one.hear_sampled(result)

        start = time.perf_counter()
        with (
            self._paying(one),
            listening(self.trainer, "_generate", heard_sampling, self._guard),
            hearing(self.trainer, self._guard) as calls,
        ):
            output = original(*args, **kwargs)
        return _Generated(one, output, calls, time.perf_counter() - start, sampling)

    @contextmanager
    def _inside(self) -> Iterator[list[bool]]:
        """Inside, TRL's own method is heard where a subclass overrides it and calls it."""
        name, heard = _first_of(self.trainer, PLAYS), list[bool]()
        kind = _overridden(type(self.trainer), name)
        if kind is None:
            yield heard
            return
        original = vars(kind)[name]

        @functools.wraps(original)
        def inside(trainer: Any, *args: Any, **kwargs: Any) -> Any:
            method = functools.partial(original, trainer)
            if trainer is not self.trainer or self._recording is None or self._guard.broken:
                return method(*args, **kwargs)
            heard.append(True)
            return Once(method, self._guard).through(self._generate_inside, *args, **kwargs)

        setattr(kind, name, inside)
        try:
            yield heard
        finally:
            setattr(kind, name, original)

    @contextmanager
    def _paying(self, one: Generation) -> Iterator[None]:
        """Inside, rewards are heard: together, or before TRL 0.19 function by function."""
        if hasattr(self.trainer, "_calculate_rewards"):
            with listening(self.trainer, "_calculate_rewards", one.hear_rewards, self._guard):
                yield
            return
        functions, paid = list(self.trainer.reward_funcs), dict[int, Any]()
        self.trainer.reward_funcs[:] = [_noting(f, paid, k) for k, f in enumerate(functions)]
        try:
            yield
        finally:
            self.trainer.reward_funcs[:] = functions
        rank = int(self.trainer.accelerator.process_index)
        self._guard(lambda: one.hear_payments(paid, len(functions), rank))

    def _compute_loss(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        inputs = args[1] if len(args) > 1 else kwargs.get("inputs")
        if not self.trainer.model.training or not isinstance(inputs, dict):
            original(*args, **kwargs)
            return
        one = Pass(inputs)
        with (
            listening(self.trainer, scorer_of(self.trainer), one.hear_logps, self._guard),
            watching_attention(self._modules(), one.hear_mask, self._guard),
        ):
            loss = original(*args, **kwargs)
        one.loss = loss.detach()
        self.work("passed", one)

    def _clip(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        self.work("gradients_are_whole")
        self.work("clipped", original(*args, **kwargs))

    def _modules(self) -> list[Any]:
        """Where attention masks pass by. A compiled graph must not be given a hook."""
        if getattr(self.trainer.args, "torch_compile", False):
            return []
        found: list[Any] = []
        self._guard(lambda: found.extend(nested_models(self._policy())))
        return found

    def _policy(self) -> Any:
        """The model without its wrappers, looked for once in each that the trainer has: accelerate
        walks through all modules to find compiled ones."""
        model = self.trainer.model
        if self._unwrapped is None or self._unwrapped[0] is not model:
            self._unwrapped = model, self.trainer.accelerator.unwrap_model(model)
        return self._unwrapped[1]


def _overridden(kind: type, name: str) -> type | None:
    """TRL's class whose method a subclass of somebody's own overrides; None where none does."""
    owners = [one for one in kind.__mro__ if name in vars(one)]
    known = [one for one in owners if library_of(one.__module__) == TRL]
    own = library_of(owners[0].__module__) in (TRL, "flatline")
    return None if own or not known else known[0]


def _first_of(trainer: GrpoTrainer, names: Sequence[str]) -> str:
    return next(name for name in names if callable(getattr(trainer, name, None)))


def _noting(function: Any, paid: dict[int, Any], at: int) -> Any:
    """Says what it paid; a model that pays is left as it is."""
    if isinstance(function, nn.Module):
        return function

    @functools.wraps(function)
    def noted(*args: Any, **kwargs: Any) -> Any:
        paid[at] = found = function(*args, **kwargs)
        return found

    return noted


def _listen(trainer: GrpoTrainer, watch: StepWatch, step_end: StepEnd) -> None:
    """`add_callback` would take a second attachment for a mistake, and print its classes."""
    callbacks = trainer.callback_handler.callbacks
    callbacks.append(watch)
    callbacks.insert(1, step_end)  # the first one decides what a step is followed by


def _folders(trainer: GrpoTrainer) -> list[Path]:
    """Where this trainer is recorded already."""
    watches = (one for one in trainer.callback_handler.callbacks if isinstance(one, StepWatch))
    return [one.folder for one in watches if one.folder is not None]


def _has_steps(folder: Path) -> bool:
    try:
        return any(name.table == "steps" for name in table_files(folder))
    except OSError:  # it is not there yet; or it cannot be used, which the writer says better
        return False


def _at_exit(attachment: Attachment) -> Callable[[], None]:
    """Save what a run that broke off has not written yet. Returns how to take that back."""
    known = weakref.ref(attachment)

    def save() -> None:
        found = known()
        if found is not None:
            found.close(clean=False)

    atexit.register(save)
    return lambda: atexit.unregister(save)
