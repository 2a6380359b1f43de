"""Is it solved? The seeds' success criteria, asked of what the journal keeps.

The fixed setup is the treated arm of an experiment that validated its hypothesis. Only
`experimental-results/` and `setup.toml` are read: a journal can be judged without its runs.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from flatline.config import LAB_STEPS
from flatline.errors import ConfigError
from flatline.journal import markers, results
from flatline.journal.entry import Status
from flatline.journal.folder import README, Journal, part, read_text, write_text
from flatline.markdown import inline
from flatline.stats import Estimate, mean_of_units

SEVERAL = 3
"""Seeds on which an improvement counts as reproduced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Criterion:
    """One of the five, and whether it holds."""

    name: str
    holds: bool
    text: str
    """What was seen, or what is missing."""

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "holds": self.holds, "text": self.text}


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """What holds and what does not."""

    criteria: tuple[Criterion, ...]
    experiment: str | None
    """The experiment whose fixed arm was judged."""
    hypothesis: str | None
    """The cause that it validated."""

    @property
    def resolved(self) -> bool:
        return all(criterion.holds for criterion in self.criteria)

    @property
    def summary(self) -> str:
        held = sum(criterion.holds for criterion in self.criteria)
        if self.experiment is None:
            return "Not resolved: no hypothesis has been validated by an experiment."
        about = f"judged by {self.experiment} ({self.hypothesis})"
        if self.resolved:
            return f"Resolved: all {held} criteria hold, {about}."
        return f"Not resolved yet: {held} of {len(self.criteria)} criteria hold, {about}."

    def to_json(self) -> dict[str, Any]:
        """The stable shape of `flatline journal resolve --json`."""
        return {
            "resolved": self.resolved,
            "summary": self.summary,
            "experiment": self.experiment,
            "hypothesis": self.hypothesis,
            "criteria": [criterion.to_json() for criterion in self.criteria],
        }


def resolve(journal: Journal) -> Resolution:
    """Judge, and write what holds into README.md."""
    with journal.lock():
        resolution = judge(journal)
        _write(journal, resolution)
    return resolution


def judge(journal: Journal) -> Resolution:
    """The validated experiment for which most criteria hold, and those criteria."""
    setup = journal.setup() or {}
    kept = [one for _, one in journal.results() if one is not None and results.is_whole(one)]
    validated = [
        one
        for one in kept
        if one["verdict"]["verdict"] == Status.VALIDATED and results.arms_of(one, "treated")
    ]
    if not validated:
        missing = "There is no fixed setup to look at yet."
        return Resolution(
            criteria=tuple(Criterion(name=n, holds=False, text=missing) for n in NAMES),
            experiment=None,
            hypothesis=None,
        )
    larger = {
        one["hypothesis"]: (one["name"], how) for one in validated if (how := _larger(one, setup))
    }
    judged = [_resolution(one, larger.get(one["hypothesis"])) for one in validated]
    return max(judged, key=lambda one: sum(criterion.holds for criterion in one.criteria))


NAMES = (
    "The raw training reward rises",
    "Held-out problems improve over the baseline",
    "Reproduced on several seeds",
    "A mechanism explains it",
    "Holds beyond the debug run",
)


def _resolution(kept: Mapping[str, Any], larger: tuple[str, str] | None) -> Resolution:
    answers = (
        _rises(kept),
        _improves(kept),
        _reproduced(kept),
        _explained(kept),
        _full_scale(kept["hypothesis"], larger),
    )
    return Resolution(
        criteria=tuple(
            Criterion(name=name, holds=holds, text=text)
            for name, (holds, text) in zip(NAMES, answers, strict=True)
        ),
        experiment=kept["name"],
        hypothesis=kept["hypothesis"],
    )


