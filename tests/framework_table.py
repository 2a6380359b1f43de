"""Which hypotheses can be told from what a trainer leaves.

    python -m tests.framework_table            prints the tables that docs/frameworks.md ends with

For every source, a small healthy run is written in its format (verl's live one was recorded from
verl itself), imported, and shown to the sign of every hypothesis. `yes` means that it was looked at
(or would be, in a longer run); a name is the first thing that the hypothesis asked for and the
source does not have; `-` that it cannot apply to such a run as far as the source says. `a setting`:
it needs a setting that only a recorded run has.
"""

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from flatline.errors import NotRecorded
from flatline.hypotheses import HYPOTHESES
from flatline.hypotheses.base import HasSign, Level
from flatline.trace import Trace
from flatline.trace.importers import open_log
from tests import framework_logs as logs

STEPS = 30
"""Long enough that no hypothesis stops at the length before it asks for what is missing."""
WORDS = {
    "rollouts.step": "rollouts",
    "rollouts.parts (one that says right or wrong)": "a part of the reward for being right",
}
"""Names of what is missing that say more than the column."""


def _metrics(names: tuple[str, ...], *, step: str = "step", wrap: str | None = None) -> "Source":
    def write(folder: Path, *, steps: int) -> Path:
        return logs.metrics(folder / "log.jsonl", names, step=step, wrap=wrap, steps=steps)

    return write


Source = Callable[..., Path]
FRAMEWORKS: dict[str, dict[str, Source]] = {
    "trl": {"log": _metrics(logs.TRL_METRICS)},
    "verl": {
        "recorded live": logs.verl_recorded,
        "log": _metrics(logs.VERL_METRICS, wrap="data"),
        "rollout dump": logs.verl_rollouts,
    },
    "prime-rl": {
        "metrics": _metrics(logs.PRIME_RL_METRICS),
        "traces": partial(logs.prime_rl_stream, annotated=False),
        "traces and annotations": logs.prime_rl_stream,
        "token export": logs.prime_rl_token_export,
    },
    "openrlhf": {"log": _metrics(logs.OPENRLHF_METRICS, step="train/global_step")},
    "nemo-rl": {
        "log": _metrics(logs.NEMO_RL_METRICS),
        "train_data dump": logs.nemo_rl_train_data,
    },
    "skyrl": {
        "log": _metrics(logs.SKYRL_METRICS, step="trainer/global_step"),
        "evaluation dump": logs.skyrl_evals,
    },
}
"""Framework -> what it can be given -> how such a run is written."""


def table(framework: str) -> str:
    """The table of one page: a row per hypothesis, a column per source."""
    sources = FRAMEWORKS[framework]
    columns = [told(write) for write in sources.values()]
    rows = [
        f"| {one.id} {one.name} | {' | '.join(column[one.id] for column in columns)} |"
        for one in HYPOTHESES
    ]
    counts = [sum(cell == "yes" for cell in column.values()) for column in columns]
    total = f"| **told, of {len(HYPOTHESES)}** | {' | '.join(f'**{n}**' for n in counts)} |"
    head = [f"| hypothesis | {' | '.join(sources)} |", "|---" * (len(sources) + 1) + "|"]
    return "\n".join([*head, *rows, total])


def told(write: Source) -> dict[str, str]:
    """Code -> whether the sign of a hypothesis could look at such a run, or what it lacked."""
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder), steps=STEPS)
        trace = Trace.open(path) if (path / "run.json").is_file() else open_log(path)
    return {one.id: _cell(one, trace) for one in HYPOTHESES}


def _cell(hypothesis: object, trace: Trace) -> str:
    if not isinstance(hypothesis, HasSign):
        return "checkup only"
    try:
        finding = hypothesis.sign(trace)
    except NotRecorded as missing:
        return WORDS.get(missing.column, f"`{missing.column}`")
    if finding.text.startswith("Does not apply"):
        return "-"
    undecided = finding.level is Level.UNKNOWN and not finding.text.startswith("Not enough")
    return "a setting" if undecided else "yes"


def main() -> None:
    for framework in FRAMEWORKS:
        print(f"\n{framework}\n\n{table(framework)}")


if __name__ == "__main__":
    main()
