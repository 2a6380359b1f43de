"""A checkup on several processes: is every bit as before, what is answered, what memory it takes.

    python benchmarks/several_processes.py [--processes 2] [--kinds ddp,fsdp2,zero3] [--hidden 256]

Each kind is started by accelerate on so many processes: on GPUs where there are any, else on CPUs
with gloo. A process trains three steps, looks where the third begins, and trains on. Its peak of
memory is read over the second step and over the checkup: of the GPU, else what the process holds.
The same training is made once more without a look: its last bits must be the same. `zero3` needs
DeepSpeed.
"""

import argparse
import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import mkdtemp

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM, TrainerCallback

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.launched import said_in  # noqa: E402
from tests.ranks_child import ENVIRONMENT, fingerprint, prepare, say  # noqa: E402

MIB = 2**20
COLUMNS = {
    "kind": "",
    "processes": "",
    "whole": "weights, whole (MiB)",
    "largest": "largest tensor",
    "held": "weights, held",
    "training": "peak of a step",
    "checkup": "peak of the checkup",
    "more": "more",
    "seconds": "seconds",
    "answered": "answered",
    "alarms": "alarms",
    "same": "same bits",
    "onward": "same bits at the end",
}


def peak() -> float:
    """MiB at most since `forget`."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / MIB
    lines = Path("/proc/self/status").read_text().splitlines()
    return float(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


def forget() -> None:
    """Peaks count from here."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5")


class Look(TrainerCallback):
    """Measures the second step, then a checkup."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def on_step_begin(self, args, state, control, **_):
        if state.global_step == 1:
            forget()
        if state.global_step == 2:
            self.look(peak())

    def look(self, training: float) -> None:
        import flatline
        from flatline.hypotheses.base import ALARMS, Level
        from flatline.live.held import at_rest, elements, read

        at_rest(self.trainer.model)
        weights = list(self.trainer.model.parameters())
        before, start = fingerprint(self.trainer), time.perf_counter()
        forget()
        findings = flatline.checkup(self.trainer).findings
        took = time.perf_counter() - start
        most = peak()
        say(
            "measured",
            kind=self.kind,
            processes=int(os.environ["WORLD_SIZE"]),
            whole=sum(4 * elements(w) for w in weights) / MIB,
            largest=max(4 * elements(w) for w in weights) / MIB,
            held=sum(read(w).nbytes for w in weights) / MIB,
            training=training,
            checkup=most,
            more=most - training,
            seconds=took,
            answered=f"{sum(f.level is not Level.UNKNOWN for f in findings)} of {len(findings)}",
            alarms=", ".join(f.hypothesis for f in findings if f.level in ALARMS) or "none",
            same=before == fingerprint(self.trainer),
        )


def child(kind: str, hidden: int, *, plain: bool) -> None:
    """One of the processes. `plain`: nobody looks."""
    torch.use_deterministic_algorithms(True)
    if torch.cuda.is_available():
        os.environ |= ENVIRONMENT[kind]
    else:
        prepare(kind)
    from datasets import Dataset
    from tests.tiny import tokenizer_with
    from trl import GRPOConfig, GRPOTrainer

    tokenizer = tokenizer_with()
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=16384,
            hidden_size=hidden,
            intermediate_size=4 * hidden,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=4,
            tie_word_embeddings=False,
        )
    )
    callback = Look(kind)
    callback.trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=lambda completions, **_: [float(len(set(one))) for one in completions],
        train_dataset=Dataset.from_list([{"prompt": f"Question {i}: "} for i in range(64)]),
        args=GRPOConfig(
            output_dir=mkdtemp(),
            max_steps=3,
            per_device_train_batch_size=4,
            num_generations=4,
            max_completion_length=8,
            learning_rate=1e-4,
            bf16=False,
            gradient_checkpointing=False,
            use_cpu=kind == "ddp" and not torch.cuda.is_available(),
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
        ),
        callbacks=[] if plain else [callback],
    )
    callback.trainer.train()
    say("ended", bits=fingerprint(callback.trainer))


def measured(kind: str, processes: int, hidden: int) -> dict:
    """What process 0 measured, and whether every process ended as without a look."""
    looked, plain = (launch(kind, processes, hidden, *more) for more in ((), ("--plain",)))
    (found,) = (one for one in looked if (one["what"], one["process"]) == ("measured", 0))
    assert len({one["same"] for one in looked if one["what"] == "measured"}) == 1
    ends = [
        {one["process"]: one["bits"] for one in said if one["what"] == "ended"}
        for said in (looked, plain)
    ]
    return {**found, "onward": ends[0] == ends[1]}


def launch(kind: str, processes: int, hidden: int, *more: str) -> list[dict]:
    """What the processes said."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(processes), __file__, "--hidden", str(hidden)]
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    threads = {} if torch.cuda.is_available() else {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    folder = mkdtemp()
    done = subprocess.run(
        [*command, "--child", kind, *more],
        env={
            **os.environ,
            "PYTHONPATH": path,
            "SAID": folder,
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # what deterministic sums on a GPU need
            **threads,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    said = said_in(folder)
    if done.returncode or not said:
        raise SystemExit(done.stderr[-3000:])
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--kinds", default="ddp,fsdp2,zero3")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--plain", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        child(asked.child, asked.hidden, plain=asked.plain)
        return
    print("| " + " | ".join(words or name for name, words in COLUMNS.items()) + " |")
    print("|" + "---|" * len(COLUMNS))
    for kind in asked.kinds.split(","):
        if kind == "zero3" and importlib.util.find_spec("deepspeed") is None:
            print("| zero3 | DeepSpeed is not installed |")
            continue
        found = measured(kind, asked.processes, asked.hidden)
        shown = [found[name] for name in COLUMNS]
        texts = [f"{one:.0f}" if isinstance(one, float) else str(one) for one in shown]
        print("| " + " | ".join(texts) + " |", flush=True)


if __name__ == "__main__":
    main()
