"""The trainer of verifiers 0.1.3.post0 as shipped and fixed, matched seeds, held-out reward.

    python -m museum.verifiers_seeds --seeds 3 --steps 12 --jobs 1 --out runs/verifiers

One script, `verifiers_train.py`, is run by `flatline run` as it is and with `--remedy H09,H10`: the
attention mask (the fix of 0.1.7) and the tokens (what the sampler read and wrote is what is
trained), nothing else. Every trained policy is evaluated by today's flatline on the lab's
validation problems, with common random numbers. Writes `museum/verifiers_seeds.json`, and trains
no seed again that it holds: three seeds are the first look, six the second and last.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import flatline
from flatline.files import write_atomically
from flatline.verdict import Mechanism, Presence, Rule, decide
from museum import verifiers_lab
from museum.wheels import unpacked

RELEASE = "verifiers==0.1.3.post0"
ARMS = {"shipped": "none", "mended": "H09,H10"}
"""Each with its remedies."""
FLATLINE = ("-c", "from flatline.cli import main; main()")
ROOT = Path(__file__).parent.parent
SCRIPT = Path(__file__).parent / "verifiers_train.py"
KEPT = Path(__file__).parent / "verifiers_seeds.json"
LOOKS = (3, 6)
"""Seeds of the first look and of the last; the error rate is shared between them."""


def run(arm: str, seed: int, steps: int, out: Path) -> dict[str, Any]:
    """Train where it was not, then evaluate."""
    folder = (out / f"{arm}-{seed}").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "model" / "model.safetensors").exists():
        wheels = [unpacked(one, out / "releases") for one in (RELEASE, *verifiers_lab.BASE)]
        beside = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
        path = [*(str(one.resolve()) for one in wheels), str(ROOT / "src"), str(ROOT), *beside]
        held = [*FLATLINE, "run", "--remedy", ARMS[arm], "--record", str(folder / "run")]
        script = [str(SCRIPT), str(folder), str(seed), str(steps)]
        _python([*held, *script], os.pathsep.join(path), folder / "train.txt")
    evaluate = [*FLATLINE, "evaluate", "musique", "--json"]
    told = _python(
        [*evaluate, "--samples", "8", "--model", str(folder / "model")],
        os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]),
        folder / "evaluate.txt",
    )
    parts = json.loads(told[told.index("{") :])["parts"]
    report = flatline.diagnose(flatline.Trace.open(folder / "run"))
    return {
        "arm": arm,
        "seed": seed,
        "alarms": [one.hypothesis for one in report.alarms],
        "heldout": {name: parts[name] for name in ("combined", "exact_match")},
    }


def page(kept: Mapping[str, Any]) -> str:
    """The table and the verdict, as Markdown."""
    by = {(one["arm"], one["seed"]): one for one in kept["runs"]}
    seeds = sorted({seed for _, seed in by})
    lines = [
        "| seed | as shipped | alarms | fixed | alarms | difference |",
        "|---|---|---|---|---|---|",
    ]
    differences = []
    for seed in seeds:
        control, treated = by["shipped", seed], by["mended", seed]
        a, b = (one["heldout"]["combined"]["value"] for one in (control, treated))
        differences.append(b - a)
        codes = [", ".join(one["alarms"]) or "none" for one in (control, treated)]
        lines.append(f"| {seed} | {a:.3f} | {codes[0]} | {b:.3f} | {codes[1]} | {b - a:+.3f} |")
    verdict = decide("H09", differences, Rule(looks=LOOKS), _mechanism(by.values()))
    effect = verdict.effect
    lines += ["", f"Held-out reward, fixed minus as shipped: {effect.value:+.3f} "]
    lines[-1] += f"[{effect.low:+.3f}, {effect.high:+.3f}], {effect.n} matched seeds: "
    lines[-1] += f"**{verdict.ruling.value}**."
    return "\n".join(lines) + "\n"


def _kept(steps: int) -> dict[tuple[str, int], dict[str, Any]]:
    """Runs of so many steps that are kept already."""
    kept = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {"steps": None}
    runs = kept["runs"] if kept["steps"] == steps else []
    return {(one["arm"], one["seed"]): one for one in runs}


def _mechanism(runs: Iterable[Mapping[str, Any]]) -> Mechanism:
    """Whether the alarm is there in every run as shipped, and in none that is fixed."""
    seen = {arm: {"H09" in one["alarms"] for one in runs if one["arm"] == arm} for arm in ARMS}
    there = {arm: Presence.PRESENT if seen[arm] == {True} else Presence.ABSENT for arm in ARMS}
    return Mechanism(
        control=there["shipped"],
        treated=there["mended"],
        direct=True,
        text="The trainer cannot see the prompt as shipped, and sees all of it once fixed.",
    )


def _python(command: list[str], path: str, log: Path) -> str:
    environment = os.environ | {
        "PYTHONPATH": path,
        verifiers_lab.BESIDE: os.environ.get("PYTHONPATH", ""),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    with log.open("w", encoding="utf-8") as errors:
        done = subprocess.run(
            [sys.executable, *command],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            check=False,
        )
    if done.returncode:
        raise SystemExit(f"{' '.join(command[-4:])} ended with {done.returncode}; see {log}")
    return done.stdout


def main() -> None:
    ask = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    ask.add_argument("--seeds", type=int, default=3)
    ask.add_argument("--steps", type=int, default=12)
    ask.add_argument("--jobs", type=int, default=1)
    ask.add_argument("--out", type=Path, default=Path("runs/verifiers"))
    given = ask.parse_args()
    for one in (RELEASE, *verifiers_lab.BASE):
        unpacked(one, given.out / "releases")
    before = _kept(given.steps)
    wanted = [(arm, seed) for seed in range(given.seeds) for arm in ARMS]
    cells = [cell for cell in wanted if cell not in before]
    with ThreadPoolExecutor(given.jobs) as pool:
        found = list(pool.map(lambda cell: run(*cell, given.steps, given.out), cells))
    kept = {"steps": given.steps, "runs": [*before.values(), *found]}
    write_atomically(KEPT, [json.dumps(kept, indent=1)])
    print(page(kept))


if __name__ == "__main__":
    main()
