"""Rounds of logs: each is whole, and what readers saw in a log is said whatever its columns are
called."""

import json
import random
import re
import sys
from pathlib import Path

import pytest

from flatline.diagnosis.report import diagnose
from flatline.trace.importers import open_log
from flatline.trace.importers.aliases import CAVEATS, COLUMNS
from tests.golden.kept import names_kept

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
from real_logs import said_of

ROOT = Path(__file__).parents[1]
LOGS = ROOT / "docs" / "real-logs"
READINGS = json.loads((LOGS / "readings.json").read_text())
MADE = sorted(name for name in READINGS if (LOGS / name).is_file())
ROUNDS = sorted(path.parent.name for path in LOGS.glob("*/readings.json"))
BESIDE = {"first", "readings.json", "make_logs.py.txt"}


def readings_of(folder):
    return json.loads((LOGS / folder / "readings.json").read_text())


def test_no_round_is_lost():
    folders = {path.name for path in LOGS.iterdir() if path.is_dir()}
    assert folders == {*ROUNDS} and len(ROUNDS) >= 7


@pytest.mark.parametrize("folder", ROUNDS)
def test_each_log_of_a_round_has_readings_a_first_answer_and_a_golden_one(folder):
    """The largest logs are not kept, but made by the script beside them."""
    read, script = readings_of(folder), (LOGS / folder / "make_logs.py.txt").read_text()
    there = {path.name for path in (LOGS / folder).iterdir()} - BESIDE
    assert there and there <= read.keys()
    assert [name for name in read.keys() - there if name not in script] == []
    first = {path.name.removesuffix(".txt") for path in (LOGS / folder / "first").iterdir()}
    assert first == read.keys()
    assert {("logs", f"{folder}/{name}") for name in there} <= names_kept()


@pytest.mark.parametrize("name", MADE)
def test_what_a_reader_sees_in_a_made_log_is_said_as_the_page_counts_it(name):
    readings = READINGS[name]["reader"]
    found = said_of(LOGS / name, readings)
    assert sum(found) >= READINGS[name]["said"], "the page says more than is said now"


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", MADE)
def test_renaming_reward_functions_and_columns_changes_no_finding(tmp_path, name, seed):
    text = (LOGS / name).read_text()
    trace = open_log(LOGS / name)
    own = {column.split("rewards/")[1].removesuffix("/mean") for column in functions(trace)}
    own = own or set(trace.run["unrecognised"])
    names = dict(zip(sorted(own), invented(len(own), seed), strict=True))
    renamed = tmp_path / name
    renamed.write_text(rewritten(text, {**names, **other_trainers(trace, seed)}))
    before, after = diagnose(trace), diagnose(open_log(renamed))
    assert levels(after) == levels(before)
    assert after.trend == before.trend
    assert told(after, {new: old for old, new in names.items()}) == told(before, {})


def other_trainers(trace, seed):
    """What the columns may be called in somebody else's log."""
    draw = random.Random(seed)
    names = {}
    for column, name in trace.run["aliases"].items():
        other = [one for one in COLUMNS[column] if "*" not in one and one not in CAVEATS]
        unit = re.search(r" [(\[].*", name)  # it says what the numbers are, under any name
        names[name.removeprefix("train/")] = draw.choice(other) + (unit[0] if unit else "")
    return names


def functions(trace):
    return [n for n in trace.metric_names if "rewards/" in n and not n.endswith("/std")]


def invented(count, seed):
    """Names without a meaning, in no order, one of them telling the opposite."""
    draw = random.Random(seed)
    fixed = ["correctness", "format_reward", "length_penalty"]
    made = ["".join(draw.choices("abcdefghij", k=9)) for _ in range(count)]
    return draw.sample([*fixed, *made], count)


def rewritten(text, names):
    """The same log under other names: all are taken away before any new one comes."""
    for at, old in enumerate(names):
        text = text.replace(f"rewards/{old}/", f"rewards/<{at}>/")
        text = text.replace(f'"{old}"', f'"<{at}>"').replace(f'"train/{old}"', f'"train/<{at}>"')
        head, *rest = text.split("\n")
        if "," in head and '"' not in head:  # the head of a CSV file
            head = ",".join(f"<{at}>" if name == old else name for name in head.split(","))
            text = "\n".join([head, *rest])
    for at, new in enumerate(names.values()):
        text = text.replace(f"<{at}>", new)
    return text


def levels(report):
    return {finding.hypothesis: finding.level for finding in report.findings}


def told(report, back):
    """Remarks with the old names and their words in any order, without the one that reads names."""
    texts = [text for text in report.remarks if "disagree" not in text]
    for new, old in back.items():
        texts = [text.replace(f"`{new}`", f"`{old}`") for text in texts]
    return sorted(sorted(text.replace(",", "").replace(".", " ").split()) for text in texts)
