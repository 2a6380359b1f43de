"""`flatline.watch(model, optimizer, run_dir)`: records what any PyTorch loop really trains.

    with flatline.watch(model, optimizer, "runs/x", tokenizer=tokenizer) as watch:
        for ...:
            ids = model.generate(...)       # or a loop of your own
            watch.rewards(rewards)          # one for each row that was sampled
            ...
            loss.backward()
            optimizer.step()

Hooks on the model, on its head and on the optimizer listen. They change nothing: no random number is
drawn, and the trained weights are the same bit for bit. What goes wrong in them is said once and
never reaches the training. docs/watch.md says what can be known this way and what cannot.
"""

import math
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from flatline.errors import TraceError
from flatline.live.gradient import Inputs, Pass
from flatline.live.heard import Ear, ends_of, head_of, inputs_of, names_of, refuse_foreign
from flatline.live.ledger import Ledger
from flatline.live.rows import KEPT, Read
from flatline.live.sampling import Sample, Sampling
from flatline.trace.announce import say
from flatline.trace.attach_hooks import Guard, nested_models
from flatline.trace.attach_settings import commit, versions
from flatline.trace.attach_weights import Census
from flatline.trace.rows import Row
from flatline.trace.settings import SETTINGS
from flatline.trace.writer import Writer

PASSES = 256
"""Passes with a gradient that wait for an optimizer step; of more, the oldest are forgotten."""
OTHER = 0.05
"""Share of the gradient that is no push on a token from which on it is worth saying."""
TELLING = 4
"""Positions that must agree on a temperature."""
AGREE = 0.02
"""Share by which they may differ; gradients in 16 bits have an error of 0.004."""
UPHILL = 3
"""Steps in a row that go up the gradient before that is said; momentum may do one or two."""

_watched: "weakref.WeakKeyDictionary[nn.Module, Watch]" = weakref.WeakKeyDictionary()


def watch(
    model: nn.Module, optimizer: Any, run_dir: str | Path, *, tokenizer: Any = None
) -> "Watch":
    """Record everything that this model samples and this optimizer trains, until `close`.

    With the tokenizer, tokens are shown as text and its end token is known.
    """
    return Watch(model, optimizer, run_dir, tokenizer)


