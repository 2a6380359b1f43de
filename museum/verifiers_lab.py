"""What the verifiers exhibits train: flatline's lab policy on MuSiQue, by the wheel's own trainer.

Three things stand in: the client of the vLLM server hands the weights to `flatline serve` instead,
wandb, which the trainer imports, logs nothing, and what 0.1.7 imports for a GPU (deepspeed,
liger-kernel) is empty. All else is the wheel's own code.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import types
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from museum import lab

PROBLEMS = 400
STEPS = 3
BESIDE = "MUSEUM_BESIDE"
"""Where the caller keeps what today's environment needs besides, if anywhere."""
WAIT = 600
"""Seconds for the server to be there."""
BASE = (
    "transformers==4.55.4",
    "tokenizers==0.21.4",
    "huggingface-hub==0.34.4",
    "datasets==4.0.0",
    "fsspec==2025.3.0",
    "trl==0.19.1",
    "peft==0.17.1",
    "accelerate==1.10.1",
    "openai==1.99.9",
    "openai-agents==0.2.8",
    "mcp==1.13.1",
    "griffe==1.14.0",
    "nest-asyncio==1.6.0",
    "httpx==0.28.1",
    "distro==1.9.0",
    "httpcore==1.0.9",
    "colorama==0.4.6",
)
"""Wheels that these releases were made for."""


@contextmanager
def serving(checkpoint: Path) -> Iterator[int]:
    """`flatline serve` with the lab policy, in today's environment; the port."""
    port = _free_port()
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    own = str(Path(__file__).parent.parent / "src")
    environment["PYTHONPATH"] = os.pathsep.join([own, os.environ.get(BESIDE, "")])
    command = [sys.executable, "-c", "from flatline.cli import main; main()", "serve"]
    command += ["--model", str(checkpoint), "--port", str(port), "--max-batch", "64"]
    server = subprocess.Popen(command, env=environment)
    try:
        _wait_for(port)
        yield port
    finally:
        server.terminate()
        server.wait(timeout=30)


def stand_ins(checkpoint: Path, port: int) -> None:
    """Put what does not run here out of the way, before verifiers is imported."""
    client = _client(checkpoint, port)
    _module("wandb", run=None)
    _module("deepspeed")
    _module("liger_kernel")
    _module("liger_kernel.transformers", AutoLigerKernelForCausalLM=object)
    _module("verifiers.inference.vllm_client", VLLMClient=client)  # to 0.1.6
    _module("verifiers.rl.inference.client", VLLMClient=client)  # from 0.1.7


def _module(name: str, **held: Any) -> None:
    made = types.ModuleType(name)
    made.__spec__ = ModuleSpec(name, None)
    vars(made).update(held)
    sys.modules[name] = made


def _client(checkpoint: Path, port: int) -> type:
    """In place of vLLM's client, every method that a trainer calls: weights go by a folder."""

    class Client:
        def __init__(self, *_: Any, **__: Any) -> None:
            self._pending: dict[str, Any] = {}
            self._folder = Path(tempfile.mkdtemp(prefix="museum-weights-"))
            shutil.copytree(checkpoint, self._folder, dirs_exist_ok=True)

        def init_communicator(self) -> None: ...

        def close_communicator(self) -> None: ...

        def get_num_background_tasks(self) -> int:
            return 0

        def update_named_param(self, name: str, weights: Any) -> None:
            self._pending[name] = weights.detach().clone().contiguous()

        def reset_prefix_cache(self) -> None:
            from safetensors.torch import save_file

            save_file(self._pending, self._folder / "model.safetensors", metadata={"format": "pt"})
            self._pending = {}
            _post(port, "/update_weights", {"weight_dir": str(self._folder)})

    return Client


def environment() -> Any:
    """MuSiQue as an environment of verifiers."""
    import verifiers as vf
    from datasets import Dataset

    from flatline.tasks.base import BadToolCall, ToolCall
    from flatline.tasks.musique import Musique

    task = Musique()
    known = {one.id: one for one in task.load("lab", split="train")[:PROBLEMS]}

    class MusiqueEnv(vf.MultiTurnEnv):  # type: ignore[misc, name-defined]
        async def setup_state(self, state: Any, **_: Any) -> Any:
            state["episode"] = task.episode(known[state["info"]["problem_id"]])
            return state

        async def is_completed(self, messages: Any, state: Any, **_: Any) -> bool:
            return messages[-1]["role"] == "assistant" and not messages[-1].get("tool_calls")

        async def env_response(self, messages: Any, state: Any, **_: Any) -> Any:
            return [_observed(state, call) for call in messages[-1]["tool_calls"]], state

    def _observed(state: Any, given: Any) -> dict[str, Any]:
        call = given if isinstance(given, dict) else given.model_dump()  # a dict since 0.1.7
        function = call["function"]
        try:
            arguments = json.loads(function["arguments"])
        except ValueError:
            arguments = None
        fine = isinstance(arguments, dict)
        asked = (
            ToolCall(name=function["name"], arguments=arguments)
            if fine
            else BadToolCall(text="", reason="the arguments are not a JSON object.")
        )
        text = state["episode"].observe(asked).text
        return {"role": "tool", "content": text, "tool_call_id": call["id"]}

    def combined(completion: Any, state: Any, **_: Any) -> float:
        last = completion[-1]
        final = last["role"] == "assistant" and not last.get("tool_calls")
        return float(state["episode"].score(last["content"] if final else None).reward)

    rows = [
        {
            "prompt": task.messages(one),
            "answer": one.answer,
            "info": {"problem_id": one.id, "hops": one.hops},
            "task": "musique",
        }
        for one in known.values()
    ]
    return MusiqueEnv(
        dataset=Dataset.from_list(rows),
        rubric=vf.Rubric(funcs=[combined], weights=[1.0]),
        oai_tools=[tool.schema() for tool in task.tools],
        max_turns=8,
    )


