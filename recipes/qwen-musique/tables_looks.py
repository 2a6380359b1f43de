"""Tables of what flatline said: verdict, diagnoses, checkups, and the baseline."""

from collections.abc import Iterator

from tables_learning import Json, Rows, table, told

from flatline.stats import Estimate
from flatline.tasks.base import COMBINED


def verdict(kept: Json) -> Rows:
    plan, verdict = kept["verdict"]["plan"], kept["verdict"]["verdict"]
    rows = (
        f"Question | {plan['question']}",
        f"Effect on {plan['outcome']} | {told(Estimate(**verdict['effect']))} seeds",
        f"Verdict | {verdict['verdict']}, confidence {verdict['confidence']}",
        f"Reason | {verdict['reason']}",
        f"Mechanism | {verdict['mechanism']['text']}",
        f"What would change it | {verdict['would_change']}",
    )
    return table("|", rows)


def diagnoses(kept: Json) -> Rows:
    return table("run | alarm", _alarms({n: r["diagnosis"] for n, r in kept["runs"].items()}))


def trend(kept: Json) -> Rows:
    """What `diagnose` says about the raw training reward, first third against last."""
    rows = (f"{name} | {run['diagnosis'].get('trend', '')}" for name, run in kept["runs"].items())
    return table("run | training reward", rows)


def checkups(kept: Json) -> Rows:
    return table("checkup | alarm", _alarms(kept["checkups"]))


def _alarms(looks: dict[str, Json]) -> Iterator[str]:
    for name, look in looks.items():
        loud = [one for one in look["findings"] if one["level"] in ("fault", "suspect")]
        for one in loud:
            code, cause = one["hypothesis"], look.get("explained_by", {}).get(one["hypothesis"])
            why = f" (a consequence of {cause})" if cause else ""
            yield f"{name} | {code} {one['name']}, {one['level']}{why}: {one['text']}"
        if not loud:
            levels = ", ".join(f"{count} {level}" for level, count in look["levels"].items())
            yield f"{name} | none ({levels})"


def said(kept: Json) -> Rows:
    """What was said about the control's gain: alarms or not."""
    rows = (
        f"{name} | {one['hypothesis']} {one['name']} | {one['level']} | {one['text']}"
        for name in ("gsm8k-healthy", "gsm8k-mask")
        for one in kept["runs"][name]["diagnosis"]["findings"]
        if one["hypothesis"] in ("H03", "H35", "H37", "H38", "H43")
    )
    return table("run | hypothesis | level | text", rows)


def baseline(kept: Json) -> Rows:
    found = kept["baseline"]
    hops = {f"{hop} hops": parts for hop, parts in found["per_hop"].items()}
    groups = {"all": found["parts"], **hops}
    sizes = (f"{name} (n = {group[COMBINED]['n']})" for name, group in groups.items())
    rows = (
        f"{part} | {' | '.join(_interval(group[part]) for group in groups.values())}"
        for part in found["parts"]
    )
    yield from table(f"part | {' | '.join(sizes)}", rows)
    yield ""
    passes = (f"pass@{k} | {_interval(value)}" for k, value in found["pass_at_k"].items())
    spread = f"standard deviation inside a group | {_interval(found['group_std'])}"
    yield from table("exact match | all", (*passes, spread))


def _interval(found: Json) -> str:
    return f"{found['value']:.2f} [{found['low']:.2f}, {found['high']:.2f}]"
