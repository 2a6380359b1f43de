"""What every hypothesis must satisfy. A new one is covered the moment it is listed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.each import each
from typer.testing import CliRunner

import flatline.hypotheses
from flatline.cli import app
from flatline.errors import ConfigError, NotRecorded
from flatline.faults import FAULTS
from flatline.hypotheses import HYPOTHESES, find
from flatline.hypotheses.base import Finding, HasProbe, HasSign, Level
from flatline.hypotheses.departure import CODES
from flatline.trace import Trace

HEADINGS = [
    "What goes wrong", "Sign", "Probe", "Experiment", "Fix", "Not to be confused with",
    "References",
]  # fmt: skip
BETWEEN_PROCESSES = "H60"
"""Its faults exist only where several processes train: planted in tests/ranks_child.py."""
OF_IMAGES = "H67"
"""Its faults exist only where a model is shown images: planted in tests/test_trl_breadth.py."""
everyone = each("hypothesis", HYPOTHESES, ids=lambda one: one.id)


@everyone
def test_has_a_manual_page_with_the_fixed_headings(hypothesis):
    page = hypothesis.manual()
    assert re.findall(r"^## (.+)$", page, flags=re.MULTILINE) == HEADINGS
    sections = re.split(r"^## .+$", page, flags=re.MULTILINE)
    assert all(len(section.strip()) > 20 for section in sections)


@everyone
def test_its_file_is_named_after_it(hypothesis):
    stem = type(hypothesis).__module__.rpartition(".")[2]
    assert stem == f"{hypothesis.id.lower()}_{hypothesis.name.replace('-', '_')}"


@everyone
def test_says_what_it_means_and_what_to_do(hypothesis):
    assert hypothesis.meaning and hypothesis.fix


@everyone
def test_an_empty_trace_is_no_alarm_and_no_crash(hypothesis):
    if not isinstance(hypothesis, HasSign):
        return
    try:
        finding = hypothesis.sign(Trace.from_rows())
    except NotRecorded:
        return
    assert isinstance(finding, Finding)
    assert finding.level in (Level.UNKNOWN, Level.OK)


def test_every_file_is_listed_once_and_in_order():
    folder = Path(flatline.hypotheses.__file__).parent
    files = [path.stem[:3].upper() for path in sorted(folder.glob("h[0-9]*.py"))]
    assert files == [one.id for one in HYPOTHESES]
    assert len(set(files)) == len(files)


def test_no_two_hypotheses_explain_each_other():
    explains = {one.id: set(one.explains) for one in HYPOTHESES}

    def reaches(code: str, seen: tuple[str, ...] = ()) -> None:
        assert code not in seen, f"a circle: {' -> '.join((*seen, code))}"
        for other in explains.get(code, ()):
            reaches(other, (*seen, code))

    for code in explains:
        reaches(code)


def test_every_fault_belongs_to_a_hypothesis_and_all_that_name_a_defect_have_one():
    planted = {fault.hypothesis for fault in FAULTS}
    codes = {one.id for one in HYPOTHESES}
    assert planted <= codes
    stages = set(CODES.values())  # planted in a user's own script: benchmarks/foreign_faults.py
    assert codes - planted <= {
        "H00",
        "H47",
        BETWEEN_PROCESSES,
        OF_IMAGES,
        *stages,
    }  # a control, and chance


def test_every_hypothesis_but_the_ladder_can_look():
    blind = [one.id for one in HYPOTHESES if not isinstance(one, HasSign | HasProbe)]
    assert blind == ["H00"]


@pytest.mark.parametrize("text", ["H09", "h09", "loss-mask-as-attention"])
def test_a_hypothesis_is_found_by_code_or_name(text):
    assert find(text).id == "H09"


def test_explain_prints_the_page_and_lists_all():
    page = CliRunner().invoke(app, ["explain", "H09"]).stdout
    assert "What goes wrong" in page and "loss-mask-as-attention" in page
    listed = CliRunner().invoke(app, ["explain"]).stdout
    assert all(one.id in listed for one in HYPOTHESES)


def test_diagnosis_needs_no_torch():
    heavy = ("torch", "transformers", "trl")
    blocked = "".join(f"sys.modules[{name!r}] = None; " for name in heavy)
    code = f"import sys; {blocked}import flatline.diagnosis.report, flatline.trace.importers"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    "text", ["H09", "h9", "9", "loss-mask-as-attention", "Loss mask as attention"]
)
def test_a_hypothesis_is_found_however_it_is_written(text):
    assert find(text).id == "H09"


@pytest.mark.parametrize("text, meant", [
    ("loss-mask-as-atention", "Did you mean H09 loss-mask-as-attention"),
    ("kl", "Did you mean H03 kl-divergence, H31 kl-anchor"),
    ("temperature", "Did you mean H21 sampling-parameters?"),
    ("", "''.\n`flatline explain` lists all"),
    ("9" * 5000, "`flatline explain` lists all"),
])  # fmt: skip
def test_a_name_that_nothing_has_gets_the_nearest(text, meant):
    with pytest.raises(ConfigError) as error:
        find(text)
    assert meant in str(error.value)
