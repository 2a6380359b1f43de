"""One of verl's engines on the lab policy, in this process: `python -m tests.verl_lab.engine`.

verl's own `TrainingWorker`, `ppo_loss`, agent loop and advantage estimator; no Ray. Prints the
checkup as JSON, and whether the weights are the same bits as before.
"""

import asyncio
import json
import os
import socket
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ALONE = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    os.environ |= ALONE | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}

import torch  # noqa: E402
from hydra import compose, initialize_config_module  # noqa: E402
from omegaconf import OmegaConf  # noqa: E402
from verl.experimental.agent_loop.agent_loop import DictConfigWrap  # noqa: E402
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop  # noqa: E402
from verl.utils.config import omega_conf_to_dataclass  # noqa: E402
from verl.workers.engine_workers import TrainingWorker, TrainingWorkerConfig  # noqa: E402
from verl.workers.utils.losses import ppo_loss  # noqa: E402

from flatline.diagnosis.checkup import checkup  # noqa: E402
from flatline.live.hooks import Guard  # noqa: E402
from flatline.live.verl.engine import Engine  # noqa: E402
from flatline.live.verl.sampler import SamplerEar  # noqa: E402
from flatline.tasks import make_task  # noqa: E402
from tests.verl_lab.launch import GROUP, LONGEST, PROMPTS, settings  # noqa: E402
from tests.verl_lab.reward import compute_score  # noqa: E402
from tests.verl_lab.server import LabServer  # noqa: E402

FAULT = os.environ.get("VERL_LAB_FAULT", "")


def configured(folder: Path) -> Any:
    """verl's own defaults with what a run of the lab sets."""
    asked = [f"{name}={value}" for name, value in settings(folder, 12).items()]
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=asked)
    OmegaConf.resolve(config)
    return config


def worker_of(config: Any, *, trains: bool) -> TrainingWorker:
    """As `ActorRolloutRefWorker.init_model` builds them."""
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    actor.engine.use_dynamic_bsz = False
    actor.engine.infer_micro_batch_size_per_gpu = 8
    actor.engine.micro_batch_size_per_gpu = 8
    actor.engine.forward_only = not trains
    worker = TrainingWorker(
        TrainingWorkerConfig(
            model_type="language_model",
            model_config=omega_conf_to_dataclass(config.actor_rollout_ref.model),
            engine_config=actor.engine,
            optimizer_config=actor.optim,
            checkpoint_config=actor.checkpoint,
        )
    )
    worker.reset()
    worker.set_loss_fn(partial(ppo_loss, config=actor))
    return worker


class Player:
    """verl's single-turn agent loop against the lab's server, in this process."""

    def __init__(self, config: Any, tokenizer: Any, server: LabServer) -> None:
        self._server, self._tokenizer = server, tokenizer
        self._ear = SamplerEar(Guard())
        kind = SingleTurnAgentLoop
        if FAULT == "mask":
            from tests.verl_lab.loops import EndNotTrained as kind
        self._loop = kind(
            trainer_config=DictConfigWrap(config),
            server_manager=SimpleNamespace(generate=partial(self._ear.generate, self._answer)),
            tokenizer=tokenizer,
            processor=None,
            dataset_cls=None,
            data_config=DictConfigWrap(config.data),
        )
        self._loop.process_multi_modal_info = self._no_images

    async def _no_images(self, messages: Any) -> dict[str, Any]:
        return {}

    async def _answer(self, request_id: str, **asked: Any) -> Any:
        return self._server.generate(request_id, asked["prompt_ids"], asked["sampling_params"])

    def play(self, problems: Any) -> list[Any]:
        return [self._one(problem) for problem in problems for _ in range(GROUP)]

    def _one(self, problem: Any) -> Any:
        asked = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "logprobs": True}
        messages = make_task("gsm8k").messages(problem)
        run = self._loop.run(asked, raw_prompt=messages)
        output = asyncio.get_event_loop().run_until_complete(run)
        text = self._tokenizer.decode(output.response_ids, skip_special_tokens=True)
        scored = compute_score("lab", text, problem.answer)
        output.reward_score = scored["score"]
        output.extra_fields["reward_extra_info"] = scored
        return output


def built(folder: Path) -> Engine:
    """Everything that a checkup is given."""
    config = configured(folder)
    worker, reference = worker_of(config, trains=True), worker_of(config, trains=False)
    tokenizer = worker.model_config.tokenizer
    server = LabServer(str(config.actor_rollout_ref.model.path), LONGEST)

    def send(step: int) -> None:
        weights = {name: value.detach().cpu() for name, value in _sent(worker.engine)}
        server.update_weights(weights, step)

    return Engine(
        worker=worker,
        config=OmegaConf.to_container(config),
        tokenizer=tokenizer,
        prompts=make_task("gsm8k").load(f"lab,,train[:{2 * PROMPTS}]", split="train"),
        play=Player(config, tokenizer, server).play,
        send=send,
        reference=reference,
    )


def _sent(engine: Any) -> Any:
    return engine.get_per_tensor_param()[0]


def _bits(engine: Any) -> list[torch.Tensor]:
    return [value.detach().clone() for _, value in _sent(engine)]


def main() -> None:
    asyncio.set_event_loop(asyncio.new_event_loop())
    torch.manual_seed(0)
    begun = time.perf_counter()
    engine = built(Path(sys.argv[1]))
    before = _bits(engine.worker.engine)
    ready = time.perf_counter()
    report = checkup(engine, correct="correct")
    same = all(map(torch.equal, before, _bits(engine.worker.engine)))
    told = [
        {
            "hypothesis": one.hypothesis,
            "level": one.level.value,
            "text": one.text,
            "needs": one.needs,
        }
        for one in report.findings
    ]
    seconds = {"build": ready - begun, "checkup": time.perf_counter() - ready}
    print(json.dumps({"findings": told, "same_bits": same, "seconds": seconds}))


if __name__ == "__main__":
    main()
