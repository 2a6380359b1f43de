"""`flatline train`: one run, from the flags, from a TOML file, or from both.

The flags are the fields of `RunConfig`, and their help is the line under each field: there is one
place to add one. A flag that is given goes before the file.
"""

import ast
import inspect
import os
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand

from flatline import config as config_module
from flatline.cli import options
from flatline.cli.output import print_json
from flatline.cli.text import visible
from flatline.config import LAB, RunConfig, flag, load_config, refuse_missing_model
from flatline.errors import needing

if TYPE_CHECKING:
    from flatline.training.run import Result

_TRUE, _FALSE = ("true", "yes", "1", "on"), ("false", "no", "0", "off")
_SCALES = {"true": "group", "false": "none"}


class TrainCommand(TyperCommand):
    """Also takes a switch with its value written out, as the seeds do: `--scale-rewards false`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, list(_normalised(args)))


def train(**given: Any) -> None:
    """Train a policy with GRPO on one of the tasks, and score it on held-out problems."""
    dry_run, json = given.pop("dry_run"), given.pop("json")
    run(config_of(given), dry_run=dry_run, as_json=json)


def config_of(given: Mapping[str, Any]) -> RunConfig:
    """The run that the flags describe, over the file if one is named."""
    changes = {name: value for name, value in given.items() if value is not None}
    file = changes.pop("config", None)
    return load_config(file, **changes) if file else RunConfig.from_dict(changes)


def run(config: RunConfig, *, dry_run: bool, as_json: bool) -> None:
    refuse_missing_model(config.model)  # before the seconds that torch takes to be imported
    with needing("Training"):
        from transformers.utils import logging

        from flatline.training.plan import plan
        from flatline.training.run import train as start
    logging.disable_progress_bar()  # ours says the same
    _tell_whose_problems(config)
    if dry_run:
        planned = plan(config)
        if as_json:
            print_json(planned)
        else:
            print(_as_text(planned))
        return
    result = start(config)
    if int(os.environ.get("RANK", "0")) == 0:
        if as_json:
            print_json(_as_json(result))
        else:
            print(_summary(result))


def _tell_whose_problems(config: RunConfig) -> None:
    """A model of one's own on the embedded problems is rarely meant."""
    if config.model != LAB and config.datasets == LAB and os.environ.get("RANK", "0") == "0":
        typer.echo(
            f"flatline: --datasets is not given: {visible(config.model)} trains on the lab's own "
            "problems, for 30 steps unless --max-steps says otherwise.\n"
            'Other ones: `--datasets "PATH,CONFIG,SPLIT"`.',
            err=True,
        )


def _as_json(result: "Result") -> dict[str, Any]:
    first, last = (result.scores[0], result.scores[-1]) if result.scores else (None, None)
    return {
        "output_dir": str(result.output_dir),
        "steps": result.steps,
        "seconds": result.seconds,
        "before": first and first.reward.to_json(),
        "after": last and last.reward.to_json(),
        "gain": result.gain and result.gain.to_json(),
    }


def _summary(result: "Result") -> str:
    from flatline.trace.announce import next_for

    lines = [f"{result.steps} steps in {result.seconds:.0f} s; saved in {result.output_dir}/model."]
    if result.scores:
        lines.append(f"held-out reward before  {result.scores[0].reward}")
    if result.gain is not None:
        lines.append(f"held-out reward after   {result.scores[-1].reward}")
        lines.append(f"gain, paired by rollout {result.gain}")
    lines.append(f"Next: {next_for(result.output_dir)}.")
    return "\n".join(lines)


def _as_text(values: Mapping[str, Any], depth: int = 0) -> str:
    """Sections and `name  value` lines."""
    lines = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            lines += [f"\n{'  ' * depth}[{name}]", _as_text(value, depth)]
        else:
            lines.append(f"{'  ' * depth}{name:<30} {_plain(value)}")
    return "\n".join(lines)


def _plain(value: Any) -> str:
    return "-" if value is None else str(value)


def _normalised(args: list[str]) -> Iterator[str]:
    """Switches in the one form that the parser knows."""
    waiting = list(args)
    while waiting:
        arg = waiting.pop(0)
        name = arg.removeprefix("--").replace("-", "_")
        value = waiting[0].lower() if waiting else ""
        if arg == "--no-scale-rewards":
            yield "--scale-rewards=none"
        elif arg == "--scale-rewards":
            known = value in (*_TRUE, *_FALSE, *get_args(config_module.Scaling))
            word = waiting.pop(0).lower() if known else "true"
            word = "true" if word in _TRUE else "false" if word in _FALSE else word
            yield f"--scale-rewards={_SCALES.get(word, word)}"
        elif arg.startswith("--") and _HINTS.get(name) is bool and value in (*_TRUE, *_FALSE):
            yield arg if waiting.pop(0).lower() in _TRUE else f"--no-{arg[2:]}"
        else:
            yield arg


def _field_docs() -> dict[str, str]:
    """The line under each field of `RunConfig`."""
    tree = ast.parse(inspect.getsource(RunConfig)).body[0]
    assert isinstance(tree, ast.ClassDef)
    docs = {}
    for before, after in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(before, ast.AnnAssign) and isinstance(after, ast.Expr):
            docs[ast.unparse(before.target)] = str(ast.literal_eval(after.value))
    return docs


_HINTS = get_type_hints(RunConfig)
_ALIASES = {"datasets": ("--data",), "peft": ()}


def _option(name: str, default: Any, text: str) -> inspect.Parameter:
    """One field as an option that is None unless it is given."""
    hint = _HINTS[name]
    kinds = [k for k in (get_args(hint) if get_origin(hint) is UnionType else (hint,)) if k]
    kind = next(k for k in kinds if k is not type(None))
    shown = "" if default is None else f" [default: {default}]"
    names = [flag(name), *_ALIASES.get(name, ())]
    if kind is bool:
        names = [f"{flag(name)}/--no-{flag(name)[2:]}"]
    if name == "scale_rewards":
        text += " Also --no-scale-rewards, and --scale-rewards false."
    if get_origin(kind) is Literal:
        text += f" ({', '.join(get_args(kind))})"
        kind = str
    text = (text + shown).replace("[", r"\[")  # Rich would take it for markup
    option = typer.Option(*names, help=text, show_default=False)
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind | None, option],
    )


def _signature() -> inspect.Signature:
    docs = _field_docs()
    made = [_option(f.name, f.default, docs[f.name]) for f in fields(RunConfig) if f.name != "task"]
    task = inspect.Parameter("task", inspect.Parameter.KEYWORD_ONLY, annotation=options.TaskName)
    extra: dict[str, tuple[Any, Any]] = {
        "config": (
            Annotated[Path | None, typer.Option(help="TOML file of these same settings.")],
            None,
        ),
        "dry_run": (
            Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and stop.")],
            False,
        ),
        "json": (options.Json, False),
    }
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)
        for name, (hint, default) in extra.items()
    ]
    return inspect.Signature([task, *made, *more])


train.__signature__ = _signature()  # type: ignore[attr-defined]
train.__annotations__ = {p.name: p.annotation for p in _signature().parameters.values()}
