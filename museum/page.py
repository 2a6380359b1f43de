"""What the site says of every exhibit, from museum/results.json."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from museum.exhibit import defect, exhibit, mechanism, names
from museum.run import named, silent

RESULTS = Path(__file__).parent / "results.json"
PEERS_OF = "peers_of"
"""Key of the commit whose run the peers were asked about, where that is not the run beside it."""
LONGEST = 400
"""Characters of what a release or flatline says that are shown."""

HEAD = """# The museum: real releases with real defects

Each exhibit is a release of an RL library that shipped with a silent defect, beside the release
that mended it. Both are run unchanged, as wheels, with the same script on the lab policy, and
flatline is asked about both. The bad release must be named, by its cause or its stage, before
anything else; on the good one nothing may be said. `flatline doctor` tells which of these releases
you have installed.

```sh
make museum                              # all; fetches the wheels that are missing
python -m museum trl_scale_rewards       # one
python -m museum --later --keep          # also those that wait for the last change to flatline
python -m museum --peer rlprobe=PYTHON   # another tool on the same runs
```

"""
STAR = "\\*"
ONCE = (
    "Those with asterisks were written before flatline was asked about any of them, and run once "
    "after what was then its last change. The table has what came of that; flatline has learnt "
    "from some of them since, as their sections say. Three of the five of round 1 were withdrawn: "
    "as they were run, the release that was called bad has no such defect; and the script of one "
    "of round 4 was corrected after its first run (museum/README.md)."
)
LATER = """## To be run once after the last change to hypotheses or specification

Written before flatline was asked about any of them, and published as they fall. That the defect is
in the bad release and not in the good one is shown without flatline (`python -m museum.symptom`).

"""


def read() -> dict[str, Any]:
    """Results of every exhibit that was kept."""
    if not RESULTS.is_file():
        return {}
    found: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
    return found


def page(results: Mapping[str, Any]) -> str:
    shown = [name for name in names() if name in results]
    sections = [_section(name, results[name]) for name in shown]
    before = [HEAD, _count(shown, results), _table(shown, results), _later(results)]
    return "".join([*before, "\n".join(sections)]).rstrip() + "\n"


def _count(shown: Sequence[str], results: Mapping[str, Any]) -> str:
    lines = [f"{_figures(shown, results)}."]
    rounds = sorted({exhibit(one).later for one in shown} - {0})
    if rounds:
        lines.append(ONCE)
    for number in rounds:
        own = [one for one in shown if exhibit(one).later == number]
        lines.append(f"Round {number} ({STAR * number}): {_figures(own, results)}.")
    lines += _earlier(shown, results)
    again = {one: results[one]["since"] for one in shown if "since" in results[one]}
    if again:
        lines.append(f"Asked again after flatline had changed: {_figures(list(again), again)}.")
        lines.append(f"All, with what is said now: {_figures(shown, {**results, **again})}.")
    return " ".join(lines) + "\n\n"


def _earlier(shown: Sequence[str], results: Mapping[str, Any]) -> list[str]:
    """A peer is asked about a recorded run, whatever flatline says of it: its answer holds as long
    as releases and script are the same."""
    commits = [results[one]["bad"].get(PEERS_OF) for one in shown]
    return [
        f"What the other tools say of {commits.count(commit)} exhibits is from the runs of commit "
        f"{commit}, with the same releases and the same script."
        for commit in sorted(set(filter(None, commits)))
    ]


def _figures(shown: Sequence[str], results: Mapping[str, Any]) -> str:
    right = sum(named(exhibit(one), results[one]["bad"]) for one in shown)
    quiet = sum(silent(results[one]["good"]) for one in shown)
    return (
        f"{len(shown)} exhibits: the bad release is named in {right}, the good one is silent in "
        f"{quiet}"
    )


def _table(shown: Sequence[str], results: Mapping[str, Any]) -> str:
    peers = sorted({peer for one in shown for peer in results[one]["bad"].get("peers", {})})
    heads = ["exhibit", "bad release", "flatline says", "good release", "flatline says"]
    heads += [f"{peer}: bad / good" for peer in peers]
    lines = [_line(heads), "|---" * len(heads) + "|"]
    for name in shown:
        bad, good = results[name]["bad"], results[name]["good"]
        cells = [
            f"[{name}](#{name})" + " " * bool(exhibit(name).later) + STAR * exhibit(name).later,
            f"{defect(name).library} {bad['release']}",
            said(bad) + ("" if named(exhibit(name), bad) else " (**not named**)"),
            good["release"],
            said(good) + ("" if silent(good) else " (**not silent**)"),
        ]
        cells += [f"{_of(peer, bad)} / {_of(peer, good)}" for peer in peers]
        lines.append(_line(cells))
    return "\n".join(lines) + "\n\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _of(peer: str, side: Mapping[str, Any]) -> str:
    return plain(side.get("peers", {}).get(peer, "not asked"))


def said(side: Mapping[str, Any]) -> str:
    """One release in a few words."""
    why = side.get("not_had") or side.get("failure")
    if why:
        return plain(f"no answer: {why}")
    named = ", ".join(f"{one['code']} {one['name']}" for one in side["alarms"])
    return named or "nothing"


def _later(results: Mapping[str, Any]) -> str:
    waiting = [name for name in names() if exhibit(name).later and name not in results]
    lines = []
    for name in waiting:
        one, what = exhibit(name), defect(name)
        lines.append(
            f"- {name}: {what.library} {one.bad} and {one.good} ({what.reference}); expected: "
            f"{' or '.join(one.expects)}"
        )
    return LATER + "\n".join(lines) + "\n\n" if lines else ""


def _section(name: str, sides: Mapping[str, Any]) -> str:
    one, what, bad, good = exhibit(name), defect(name), sides["bad"], sides["good"]
    facts = [
        f"- Releases: {what.library} {what.since} to before {what.mended} ({what.reference})",
        f"- Needs: {what.when or 'nothing; every run has it'}",
        f"- In the wheel: `{one.lines}`; script: `museum/exhibits/{name}.py`",
        *([f"- Beside it: {', '.join(one.beside)}"] if one.beside else []),
        *([f"- Stands in: {one.stands_in}"] if one.stands_in else []),
        f"- **{bad['release']}**: {said(bad)}. {plain(' '.join(bad.get('texts', [])[:1]))}",
        f"- **{good['release']}**: {said(good)}.{_refused(bad)}",
        *([_since(sides["since"])] if "since" in sides else []),
    ]
    return f"## {name}\n\n{mechanism(name)}\n\n" + "\n".join(facts) + "\n"


def _since(sides: Mapping[str, Any]) -> str:
    bad, good = sides["bad"], sides["good"]
    return (
        f"- Asked again after flatline had changed, so no longer a test of it: "
        f"**{bad['release']}**: {said(bad)}. {plain(' '.join(bad.get('texts', [])[:1]))} "
        f"**{good['release']}**: {said(good)}.{_refused(bad)}"
    )


def _refused(side: Mapping[str, Any]) -> str:
    """What the checkup says where it is refused: the recorded run alone was asked then."""
    words = plain(str(side.get("refused", ""))).partition(". ")[0]
    return f" Of the recorded run alone; the checkup says: {words}." if words else ""


def plain(text: str) -> str:
    """What a library or a tool printed, as one cell of a table."""
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())[:LONGEST]
