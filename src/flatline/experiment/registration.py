"""A plan on disk: written before the first run, and not to be changed afterwards.

A criterion that is chosen once the results are known proves nothing. `plan.json` holds its own
SHA-256, so that a change shows; another plan under the same name is refused.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flatline.errors import ConfigError
from flatline.experiment.plan import VERSION, Plan, digest_of
from flatline.files import json_in, write_atomically
from flatline.trace.lock import folder_lock

PLAN_FILE = "plan.json"


def register(plan: Plan, folder: Path) -> Plan:
    """The plan as it stands in the folder: written now, or found there unchanged."""
    path = folder / PLAN_FILE
    registered = replace(plan, registered=datetime.now(UTC).isoformat(timespec="seconds"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with folder_lock(folder):  # another investigation may be about to register it, too
            if path.exists():
                return _unchanged(plan, path)
            write_atomically(path, [json.dumps(registered.to_json(), indent=2)])
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be written: {error.strerror}.\n"
            "A plan must be on disk before its first run.\nGive a folder that you may write to."
        ) from error
    return registered


def load_plan(folder: Path) -> Plan:
    """The plan that is registered in a folder."""
    path = folder / PLAN_FILE
    return _plan_in(path)


def _unchanged(plan: Plan, path: Path) -> Plan:
    found = _plan_in(path)
    differences = _differences(_comparable(found), _comparable(plan))
    if differences:
        raise ConfigError(
            f"{path} registers another plan under the name {plan.name!r}:\n"
            + "".join(f"  {line}\n" for line in differences)
            + "A plan is not changed once it is registered: what counts would be chosen after the "
            "fact.\nContinue with the registered one, or give this one a different name."
        )
    return found


def _plan_in(path: Path) -> Plan:
    values = _read(path)
    try:
        return Plan.from_json(values)
    except (AttributeError, LookupError, TypeError, ValueError, ArithmeticError) as error:
        # Its digest fits, so it was made so: by hand, or by a program that knows the digest.
        raise ConfigError(
            f"{path} has not the shape of a plan: {type(error).__name__}, {error}.\n"
            "What it registers cannot be known, so its runs prove nothing.\n"
            "Restore the file, or make the experiment again under another name."
        ) from error


def _read(path: Path) -> dict[str, Any]:
    try:
        values = json_in(path)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path} cannot be read: {error}.\n"
            "Without the registered plan its runs prove nothing.\n"
            "Restore the file, or make the experiment again under another name."
        ) from error
    version = values.get("version") if isinstance(values, dict) else None
    if version != VERSION:
        raise ConfigError(
            f"{path} has version {version!r}; this flatline reads version {VERSION}.\n"
            "Its fields may mean something else, so nothing is guessed.\n"
            "Make the experiment again under another name."
        )
    if digest_of(values) != values.get("digest"):
        raise ConfigError(
            f"{path} was changed after it was registered: its digest does not fit its contents.\n"
            "What counts must not be chosen once results are known.\n"
            "Restore the file, or register the changed plan under another name."
        )
    return dict(values)


def _comparable(plan: Plan) -> dict[str, Any]:
    return _flat(replace(plan, registered="").to_json(), "")


def _differences(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    names = [name for name in {**found, **wanted} if name != "digest"]
    return [
        f"{name}: {found.get(name)!r} is registered, {wanted.get(name)!r} was asked for"
        for name in names
        if found.get(name) != wanted.get(name)
    ]


def _flat(value: Any, name: str) -> dict[str, Any]:
    """Nested values under dotted names, so that a difference can be pointed at."""
    if isinstance(value, dict):
        parts = {f"{name}.{key}".lstrip("."): item for key, item in value.items()}
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        parts = {f"{name}[{index}]": item for index, item in enumerate(value)}
    else:
        return {name: value}
    return {key: found for part, item in parts.items() for key, found in _flat(item, part).items()}