def one_turn() -> Any:
    """Word problems, answered at once."""
    import verifiers as vf
    from datasets import Dataset

    def paid(completion: Any, info: Any, **_: Any) -> float:
        return lab.right([completion], [info["problem_id"]])[0]

    rows = [
        {
            "prompt": row["prompt"],
            "answer": "",
            "info": {"problem_id": row["problem_id"]},
            "task": "gsm8k",
        }
        for row in lab.rows()
    ]
    rubric = vf.Rubric(funcs=[paid], weights=[1.0])
    return vf.SingleTurnEnv(dataset=Dataset.from_list(rows), rubric=rubric)


def parts(checkpoint: Path, seed: int) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed

    set_seed(seed)
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    if not hasattr(model, "warnings_issued"):
        model.warnings_issued = {}
    return model, AutoTokenizer.from_pretrained(checkpoint)


def common(folder: Path, port: int, steps: int, seed: int) -> dict[str, Any]:
    """Arguments of either trainer."""
    return {
        "output_dir": str(folder / "out"),
        "max_steps": steps,
        "max_seq_len": 1024,
        "max_tokens": 96,
        "temperature": 1.0,
        "learning_rate": 3e-3,
        "lr_scheduler_type": "constant",
        "vllm_server_host": "127.0.0.1",
        "vllm_server_port": port,
        "report_to": [],
        "logging_steps": 1,
        "save_strategy": "no",
        "use_cpu": True,
        "bf16": False,
        "max_concurrent": 64,
        "seed": seed,
        "disable_tqdm": True,
    }


def grpo_trainer(
    folder: Path, port: int, checkpoint: Path, env: Any, *, steps: int = STEPS, seed: int = 0
) -> Any:
    """`vf.GRPOTrainer`, to 0.1.6."""
    import verifiers as vf
    from peft import LoraConfig

    model, tokenizer = parts(checkpoint, seed)
    given = common(folder, port, steps, seed) | {
        "per_device_train_batch_size": 32,
        "gradient_accumulation_steps": 2,
        "num_generations": 8,
        "max_prompt_length": 512,
        "beta": 0.0,
        "scale_rewards": True,
        "loss_type": "grpo",
        "num_batches_ahead": 1,
        "max_grad_norm": 1.0,
        "max_data_workers": 1,
        "sync_ref_model": False,
        "log_completions": False,
    }
    lora = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
    return vf.GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        env=env,
        args=vf.GRPOConfig(**given),
        peft_config=lora,
    )


def rl_trainer(
    folder: Path, port: int, checkpoint: Path, env: Any, *, steps: int = STEPS, seed: int = 0
) -> Any:
    """`RLTrainer`, from 0.1.7."""
    from peft import LoraConfig
    from verifiers.rl.trainer.config import RLConfig
    from verifiers.rl.trainer.trainer import RLTrainer

    model, tokenizer = parts(checkpoint, seed)
    given = common(folder, port, steps, seed) | {
        "batch_size": 64,
        "micro_batch_size": 32,
        "rollouts_per_example": 8,
        "max_prompt_len": 512,
        "use_lora": True,
        "lora_config": LoraConfig(
            r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM"
        ),
        "gradient_checkpointing": False,
        "max_grad_norm": 1.0,
    }
    return RLTrainer(model=model, processing_class=tokenizer, env=env, args=RLConfig(**given))


def trainer(folder: Path, port: int, checkpoint: Path) -> Any:
    """The trainer that this release has, on word problems."""
    build = rl_trainer if find_spec("verifiers.rl") else grpo_trainer
    return build(folder, port, checkpoint, one_turn())


def looked(build: Callable[[Path, int, Path], Any], folder: Path) -> dict[str, Any]:
    """Record a short training of the wheel's trainer and read it."""
    import flatline

    checkpoint = lab.checkpoint()
    with serving(checkpoint) as port:
        stand_ins(checkpoint, port)
        trainer = build(folder, port, checkpoint)
        attachment = flatline.attach(trainer, folder / "run")
        trainer.train()
        attachment.detach()
    return {"diagnose": flatline.diagnose(flatline.Trace.open(folder / "run"))}


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _wait_for(port: int) -> None:
    end = time.monotonic() + WAIT
    while time.monotonic() < end:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=2).close()
            return
        except OSError:
            time.sleep(0.5)
    raise TimeoutError(f"`flatline serve` was not there after {WAIT} s")


def _post(port: int, path: str, body: dict[str, Any]) -> None:
    asked = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    urllib.request.urlopen(asked).close()
