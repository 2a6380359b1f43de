"""`flatline.watch(model, optimizer, run_dir)`: records what any PyTorch loop really trains.

    with flatline.watch(model, optimizer, "runs/x", tokenizer=tokenizer) as watch:
        for ...:
            ids = model.generate(...)       # or a loop of your own
            watch.rewards(rewards)          # one for each row that was sampled
            ...
            loss.backward()
            optimizer.step()

Hooks on the model, on its head and on the optimizer listen. They change nothing: no random number
is drawn, and the trained weights are the same bit for bit. What goes wrong in them is said once and
never reaches the training. docs/your-own-loop.md says what can be known this way and what cannot.
"""

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from flatline.errors import TraceError
from flatline.live.facts import commit, lora_of, tf32, versions
from flatline.live.hooks import Guard
from flatline.live.watch.carried import Carried
from flatline.live.watch.copies import Copies
from flatline.live.watch.gradient import Pass
from flatline.live.watch.head import head_of, logits_in, owners_of, tables_in
from flatline.live.watch.heard import Ear, ends_of, inputs_of, names_of, refuse_foreign
from flatline.live.watch.ledger import Ledger
from flatline.live.watch.passes import Passes
from flatline.live.watch.rows import KEPT, Read
from flatline.live.watch.sampling import Sample, Sampling
from flatline.live.watch.stepping import Stepping
from flatline.live.weights import Looked
from flatline.trace.announce import say
from flatline.trace.closing import Closing
from flatline.trace.settings import SETTINGS, refuse_unknown
from flatline.trace.writer import MemorySink, Sink, Writer

LOST = (
    "Some sampling could not be followed: a cache went on with rows that are not those of the pass "
    "before. The sampler's log-probs of these are not known."
)
BLIND = (
    "The model samples with a cache that stays empty: each token is drawn from the one before it "
    "alone. Gradient checkpointing in train mode does this; call `model.eval()` before `generate` "
    "and `model.train()` after it."
)

ELSEWHERE = (
    "Rewards came for rows that this model did not sample: another engine, or another copy of the "
    "model, does. Only the mean reward of a step is recorded. Check that the other engine gets the "
    "new weights after every step: that cannot be seen from here. `flatline.Recorder` takes rows "
    "with their rewards."
)

_watched: "weakref.WeakKeyDictionary[nn.Module, Path | None]" = weakref.WeakKeyDictionary()
"""Heads that are listened to, and where they are recorded."""


def watch(
    model: nn.Module,
    optimizer: Any,
    run_dir: str | Path,
    *,
    tokenizer: Any = None,
    settings: Mapping[str, Any] | None = None,
    head: str | nn.Module | None = None,
) -> "Watch":
    """Record everything that this model samples and this optimizer trains, until `close`.

    With the tokenizer, tokens are shown as text and its end token is known. `settings` is what else
    is known, by the names of `flatline.trace.settings.SETTINGS`: `dataset_size` and
    `distinct_prompts`, so that a run which visits a part of its data only is seen. `head` is the
    part of the model whose output are the logits, or its name, where that is not found by itself.
    """
    refuse_unknown(settings or {}, "`settings` of `flatline.watch`")
    model, optimizer = _unwrapped(model, optimizer)
    head = head_of(model, optimizer, head)
    run = _run(model, optimizer, head)
    run["settings"] |= settings or {}
    held = next(weight for group in optimizer.param_groups for weight in group["params"])
    sink = Writer(run_dir, run=run, beside=held.device.type != "cpu")
    known = run["settings"]
    return Watch(model, optimizer, sink, tokenizer, known, head, path=sink.folder, tell=say)


def watch_in_memory(model: nn.Module, optimizer: Any, tokenizer: Any) -> tuple[MemorySink, "Watch"]:
    """The same for a step or two that nobody keeps."""
    model, optimizer = _unwrapped(model, optimizer)
    head = head_of(model, optimizer)
    run = _run(model, optimizer, head)
    sink = MemorySink(run=run)
    return sink, Watch(model, optimizer, sink, tokenizer, run["settings"], head)


def _unwrapped(model: Any, optimizer: Any) -> tuple[Any, Any]:
    """Without what DDP and accelerate put around them."""
    return getattr(model, "module", model), getattr(optimizer, "optimizer", optimizer)


def _run(model: nn.Module, optimizer: Any, head: nn.Module) -> dict[str, Any]:
    """What is known of the run; an error where it cannot be watched."""
    refuse_foreign(model, optimizer)
    if head in _watched:
        raise TraceError(
            f"This model is watched already, into {_watched[head] or 'memory'}.\n"
            "Two records of one run would disagree on whose rewards are whose.\n"
            "Close the first one: `watch.close()`, or leave its `with` block."
        )
    adapted = next((one for one in model.modules() if hasattr(one, "peft_config")), model)
    settings = {**dict.fromkeys(SETTINGS), **_known(optimizer), "lora": lora_of(adapted)}
    return {
        "source": "watch",
        "versions": versions(),
        "commit": commit(),
        "fault": None,
        "settings": settings,
    }


