"""Arms that are commands of the user: `python train.py --beta {kl_beta} --seed {seed}`.

A command is split into words once, and started without a shell: a value is always one word or a
part of one, whatever is in it. `{{` and `}}` stand for braces.
"""

import shlex
import shutil
import string
from collections.abc import Mapping
from functools import lru_cache

from flatline.errors import ConfigError
from flatline.experiment.plan import Arm, Role

SEED, RUN_DIR = "seed", "run_dir"
_SHELL = ("|", "||", "&&", ";", "&", ">", ">>", "<", "2>&1")


def arms_of(command: str, choice: str) -> tuple[str, tuple[Arm, ...]]:
    """The factor and the arms of `kl_beta=0.04,0.0`; the first value is the control."""
    factor, equals, listed = choice.partition("=")
    factor, values = factor.strip(), [value.strip() for value in listed.split(",")]
    if not equals or not factor.isidentifier() or factor in (SEED, RUN_DIR):
        raise ConfigError(
            f"--arms {choice!r} names no factor.\n"
            "Type the placeholder and its values, the present one first: "
            "`--arms kl_beta=0.04,0.0`."
        )
    if len(values) < 2 or len(set(values)) < len(values) or "" in values:
        raise ConfigError(
            f"--arms {choice!r} must give {factor} two different values or more.\n"
            f"The first is the setup as it is: `--arms {factor}=0.04,0.0`."
        )
    _refuse_command(command, factor)
    roles = [Role.CONTROL] + [Role.TREATED] * (len(values) - 1)
    return factor, tuple(
        Arm(name=f"{factor} {value}", role=role, command=command, values={factor: value})
        for value, role in zip(values, roles, strict=True)
    )


def rendered(command: str, values: Mapping[str, object]) -> tuple[str, ...]:
    """The words of the command with every placeholder filled in."""
    return tuple(
        "".join(text + ("" if name is None else str(values[name])) for text, name in word)
        for word in _words(command)
    )


def _refuse_command(command: str, factor: str) -> None:
    words = _words(command)
    used = {name for word in words for _, name in word if name is not None}
    strangers = sorted(used - {factor, SEED, RUN_DIR})
    if strangers:
        raise ConfigError(
            f"The command has {{{strangers[0]}}}, for which there is no value.\n"
            f"It may use {{{factor}}}, {{{SEED}}} and {{{RUN_DIR}}}.\n"
            "Braces that are not placeholders are written {{ and }}."
        )
    if factor not in used:
        raise ConfigError(
            f"The command does not use {{{factor}}}, so all arms would be the same run.\n"
            f"Put {{{factor}}} where its value belongs: `python train.py --beta {{{factor}}}`."
        )
    if SEED not in used:
        raise ConfigError(
            f"The command does not use {{{SEED}}}, so all seeds would be one and the same run.\n"
            f"Put {{{SEED}}} where the seed belongs: `python train.py --seed {{{SEED}}}`."
        )
    _refuse_what_cannot_start(command)


def _refuse_what_cannot_start(command: str) -> None:
    words = shlex.split(command)
    operator = next((word for word in words if word in _SHELL), None)
    if operator:
        raise ConfigError(
            f"The command has {operator!r}, and it is started without a shell.\n"
            "It would reach the program as an argument.\n"
            "Put such things into a script and give its name."
        )
    if "{" not in words[0] and shutil.which(words[0]) is None:
        hint = " To set a variable, begin with `env NAME=value`." if "=" in words[0] else ""
        raise ConfigError(
            f"The command begins with {words[0]!r}, which is no program that can be found.\n"
            f"Give its path.{hint}"
        )


@lru_cache(maxsize=64)
def _words(command: str) -> tuple[tuple[tuple[str, str | None], ...], ...]:
    """Each word as pieces of text, each with the placeholder that follows it, if any."""
    try:
        words = shlex.split(command)
        found = tuple(tuple(_pieces(word)) for word in words)
    except ValueError as error:
        raise ConfigError(
            f"The command {command!r} cannot be read: {error}.\n"
            "Check its quotes and braces; write {{ and }} for braces that are not placeholders."
        ) from error
    if not found:
        raise ConfigError("The command is empty.\nType e.g. `python train.py --seed {seed}`.")
    return found


def _pieces(word: str) -> list[tuple[str, str | None]]:
    pieces = []
    for text, name, spec, conversion in string.Formatter().parse(word):
        if name is not None and (not name.isidentifier() or spec or conversion):
            # Formats and attributes would reach into the values.
            raise ValueError(f"{{{name}}} is not the plain name of a placeholder")
        pieces.append((text, name))
    return pieces
