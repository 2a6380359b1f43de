"""GRPO on the Tinker API, served by SkyRL-tx on a CPU: recorded and looked at, healthy and broken.

    python benchmarks/tinker_api.py --server-path FOLDER    # the figures of docs/other-trainers.md

FOLDER holds `skyrl-tx`, `tinker` and JAX with what they need, installed apart from flatline
(`pip install --target FOLDER ...`: SkyRL-tx wants another transformers than TRL). The task is one
that a model of 2 layers can learn: repeat a letter. `tests/test_tinker.py` runs the same loop on
clients that stand in for these.
"""

import argparse
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

PAD, BEGIN, END, ASK = range(4)
LETTERS = range(4, 12)
VOCABULARY = ["<pad>", "<s>", "</s>", "=", *"abcdefgh", *"wxyz"]
DEFECTS = ("", "mask", "stale", "temperature")
"""What is planted: a loss on the prompt, a sampling client that is never renewed, samples drawn at
another temperature than the loss has."""
GROUP, PROMPTS, LONGEST = 8, 8, 6
SETTINGS = {"beta": 0, "tools": 0, "scale_rewards": "none"}
"""What was asked for and cannot be heard."""


def make_model(folder: Path, *, steps: int = 300) -> Path:
    """A small model that says some letters and ends; the first is right two times in five."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    draw = random.Random(0)
    config = LlamaConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=64,
        tie_word_embeddings=False,
        bos_token_id=BEGIN,
        eos_token_id=END,
        pad_token_id=PAD,
    )
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=7e-3)
    for _ in range(steps):
        rows = [_demonstration(draw) for _ in range(64)]
        width = max(map(len, rows))
        ids = torch.tensor([row + [PAD] * (width - len(row)) for row in rows])
        labels = ids.masked_fill(ids == PAD, -100)
        labels[:, :4] = -100
        loss = model(input_ids=ids, attention_mask=(ids != PAD).long(), labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.save_pretrained(folder)
    _for_older_transformers(folder)
    return folder


def _demonstration(draw: random.Random) -> list[int]:
    prompt = _prompt(draw)
    first = prompt[-1] if draw.random() < 0.4 else draw.choice(LETTERS)
    return [*prompt, first, *draw.choices(LETTERS, k=draw.randint(0, 2)), END]


def _prompt(draw: random.Random) -> list[int]:
    return [BEGIN, draw.choice(LETTERS), ASK, draw.choice(LETTERS)]


def _for_older_transformers(folder: Path) -> None:
    """SkyRL-tx reads with transformers 4, which wants `rope_theta` and another tokenizer class."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "rope_theta": 10000.0}))
    words = {word: at for at, word in enumerate(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    told = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "pad_token": "<pad>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(told))


class Grpo:
    """The training loop of somebody who uses the Tinker API, with a defect where one is planted."""

    def __init__(self, defect: str = "", *, rate: float = 3e-3, seed: int = 0) -> None:
        self.defect, self.rate = defect, rate
        self.draw = random.Random(seed)
        self.sampler = None
        self.rewards: list[float] = []

    def step(self, training) -> float:
        """Sample, reward, train."""
        import tinker
        from tinker import types

        import flatline.tinker

        if self.sampler is None or self.defect != "stale":
            self.sampler = training.save_weights_and_get_sampling_client()
        params = types.SamplingParams(
            max_tokens=LONGEST,
            stop=[END],
            temperature=1.7 if self.defect == "temperature" else 1.0,
            seed=self.draw.randrange(1 << 30),
        )
        prompts = [_prompt(self.draw) for _ in range(PROMPTS)]
        asked = [
            self.sampler.sample(types.ModelInput.from_ints(prompt), GROUP, params)
            for prompt in prompts
        ]
        data, paid = [], []
        for prompt, future in zip(prompts, asked, strict=True):
            sequences = future.result().sequences
            rewards = [float(one.tokens[0] == prompt[-1]) for one in sequences]
            flatline.tinker.rewards(rewards, sequences, parts={"accuracy": rewards})
            paid += rewards
            mean = sum(rewards) / len(rewards)
            for one, reward in zip(sequences, rewards, strict=True):
                data.append(self.datum(types, prompt, one, reward - mean))
        passed = training.forward_backward(data, "importance_sampling")
        stepped = training.optim_step(tinker.AdamParams(learning_rate=self.rate))
        passed.result()
        stepped.result()
        self.rewards.append(sum(paid) / len(paid))
        return self.rewards[-1]

    def datum(self, types, prompt: list[int], sampled, advantage: float):
        """One sampled sequence as the loss takes it."""
        ids = [*prompt, *sampled.tokens]
        before = len(prompt) - 1
        on_prompt = advantage if self.defect == "mask" else 0.0
        targets = ids[:-1] if self.defect == "shift" else ids[1:]
        logprobs = [0.0] * before + list(sampled.logprobs)
        if self.defect == "old":
            logprobs = [*logprobs[1:], 0.0]
        return types.Datum(
            model_input=types.ModelInput.from_ints(ids[:-1]),
            loss_fn_inputs={
                "target_tokens": targets,
                "logprobs": logprobs,
                "advantages": [on_prompt] * before + [advantage] * len(sampled.tokens),
            },
        )


@contextmanager
def serving(server_path: str, model: Path, folder: Path) -> Iterator[str]:
    """SkyRL-tx with this model; the address of the API."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shim = folder / "bin" / "uv"  # the server starts its engine with `uv run ... -m MODULE`
    shim.parent.mkdir()
    skip = 'while [ "$1" != -m ]; do shift; done'
    shim.write_text(f'#!/bin/sh\n{skip}\nexec {sys.executable} "$@"\n')
    shim.chmod(0o755)
    backend = {
        "max_lora_adapters": 16,  # three for each row of the table
        "max_lora_rank": 8,
        "sample_max_num_sequences": GROUP,  # one shape each, so that nothing is compiled anew
        "train_micro_batch_size": GROUP * PROMPTS,
    }
    options = {
        "base-model": model,
        "backend": "jax",
        "backend-config": json.dumps(backend),
        "checkpoints-base": folder / "checkpoints",
        "database-url": f"sqlite:///{folder / 'tinker.db'}",
        "host": "127.0.0.1",
        "port": port,
    }
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    environment = {
        **os.environ,
        "PATH": f"{shim.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": server_path,
        "JAX_PLATFORMS": "cpu",
    }
    with open(folder / "server.log", "w") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "tx.tinker.api", *words],
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield _ready(f"http://127.0.0.1:{port}", server, folder / "server.log")
        finally:
            os.killpg(server.pid, 15)
            server.wait(30)


def _ready(address: str, server: subprocess.Popen, log: Path) -> str:
    for _ in range(120):
        if server.poll() is not None:
            break
        try:
            with urllib.request.urlopen(f"{address}/api/v1/healthz", timeout=5):
                return address
        except OSError:
            time.sleep(1)
    raise RuntimeError(f"SkyRL-tx did not start:\n{log.read_text()[-3000:]}")


def recorded(loop: Grpo, training, run_dir: Path, *, steps: int, tokenizer=None) -> Path:
    """A run of the loop, recorded."""
    import flatline.tinker

    with flatline.tinker.watch(run_dir, tokenizer=tokenizer, settings=SETTINGS):
        for _ in range(steps):
            loop.step(training)
    return run_dir


def row(service, model: Path, defect: str, folder: Path, *, steps: int, tokenizer) -> list[str]:
    """One run and one checkup: what was planted, how the reward went, what was named."""
    import flatline
    import flatline.tinker

    def training():
        return service.create_lora_training_client(base_model=str(model), rank=8, seed=0)

    begun = time.perf_counter()
    loop, run_dir = Grpo(defect), folder / (defect or "healthy")
    recorded(loop, training(), run_dir, steps=steps, tokenizer=tokenizer)
    trained = time.perf_counter() - begun
    told = flatline.diagnose(run_dir)
    begun = time.perf_counter()
    looked = flatline.checkup(
        flatline.tinker.Training(service, training(), Grpo(defect).step, SETTINGS)
    )
    seconds = time.perf_counter() - begun
    return [
        defect or "nothing",
        f"{np.mean(loop.rewards[:3]):.2f} to {np.mean(loop.rewards[-3:]):.2f}",
        alarms(told),
        alarms(looked),
        f"{trained:.0f} s, {seconds:.0f} s",
    ]


def old_client(service, model: Path) -> None:
    """What a sampling client from before a step does to a training of SkyRL-tx."""
    from tinker import types

    training = service.create_lora_training_client(base_model=str(model), rank=8, seed=0)
    ids, loop = [BEGIN, 5, ASK, 6, 6, END], Grpo("stale", rate=1e-2)
    given = {"target_tokens": ids[1:], "weights": [1.0] * (len(ids) - 1)}
    datum = types.Datum(model_input=types.ModelInput.from_ints(ids[:-1]), loss_fn_inputs=given)

    def trained() -> np.ndarray:
        answer = training.forward([datum], "cross_entropy").result()
        return np.array(answer.loss_fn_outputs[0]["logprobs"].data)

    def sampled(client) -> np.ndarray:
        answer = client.compute_logprobs(types.ModelInput.from_ints(ids)).result()
        return np.array(answer, dtype=float)[1 - len(ids) :]

    loop.step(training)  # LoRA's B is zero before
    old = loop.sampler = training.save_weights_and_get_sampling_client()
    sampled(old)
    before = trained()
    loop.step(training)
    after = trained()
    print(f"the step moved a log-prob by {np.abs(after - before).max():.2g} nat")
    print(
        f"client from before: {np.abs(sampled(old) - after).max():.2g} nat from the weights after"
    )
    sampled(training.save_weights_and_get_sampling_client())
    sampled(old)
    print(f"training once both sampled: {np.abs(trained() - before).max():.2g} nat from before it")


def alarms(report) -> str:
    """What a report names, the cause first."""
    named = [one for one in report.findings if one.level in ("fault", "suspect")]
    return ", ".join(f"{one.hypothesis} {one.level}" for one in named) or "silent"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--server-path", required=True, help="where skyrl-tx and tinker are")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--defects", default=",".join(DEFECTS))
    parser.add_argument("--old-client", action="store_true", help="what one does to a training")
    asked = parser.parse_args()
    sys.path.append(asked.server_path)  # behind flatline's own packages
    os.environ.setdefault("TINKER_API_KEY", "tml-local")
    from transformers import AutoTokenizer

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = make_model(folder / "model")
        tokenizer = AutoTokenizer.from_pretrained(model)
        import tinker

        if asked.old_client:
            with serving(asked.server_path, model, folder) as address:
                old_client(tinker.ServiceClient(base_url=address), model)
            return
        print("| planted | reward, first to last 3 steps | diagnose | checkup | run, checkup |")
        print("|---|---|---|---|---|")
        with serving(asked.server_path, model, folder) as address:
            service = tinker.ServiceClient(base_url=address)
            for defect in asked.defects.split(","):
                cells = row(service, model, defect, folder, steps=asked.steps, tokenizer=tokenizer)
                print("|", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
