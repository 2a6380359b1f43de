"""A small rollout server that stands where vLLM stands: the lab's weights, `generate`, log-probs.

`PLANTED` breaks it on purpose: `stale` never takes new weights but says that it did; `temperature`
draws at another temperature than it was asked for.
"""

import os
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import ray
import torch
from torch import Tensor
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, TokenOutput

PLANTED = os.environ.get("VERL_LAB_FAULT", "")
HOTTER = 1.6


class LabServer:
    """One process with a copy of the policy."""

    def __init__(self, path: str, limit: int) -> None:
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(1)
        torch.manual_seed(0)
        self._model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        self._limit, self._version = limit, 0

    def update_weights(self, weights: Mapping[str, Tensor], version: int) -> None:
        """What verl sends after each update."""
        self._version = version
        if PLANTED == "stale":
            return
        own = dict(self._model.named_parameters())
        with torch.no_grad():
            for name, value in weights.items():
                if name in own:
                    own[name].copy_(value)

    def generate(
        self,
        request_id: str,
        prompt_ids: Sequence[int],
        sampling_params: Mapping[str, Any],
        **_: Any,
    ) -> TokenOutput:
        """Token by token; log-probs are those of the distribution that was drawn from, as vLLM's
        `processed_logprobs` are."""
        asked = float(sampling_params["temperature"])
        tokens, logps = self._sampled(list(prompt_ids), asked)
        return TokenOutput(
            token_ids=tokens,
            log_probs=logps,
            stop_reason="completed",
            extra_fields={"global_steps": self._version},
        )

    @torch.no_grad()
    def _sampled(self, ids: list[int], asked: float) -> tuple[list[int], list[float]]:
        drawn_at = asked * HOTTER if PLANTED == "temperature" else asked
        tokens, logps = list[int](), list[float]()
        given, past = torch.tensor([ids]), None
        while len(tokens) < self._limit:
            out = self._model(given, past_key_values=past, use_cache=True)
            past, logits_V = out.past_key_values, out.logits[0, -1].float()
            token = int(_draw(logits_V, drawn_at))
            tokens.append(token)
            logps.append(float((logits_V / (drawn_at or 1.0)).log_softmax(-1)[token]))
            if token == self._model.config.eos_token_id:
                break
            given = torch.tensor([[token]])
        return tokens, logps

    def nothing(self, *_: Any, **__: Any) -> None:
        """No memory is given back, and nothing is cached between requests."""

    sleep = wake_up = clear_kv_cache = abort_all_requests = resume_generation = nothing
    release_kv_cache = resume_kv_cache = start_profile = stop_profile = nothing


def _draw(logits_V: Tensor, temperature: float) -> Tensor:
    if temperature == 0:
        return logits_V.argmax()
    return torch.multinomial((logits_V / temperature).softmax(-1), 1)


class LabReplica(RolloutReplica):
    """verl's side of one server."""

    async def launch_servers(self) -> None:
        path = str(self.model_config.path)
        server = ray.remote(LabServer).options(name=f"lab_server_{self.replica_rank}", num_cpus=0)
        self._server_handle = server.remote(path, self.config.response_length)
        self._server_address = f"lab:{self.replica_rank}"
        self.servers = [self._server_handle]


class ServerAdapter(BaseRollout):
    """The worker's side of it: where weights are sent from."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, **_: Any) -> None:
        super().__init__(config, model_config, device_mesh)
        self.sleep_level = 2

    async def resume(self, tags: list[str]) -> None:
        pass

    async def release(self) -> None:
        pass

    async def update_weights(
        self, weights: Generator[tuple[str, Tensor]], global_steps: int | None = None, **_: Any
    ) -> None:
        server = ray.get_actor("lab_server_0")
        await server.update_weights.remote(
            {name: value.detach().cpu() for name, value in weights}, global_steps
        )
