"""Clients with the methods and fields of `tinker` 0.12, on a torch model in this process.

Put into `sys.modules` as `tinker`, they stand where the real ones do in CI, which has neither the
package nor a server: `tests/quality/test_tinker_served.py` runs the same loop on those. A training
has a whole copy of the model where the API has an adapter; nothing that a client can see differs.
"""

import copy
import itertools
import sys
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

_count = itertools.count()


@dataclass
class EncodedTextChunk:
    tokens: list[int]


@dataclass
class ModelInput:
    chunks: list[EncodedTextChunk]

    @classmethod
    def from_ints(cls, tokens):
        return cls([EncodedTextChunk(list(tokens))])

    def to_ints(self):
        return [token for chunk in self.chunks for token in chunk.tokens]


@dataclass
class TensorData:
    data: list


@dataclass
class Datum:
    model_input: ModelInput
    loss_fn_inputs: dict[str, Any]

    def __post_init__(self):
        self.loss_fn_inputs = {
            name: TensorData(list(values)) if isinstance(values, list) else values
            for name, values in self.loss_fn_inputs.items()
        }


@dataclass
class SamplingParams:
    max_tokens: int | None = None
    seed: int | None = None
    stop: Any = None
    temperature: float = 1
    top_k: int = -1
    top_p: float = 1


@dataclass
class AdamParams:
    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0


@dataclass
class SampledSequence:
    stop_reason: str
    tokens: list[int]
    logprobs: list[float]


types = SimpleNamespace(
    AdamParams=AdamParams,
    Datum=Datum,
    EncodedTextChunk=EncodedTextChunk,
    ModelInput=ModelInput,
    SamplingParams=SamplingParams,
    TensorData=TensorData,
)


def answered(value):
    """A future that has come."""
    future = Future()
    future.set_result(value)
    return future


@dataclass
class APIFuture:
    value: Any

    def result(self, timeout=None):
        return self.value

    def future(self):
        return answered(self.value)

    def __await__(self):
        yield from ()
        return self.value


class SamplingClient:
    def __init__(self, model):
        self._model = model

    @torch.no_grad()
    def sample(
        self,
        prompt,
        num_samples,
        sampling_params,
        include_prompt_logprobs=False,
        topk_prompt_logprobs=0,
    ):
        draw = torch.Generator().manual_seed((sampling_params.seed or 0) + sum(prompt.to_ints()))
        ids = torch.tensor([prompt.to_ints()] * num_samples)
        start, logps = ids.shape[1], []
        for _ in range(sampling_params.max_tokens):
            logits = self._model(input_ids=ids).logits[:, -1].float()
            token = torch.multinomial(
                (logits / sampling_params.temperature).softmax(-1), 1, generator=draw
            )
            logps.append(logits.log_softmax(-1).gather(1, token))
            ids = torch.cat([ids, token], dim=1)
        whole = zip(ids[:, start:].tolist(), torch.cat(logps, dim=1).tolist(), strict=True)
        return answered(
            SimpleNamespace(sequences=[_stopped(*one, sampling_params.stop) for one in whole])
        )

    async def sample_async(self, *args, **kwargs):
        return self.sample(*args, **kwargs).result()


def _stopped(tokens, logps, stop):
    ends = [at for at, token in enumerate(tokens) if token in stop]
    size = ends[0] + 1 if ends else len(tokens)
    return SampledSequence("stop" if ends else "length", tokens[:size], logps[:size])


class TrainingClient:
    def __init__(self, service, model, optimizer=None):
        self._service, self._model = service, copy.deepcopy(model)
        self._optimizer = torch.optim.AdamW(self._model.parameters())
        if optimizer is not None:
            self._optimizer.load_state_dict(copy.deepcopy(optimizer))

    def forward(self, data, loss_fn, loss_fn_config=None):
        with torch.no_grad():
            return APIFuture(self._passed(data, loss_fn)[1])

    def forward_backward(self, data, loss_fn, loss_fn_config=None):
        loss, output = self._passed(data, loss_fn)
        loss.backward()
        return APIFuture(output)

    async def forward_backward_async(self, data, loss_fn, loss_fn_config=None):
        return self.forward_backward(data, loss_fn, loss_fn_config)

    def optim_step(self, adam_params):
        for group in self._optimizer.param_groups:
            group |= {"lr": adam_params.learning_rate, "weight_decay": adam_params.weight_decay}
        self._optimizer.step()
        self._optimizer.zero_grad()
        return APIFuture(SimpleNamespace(metrics=None))

    async def optim_step_async(self, adam_params):
        return self.optim_step(adam_params)

    def save_state(self, name, ttl_seconds=None):
        path = f"tinker://{next(_count)}/weights/{name}"
        state = copy.deepcopy(self._optimizer.state_dict())
        self._service.saved[path] = copy.deepcopy(self._model), state
        return APIFuture(SimpleNamespace(path=path))

    def save_weights_for_sampler(self, name, ttl_seconds=None):
        return self.save_state(name)

    def save_weights_and_get_sampling_client(self, name=None, retry_config=None):
        return SamplingClient(copy.deepcopy(self._model))

    async def save_weights_and_get_sampling_client_async(self, name=None, retry_config=None):
        return SamplingClient(copy.deepcopy(self._model))

    def create_sampling_client(self, model_path, retry_config=None):
        return self._service.create_sampling_client(model_path)

    def _passed(self, data, loss_fn):
        rows = [one.model_input.to_ints() for one in data]
        width = max(map(len, rows))  # nothing looks ahead, so what fills a row is never seen
        logits_BTV = self._model(
            input_ids=torch.tensor([row + [0] * (width - len(row)) for row in rows])
        ).logits
        outputs, total = [], torch.zeros(())
        for datum, row, logits_TV in zip(data, rows, logits_BTV, strict=True):
            given = {name: torch.tensor(one.data) for name, one in datum.loss_fn_inputs.items()}
            logits = logits_TV[: len(row)].float()
            logps = logits.log_softmax(-1).gather(1, given["target_tokens"][:, None])[:, 0]
            if loss_fn == "cross_entropy":
                loss = -logps * given["weights"]
            else:
                loss = -(logps - given["logprobs"]).exp() * given["advantages"]
            total = total + loss.mean() / len(data)
            outputs.append({"logprobs": logps, "elementwise_loss": loss})
        told = [{k: TensorData(v.detach().tolist()) for k, v in one.items()} for one in outputs]
        return total, SimpleNamespace(loss_fn_outputs=told, metrics={})


@dataclass
class ServiceClient:
    model: Any = None
    saved: dict[str, Any] = field(default_factory=dict)

    def create_lora_training_client(self, base_model, rank=32, seed=None):
        return TrainingClient(self, self.model)

    def create_training_client_from_state_with_optimizer(self, path):
        return TrainingClient(self, *self.saved[path])

    def create_sampling_client(self, model_path=None, base_model=None, retry_config=None):
        return SamplingClient(self.model if model_path is None else self.saved[model_path][0])


def installed(monkeypatch) -> None:
    """`import tinker` gives this module for the length of a test."""
    monkeypatch.setitem(sys.modules, "tinker", sys.modules[__name__])
