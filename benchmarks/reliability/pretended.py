"""A trainer that `attach` takes for TRL's: it calls the hooks as TRL does, in milliseconds."""

from copy import copy
from types import SimpleNamespace
from typing import Any

import torch
from tests.tiny import tokenizer_with
from transformers import TrainerCallback
from trl import GRPOConfig

TOKENIZER = tokenizer_with()
ASKED = GRPOConfig(output_dir="unused", use_cpu=True, bf16=False, report_to=[])


class Pretended:
    """What `attach` needs of a GRPOTrainer; every batch is new, and nothing is learnt."""

    def __init__(self) -> None:
        self.model = torch.nn.Linear(64, 64)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.lr_scheduler = None
        self.processing_class = TOKENIZER
        self.accelerator = SimpleNamespace(
            process_index=0,
            num_processes=1,
            device=torch.device("cpu"),
            unwrap_model=lambda model: model,
            clip_grad_norm_=torch.nn.utils.clip_grad_norm_,
        )
        self.state = SimpleNamespace(global_step=0, max_steps=0)
        self.args = copy(ASKED)
        self.reward_funcs, self.reward_func_names = [lambda **_: []], ["letters"]
        self.num_generations = 8
        first = TrainerCallback()  # as the one of transformers that decides what follows a step
        self.callback_handler = SimpleNamespace(callbacks=[first])
        self.control = SimpleNamespace(
            should_log=True, should_evaluate=False, should_training_stop=False
        )

    def add_callback(self, callback: Any) -> None:
        self.callback_handler.callbacks.append(callback)

    def say(self, event: str, **more: Any) -> None:
        for callback in self.callback_handler.callbacks:
            getattr(callback, event)(self.args, self.state, self.control, **more)

    def _generate_and_score_completions(self, inputs: list[Any]) -> dict[str, Any]:
        rows, tokens = len(inputs), 64
        rewards = self._calculate_rewards(inputs)
        return {
            "prompt_ids": torch.randint(0, 250, (rows, 32)),
            "prompt_mask": torch.ones(rows, 32, dtype=torch.long),
            "completion_ids": torch.randint(0, 250, (rows, tokens)),
            "completion_mask": torch.ones(rows, tokens, dtype=torch.long),
            "advantages": rewards[:, 0] - rewards.mean(),
            "sampling_per_token_logps": -torch.rand(rows, tokens),
        }

    def _calculate_rewards(self, inputs: list[Any]) -> torch.Tensor:
        return torch.rand(len(inputs), 1)

    def _get_per_token_logps_and_entropies(self, inputs: dict[str, Any]) -> tuple[Any, Any, None]:
        return -torch.rand(inputs["completion_ids"].shape), None, None

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        self._get_per_token_logps_and_entropies(inputs)
        return model(torch.rand(4, 64)).pow(2).mean()

    def train(self, steps: int) -> None:
        """All of it, from the first event to the last."""
        self.model.train()
        self.say("on_train_begin")
        for _ in range(steps):
            self.step()
        self.say("on_train_end")

    def step(self) -> None:
        """One optimizer step, in the order in which transformers tells of it."""
        self.say("on_step_begin")
        batch = self._generate_and_score_completions([{"prompt": "x"} for _ in range(16)])
        self._compute_loss(self.model, batch).backward()
        self.accelerator.clip_grad_norm_(self.model.parameters(), 1.0)
        self.say("on_pre_optimizer_step", optimizer=self.optimizer)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.state.global_step += 1
        self.say("on_step_end")
        self.say("on_log", logs={"loss": 0.1, "reward": 0.5})
