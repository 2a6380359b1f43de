"""Stands in for vLLM, which needs a GPU: as much of its offline interface as TRL asks for.

It samples with a copy of the model that only `load_weights` changes, and keeps the keys of prompts
that it has seen where `enable_prefix_caching` is on, until `reset_prefix_cache`: what a defect of a
trainer does to the real engine happens here as well. Log-probs are those before temperature, as
vLLM's are, unless `logprobs_mode` asks for processed ones.
"""

import copy
from itertools import groupby
from types import SimpleNamespace
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from vllm.sampling_params import SamplingParams

__all__ = ["LLM", "SamplingParams"]
__version__ = "0.10.0"

BLOCK = 16
"""Tokens whose keys are kept together, as in vLLM."""
ENGINES: list["LLM"] = []
"""Every engine of this process, for who records what it drew."""


class LLM:
    def __init__(self, model: str, **options: Any) -> None:
        self.path = model
        self.model = AutoModelForCausalLM.from_pretrained(model).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(model)
        self.caching = bool(options.get("enable_prefix_caching"))
        self.processed = options.get("logprobs_mode") == "processed_logprobs"
        self.prefixes: list[tuple[list[int], Any]] = []
        self.drawn: list[tuple[list[int], list[int], list[float]]] = []
        """Prompt, completion and the log-probs that it was really drawn with."""
        runner = SimpleNamespace(model=SimpleNamespace(load_weights=self.load_weights))
        executor = SimpleNamespace(driver_worker=SimpleNamespace(model_runner=runner))
        self.llm_engine = SimpleNamespace(model_executor=executor)
        ENGINES.append(self)

    def load_weights(self, weights: Any) -> None:
        own = self.model.state_dict()
        for name, value in weights:
            own[name].copy_(value)

    def collective_rpc(self, method: str) -> None:
        getattr(self, method)()

    def reload_weights(self) -> None:
        """From the checkpoint, as vLLM's worker does."""
        start = AutoModelForCausalLM.from_pretrained(self.path)
        self.load_weights(start.state_dict().items())

    def reset_prefix_cache(self) -> None:
        self.prefixes.clear()

    def sleep(self, *_: Any, **__: Any) -> None: ...

    def wake_up(self, *_: Any, **__: Any) -> None: ...

    def generate(self, prompts: Any, sampling_params: Any = None, **_: Any) -> list[Any]:
        asked = [self._ids(prompt, sampling_params) for prompt in prompts]
        answers: list[Any] = []
        for ids, same in groupby(asked):
            times = len(list(same))
            drawn = self._draw(ids, times * sampling_params.n, sampling_params)
            for k in range(times):
                own = drawn[k * sampling_params.n : (k + 1) * sampling_params.n]
                answers.append(SimpleNamespace(prompt_token_ids=ids, outputs=own))
        return answers

    def _ids(self, prompt: Any, params: Any) -> list[int]:
        if isinstance(prompt, dict) and "prompt_token_ids" in prompt:
            ids = list(prompt["prompt_token_ids"])
        else:
            text = prompt["prompt"] if isinstance(prompt, dict) else prompt
            ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        longest = getattr(params, "truncate_prompt_tokens", None)
        return ids[-longest:] if longest and longest > 0 else ids

    @torch.no_grad()
    def _draw(self, prompt: list[int], rows: int, params: Any) -> list[Any]:
        """So many completions of one prompt, token by token."""
        cache, known = self._prefix(prompt)
        found = self.model(input_ids=torch.tensor([prompt[known:]]), past_key_values=cache)
        cache = found.past_key_values
        self._keep(prompt, cache)
        cache.batch_repeat_interleave(rows)
        raw_BV = found.logits[:, -1].expand(rows, -1)
        steps = []
        ended_B = torch.zeros(rows).bool()
        while len(steps) < params.max_tokens:
            drawn_BV = (raw_BV / params.temperature).log_softmax(-1)
            token_B = drawn_BV.exp().multinomial(1)
            shown_BV = drawn_BV if self.processed else raw_BV.log_softmax(-1)
            steps.append((token_B, drawn_BV.gather(1, token_B), shown_BV.gather(1, token_B)))
            ended_B |= token_B[:, 0] == self.tokenizer.eos_token_id
            if ended_B.all():
                break
            found = self.model(input_ids=token_B, past_key_values=cache)
            cache, raw_BV = found.past_key_values, found.logits[:, -1]
        token_BT, true_BT, shown_BT = (
            torch.cat(part, 1).tolist() for part in zip(*steps, strict=True)
        )
        rows_B = zip(token_BT, true_BT, shown_BT, strict=True)
        return [self._answer(prompt, *row) for row in rows_B]

    def _answer(self, prompt: list[int], ids: Any, true: Any, shown: Any) -> Any:
        """One completion up to its end."""
        end = self.tokenizer.eos_token_id
        length = ids.index(end) + 1 if end in ids else len(ids)
        self.drawn.append((prompt, ids[:length], true[:length]))
        pairs = zip(ids[:length], shown, strict=False)
        logprobs = [{a: SimpleNamespace(logprob=b, rank=1)} for a, b in pairs]
        return SimpleNamespace(token_ids=ids[:length], logprobs=logprobs)

    def _prefix(self, prompt: list[int]) -> tuple[Any, int]:
        """Keys of the longest beginning that was seen before, in whole blocks."""
        best, length = None, 0
        for seen, cache in self.prefixes:
            pairs = enumerate(zip(seen, prompt, strict=False))
            same = next((k for k, (a, b) in pairs if a != b), len(seen))
            same = min(same, len(prompt) - 1) // BLOCK * BLOCK
            if same > length:
                best, length = cache, same
        if best is None:
            return None, 0
        own = copy.deepcopy(best)
        own.crop(length)
        return own, length

    def _keep(self, prompt: list[int], cache: Any) -> None:
        if self.caching and all(seen != prompt for seen, _ in self.prefixes):
            self.prefixes.append((prompt, copy.deepcopy(cache)))


class Client(LLM):
    """In the place of TRL's `VLLMClient`: the server that it asks is this process."""

    model_path = ""
    """What the server was started with."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__(self.model_path, enable_prefix_caching=True)

    def init_communicator(self) -> None: ...

    def update_named_param(self, name: str, weights: Any) -> None:
        self.load_weights([(name, weights)])

    def generate(self, prompts: Any, **given: Any) -> Any:  # type: ignore[override]
        names = ("n", "temperature", "max_tokens")
        params = SamplingParams(**{name: given[name] for name in names})
        answers = super().generate(prompts, params)
        return [one.token_ids for answer in answers for one in answer.outputs]
