"""`flatline show`: a look into a recorded run or a log from the terminal."""

from typing import TYPE_CHECKING, Annotated

import typer

from flatline.cli.diagnose import Source
from flatline.cli.query import print_warnings
from flatline.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from flatline.trace import Trace


def show(
    run: Source,
    step: Annotated[int | None, typer.Option(min=0, help="The rollouts of this step.")] = None,
    rollout: Annotated[
        int | None, typer.Option(min=0, help="The tokens of this rollout of the step.")
    ] = None,
    logprobs: Annotated[
        bool, typer.Option("--logprobs", help="With --rollout: every token with its log-probs.")
    ] = False,
) -> None:
    """Show what a run recorded: a summary, the rollouts of a step, or the tokens of a rollout."""
    from rich.console import Console

    from flatline.trace.importers import open_log

    if rollout is not None and step is None:
        raise ConfigError(
            f"--rollout {rollout} needs a step: rollouts are counted from 0 in every step.\n"
            f"Type `flatline show {run} --step 1 --rollout {rollout}`."
        )
    if logprobs and rollout is None:
        raise ConfigError(
            f"--logprobs needs one rollout: a step has too many tokens to list.\n"
            f"Type `flatline show {run} --step {step or 1} --rollout 0 --logprobs`."
        )
    trace = open_log(run)
    shown = _view(trace, str(run), step, rollout, logprobs=logprobs)
    Console(highlight=False).print(shown)
    print_warnings(trace.warnings)


def _view(
    trace: "Trace", name: str, step: int | None, rollout: int | None, *, logprobs: bool
) -> "RenderableType":
    from flatline.cli import show_run, show_tokens

    if step is None:
        return show_run.summary(trace, name)
    if rollout is None:
        return show_run.rollouts_of(trace, name, step)
    row = show_run.find_rollout(trace, step, rollout)
    if logprobs:
        return show_tokens.logprob_table(trace, row)
    return show_tokens.token_view(trace, row, name)
