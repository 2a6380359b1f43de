"""From the pages of experiments and journals to runs that lie in the folder being shown."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from flatline.experiment.plan import Plan
from flatline.journal.folder import FIXES, HYPOTHESES, RESULTS, Journal, load_json, part
from flatline.report.web.run_index import PLAN_FILE, Entry, Found, Root, signature


class UnderWay(NamedTuple):
    """A run of an experiment that has no outcome yet."""

    arm: str
    """Name of its arm."""
    seed: int
    """Matched across the arms."""
    entry: Entry
    """What the list of runs says about it."""


class Place(NamedTuple):
    """Where an experiment of a journal can be looked at."""

    experiment: str | None
    """Address of its page."""
    runs: list[tuple[str, str]]
    """Arm and seed, and the address, of every run that is here."""


def run_addresses(root: Root, folder: Path, runs: Sequence[Mapping[str, Any]]) -> dict[int, str]:
    """For the runs of a result, by their place in it, the address of the page."""
    found = {}
    for at, run in enumerate(runs):
        trace = run.get("trace")
        name = root.name_of(folder / trace) if isinstance(trace, str) else None
        if name is not None:
            found[at] = f"/run/{quote(name)}"
    return found


def under_way(root: Root, plan: Plan, runs: Sequence[Mapping[str, Any]]) -> list[UnderWay]:
    """Runs that the plan asks for, that have begun, and that the result does not list yet."""
    listed = {(run.get("arm"), run.get("seed")) for run in runs}
    here = _by_last_part(root.found())
    return [
        UnderWay(arm.name, seed, root.entry(name))
        for arm in plan.arms
        for seed in plan.seeds_of(arm)
        if (arm.name, seed) not in listed
        and (name := here.get(f"{arm.digest}-s{seed}")) is not None
    ]


def journal_mark(root: Root, folder: Path) -> object:
    """Changes whenever what the page of a journal shows does."""
    folders = [folder, *(folder / name for name in (HYPOTHESES, RESULTS, FIXES))]
    return [signature(one) for one in folders if one.is_dir()], root.found()


def journal_places(root: Root, folder: Path) -> dict[str, Place]:
    """By the name of a recorded experiment, where it and its runs are."""
    found = root.found()
    runs = _by_last_part(found)
    return {
        file.stem: Place(_experiment(root, found, file.stem, kept), _runs(runs, kept))
        for file, kept in Journal(folder).results()
        if kept is not None
    }


def _experiment(root: Root, found: Found, name: str, kept: Mapping[str, Any]) -> str | None:
    """Two journals may have experiments of one name: the digest of the plan tells them apart."""
    digest = part(kept, "plan", "digest")
    for one in found.experiments:
        plan = load_json(root.folder / one / PLAN_FILE) if one.endswith(name) else None
        if plan is not None and digest and plan.get("digest") == digest:
            return f"/experiment/{quote(one)}"
    return None


def _runs(here: Mapping[str, str], kept: Mapping[str, Any]) -> list[tuple[str, str]]:
    listed = part(kept, "result", "runs")
    told = [run for run in listed if isinstance(run, dict)] if isinstance(listed, list) else []
    return [
        (f"{run.get('role')} {run.get('seed')}", f"/run/{quote(here[folder])}")
        for run in told
        if isinstance(folder := run.get("folder"), str) and folder in here
    ]


def _by_last_part(found: Found) -> dict[str, str]:
    return {name.rpartition("/")[2]: name for name in found.runs}