class Watch(Closing):
    """The hooks on one model and one optimizer; also a context manager, which takes them off."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Any,
        sink: Sink,
        tokenizer: Any,
        settings: Mapping[str, Any],
        head: nn.Module,
        *,
        path: Path | None = None,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        ends = ends_of(model, tokenizer)
        self.path = path
        """The run's folder; None where it is kept in memory."""
        self._tell = tell
        self._sink, self._settings = sink, dict(settings)
        self._notes: list[str] = []
        self._guard = Guard(sink.stop)
        self._ledger = Ledger(sink, tokenizer, ends)
        self._sampling = Sampling(ends, self._sampled)
        self._passes = Passes(
            self._note, self._settle, lambda **known: sink.update_run(labels_unshifted=known)
        )
        self._stepping = Stepping(model, optimizer, self._note, self._settle)
        self._recent: deque[Sample] = deque(maxlen=KEPT)
        self._carried = Carried(lambda **known: sink.update_run(state_is_carried=known))
        self._copies = Copies(model, head, self._guard, self._told_of_copies)
        self._elsewhere: list[float] = []
        """Rewards of rows that this model did not sample, until the next step."""
        self._calls = 0
        """Of `rewards`, so that groups of one name stay apart."""
        self._depth = 0
        """Of the innermost part of the model that was given token ids until now."""
        self._wide = tables_in(head)
        """Where the whole model is its head: how many tokens there are."""
        self._head: nn.Module | None = head
        self._handles = self._listen(model, head, optimizer)
        _watched[head] = self.path

    def rewards(
        self,
        values: Iterable[float],
        groups: Iterable[object] | None = None,
        *,
        parts: Mapping[str, Iterable[float]] | None = None,
        gold: Iterable[str] | None = None,
    ) -> None:
        """The rewards of the latest rows that were sampled, in their order; before `step()`.

        `groups` names the group of each row; without it, rows of one prompt are one group. `parts`
        are what a reward is made of; the one that is 1 or 0 says right or wrong. `gold` are the
        right answers.
        """
        given = [float(value) for value in values]
        names = None if groups is None else [_plain(group) for group in groups]
        answers = None if gold is None else [str(answer) for answer in gold]
        named = {name: [float(value) for value in part] for name, part in (parts or {}).items()}
        self._guard(self._sampling.close)
        if self._guard.broken:
            return
        others = {"groups": names, "gold": answers, **named}
        self._refuse_uneven(len(given), {n: one for n, one in others.items() if one is not None})
        if not self._recent:
            self._note(ELSEWHERE)
            self._elsewhere += given
            self._guard(self._hear_copies)
            return
        self._calls += 1
        latest = list(self._recent)[len(self._recent) - len(given) :]
        for at, (sample, value) in enumerate(zip(latest, given, strict=True)):
            sample.reward = value
            sample.parts = {name: part[at] for name, part in named.items()} or None
            sample.gold = None if answers is None else answers[at]
            sample.group = None if names is None else (self._calls, names[at])
        if any(sample.place is not None for sample in latest):
            self._note(
                "Some rewards came after the optimizer step that trained their rows, so they are "
                "not recorded. Call `watch.rewards(...)` before `optimizer.step()`."
            )

    def sampled(self) -> list[Sample]:
        """The latest sequences that were sampled, in their order."""
        self._guard(self._sampling.close)
        return list(self._recent)

    def close(self, *, clean: bool = True) -> None:
        """Take all hooks off, and write what is known."""
        if self._head is None:
            return
        for handle in self._handles:
            handle.remove()
        del _watched[self._head]
        self._head = None
        self._guard(self._sampling.close)
        self._guard(self._stepping.say_last)
        self._sink.close(clean=clean and not self._guard.broken)
        if isinstance(self._sink, Writer):
            self._sink.say_recorded()

    def _listen(self, model: nn.Module, head: nn.Module, optimizer: Any) -> list[Any]:
        def given(depth: int, owner: nn.Module) -> Callable[..., None]:
            names = names_of(owner)
            return lambda args, kwargs: self._given(
                depth, {**dict(zip(names, args, strict=False)), **kwargs}
            )

        def ear(owner: Any, heard: Callable[..., None]) -> Ear:
            return Ear(owner, heard, self._guard)

        def accumulated(weight: Tensor) -> None:
            self._guard(self._stepping.accumulated, weight)

        owners = list(enumerate(owners_of(model, head)))
        weights: list[Any] = [weight for weight in model.parameters() if weight.requires_grad]
        return [
            *(
                owner.register_forward_pre_hook(ear(owner, given(at, owner)), with_kwargs=True)
                for at, owner in owners
            ),
            head.register_forward_hook(ear(head, self._built)),
            optimizer.register_step_pre_hook(ear(optimizer, self._before_step)),
            optimizer.register_step_post_hook(ear(optimizer, self._after_step)),
            *(weight.register_post_accumulate_grad_hook(accumulated) for weight in weights),
        ]

    def _given(self, depth: int, values: Mapping[str, Any]) -> None:
        """Ids may be changed on the way down, so the innermost part that is given some counts."""
        if depth < self._depth:
            return
        inputs = inputs_of(values)
        self._carried.given(inputs)
        if depth == self._depth:
            self._passes.given(inputs)
        elif inputs is not None:
            self._depth = depth
            self._passes.given_within(inputs)

    def _built(self, _: Any, output: Any) -> None:
        logits: Any = logits_in(output, self._wide)
        if self._passes.blind:
            self._note("The model is not given token ids, so nothing is known of what it sees.")
        inputs = self._passes.built(logits)
        if inputs is None or logits is None:
            return
        if self._settings["precision"] is None:
            self._settle(precision=_precision(logits))
        with torch.no_grad():
            self._sampling.hear(inputs, logits, self._stepping.done)
        if self._sampling.lost:
            self._note(LOST)
        if self._sampling.blind:
            self._note(BLIND)
        if logits.requires_grad:
            one = self._passes.expect(inputs, logits)
            guard, hear = self._guard, self._hear
            logits.register_hook(lambda gradient: guard(hear, one, gradient.detach()))

    def _hear(self, one: Pass, gradient: Tensor) -> None:
        with torch.no_grad():
            if self._stepping.cleared():
                self._passes.clear()
            one.hear(gradient)

    def _sampled(self, samples: list[Sample]) -> None:
        self._recent.extend(samples)
        self._hand_on(lambda: self._ledger.sampled(samples))

    def _before_step(self, *_: Any) -> None:
        self._sampling.close()
        if self._passes.any_cleared and not self._stepping.as_left():
            self._passes.keep()
        self._stepping.before(scaled=self._passes.scaled)

    def _after_step(self, *_: Any) -> None:
        looked, facts = self._stepping.after()
        self._carried.step()
        reads, numbers = self._passes.step()
        facts["metrics"] |= numbers
        facts |= {"reward": float(np.mean(self._elsewhere))} if self._elsewhere else {}
        self._elsewhere = []
        step = self._stepping.done
        self._hand_on(lambda: self._write(step, reads, looked, facts))
        self._sink.end_step()

    def _write(
        self, step: int, reads: list[Read], looked: Looked | None, facts: dict[str, Any]
    ) -> None:
        if looked is not None:
            self._sink.write("weights", looked.rows())
        self._ledger.stepped(step, reads, facts)

    def _refuse_uneven(self, count: int, others: Mapping[str, Sequence[Any]]) -> None:
        if self._recent and count > len(self._recent):
            raise TraceError(
                f"There are {count} rewards for {len(self._recent)} rows that this model was "
                "seen to sample.\nA reward without its row could not be placed.\n"
                "Give one reward for each row, after it was sampled. Where another engine samples, "
                "use `flatline.Recorder`."
            )
        for name, values in others.items():
            if len(values) != count:
                raise TraceError(
                    f"There are {count} rewards, and `{name}` has {len(values)} entries.\n"
                    "Give one entry for each row."
                )

    def _note(self, text: str) -> None:
        """Said once: on stderr, and above every diagnosis."""
        if text not in self._notes:
            self._notes.append(text)
            self._tell(text)
            self._sink.update_run(notes=list(self._notes))

    def _hear_copies(self) -> None:
        with suppress(Exception):  # a copy may be in any place and form
            self._handles += self._copies.rewarded(self._stepping.done)

    def _told_of_copies(self, **known: int) -> None:
        self._sink.update_run(copy_that_samples=known)

    def _settle(self, **values: Any) -> None:
        self._settings |= values
        self._sink.update_run(settings=dict(self._settings))

    def _hand_on(self, work: Callable[[], None]) -> None:
        """What goes wrong in it ends the recording, in whatever thread it is."""
        self._sink.do(lambda: self._guard(work))


def _known(optimizer: Any) -> dict[str, Any]:
    first = optimizer.param_groups[0]
    return {"learning_rate": float(first["lr"]), "weight_decay": first.get("weight_decay")}


def _precision(logits: Tensor) -> str:
    """What products are computed in, as their results are; autocast shows there too."""
    name = str(logits.dtype).removeprefix("torch.")
    return "tf32" if name == "float32" and logits.is_cuda and tf32() else name


def _plain(group: Any) -> object:
    """The name of a group that can be compared, also where it is a tensor of one number."""
    return group.item() if isinstance(group, Tensor | np.generic) else group
