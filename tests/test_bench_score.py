"""The figures of a benchmark count what they say they count."""

import json
from dataclasses import replace

import pytest

from bench.harm import harm_of
from bench.merged import merged
from bench.plan import Kind
from bench.results import SILENT, read_all
from bench.score import score
from bench.tables import markdown
from flatline.bench import harm
from flatline.bench.harm import Verdict
from flatline.bench.shares import exact_share
from flatline.errors import ConfigError
from tests.bench_outcomes import alarm, look, outcome

NOT_ASKED = {"peers": {"asked": {"rlprobe": 0, "rldoctor": 0}, "versions": [], "tools": {}}}


def healthy(seed=0, **changes):
    return outcome(None, seed=seed, **changes)


def accuracy(figures, *, top=1):
    return next(
        {look: share["count"] for look, share in row["by_look"].items()}
        for row in figures["accuracy"]
        if (row["set"], row["top"], row["alike"]) == ("faults that hurt", top, False)
    )


def test_a_fault_is_named_by_the_looks_that_put_it_first():
    runs = [healthy(), outcome("kl-sign", checkup=["H24", "H03"], diagnose=["H03"], after=0.1)]
    figures = score(runs)
    assert accuracy(figures) == {
        "one answer": 1,
        "checkup": 0,
        "diagnose 10": 0,
        "diagnose 40": 1,
        "either": 1,
    }
    assert accuracy(figures, top=3)["checkup"] == 1


@pytest.mark.parametrize(
    ("checkup", "diagnose", "first"),
    [
        (look("H08"), look(alarm("H09", "fault")), "H09 H08"),
        (look(alarm("H03", "fault")), look(alarm("H09", explains=("H03",))), "H09 H03"),
        (look(alarm("H13", proven=True)), look(alarm("H45", explains=("H13",))), "H13 H45"),
        (look(alarm("H05", severity=2)), look(alarm("H04", severity=1)), "H05 H04"),
        (look("H05", "H04"), look(alarm("H05", "fault")), "H05 H04"),
        (SILENT, look("H05"), "H05"),
    ],
    ids=["surer", "cause before symptom", "seen directly", "severer", "said twice", "one look"],
)
def test_two_looks_are_ranked_as_one_report_would_be(checkup, diagnose, first):
    assert " ".join(finding.hypothesis for finding in merged([checkup, diagnose])) == first


def test_a_fault_that_did_not_hurt_is_listed_and_not_counted():
    runs = [healthy(), outcome("kl-sign", diagnose=["H03"], after=0.9)]
    figures = score(runs)
    assert [one["fault"] for one in figures["harmless"]] == ["kl-sign"]
    assert {row["set"] for row in figures["accuracy"]} == {"all planted, harmless ones too"}


def test_with_three_seeds_the_seeds_are_the_units_of_harm():
    runs = [healthy(seed) for seed in range(3)]
    runs += [outcome("kl-sign", seed=s, after=after) for s, after in enumerate((0.1, 0.2, 0.3))]
    found = harm_of(runs)["musique", "kl-sign"]
    assert (found.verdict, found.unit, found.lost.n) == (Verdict.HURTS, "seeds", 3)
    assert found.lost.value == pytest.approx(0.7)


def test_one_of_many_faults_may_seem_to_hurt_by_chance():
    def planted(strength, afters):
        return [outcome(f"kl-sign:{strength}", seed=s, after=x) for s, x in enumerate(afters)]

    runs = [healthy(seed) for seed in range(3)]
    runs += planted(0, (0.88, 0.87, 0.865))
    alone = harm_of(runs)["musique", "kl-sign:0"]
    for strength in range(1, 10):
        runs += planted(strength, (0.89, 0.9, 0.91))
    among = harm_of(runs)["musique", "kl-sign:0"]
    assert (alone.verdict, among.verdict) == (Verdict.HURTS, Verdict.UNCORRECTED)
    assert alone.p == among.p == pytest.approx(alone.corrected)
    assert among.p < 0.05 < among.corrected == pytest.approx(10 * among.p)


