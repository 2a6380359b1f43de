"""`flatline evaluate`: plays held-out problems and prints scores with intervals."""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flatline.cli import options
from flatline.cli.output import print_json
from flatline.cli.text import visible
from flatline.errors import ConfigError, needing

if TYPE_CHECKING:  # these bring numpy or torch; `flatline --help` must not wait for them
    from collections.abc import Callable

    from rich.console import Console

    from flatline.evaluate import Comparison, Evaluation
    from flatline.rollout.engine import Engine
    from flatline.rollout.record import Rollout
    from flatline.tasks.base import Problem, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is to be played, with every flag checked."""

    task: "Task"
    """The task, its options set."""
    problems: "list[Problem]"
    """What is played, in order."""
    samples: int
    """Plays of each problem."""
    seed: int
    """Of the random numbers that tokens are drawn with."""
    sampling: dict[str, Any]
    """Arguments of `Sampling`."""
    limits: dict[str, Any]
    """Arguments of `Limits`; only those that were given."""
    max_batch: int
    """Episodes in play at once."""
    policy: dict[str, Any]
    """Arguments of `load_policy` besides the name."""
    about: dict[str, Any]
    """What else the result should name."""


def evaluate(
    task: options.TaskName,
    model: Annotated[
        str, typer.Option(help="`lab` (embedded), a folder with safetensors, or a hub name.")
    ] = "lab",
    datasets: options.Data = options.LAB,
    split: options.Split = "validation",
    limit: options.Limit = None,
    samples: Annotated[
        int | None,
        typer.Option(min=1, help="Rollouts of each problem; 1, or 8 for `lab`, which is quick."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the random numbers tokens are drawn with.")] = 0,
    temperature: Annotated[float, typer.Option(help="0 takes the most likely token.")] = 1.0,
    top_p: Annotated[float, typer.Option(help="1 keeps all tokens.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="0 keeps all tokens.")] = 0,
    min_p: Annotated[float, typer.Option(help="0 keeps all tokens.")] = 0.0,
    greedy: Annotated[bool, typer.Option("--greedy", help="The same as --temperature 0.")] = False,
    retriever: options.Retriever = None,
    noise: options.Noise = None,
    max_turns: Annotated[int | None, typer.Option(min=1, help="Turns of the model.")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens of one turn.")] = None,
    max_context: Annotated[
        int | None, typer.Option(min=1, help="Tokens of prompt and completion together.")
    ] = None,
    max_batch: Annotated[
        int, typer.Option("--max-batch", "--batch-size", min=1, help="Rollouts sampled at once.")
    ] = 64,
    chat_template: Annotated[
        str | None, typer.Option(help="`hermes`, a file, or a template that TRL ships.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; the best there is.")] = None,
    bf16: Annotated[
        bool, typer.Option("--bf16", help="Weights in bfloat16: half the memory, faster on a GPU.")
    ] = False,
    compare: Annotated[
        str | None, typer.Option(help="Another model on the same problems and random numbers.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Save every rollout as one line of this JSONL file.")
    ] = None,
    show: Annotated[int, typer.Option(min=0, help="Print this many rollouts in full.")] = 0,
    json: options.Json = False,
) -> None:
    """Score a model on held-out problems, per part and per hop, with 95 % intervals."""
    _refuse_what_cannot_be_saved(output)
    made = options.make_task(task, retriever=retriever, noise=noise)
    problems = options.load_problems(made, datasets, split=split, limit=limit)
    temperature = 0.0 if greedy else temperature
    samples = _samples(samples, temperature, lab=datasets == options.LAB)
    sampling = {"temperature": temperature, "top_p": top_p, "top_k": top_k, "min_p": min_p}
    limits = {"max_turns": max_turns, "max_new_tokens": max_new_tokens, "max_context": max_context}
    request = Request(
        task=made,
        problems=problems,
        samples=samples,
        seed=seed,
        sampling=sampling,
        limits={name: value for name, value in limits.items() if value is not None},
        max_batch=max_batch,
        policy={
            "device": device,
            "chat_template": chat_template,
            "dtype": "bfloat16" if bf16 else "float32",
        },
        about={"task": task, "datasets": datasets, "split": split, "sampling": sampling},
    )
    _run(request, model, compare, output=output, show=show, as_json=json)


def _run(
    request: Request,
    model: str,
    other: str | None,
    *,
    output: Path | None,
    show: int,
    as_json: bool,
) -> None:
    from flatline.evaluate import compare, save_trajectories

    first = evaluate_model(request, model)
    if output is not None:
        save_trajectories(output, request.task, first)
    second = None if other is None else evaluate_model(request, other)
    comparison = None if second is None else compare(first, second)
    _print_plays(request.task, first, show, to_stderr=as_json)
    if as_json:
        print_json(_as_json(first, second, comparison))
        return
    _print_tables(first)
    if second is not None and comparison is not None:
        _print_tables(second)
        _print_comparison(comparison)


def evaluate_model(request: Request, model: str) -> "Evaluation":
    from flatline.evaluate import evaluate as play

    with _progress(f"{model}: loading", None):
        engine = _engine(request, model)
    with _progress(f"{model}: sampling", len(request.problems) * request.samples) as on_done:
        return play(
            request.problems,
            engine,
            samples=request.samples,
            seed=request.seed,
            on_done=on_done,
            about={"model": model, **request.about},
        )


def _engine(request: Request, model: str) -> "Engine":
    with needing("Sampling from a model"):
        from flatline.rollout.engine import Engine, Limits
        from flatline.rollout.sampling import Sampling
        from flatline.training.models import load_policy
    from transformers.utils import logging

    logging.disable_progress_bar()  # ours says the same
    refuse_missing_device(request.policy["device"])
    sampling, limits = Sampling(**request.sampling), Limits(**request.limits)
    policy = load_policy(model, **request.policy)
    engine = Engine(
        policy.model,
        policy.tokenizer,
        request.task,
        sampling=sampling,
        limits=limits,
        max_batch=request.max_batch,
    )
    if engine.chat.notice:
        print(f"flatline: {visible(engine.chat.notice)}", file=sys.stderr)
    return engine


def refuse_missing_device(device: str | None) -> None:
    import torch

    if device is None:
        return
    found = re.fullmatch(r"(cpu|mps|cuda)(?::(\d{1,3}))?", device)
    counts = {"cpu": 1, "mps": int(torch.backends.mps.is_available())}
    counts["cuda"] = torch.cuda.device_count()
    if found is None or int(found[2] or 0) >= counts[found[1]]:
        raise ConfigError(
            f"--device {device} is not a device of this machine.\n"
            f"Give cpu, or cuda where there is a GPU (here: {torch.cuda.device_count()})."
        )


def _samples(given: int | None, temperature: float, *, lab: bool) -> int:
    if given is None:
        return options.LAB_SAMPLES if lab and temperature > 0 else 1
    if temperature == 0 and given > 1:
        raise ConfigError(
            f"Without randomness every rollout of a problem is the same, so --samples {given} "
            "would only repeat the first.\nLeave --samples out, or give a --temperature above 0."
        )
    return given


def _refuse_what_cannot_be_saved(output: Path | None) -> None:
    """Better now than after minutes of playing."""
    if output is None:
        return
    folder = output.absolute().parent
    faults = {
        "it is a folder": output.is_dir(),
        "its folder does not exist": not folder.is_dir(),
        "its folder may not be written to": not os.access(folder, os.W_OK),
    }
    for fault, holds in faults.items():
        if holds:
            raise ConfigError(
                f"--output {output} cannot be written: {fault}.\n"
                "Give the path of a file in a folder that exists, such as rollouts.jsonl."
            )


@contextmanager
def _progress(text: str, total: int | None) -> "Iterator[Callable[[Rollout], None]]":
    """A bar on stderr, so that stdout holds the result alone."""
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    count = [MofNCompleteColumn()] if total else []
    columns = [TextColumn("{task.description}"), BarColumn(), *count, TimeElapsedColumn()]
    console = Console(stderr=True)
    # In a log file a bar would leave nothing but blank lines.
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        bar = progress.add_task(escape(visible(text)), total=total)
        yield lambda _: progress.advance(bar)


def _as_json(
    first: "Evaluation", second: "Evaluation | None", comparison: "Comparison | None"
) -> dict[str, Any]:
    result = first.to_json()
    if second is not None and comparison is not None:
        result["other"] = second.to_json()
        result["difference"] = comparison.to_json()
    return result


def _print_plays(task: "Task", evaluation: "Evaluation", count: int, *, to_stderr: bool) -> None:
    from rich.console import Console

    from flatline.cli.transcript import chosen_rollouts, show_rollout

    console = Console(stderr=to_stderr)
    for problem, rollout in chosen_rollouts(evaluation, count):
        console.print(show_rollout(task, problem, rollout))


def _print_tables(evaluation: "Evaluation") -> None:
    from flatline.cli.tables import evaluation_tables

    _stdout().print(evaluation_tables(evaluation))


def _print_comparison(comparison: "Comparison") -> None:
    from flatline.cli.tables import comparison_table

    _stdout().print(comparison_table(comparison))


def _stdout() -> "Console":
    from rich.console import Console

    return Console()
