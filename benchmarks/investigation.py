"""The seeds' investigation at laptop scale: every hypothesis tested, the journal written.

    python benchmarks/investigation.py [--journal examples/journal] [--runs runs/...]

It types the commands that a user would, prints each before it runs, and ends with a table of what
the seeds saw beside what the lab shows (`experimental-results/observations.md`). Finished runs are
never run again, so it goes on where it was interrupted; from nothing it takes about an hour and a
half on two cores.
"""

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flatline.files import write_atomically
from flatline.heldout import read_scores
from flatline.stats import paired_difference
from flatline.trace import Trace

PRESET = ("--fault", "verifiers-0.1.3", "--kl-beta", "0.04")
"""The defects of the stack that was used, and its KL weight."""
ORDER = ["H06", "H01", "H02", "H07", "H03", "H04", "H08", "H05", "H09", "H10", "H44", "H00"]
"""The seeds' own order first, then what they did not name, then the positive control."""
LORA_OR_FULL = "h06-lora-against-full"
"""The comparison that the seeds asked for, although there is no mechanism to be taken away."""
CONTROL = (
    *("gsm8k", "--fault", "mask-as-attention", "--kl-beta", "0.04"),
    *("--learning-rate", "1e-3", "--max-steps", "48"),
)
"""GSM8K on the broken trainer; the rate is one at which the healthy control learns."""


def main() -> int:
    args = _arguments()
    journal, runs = str(args.journal), str(args.runs)
    where = ("--journal", journal, "--runs", runs)
    flatline("journal", "init", journal, "musique", *PRESET)
    for code in ("H10", "H44"):
        if not list(args.journal.glob(f"hypotheses/{code.lower()}-*.md")):
            flatline("journal", "new", code, journal)
    flatline("investigate", "H06", *where, "--train-anyway", "--name", LORA_OR_FULL)
    for code in ORDER:
        flatline("investigate", code, *where)
    gsm8k = args.runs / "gsm8k-control"
    if not (gsm8k / "model").is_dir():
        flatline("train", *CONTROL, "--output-dir", str(gsm8k))
    text = observations(args.runs / "experiments" / args.journal.resolve().name, gsm8k)
    write_atomically(args.journal / "experimental-results" / "observations.md", [text])
    print(text)
    flatline("journal", "resolve", journal)
    flatline("journal", "check", journal)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--journal", type=Path, default=Path("examples/journal"))
    parser.add_argument("--runs", type=Path, default=Path("runs/musique-training-debug"))
    return parser.parse_args()


def flatline(*words: str) -> None:
    """One command; a finding (exit code 1) is a result, and anything above ends the script."""
    print(f"\n$ flatline {shlex.join(words)}", flush=True)
    code = "from flatline.cli import main; main()"
    done = subprocess.run([sys.executable, "-P", "-c", code, *words], check=False)
    if done.returncode > 1:
        sys.exit(done.returncode)


# -- what the seeds saw, and what the lab shows -----------------------------------------------


def observations(experiments: Path, gsm8k: Path) -> str:
    """A Markdown table; every number comes from the runs."""
    rows = [
        ("The reward fluctuates around its baseline", _flat(experiments)),
        ("With KL weight 0.04 the KL reached 1e5", _kl(experiments)),
        ("KL weight 0 calmed the gradients, and the reward stayed flat", _calm(experiments)),
        ("LoRA and full training alike stayed flat", _effect(experiments, LORA_OR_FULL)),
        ("GSM8K improved on the same trainer", _gsm8k(gsm8k)),
    ]
    head = "# What the seeds saw, and what the lab shows\n\n"
    note = "Written by `python benchmarks/investigation.py`, from the runs of the experiments.\n\n"
    table = ["| the seeds saw | the lab, with the same defects planted |", "|---|---|"]
    return head + note + "\n".join([*table, *(f"| {a} | {b} |" for a, b in rows)])


def _runs(experiment: Path, role: str) -> Iterator[tuple[dict[str, Any], Trace]]:
    """Finished runs of an arm that count: those of the last look."""
    result = json.loads((experiment / "result.json").read_text())
    which = result["looks"][-1]["which"] if result["looks"] else None
    for run in result["runs"]:
        if run["role"] == role and run["trace"] and (which is None or run["seed"] in which):
            yield run, Trace.open((experiment / run["trace"]).resolve())


def _flat(experiments: Path) -> str:
    runs = [run for run, _ in _runs(experiments / "h09-loss-mask-as-attention", "control")]
    before, after = (", ".join(f"{run[key]:.3f}" for run in runs) for key in ("before", "after"))
    return f"Held-out reward {before} before and {after} after training ({len(runs)} seeds)."


def _kl(experiments: Path) -> str:
    traces = [trace for _, trace in _runs(experiments / "h03-kl-divergence", "control")]
    first = [trace.steps["kl"][trace.steps["step"] == 1][0] for trace in traces]
    peak = [np.nanmax(trace.steps["kl"]) for trace in traces]
    worst = [np.nanmax(trace.steps["kl_max"]) for trace in traces]
    return (
        f"KL per token {_few(first)} at step 1, where it must be 0; {_few(peak)} at its peak; the "
        f"worst token {_few(worst)}."
    )


def _calm(experiments: Path) -> str:
    told = []
    for role, name in (("control", "0.04"), ("treated", "0")):
        traces = [trace for _, trace in _runs(experiments / "h03-kl-divergence", role)]
        peak = [np.nanmax(trace.steps["grad_norm"]) for trace in traces]
        middle = [np.nanmedian(trace.steps["grad_norm"]) for trace in traces]
        told.append(f"KL weight {name}: gradient norm {_few(middle)} (median), {_few(peak)} (peak)")
    return f"{'; '.join(told)}. {_effect(experiments, 'h03-kl-divergence')}"


def _effect(experiments: Path, name: str) -> str:
    result = json.loads((experiments / name / "result.json").read_text())
    verdict = result["verdict"]
    effect = verdict["effect"]
    return (
        f"Effect on the held-out reward {effect['value']:+.3f} [{effect['low']:+.3f}, "
        f"{effect['high']:+.3f}], {effect['n']} matched seeds: {verdict['verdict']}."
    )


def _gsm8k(run: Path) -> str:
    scores = read_scores(run)
    first, last = scores[0], scores[-1]
    told = []
    for part in ("format", "exact_match"):
        pair = (first.plays[part], last.plays[part])
        gain = paired_difference(*pair, first.problems)
        told.append(f"`{part}` {np.mean(pair[0]):.3f} to {np.mean(pair[1]):.3f} ({gain})")
    steps = Trace.open(run).steps
    return (
        f"With mask-as-attention: {'; '.join(told)}. KL per token {_few([steps['kl'][1]])} at step "
        f"1 and {_few([np.nanmax(steps['kl'])])} at its peak."
    )


def _few(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.3g}" for value in values)


if __name__ == "__main__":
    sys.exit(main())
