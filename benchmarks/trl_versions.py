"""What `flatline.attach` records under older versions of TRL.

    python benchmarks/trl_versions.py [0.24.0 1.8.0 ...]

Each version goes into a folder of its own with the transformers of its time and is put in front of
the installed packages, so that torch is shared. A tiny random model is trained for three steps with
and without the line, KL and two passes per batch included. Prints a Markdown table.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import flatline

PINS = {
    "0.24.0": "transformers==4.57.1 tokenizers==0.22.1 huggingface_hub==0.36.0 datasets==4.3.0 "
    "peft==0.17.1 accelerate==1.11.0 httpx==0.28.1 httpcore==1.0.9",
    "0.29.0": "transformers==4.57.6 tokenizers==0.22.1 huggingface_hub==0.36.0 datasets==4.3.0 "
    "peft==0.18.0 accelerate==1.12.0 httpx==0.28.1 httpcore==1.0.9",
    "1.0.0": "transformers==5.4.0 tokenizers==0.22.2 huggingface_hub==1.8.0 datasets==4.7.0 "
    "httpx==0.28.1 httpcore==1.0.9",
    "1.8.0": "transformers==5.13.0 tokenizers==0.22.2 huggingface_hub==1.8.0 datasets==4.7.0 "
    "httpx==0.28.1 httpcore==1.0.9",
    "1.16.0": "",
}
"""What is installed besides TRL; the last is what the project itself uses."""
CHECKS = ("weights the same", "rollouts", "tokens", "trainer log-probs", "attention", "reference",
          "rewards", "steps", "weights", "detached")  # fmt: skip


def main() -> None:
    versions = sys.argv[1:] or list(PINS)
    print(f"| TRL | transformers | {' | '.join(CHECKS)} |\n|---|---|{'---|' * len(CHECKS)}")
    for version in versions:
        found = check(version)
        cells = [str(found.get(name, "-")) for name in ("transformers", *CHECKS)]
        print(f"| {version} | {' | '.join(cells)} |", flush=True)
        if "error" in found:
            print(found["error"], file=sys.stderr)


def check(version: str) -> dict[str, str]:
    """Run the child under one version."""
    folder = Path(tempfile.gettempdir()) / f"flatline-trl-{version}"
    if PINS[version] and not (folder / "trl").is_dir():
        wanted = [f"trl=={version}", *PINS[version].split()]
        install = ["-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
        subprocess.run([sys.executable, *install, *wanted], check=True, capture_output=True)
    here = [str(folder)] if PINS[version] else []
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(here),
            "TOKENIZER": str(Path(flatline.__file__).parent / "training/lab/checkpoint"),
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return {"error": done.stderr[-2000:]}
    found: dict[str, str] = json.loads(lines[-1])
    if "recording stopped" in done.stderr:
        found["error"] = done.stderr[-2000:]
    return found


CHILD = """
import json, os, tempfile
from pathlib import Path
import numpy as np, torch, transformers
from datasets import Dataset
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer
import flatline
torch.set_num_threads(1)

def reward(completions, **_):
    return [float(len(set(text))) for text in completions]

def made(folder):
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=os.environ["TOKENIZER"] + "/tokenizer.json",
        eos_token="<|im_end|>", pad_token="<|endoftext|>",
        model_input_names=["input_ids", "attention_mask"])
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
        bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id))
    model.save_pretrained(folder / "model")
    model = Qwen2ForCausalLM.from_pretrained(folder / "model")
    return GRPOTrainer(
        model=model, processing_class=tokenizer, reward_funcs=reward,
        train_dataset=Dataset.from_list([{"prompt": f"Who is {i}?"} for i in range(8)]),
        args=GRPOConfig(
            output_dir=str(folder / "out"), max_steps=4, per_device_train_batch_size=4,
            num_generations=4, num_iterations=2, gradient_accumulation_steps=2, beta=0.1,
            max_completion_length=12, learning_rate=1e-2, logging_steps=1, use_cpu=True,
            bf16=False, gradient_checkpointing=False, report_to=[], save_strategy="no",
            disable_tqdm=True))

with tempfile.TemporaryDirectory() as name:
    plain, watched = made(Path(name) / "a"), made(Path(name) / "b")
    before = dict(vars(watched))
    attachment = flatline.attach(watched, Path(name) / "run")
    for trainer in (plain, watched):
        torch.manual_seed(1)
        trainer.train()
    attachment.detach()
    trace = flatline.Trace.open(Path(name) / "run")
    def is_good(test):
        try:
            return "yes" if test() else "no"
        except Exception as error:
            return f"no ({type(error).__name__})"
    tokens = trace.tokens()
    pairs = list(zip(plain.model.parameters(), watched.model.parameters()))
    left = {k for k in vars(watched) if k not in before} & {
        "_compute_loss", "_calculate_rewards", "_generate_and_score_completions"}
    print(json.dumps({
        "transformers": transformers.__version__,
        "weights the same": is_good(lambda: all(torch.equal(a, b) for a, b in pairs)),
        "rollouts": is_good(lambda: len(trace.rollouts) == 16 and (trace.groups().size == 4).all()),
        "tokens": is_good(
            lambda: len(tokens.ids) == trace.rollouts["completion_tokens"].sum()),
        "trainer log-probs": is_good(lambda: np.isfinite(tokens.trainer).all()),
        "attention": is_good(lambda: tokens.attended.all() and tokens.prompt_attended.all()),
        "reference": is_good(lambda: np.isfinite(tokens.reference).all()),
        "rewards": is_good(lambda: np.isfinite(trace.rollouts["reward"]).all()
                           and np.isfinite(trace.parts()["reward"]).all()),
        "steps": is_good(lambda: trace.steps["step"].tolist() == [1, 2, 3, 4] and all(
            np.isfinite(trace.steps[c]).all()
            for c in ("grad_norm", "learning_rate", "kl", "loss", "entropy", "ratio_max"))),
        "weights": is_good(lambda: set(trace.weights["step"]) == {1, 2, 3, 4}),
        "detached": is_good(lambda: not left),
    }))
"""


if __name__ == "__main__":
    main()
