"""`flatline warmstart`: a few minutes of imitation, so that RL has a baseline to climb from."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flatline.cli import options
from flatline.cli.output import print_json
from flatline.cli.text import visible
from flatline.config import LAB, LAB_RATES, LAB_TURN, RunConfig
from flatline.errors import needing

if TYPE_CHECKING:  # these bring torch; `flatline --help` must not wait for it
    from rich.table import Table

    from flatline.training.warmstart import Result, Step


def warmstart(
    task: options.TaskName,
    output_dir: Annotated[
        str, typer.Option(help="Folder for model/, warmstart.json and rest.jsonl.")
    ],
    model: Annotated[
        str, typer.Option(help="`lab` (embedded), a folder with safetensors, or a hub name.")
    ] = LAB,
    datasets: options.Data = LAB,
    eval_datasets: Annotated[
        str | None, typer.Option(help="Held-out problems; `validation` of --datasets if absent.")
    ] = None,
    share: Annotated[
        float, typer.Option(help="Share of the training problems that may be imitated.")
    ] = 0.5,
    careless: Annotated[
        float, typer.Option(help="How often the imitated rollouts make mistakes, 0 to 1.")
    ] = 0.4,
    epochs: Annotated[
        float | None,
        typer.Option(
            "--epochs", "--num-epochs", help="Passes over these problems; 2 if no length is given."
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option("--steps", "--max-steps", help="Optimizer steps; goes before --epochs."),
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Rollouts of one step.")] = 4,
    learning_rate: Annotated[
        float | None, typer.Option(help="If absent: LoRA 2e-4, full 1e-5; lab 3e-3 and 6e-4.")
    ] = None,
    peft: Annotated[
        bool, typer.Option("--peft/--no-peft", help="LoRA, merged when saved; or every weight.")
    ] = True,
    lora_r: Annotated[int, typer.Option(help="Rank of the adapters.")] = 32,
    lora_alpha: Annotated[int, typer.Option(help="Adapters are scaled by alpha / r.")] = 64,
    bf16: Annotated[
        bool | None, typer.Option("--bf16/--no-bf16", help="Mixed precision; on where a GPU is.")
    ] = None,
    retriever: options.Retriever = None,
    noise: options.Noise = None,
    chat_template: Annotated[
        str | None, typer.Option(help="`hermes`, a file, or a template that TRL ships.")
    ] = None,
    max_turns: Annotated[int, typer.Option(help="Turns of one rollout.")] = 8,
    max_new_tokens: Annotated[
        int | None, typer.Option(help="Tokens of one turn; 256 if absent, for the lab policy 96.")
    ] = None,
    eval_limit: Annotated[int, typer.Option(help="Held-out problems; 0 evaluates none.")] = 64,
    eval_samples: Annotated[int, typer.Option(help="Rollouts of each held-out problem.")] = 4,
    max_batch: Annotated[int, typer.Option(help="Held-out rollouts sampled at once.")] = 256,
    seed: Annotated[int, typer.Option(help="Of the share, the rollouts, adapters and order.")] = 0,
    json: options.Json = False,
) -> None:
    """Teach a model the task's format and tools by imitation, before RL."""
    run = {
        "task": task,
        "model": model,
        "output_dir": output_dir,
        "datasets": datasets,
        "eval_datasets": eval_datasets,
        "num_epochs": epochs,
        "max_steps": steps,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "peft": peft,
        "lora_r": lora_r,
        "lora_alpha": lora_alpha,
        "retriever": retriever,
        "noise": noise,
        "chat_template": chat_template,
        "max_turns": max_turns,
        "max_new_tokens": max_new_tokens,
        "eval_limit": eval_limit,
        "eval_samples": eval_samples,
        "max_batch": max_batch,
        "seed": seed,
    }
    _run(run, bf16, share=share, careless=careless, as_json=json)


def _run(
    values: dict[str, Any], bf16: bool | None, *, share: float, careless: float, as_json: bool
) -> None:
    RunConfig(**values)  # a wrong flag is reported before torch is imported
    with needing("A warm start"):
        import torch
        from transformers.utils import logging

        from flatline.training.warmstart import WarmStart
        from flatline.training.warmstart import warmstart as start
    logging.disable_progress_bar()  # ours says the same
    run = RunConfig(**values, bf16=torch.cuda.is_available() if bf16 is None else bf16)
    with _progress() as on_step:
        result = start(WarmStart(run=run, share=share, careless=careless), on_step=on_step)
    if as_json:
        print_json(result.to_json())
    else:
        _print(result, run)


@contextmanager
def _progress() -> "Iterator[Step]":
    """One bar a stage on stderr; in a log file a bar would leave nothing but blank lines."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()]
    console = Console(stderr=True)
    bars: dict[str, Any] = {}
    with Progress(
        *columns, TimeElapsedColumn(), console=console, disable=not console.is_terminal
    ) as progress:

        def on_step(stage: str, done: int, total: int, text: str) -> None:
            if stage not in bars:
                bars[stage] = progress.add_task(stage, total=total)
            progress.update(bars[stage], completed=done, description=f"{stage} {text}".strip())

        yield on_step


def _print(result: "Result", run: RunConfig) -> None:
    from rich.console import Console

    facts = result.to_json()
    left_out = "".join(f"\n  left out: {n} ({why})" for why, n in result.left_out.items())
    print(
        f"{result.plays} rollouts of {len(result.used)} problems, mean reward {result.reward:.3f}; "
        f"{len(result.losses)} steps, loss {facts['loss']['first']:.3f} to "
        f"{facts['loss']['last']:.3f}; {result.seconds:.0f} s.{left_out}"
    )
    if facts["gain"] is not None:
        Console().print(_table(facts))
    print(f"Saved in {visible(facts['model'])}. To train on the problems that were not used:")
    print(visible("  " + " ".join(_next(facts, run))))


def _table(facts: dict[str, Any]) -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("held out")
    for name in ("before", "after", "gain, 95 % interval"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, gain in facts["gain"].items():
        table.add_row(name, *_pair(facts, lambda side, n=name: side["parts"][n]), _signed(gain))
    for k in facts["after"]["pass_at_k"]:
        table.add_row(f"pass@{k}", *_pair(facts, lambda side, k=k: side["pass_at_k"][k]), "")
    if facts["after"]["samples"] > 1:
        table.add_row("group std", *_pair(facts, lambda side: side["group_std"]), "")
    table.add_row("nats per token", *_pair(facts, lambda side: side["entropy"]), "")
    return table


def _pair(facts: dict[str, Any], of: Any) -> tuple[str, str]:
    before, after = of(facts["before"]), of(facts["after"])
    return (
        f"{before['value']:.3f}",
        f"{after['value']:.3f}",
    )


def _signed(gain: dict[str, Any]) -> str:
    return f"{gain['value']:+.3f} [{gain['low']:+.3f}, {gain['high']:+.3f}]"


def _next(facts: dict[str, Any], run: RunConfig) -> list[str]:
    """The command that goes on from here."""
    words = ["flatline train", run.task, "--model", facts["model"]]
    words += ["--datasets", f'"{facts["rest"] or run.datasets}"']
    words += ["--eval-datasets", f'"{facts["heldout"]}"'] if facts["heldout"] else []
    if run.model == LAB:
        # Its own rate and limit go with the name `lab`, which this folder no longer has.
        rate = LAB_RATES["lora" if run.peft else "full"]
        words += ["--learning-rate", f"{rate:g}", "--max-new-tokens", str(LAB_TURN)]
    return words
