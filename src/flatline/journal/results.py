"""What is kept of an experiment: its numbers, as JSON.

The JSON holds all that `resolve` and `check` ask, so that neither needs the runs themselves: plan,
runs with outcome before and after, looks, verdict, raw curves, and a trend for every run.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

from flatline.errors import ConfigError
from flatline.journal.entry import CODE, JUDGED, LEVELS, NAME
from flatline.journal.folder import part

FEWEST = 6
"""Steps below which the thirds of a curve are too short to compare."""
_OF_THE_MACHINE = ("output_dir", "trace")
"""Keys whose values say where something lies, which is nowhere for whoever reads the journal."""
_PATH = re.compile(r"(?<![\w.:/~-])/(?:[^\s/'\"`,;:()]+/)+([^\s/'\"`,;:()]*)")
_DRIVE = re.compile(r"(?<!\w)[A-Za-z]:\\(?:[^\s\\'\"]+\\)*([^\s\\'\"]*)")


def stored(
    plan: Mapping[str, Any],
    result: Mapping[str, Any],
    verdict: Mapping[str, Any],
    curves: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Everything worth keeping, without paths of the machine that ran it."""
    _require_whole(plan, verdict)
    runs = {key: value for key, value in result.items() if key != "verdict"}
    kept = {
        "version": 1,
        "name": plan["name"],
        "hypothesis": verdict["hypothesis"],
        "plan": plan,
        "result": runs,
        "verdict": verdict,
        "curves": dict(curves or {}),
        "trends": {key: trend(curve) for key, curve in (curves or {}).items()},
    }
    return {key: portable(value) for key, value in kept.items()}


def digest(kept: Mapping[str, Any]) -> str:
    """Names one state of one experiment: the same numbers and verdict, the same digest."""
    runs = [
        [run.get("arm"), run.get("seed"), run.get("status"), run.get("value")]
        for run in runs_of(kept)
    ]
    said = [part(kept, "plan", "digest"), kept["verdict"], sorted(runs, key=str)]
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:12]


def trend(curve: Any) -> dict[str, Any] | None:
    """Last third minus first third of a run's raw per-step rewards; None where it is too short."""
    from flatline.stats import difference_of_means

    raw = curve.get("reward") if isinstance(curve, Mapping) else None
    rewards = [float(x) for x in raw or [] if is_number(x)]
    third = len(rewards) // 3
    if len(rewards) < FEWEST:
        return None
    change = difference_of_means(rewards[:third], rewards[-third:])
    return {"change": change.to_json(), "steps": len(rewards)}


def portable(value: Any) -> Any:
    """Plain JSON that says nothing about a machine: absolute paths keep their last name only."""
    if isinstance(value, Mapping):
        kept = {k: v for k, v in value.items() if k not in _OF_THE_MACHINE}
        return {str(k): _last(v) if k == "folder" else portable(v) for k, v in kept.items()}
    if isinstance(value, str):
        return _without_paths(value)
    if isinstance(value, Sequence):
        return [portable(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _last(folder: Any) -> Any:
    """The name of a run's folder, from a path that may climb through others."""
    return PurePosixPath(folder).name if isinstance(folder, str) else None


def _without_paths(text: str) -> str:
    if PurePosixPath(text).is_absolute() and "\n" not in text:
        return PurePosixPath(text).name or "/"
    if PureWindowsPath(text).is_absolute() and "\n" not in text:
        return PureWindowsPath(text).name
    return _DRIVE.sub(r"\1", _PATH.sub(r"\1", text))


def runs_of(kept: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The runs of a stored experiment that are objects at all."""
    runs = part(kept, "result", "runs")
    return [run for run in runs if isinstance(run, Mapping)] if isinstance(runs, list) else []


def arms_of(kept: Mapping[str, Any], role: str) -> list[Mapping[str, Any]]:
    """The arms of a stored experiment with that role."""
    arms = part(kept, "plan", "arms")
    found = arms if isinstance(arms, list) else []
    return [arm for arm in found if isinstance(arm, Mapping) and arm.get("role") == role]


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _require_whole(plan: Mapping[str, Any], verdict: Mapping[str, Any]) -> None:
    """Names become files and words become statuses: they must be what they say."""
    name, code = plan.get("name"), verdict.get("hypothesis")
    allowed = {
        "the plan's name": (name, isinstance(name, str) and NAME.fullmatch(name)),
        "the hypothesis": (code, isinstance(code, str) and CODE.fullmatch(code)),
        "the verdict": (verdict.get("verdict"), verdict.get("verdict") in list(JUDGED)),
        "the confidence": (
            verdict.get("confidence"),
            verdict.get("confidence") in (None, *LEVELS),
        ),
    }
    for what, (value, fits) in allowed.items():
        if not fits:
            raise ConfigError(
                f"{what} is {value!r:.200}, so the result cannot be recorded.\n"
                "A name has letters, digits, `.`, `_` and `-` only; a code is like `H03`; a "
                f"verdict is one of {', '.join(JUDGED)}.\nGive the experiment another name."
            )


def is_whole(kept: Mapping[str, Any]) -> bool:
    """Whether a stored file is one that `stored` could have made."""
    plan, verdict = kept.get("plan"), kept.get("verdict")
    if not isinstance(plan, Mapping) or not isinstance(verdict, Mapping):
        return False
    try:
        _require_whole(plan, verdict)
    except ConfigError:
        return False
    return isinstance(kept.get("name"), str) and isinstance(kept.get("hypothesis"), str)