def _mended(kept: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Finished runs of the treated arm, one a seed."""
    arm = next(iter(results.arms_of(kept, "treated")), {}).get("name")
    finished = [
        run
        for run in results.runs_of(kept)
        if run.get("arm") == arm and run.get("status") == "finished"
    ]
    return list({run.get("seed"): run for run in finished}.values())


def _rises(kept: Mapping[str, Any]) -> tuple[bool, str]:
    changes = []
    for run in _mended(kept):
        change = part(kept, "trends", f"{run.get('arm')}-{run.get('seed')}", "change")
        if isinstance(change, Mapping) and _numbers(change, ("value", "low")):
            changes.append(change)
    if not changes:
        return False, "No curve of the fixed arm was kept, so its trend is not known."
    rising = sum(change["low"] > 0 for change in changes)
    moves = ", ".join(f"{change['value']:+.3f}" for change in changes)
    return rising == len(changes), (
        f"Last third minus first third of the raw per-step rewards: {moves}; the interval lies "
        f"above 0 in {rising} of {len(changes)} runs of the fixed arm."
    )


def _improves(kept: Mapping[str, Any]) -> tuple[bool, str]:
    gains = _gains(kept)
    if not gains:
        return False, "No run of the fixed arm has a held-out reward before and after."
    gain = mean_of_units(gains)
    return gain.low > 0, f"After minus before training: {_seeds(gain)}."


def _reproduced(kept: Mapping[str, Any]) -> tuple[bool, str]:
    gains = _gains(kept)
    better = sum(gain > 0 for gain in gains)
    text = f"The fixed arm improved on {better} of {len(gains)} seeds; {SEVERAL} are needed."
    return better == len(gains) >= SEVERAL, text


def _explained(kept: Mapping[str, Any]) -> tuple[bool, str]:
    mechanism = part(kept, "verdict", "mechanism") or {}
    control, treated = part(mechanism, "control"), part(mechanism, "treated")
    seen = f"{kept['hypothesis']}: {control} as it was, {treated or 'not tested'} when fixed"
    text = str(part(mechanism, "text") or "").strip()
    return (control, treated) == ("present", "absent"), f"{seen}. {text}".strip()


def _full_scale(code: str, larger: tuple[str, str] | None) -> tuple[bool, str]:
    if larger is not None:
        return True, f"{larger[0]} validated it at full scale: {larger[1]}."
    return False, (
        "No experiment on a larger scale than setup.toml (another model, more "
        f"steps, or a plan marked `full`) has validated {code}."
    )


def _larger(kept: Mapping[str, Any], setup: Mapping[str, Any]) -> str | None:
    """In what an experiment goes beyond the setup under investigation."""
    if part(kept, "plan", "scale") == "full":
        return "its plan is marked so"
    config = part(next(iter(results.arms_of(kept, "treated")), {}), "config")
    if not isinstance(config, Mapping):
        return None
    model, debug = config.get("model", "lab"), setup.get("model", "lab")
    if model != debug:
        return f"model {model} instead of {debug}"
    steps, few = (values.get("max_steps") or LAB_STEPS for values in (config, setup))
    longer = isinstance(steps, int) and isinstance(few, int) and steps > few
    return f"{steps} steps instead of {few}" if longer else None


def _gains(kept: Mapping[str, Any]) -> list[float]:
    runs = [run for run in _mended(kept) if _numbers(run, ("before", "after"))]
    return [float(run["after"]) - float(run["before"]) for run in runs]


def _numbers(values: Mapping[str, Any], keys: Iterable[str]) -> bool:
    return all(
        isinstance(values.get(key), int | float) and not isinstance(values.get(key), bool)
        for key in keys
    )


def _seeds(estimate: Estimate) -> str:
    ends = f"[{estimate.low:+.3f}, {estimate.high:+.3f}]" if estimate.n > 1 else "(one seed)"
    return f"{estimate.value:+.3f} {ends}, n = {estimate.n} seeds"


def _write(journal: Journal, resolution: Resolution) -> None:
    file = journal.path / README
    text = read_text(file) if file.exists() else ""
    lines = [
        f"{i}. {'✅' if one.holds else '❌'} **{one.name}.** {inline(one.text)}"
        for i, one in enumerate(resolution.criteria, start=1)
    ]
    markers.spans(text, file=file)
    body = "\n".join([f"**{inline(resolution.summary)}**", "", *lines])
    made = markers.filled(text, "resolution", body)
    if made is None:
        start, end = markers.marks("resolution")
        raise ConfigError(
            f"{file} has no place for the resolution.\n"
            "flatline writes between its own markers only.\n"
            f"Put the lines `{start}` and `{end}` where it should be."
        )
    write_text(file, made)