class Watch:
    """The hooks on one model and one optimizer; also a context manager, which takes them off."""

    def __init__(
        self, model: nn.Module, optimizer: Any, run_dir: str | Path, tokenizer: Any
    ) -> None:
        model = getattr(model, "module", model)  # as DDP wraps it
        self._head = head_of(model)
        if self._head in _watched:
            raise TraceError(
                f"This model is watched already, into {_watched[self._head].path}.\n"
                "Two records of one run would disagree on whose rewards are whose.\n"
                "Close the first one: `watch.close()`, or leave its `with` block."
            )
        self._model, self._optimizer = model, getattr(optimizer, "optimizer", optimizer)
        held = refuse_foreign(model, self._optimizer)
        self.path = Path(run_dir)
        """The run's folder."""
        self._settings = _settings(self._optimizer)
        on_cpu = held[0].device.type == "cpu"
        run = {
            "source": "watch",
            "versions": versions(),
            "commit": commit(),
            "fault": None,
            "settings": self._settings,
        }
        self._sink = Writer(run_dir, run=run, beside=not on_cpu)
        self._guard = Guard(self._sink.stop)
        ends = ends_of(model, tokenizer)
        self._ledger = Ledger(self._sink, tokenizer, ends)
        self._sampling = Sampling(ends, self._sampled)
        self._recent: deque[Sample] = deque(maxlen=KEPT)
        self._calls = 0
        self._notes: list[str] = []
        self._now: Inputs | None = None
        self._heads = 0
        """Calls of the head since the model was given what is in `_now`."""
        self._headless = 0
        """Passes with gradients since the last step whose head was not called."""
        self._passes: deque[Pass] = deque(maxlen=PASSES)
        self._heard_backward = False
        self._temperature = 1.0
        self._census: Census | None = None
        self._norms: dict[int, Tensor] = {}
        self._without_gradient: set[str] | None = None
        self._facts: dict[str, Any] = {}
        self._uphill = 0
        self._clip: float | None = None
        """The norm that the first gradient was clipped to."""
        self._step, self._since = 0, time.perf_counter()
        self._closed = False
        self._handles = self._listen(held)
        _watched[self._head] = self

    def rewards(
        self,
        values: Iterable[float],
        groups: Iterable[object] | None = None,
        *,
        parts: Mapping[str, Iterable[float]] | None = None,
    ) -> None:
        """The rewards of the latest rows that were sampled, in their order; before `step()`.

        `groups` names the group of each row; without it, rows of one prompt are one group. `parts`
        are what a reward is made of; call the one that says right or wrong `accuracy`.
        """
        given = [float(value) for value in values]
        self._guard(self._sampling.close)
        if self._guard.broken:
            return
        names = None if groups is None else [_plain(group) for group in groups]
        named = {name: [float(value) for value in part] for name, part in (parts or {}).items()}
        self._refuse_uneven(len(given), {**named, **({} if names is None else {"groups": names})})
        self._calls += 1
        latest = list(self._recent)[len(self._recent) - len(given) :]
        for at, (sample, value) in enumerate(zip(latest, given, strict=True)):
            sample.reward = value
            sample.parts = {name: part[at] for name, part in named.items()} or None
            sample.group = None if names is None else (self._calls, names[at])
        if any(sample.place is not None for sample in latest):
            self._note(
                "Some rewards came after the optimizer step that trained their rows, so they are "
                "not recorded. Call `watch.rewards(...)` before `optimizer.step()`."
            )

    def _refuse_uneven(self, count: int, others: Mapping[str, Sequence[Any]]) -> None:
        if count > len(self._recent):
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

    def close(self, *, clean: bool = True) -> None:
        """Take all hooks off, and write what is known."""
        if self._closed:
            return
        self._closed = True
        for handle in self._handles:
            handle.remove()
        _watched.pop(self._head, None)
        self._guard(self._say_last)
        self._sink.close(clean=clean and not self._guard.broken)

    def __enter__(self) -> "Watch":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(clean=kind is None)

    # -- heard in the forward and backward pass -------------------------------------------------

    def _listen(self, held: Sequence[Tensor]) -> list[Any]:
        inner = nested_models(self._model)[-1]
        names = names_of(inner)
        ear = lambda owner, heard: Ear(owner, heard, self._guard)  # noqa: E731
        given = lambda args, kwargs: self._given({**dict(zip(names, args, strict=False)), **kwargs})  # noqa: E731
        return [
            inner.register_forward_pre_hook(ear(inner, given), with_kwargs=True),
            self._head.register_forward_hook(ear(self._head, self._built)),
            self._optimizer.register_step_pre_hook(ear(self._optimizer, self._before_step)),
            self._optimizer.register_step_post_hook(ear(self._optimizer, self._after_step)),
            *(
                weight.register_post_accumulate_grad_hook(ear(weight, self._accumulated(weight)))
                for weight in held
                if weight.requires_grad and weight.is_leaf
            ),
        ]

    def _given(self, values: Mapping[str, Any]) -> None:
        """The model is called."""
        self._miss_head()
        self._now, self._heads = inputs_of(values), 0
        if self._now is None:
            self._note("The model is not given token ids, so nothing is known of what it sees.")

    def _built(self, _: Any, logits: Any) -> None:
        """The head is called."""
        self._heads += 1
        now = self._now
        if now is None:
            return
        fits = isinstance(logits, Tensor) and logits.ndim == 3 and len(logits) == len(now.ids)
        if not fits or logits.shape[1] > now.ids.shape[1] or self._heads > 1:
            self._note_sliced()
            if self._heads == 2 and self._passes and self._passes[-1].inputs is now:
                self._passes.pop()  # the first slice was taken for the last one
            return
        with torch.no_grad():
            self._sampling.hear(now, logits, self._step)
        if self._sampling.lost:
            self._note(
                "Some sampling could not be followed: a cache went on with rows that are not those "
                "of the pass before. The sampler's log-probs of these are not known."
            )
        if logits.requires_grad:
            one = Pass(now, logits.detach(), self._temperature)
            self._passes.append(one)
            guard, hear = self._guard, self._hear_gradient
            logits.register_hook(lambda gradient: guard(hear, one, gradient.detach()))

    def _hear_gradient(self, one: Pass, gradient: Tensor) -> None:
        with torch.no_grad():
            one.hear(gradient)

    def _miss_head(self) -> None:
        if self._now is not None and self._heads == 0 and torch.is_grad_enabled():
            self._headless += 1

    def _note_sliced(self) -> None:
        self._note(
            "The head is called on slices or on selected tokens (a chunked loss), so no logits of "
            "whole rows are built: which tokens are trained, and how hard, is not known of these "
            "passes. Compute the loss from whole logits for a few steps to see it."
        )

    def _accumulated(self, weight: Tensor) -> Callable[[], None]:
        def heard() -> None:
            if weight.grad is not None:
                self._heard_backward = True
                self._norms[id(weight)] = torch.linalg.vector_norm(weight.grad)

        return heard

    def _sampled(self, samples: list[Sample]) -> None:
        self._recent.extend(samples)
        self._hand_on(lambda: self._ledger.sampled(samples))

    # -- heard around an optimizer step ---------------------------------------------------------

    def _before_step(self, *_: Any) -> None:
        self._sampling.close()
        self._miss_head()
        self._now = None
        if self._census is None:
            self._census = Census(self._model, self._optimizer)
            self._sink.update_run(weights_every=self._census.every)
            self._say_missing()
        if self._census.is_due(self._step + 1):
            self._census.before_step(readable=True)
        self._facts = self._gradient_facts() | self._rates()
        bare = {name for name, weight in self._trainable() if weight.grad is None}
        known = self._without_gradient
        self._without_gradient = bare if known is None else known & bare

    def _after_step(self, *_: Any) -> None:
        self._step += 1
        step, census = self._step, self._census
        along = None if census is None else census.along_gradient()
        looked = None if census is None else census.after_step(step)
        passes = [one for one in self._passes if one.trained is not None]
        reads = [Read.of(one) for one in passes if self._is_readable(one)]
        facts = {**self._facts, **self._examined(passes)}
        facts["metrics"] = {**self._facts.get("metrics", {}), **facts.get("metrics", {})}
        if along is not None:
            facts["metrics"]["along_gradient"] = float(along)
            self._judge_direction(float(along))
        if not passes and self._headless:
            self._note(
                "The model is trained without calling its head (a fused loss), so no logits are "
                "built: which tokens are trained, and how hard, is not known. Turn the fused loss "
                "off for a few steps to see it."
            )
        now = time.perf_counter()
        facts |= {"time": time.time(), "seconds": now - self._since}
        self._since, self._headless, self._heard_backward = now, 0, False
        self._passes.clear()
        self._norms.clear()
        self._hand_on(lambda: self._write(step, reads, looked, facts))
        self._sink.end_step()

    def _write(self, step: int, reads: list[Read], looked: Any, facts: Row) -> None:
        if looked is not None:
            self._sink.write("weights", looked.rows())
        self._ledger.stepped(step, reads, facts)

    def _trainable(self) -> list[tuple[str, Tensor]]:
        held = {id(weight) for group in self._optimizer.param_groups for weight in group["params"]}
        return [(n, weight) for n, weight in self._model.named_parameters() if id(weight) in held]

    def _rates(self) -> dict[str, Any]:
        rates = [float(group["lr"]) for group in self._optimizer.param_groups]
        several = {f"learning_rate/{at}": rate for at, rate in enumerate(rates)}
        return {"learning_rate": rates[0], "metrics": several if len(rates) > 1 else {}}

    def _gradient_facts(self) -> dict[str, Any]:
        """The norm before clipping: as it was when the last backward pass was done."""
        after = self._census.grad_norm() if self._census is not None else None
        known = [norm.float() for norm in self._norms.values()]
        if not known:
            return {"grad_norm": None if after is None else float(after)}
        before = float(torch.stack([norm.to(known[0].device) for norm in known]).norm())
        if after is None or not math.isfinite(before):
            return {"grad_norm": before}
        if any(one.half for one in self._passes):
            return {"grad_norm": float(after)}  # before was scaled, as float16 asks for
        if 0 < float(after) < before * (1 - 1e-3):
            self._clips_at(float(after))
        return {"grad_norm": before}

    def _clips_at(self, norm: float) -> None:
        """A clip leaves every gradient that it shortens with one norm."""
        seen = float(f"{norm:.3g}")
        known = self._clip
        self._clip = seen if known is None else known
        if known is None or self._settings["max_grad_norm"] and abs(known - seen) > 0.01 * seen:
            self._set(max_grad_norm=seen if known is None else None)

    def _set(self, **values: Any) -> None:
        self._settings = {**self._settings, **values}
        self._sink.update_run(settings=self._settings)

    def _is_readable(self, one: Pass) -> bool:
        """Whether what is pushed is what comes next; else logits of other places were built."""
        count = int(one.trained.sum()) if one.trained is not None else 0
        off = int(one.elsewhere.sum())
        if off <= count / 2:
            return True
        if one.first > 0:
            self._note_sliced()
            return False
        ids = one.inputs.ids
        itself = int((one.elsewhere & (one.pushed == ids)).sum())
        what = "the very token that the model was given there" if itself > off / 2 else "another"
        rest, whole = one.parts.tolist()
        if rest < OTHER * whole:
            self._note(
                f"At {off} of {count} positions with a gradient the loss does not push the token "
                f"that comes next, but {what}: labels are not shifted by one against the logits."
            )
        return True

    def _examined(self, passes: Sequence[Pass]) -> dict[str, Any]:
        """Temperature of the loss, and what is no push on a token."""
        if not passes:
            return {}
        slopes = torch.cat([one.slopes for one in passes]).cpu().numpy()
        slopes = slopes[np.isfinite(slopes) & (slopes > 0)]
        if len(slopes) >= TELLING and np.ptp(np.quantile(slopes, [0.25, 0.75])) < AGREE:
            found = float(1 / np.median(slopes))
            found = 1.0 if abs(found - 1) < AGREE else round(found, 3)
            if abs(found - self._temperature) > AGREE * found:
                self._temperature = found
                self._set(temperature=found)
                self._note(
                    f"The loss divides logits by a temperature of {found:g}. Log-probs are recorded "
                    "at temperature 1, those of the sampler and those of the trainer."
                )
                return {}  # what was read at another temperature is wrong
        rest, whole = torch.stack([one.parts for one in passes]).sum(0).tolist()
        share = math.sqrt(rest / whole) if whole > 0 else 0.0
        if share > OTHER:
            self._note(
                f"{share:.0%} of the gradient at the logits is no push on a token: an entropy "
                "bonus, a divergence over the whole vocabulary, or logits that are changed behind "
                "the head. Weights of tokens are as inexact."
            )
        return {"metrics": {"gradient_of_other_form": share}}

    def _judge_direction(self, along: float) -> None:
        self._uphill = self._uphill + 1 if along > 0 else 0
        if self._uphill == UPHILL:
            self._note(
                f"{UPHILL} optimizer steps in a row went up the gradient: they make the loss "
                "larger. Look for `maximize=True`, a negative rate or a loss that is negated twice."
            )

    # -- said ------------------------------------------------------------------------------------

    def _say_missing(self) -> None:
        held = {id(weight) for _, weight in self._trainable()}
        left = [name for name, weight in self._model.named_parameters()
                if weight.requires_grad and id(weight) not in held]  # fmt: skip
        if left:
            self._note(
                f"The optimizer does not hold {len(left)} trainable tensors of the model, such as "
                f"`{left[0]}`: they never change."
            )

    def _say_last(self) -> None:
        self._sampling.close()
        if self._step == 0:
            done = "gradients were computed" if self._heard_backward else "no gradient was computed"
            self._note(
                f"The optimizer never stepped while it was watched; {done}. Watch the optimizer "
                "whose `step()` the loop calls, and close the watch after the loop."
            )
        elif self._without_gradient:
            names = sorted(self._without_gradient)
            self._note(
                f"{len(names)} tensors that the optimizer holds never had a gradient, such as "
                f"`{names[0]}`."
            )

    def _note(self, text: str) -> None:
        """Said once: on stderr, and above every diagnosis."""
        if text not in self._notes:
            self._notes.append(text)
            say(text)
            self._sink.update_run(notes=list(self._notes))

    def _hand_on(self, work: Callable[[], None]) -> None:
        """What goes wrong in it ends the recording, in whatever thread it is."""
        self._sink.do(lambda: self._guard(work))


def _settings(optimizer: Any) -> dict[str, Any]:
    first = optimizer.param_groups[0]
    known = {"learning_rate": first.get("lr"), "weight_decay": first.get("weight_decay")}
    return {**dict.fromkeys(SETTINGS), **known}


def _plain(group: Any) -> object:
    """The name of a group that can be compared, also where it is a tensor of one number."""
    return group.item() if isinstance(group, Tensor | np.generic) else group
