"""`flatline.attach` for verifiers' own GRPO trainer.

Its batches come from a thread of its own (`async_generator`), and its loss is given one row of ids
with one mask for both purposes: `attention_mask` hides from the model what is not trained. What is
heard is laid out as TRL lays it out, so that it is read and written by the same code.

    env.process_env_results_vllm   the sampler's answers, with the ids that it read and wrote
    async_generator.get_batch      the rollouts of a step with their rewards
    _prepare_inputs                the shuffled batch, whose rows are numbered
    compute_loss                   loss mask, advantages, log-probs, the attention mask in force
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flatline.live.hooks import Patch, listening, watching_attention
from flatline.live.trl.recorder.heard import ROLLOUT, Pass
from flatline.live.trl.settings import truth
from flatline.live.verifiers.common import FromVerifiers, attended, lent, made_by_verifiers
from flatline.live.verifiers.layout import Apart, Sizes, laid_out, row_of
from flatline.trace.writer import Sink

KNOWN_BY = (
    "_prepare_inputs",
    "compute_loss",
    "_get_per_token_logps",
    "_compute_advantages",
    "async_generator",
)


def is_of_verifiers(trainer: Any) -> bool:
    """Whether it is a trainer that this module knows."""
    return made_by_verifiers(trainer, *KNOWN_BY)


def attach(
    trainer: Any, run_dir: str | Path | Sink, *, correct: str | None, gold: str | None
) -> "VerifiersAttachment":
    """Record everything that this trainer trains from now on."""
    ahead = getattr(trainer.args, "num_batches_ahead", 0)
    with lent(trainer, trainer.env) as names:
        told = {**truth(trainer, correct, gold), "batches_ahead": ahead}
        return VerifiersAttachment(trainer, run_dir, told, names.pop_all())


class VerifiersAttachment(FromVerifiers):
    """The hooks on `vf.GRPOTrainer`."""

    def __init__(
        self, trainer: Any, run_dir: str | Path | Sink, told: Mapping[str, Any], names: ExitStack
    ) -> None:
        self._sizes: dict[int, Sizes] = {}
        """By number, until the rollout is trained."""
        super().__init__(trainer, run_dir, told, names)

    def _install(self) -> list[Patch]:
        trainer = self._own
        return [
            listening(trainer.env, "process_env_results_vllm", self._hear_answers, self._guard),
            self._patch(trainer, "_prepare_inputs", self._prepare),
            self._patch(trainer, "compute_loss", self._loss),
            self._patch(trainer.accelerator, "clip_grad_norm_", self._clip),
        ]

    # -- a batch

    def _prepare(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        inputs = args[0] if args else kwargs["inputs"]
        heard: list[Any] = []
        hear = lambda _args, _kwargs, result, _seconds: heard.append(result)  # noqa: E731
        start = time.perf_counter()
        with listening(self._own.async_generator, "get_batch", hear, self._guard):
            original(*args, **kwargs)
        if heard:
            self._guard(lambda: self._generated(heard[0], inputs))
            self.work("took", time.perf_counter() - start, None)

    def _generated(self, result: Any, inputs: Sequence[Mapping[str, Any]]) -> None:
        found = result.processed_results
        states = next((states for one, states in self._answers if one is found), ())
        known = [*states, *[None] * (len(inputs) - len(states))]
        rows = [row_of(row, state) for row, state in zip(inputs, known, strict=True)]
        one = self.work("begin_generation", rows)
        if one is None:
            return
        parts = [result.all_reward_dict[name] for name in self.trainer.reward_func_names]
        one.rewards = torch.tensor(parts, dtype=torch.float32).T
        one.completion_ids = found.completion_ids
        rewards = torch.tensor(found.rewards, dtype=torch.float32)
        output = laid_out(found) | {"advantages": self._own._compute_advantages(rewards)}
        self.work("generated", one, output)
        self._number(found, output[ROLLOUT].tolist())

    def _number(self, found: Any, numbers: Sequence[int]) -> None:
        """Rows of the shuffled batch are told by their ids; equal ones are the same rollout twice,
        and either may be either."""
        pairs = list(zip(found.prompt_ids, found.completion_ids, strict=True))
        waiting: dict[tuple[int, ...], list[int]] = {}
        for number, (prompt, completion) in zip(numbers, pairs, strict=True):
            self._sizes[number] = Sizes(len(prompt), len(completion))
            waiting.setdefault((*prompt, *completion), []).append(number)
        longest = max(len(ids) for ids in waiting)
        for part in self._own._buffered_inputs:
            known = [_taken(waiting, row, longest) for row in part["input_ids"].tolist()]
            part[ROLLOUT] = torch.tensor(known)

    # -- a pass

    def _loss(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        inputs = args[1] if len(args) > 1 else kwargs["inputs"]
        if ROLLOUT not in inputs:
            original(*args, **kwargs)
            return
        one, scored = Pass(inputs), list[Tensor]()
        hear = lambda _args, _kwargs, result, _seconds: scored.append(result.detach())  # noqa: E731
        with (
            listening(self.trainer, "_get_per_token_logps", hear, self._guard),
            watching_attention(self._modules(), one.hear_mask, self._guard),
        ):
            loss = original(*args, **kwargs)
        self._guard(lambda: self._passed(one, inputs, scored, loss.detach()))

    def _passed(
        self, one: Pass, inputs: Mapping[str, Any], scored: list[Tensor], loss: Tensor
    ) -> None:
        sizes = [self._sizes.pop(number) for number in inputs[ROLLOUT].tolist()]
        given = inputs["attention_mask"]
        masks = one.masks[: max(1, len(one.masks) // len(scored))]  # of the pass that is trained
        apart = Apart(sizes, inputs["input_ids"].shape[1])
        one.inputs = {
            **apart.ids(inputs["input_ids"]),
            "tool_mask": apart.completions(given),
            "advantages": inputs["advantages"],
            ROLLOUT: inputs[ROLLOUT],
        }
        if len(scored) > 1:
            one.inputs |= {"ref_per_token_logps": apart.completions(scored[1], shift=1)}
        if isinstance(inputs["old_per_token_logps"], Tensor):
            one.inputs |= {
                "old_per_token_logps": apart.completions(inputs["old_per_token_logps"], shift=1)
            }
        one.logps, one.loss = apart.completions(scored[0], shift=1), loss
        one.masks = attended(masks, apart)
        self.work("passed", one)


def _taken(waiting: dict[tuple[int, ...], list[int]], row: Sequence[int], longest: int) -> int:
    """The number of the rollout with these ids, padded at the end."""
    for length in range(min(len(row), longest), 0, -1):
        numbers = waiting.get(tuple(row[:length]))
        if numbers:
            return numbers.pop(0)
    raise LookupError("a row of the shuffled batch is none of the rollouts")
