"""`flatline.attach` for the trainer that verifiers has had since 0.1.7 (`RLTrainer`).

A batch comes from its orchestrator, prompt after prompt and then all of them again; the rollouts of
a prompt are put side by side here, as the trace has them. Every token has an advantage of its own.

    env.process_env_results_vllm   the sampler's answers, with the ids that it read and wrote
    orchestrator.get_batch         the rollouts of a step with their rewards
    get_logprobs                   ids, attention mask and log-probs of a pass
    compute_loss                   loss mask and advantages really used
"""

from collections import deque
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


def is_of_verifiers_rl(trainer: Any) -> bool:
    """Whether it is a trainer that this module knows."""
    return made_by_verifiers(trainer, "orchestrator", "get_logprobs")


def attach(
    trainer: Any, run_dir: str | Path | Sink, *, correct: str | None, gold: str | None
) -> "RLAttachment":
    """Record everything that this trainer trains from now on."""
    group = {"num_generations": trainer.args.rollouts_per_example}
    with lent(trainer, trainer.orchestrator.env, **group) as names:
        told = {**truth(trainer, correct, gold), **_asked(trainer.args)}
        return RLAttachment(trainer, run_dir, told, names.pop_all())


def _asked(args: Any) -> dict[str, Any]:
    """Its settings under the names of the trace: rewards less their mean, one token one vote."""
    return {
        "num_generations": args.rollouts_per_example,
        "per_device_batch_size": args.batch_size,
        "gradient_accumulation_steps": 1,
        "prompts_per_step": args.batch_size // args.rollouts_per_example,
        "scale_rewards": "none",
        "loss_type": "dapo",
        "beta": 0.0,
        "num_iterations": 1,
        "batches_ahead": 1,
    }


class RLAttachment(FromVerifiers):
    """The hooks on `RLTrainer`."""

    def __init__(
        self, trainer: Any, run_dir: str | Path | Sink, told: Mapping[str, Any], names: ExitStack
    ) -> None:
        self._waiting: deque[tuple[int, Sizes]] = deque()
        """Rollouts of the step that are not trained yet, in the order of its passes."""
        self._scored: tuple[Tensor, Tensor] | None = None
        """Ids and log-probs of the pass that is under way."""
        self._pass: Pass | None = None
        super().__init__(trainer, run_dir, told, names)

    def _install(self) -> list[Patch]:
        trainer, guard = self._own, self._guard
        env, orchestrator = trainer.orchestrator.env, trainer.orchestrator
        return [
            listening(env, "process_env_results_vllm", self._hear_answers, guard),
            listening(orchestrator, "get_batch", self._hear_batch, guard),
            self._patch(trainer, "get_logprobs", self._score),
            self._patch(trainer, "compute_loss", self._loss),
            self._patch(trainer.accelerator, "clip_grad_norm_", self._clip),
        ]

    def _hear_batch(self, args: Any, kwargs: Any, batch: Any, seconds: float) -> None:
        """Batches are made in order, and each is fetched once."""
        found, states = self._answers.popleft()
        order = _by_prompt(len(found.rewards), int(self._own.args.rollouts_per_example))
        one = self.work("begin_generation", [row_of(_data(states[at]), states[at]) for at in order])
        if one is None:
            return
        parts = [batch.rewards_dict[name] for name in self.trainer.reward_func_names]
        one.rewards = torch.tensor(parts, dtype=torch.float32).T[order]
        one.completion_ids = [found.completion_ids[at] for at in order]
        output = {name: tensor[order] for name, tensor in laid_out(found).items()}
        whole = [row for part in batch.microbatches[0] for row in part.advantages]
        output["advantages"] = torch.tensor([row[-1] for row in whole])[order]
        self.work("generated", one, output)
        self.work("took", seconds, None)
        self._expect(found, order, output[ROLLOUT].tolist())

    def _expect(self, found: Any, order: Sequence[int], numbers: Sequence[int]) -> None:
        number_of = dict(zip(order, numbers, strict=True))
        pairs = zip(found.prompt_ids, found.completion_ids, strict=True)
        sizes = [Sizes(len(prompt), len(completion)) for prompt, completion in pairs]
        self._waiting = deque((number_of[at], size) for at, size in enumerate(sizes))

    def _score(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        given = dict(zip(("model", "input_ids", "attention_mask"), args, strict=False)) | kwargs
        self._pass = Pass({})
        with watching_attention(self._modules(), self._pass.hear_mask, self._guard):
            logps, _ = original(*args, **kwargs)
        self._scored = (given["input_ids"], logps.detach())

    def _loss(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        result = original(*args, **kwargs)
        loss = result[0] if isinstance(result, tuple) else result
        inputs = args[1] if len(args) > 1 else kwargs["inputs"]
        self._guard(lambda: self._passed(inputs, loss.detach()))

    def _passed(self, inputs: Mapping[str, Any], loss: Tensor) -> None:
        one, self._pass = self._pass, None
        if one is None or self._scored is None:
            return
        ids_BL, logps_BL = self._scored
        rows = [self._waiting.popleft() for _ in range(len(ids_BL))]
        apart = Apart([size for _, size in rows], ids_BL.shape[1])
        one.inputs = {
            **apart.ids(ids_BL),
            "tool_mask": apart.completions(inputs["loss_mask"], shift=1),
            "advantages": apart.completions(inputs["advantages"], shift=1),
            "sampling_per_token_logps": apart.completions(inputs["inference_logprobs"], shift=1),
            ROLLOUT: torch.tensor([number for number, _ in rows]),
        }
        one.logps, one.loss = apart.completions(logps_BL, shift=1), loss
        one.masks = attended(one.masks, apart)
        self.work("passed", one)


def _by_prompt(rollouts: int, group: int) -> list[int]:
    """Where each rollout of the batch stands, prompt by prompt."""
    prompts = rollouts // group
    return [prompt + again * prompts for prompt in range(prompts) for again in range(group)]


def _data(state: Mapping[str, Any]) -> dict[str, Any]:
    """What a rollout's state keeps of its row."""
    return {name: state[name] for name in ("prompt", "answer", "info", "task") if name in state}