def test_training_that_broke_down_hurts():
    runs = [healthy(), outcome("kl-sign", failure="ValueError: NaN")]
    assert harm_of(runs)["musique", "kl-sign"].verdict is Verdict.HURTS
    assert score(runs)["failures"] == {"kl-sign-s0": "ValueError: NaN"}


def test_false_alarms_are_counted_by_split_and_listed_with_their_words():
    runs = [
        outcome(None, kind=Kind.HELD_OUT, early=["H24"]),
        outcome(None, kind=Kind.HELD_OUT, checkup=["H20"], learnt=False),
        outcome(None, kind=Kind.CALIBRATION),
    ]
    figures = score(runs)
    counted = {
        (row["split"], row["runs"]): (row["by_look"]["any"]["count"], row["by_look"]["any"]["of"])
        for row in figures["healthy"]
    }
    assert counted["held-out", "all"] == (2, 2)
    assert counted["held-out", "that learnt"] == (1, 1)
    assert counted["calibration", "all"] == (0, 1)


@pytest.mark.parametrize(
    ("count", "total", "low", "high"),
    [(0, 60, 0.0, 0.0596), (1, 60, 0.0004, 0.0894), (60, 60, 0.9404, 1.0)],
)
def test_the_interval_of_a_share_is_the_exact_one(count, total, low, high):
    found = exact_share(count, total)
    assert (found["low"], found["high"]) == pytest.approx((low, high), abs=1e-4)


@pytest.mark.parametrize(
    ("checkup", "diagnose", "counted"),
    [
        (SILENT, look(), {"checkup": (0, 0, 1), "diagnose 40": (0, 1, 0), "any": (0, 0, 1)}),
        (SILENT, look("H24"), {"checkup": (0, 0, 1), "diagnose 40": (1, 1, 0), "any": (1, 1, 0)}),
        (look(), look(), {"checkup": (0, 1, 0), "diagnose 40": (0, 1, 0), "any": (0, 1, 0)}),
    ],
)
def test_a_look_that_broke_down_on_a_healthy_run_has_not_kept_silent(checkup, diagnose, counted):
    run = replace(healthy(kind=Kind.HELD_OUT), checkup=checkup, diagnoses={40: diagnose})
    found = score([run])["healthy"][0]["by_look"]
    assert counted == {
        name: tuple(found[name][key] for key in ("count", "of", "unasked")) for name in counted
    }


def test_every_table_is_printed_and_text_of_a_run_cannot_break_one():
    broken = outcome("kl-sign", failure="ValueError: NaN")
    loud = outcome(None, kind=Kind.HELD_OUT, checkup=["H2|0"])
    pair = outcome("kl-sign+parser-broken", kind=Kind.PAIR)
    figures = json.loads(json.dumps({**score([healthy(), broken, loud, pair]), **NOT_ASKED}))
    page = markdown(figures)
    assert page.count("\n## ") == 10
    assert "H2\\|0" in page
    assert "rlprobe was not asked" in page


def test_a_folder_without_cells_says_what_to_type(tmp_path):
    with pytest.raises(ConfigError, match="flatline bench --out"):
        read_all(tmp_path)


def test_a_result_of_another_shape_is_refused(tmp_path):
    folder = tmp_path / "cells" / "a"
    folder.mkdir(parents=True)
    (folder / "cell.json").write_text('{"cell": {"changes": {}}}')
    with pytest.raises(ConfigError, match="Remove its folder"):
        read_all(tmp_path)


def test_p_values_are_corrected_together_as_benjamini_and_hochberg_do():
    chances = [0.2, 0.001, 0.04, 0.04, 0.9, 0.012]
    # scipy.stats.false_discovery_control(chances)
    assert harm._together(chances) == pytest.approx([0.24, 0.006, 0.06, 0.06, 0.9, 0.036])
