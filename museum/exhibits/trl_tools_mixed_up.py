"""A vLLM server is asked once for each group, with the first prompt of it. After tools have
answered, the rollouts of a group differ, and all go on with what was drawn for the first of them:
they are trained on words that nobody said in their conversation.
"""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from museum.exhibit import Exhibit
from museum.exhibits import trl_retokenised_tools as tools
from museum.play import looked

EXHIBIT = Exhibit(
    bad="1.14.0",
    good="1.14.2",
    beside=("jmespath==1.0.1",),
    stands_in="vLLM behind a server: samples in this process, with what it is sent",
    lines="trl/generation/vllm_generation.py:605; `_generate_single_turn` in the tool loop",
    expects=("H10", "H33", "H50", "H54"),
    later=2,
)


def run(folder: Path) -> dict[str, Any]:
    return looked(_trainer(folder), folder)


def symptom(folder: Path) -> str:
    """Turns that are not what the server drew for the conversation they are put behind."""
    trainer = _trainer(folder)
    turn, wrong, count = trainer._generate_single_turn, 0, 0
    engine = trainer.vllm_generation.vllm_client

    def taking(prompt_ids: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal wrong, count
        engine.drawn.clear()
        found = turn(prompt_ids, *args, **kwargs)
        drawn = {(tuple(asked), tuple(said)) for asked, said, _ in engine.drawn}
        pairs = zip(prompt_ids, found[0], strict=False)
        wrong += sum((tuple(asked), tuple(said)) not in drawn for asked, said in pairs)
        count += len(prompt_ids)
        return found

    trainer._generate_single_turn = taking
    trainer.train()
    return f"{wrong} of {count} turns were drawn for another conversation"


def _trainer(folder: Path) -> Any:
    model, tokenizer = tools.parts()
    _serve(model.name_or_path)
    given = {"use_vllm": True, "vllm_mode": "server"}
    return tools.trainer(folder, (model, tokenizer), **given)


def _serve(model: str) -> None:
    """In the place of TRL's client. What its module imports for a GPU is empty."""
    import vllm

    vllm.RequestOutput = None
    _module("vllm.utils")
    _module("vllm.utils.network_utils", get_ip=None)
    _module("vllm.distributed.weight_transfer")
    engine = "vllm.distributed.weight_transfer.nccl_engine"
    _module(engine, NCCLTrainerSendWeightsArgs=None, NCCLWeightTransferEngine=None)
    from trl.generation import vllm_generation

    class Server(vllm.LLM):  # type: ignore[misc, name-defined]
        def __init__(self, **_: Any) -> None:
            super().__init__(model, logprobs_mode="processed_logprobs")

        def init_communicator(self, **_: Any) -> None: ...

        def update_named_params(self, _: Any, weights: Any) -> None:
            self.load_weights(weights)

        def generate(self, prompts: Any, n: int, **given: Any) -> Any:
            names = ("temperature", "max_tokens")
            params = vllm.SamplingParams(n=n, **{name: given[name] for name in names})
            asked = [{"prompt_token_ids": one} for one in prompts]
            answers = super().generate(asked, params)
            turns = [one for answer in answers for one in answer.outputs]
            return {
                "prompt_ids": [answer.prompt_token_ids for answer in answers],
                "completion_ids": [one.token_ids for one in turns],
                "logprobs": [[_values(place) for place in one.logprobs] for one in turns],
            }

    vllm_generation.VLLMClient = Server


def _values(place: dict[int, SimpleNamespace]) -> list[float]:
    return [one.logprob for one in place.values()]


def _module(name: str, **held: Any) -> None:
    made = sys.modules.setdefault(name, ModuleType(name))
    vars(made).update(held)
