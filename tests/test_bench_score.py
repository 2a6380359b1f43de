"""The figures of a benchmark count what they say they count."""

import json
from dataclasses import replace
from functools import partial

import pytest

from bench.harm import harm_of
from bench.merged import merged
from bench.plan import Kind
from bench.results import SILENT, read_all
from bench.score import score
from bench.tables import markdown
from flatline import stats
from flatline.bench import harm
from flatline.bench.harm import Verdict
from flatline.bench.shares import exact_share
from flatline.errors import ConfigError
from tests.bench_outcomes import alarm, look, outcome

NOT_ASKED = {"peers": {"asked": {"rlprobe": 0, "rldoctor": 0}, "versions": [], "tools": {}}}


def healthy(seed=0, **changes):
    return outcome(None, seed=seed, **changes)


def accuracy(figures, *, top=1, alike=False, of="faults that hurt"):
    return next(
        {look: share["count"] for look, share in row["by_look"].items()}
        for row in figures["accuracy"]
        if (row["set"], row["top"], row["alike"]) == (of, top, alike)
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


def test_either_of_two_guesses_may_be_right_where_the_one_answer_is_wrong():
    wrong = [alarm("H24", explains=("H03",))]
    runs = [healthy(), outcome("kl-sign", checkup=wrong, diagnose=["H03"], after=0.1)]
    found = accuracy(score(runs))
    assert (found["either"], found["one answer"]) == (1, 0)


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


def test_a_look_alike_counts_only_where_the_row_says_so():
    runs = [healthy(), outcome("sampler-every-n", checkup=["H06"], after=0.1)]
    figures = score(runs)
    assert accuracy(figures)["checkup"] == 0
    assert accuracy(figures, alike=True)["checkup"] == 1


def test_a_fault_that_did_not_hurt_is_listed_and_not_counted():
    runs = [healthy(), outcome("kl-sign", diagnose=["H03"], after=0.9)]
    figures = score(runs)
    assert [one["fault"] for one in figures["harmless"]] == ["kl-sign"]
    assert {row["set"] for row in figures["accuracy"]} == {"all planted, harmless ones too"}


def test_a_fault_without_its_healthy_run_is_not_judged():
    figures = score([outcome("kl-sign", after=0.1)])
    assert [one["fault"] for one in figures["open"]] == ["kl-sign"]


def test_with_three_seeds_the_seeds_are_the_units_of_harm():
    runs = [healthy(seed) for seed in range(3)]
    runs += [outcome("kl-sign", seed=s, after=after) for s, after in enumerate((0.1, 0.2, 0.3))]
    found = harm_of(runs)["musique", "kl-sign"]
    assert (found.verdict, found.unit, found.lost.n) == (Verdict.HURTS, "seeds", 3)
    assert found.lost.value == pytest.approx(0.7)


def test_seeds_that_disagree_do_not_show_harm():
    runs = [healthy(seed) for seed in range(3)]
    runs += [outcome("kl-sign", seed=s, after=after) for s, after in enumerate((0.1, 0.9, 0.95))]
    assert harm_of(runs)["musique", "kl-sign"].verdict is Verdict.HARMLESS


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
    figures = score(runs)
    assert accuracy(figures, of="all that hurt, not corrected")["checkup"] == 0
    assert "all that hurt" not in {row["set"] for row in figures["accuracy"]}
    assert "0 of 10 planted faults hurt, 1 before" in markdown({**figures, **NOT_ASKED})


@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize("lost", [0.02, -0.03])
def test_at_its_p_value_the_interval_of_the_loss_just_reaches_0(monkeypatch, seeds, lost):
    afters = [0.9 - lost, 0.9, 0.9 - 2 * lost]
    runs = [healthy(seed) for seed in range(seeds)]
    runs += [outcome("kl-sign", seed=seed, after=afters[seed]) for seed in range(seeds)]
    p = harm_of(runs)["musique", "kl-sign"].p
    for module in (stats, harm):
        monkeypatch.setattr(module, "LEVEL", 1 - p)
    monkeypatch.setattr("bench.harm.mean_of_units", partial(stats.mean_of_units, level=1 - p))
    found = harm_of(runs)["musique", "kl-sign"].lost
    assert (found.low if lost > 0 else found.high) == pytest.approx(0, abs=1e-9)
    assert p == pytest.approx(harm_of(runs)["musique", "kl-sign"].p)


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
    assert [(one["hypothesis"], one["look"]) for one in figures["false_alarms"]] == [
        ("H24", "diagnose 10"),
        ("H20", "checkup"),
    ]


@pytest.mark.parametrize(
    ("count", "total", "low", "high"),
    [(0, 60, 0.0, 0.0596), (1, 60, 0.0004, 0.0894), (60, 60, 0.9404, 1.0)],
)
def test_the_interval_of_a_share_is_the_exact_one(count, total, low, high):
    found = exact_share(count, total)
    assert (found["low"], found["high"]) == pytest.approx((low, high), abs=1e-4)


def test_detection_is_the_first_look_that_names_the_fault():
    runs = [
        healthy(),
        outcome("kl-sign", early=["H03"], diagnose=["H03"], after=0.1),
        outcome("parser-broken", checkup=["H39"], after=0.1),
        outcome("sampler-every-n", after=0.1),
    ]
    found = score(runs)["detection"]
    assert found["steps"] == {"10": 1, "0": 1, "never": 1}
    assert found["seconds"] == {"median": 35.0, "most": 60.0}


def test_what_is_taken_for_what_is_counted_for_each_hypothesis():
    wrong = [alarm("H24", explains=("H03",)), "H03"]
    runs = [healthy(), outcome("kl-sign", diagnose=wrong, after=0.1)]
    assert score(runs)["confusion"] == [
        {
            "planted": "H03",
            "one answer": {"H24": 1},
            "checkup": {"nothing": 1},
            "diagnose": {"H24": 1},
        }
    ]


def test_of_a_pair_both_must_be_among_the_first_four():
    pair = "kl-sign+parser-broken"
    four = ["H01", "H03", "H02", "H39"]
    near = outcome(pair, kind=Kind.PAIR, diagnose=four)
    far = outcome(pair, kind=Kind.PAIR, seed=1, diagnose=["H01", "H03", "H02", "H04", "H39"])
    rows = score([near, far])["pairs"]["rows"]
    assert [row["both"] for row in rows] == [True, False]


def test_the_ablation_shows_what_the_log_alone_gives():
    runs = [healthy(), outcome("kl-sign", log=["H03"], after=0.1)]
    evidence = score(runs)["ablation"]
    assert [row["top"][1]["count"] for row in evidence] == [1, 0, 0, 0, 0, 0]


def test_silence_on_a_fault_is_counted():
    runs = [healthy(), outcome("kl-sign", diagnose=["H24"], after=0.1)]
    silence = score(runs)["silence"]
    assert (silence["checkup"]["count"], silence["diagnose 40"]["count"]) == (1, 0)


def test_a_look_that_nobody_took_counts_for_nothing():
    older = outcome("kl-sign", untaken=["checkup"], diagnose=["H03"], after=0.1)
    rewards_alone = outcome("kl-sign", seed=1, untaken=["checkup", "diagnose"], after=0.1)
    whole = outcome("kl-sign", seed=2, checkup=["H03"], after=0.1)
    figures = score([healthy(0), healthy(1), healthy(2), older, rewards_alone, whole])
    by_look = next(row["by_look"] for row in figures["accuracy"] if row["top"] == 1)
    counted = {look: (one["count"], one["of"]) for look, one in by_look.items()}
    assert counted == {
        "one answer": (1, 1),
        "checkup": (1, 1),
        "diagnose 10": (0, 2),
        "diagnose 40": (1, 2),
        "either": (1, 1),
    }
    (row,) = figures["faults"]
    assert [one["taken"] for one in row["by_look"]["checkup"]] == [False, False, True]
    assert (row["recall"]["count"], row["recall"]["of"], row["lost"]["n"]) == (1, 1, 3)
    assert figures["untaken"] == {"checkup": 2, "diagnose": 1}
    assert figures["missed"] == []
    assert "| . . 1 | . . 1 | - . - | 1 . - |" in markdown({**figures, **NOT_ASKED})


def test_a_healthy_run_without_all_looks_is_not_called_silent():
    runs = [outcome(None, kind=Kind.HELD_OUT, untaken=["checkup"])]
    (row, _) = score(runs)["healthy"]
    assert (row["by_look"]["any"]["of"], row["by_look"]["diagnose 40"]["of"]) == (0, 1)


@pytest.mark.parametrize(
    ("checkup", "diagnose", "counted"),
    [
        (SILENT, SILENT, {"checkup": (0, 0, 1), "diagnose 40": (0, 0, 1), "any": (0, 0, 1)}),
        (SILENT, look(), {"checkup": (0, 0, 1), "diagnose 40": (0, 1, 0), "any": (0, 0, 1)}),
        (SILENT, look("H24"), {"checkup": (0, 0, 1), "diagnose 40": (1, 1, 0), "any": (1, 1, 0)}),
        (look(), look(), {"checkup": (0, 1, 0), "diagnose 40": (0, 1, 0), "any": (0, 1, 0)}),
    ],
)
def test_a_look_that_broke_down_on_a_healthy_run_has_not_kept_silent(checkup, diagnose, counted):
    run = replace(healthy(kind=Kind.HELD_OUT), checkup=checkup, diagnoses={40: diagnose})
    figures = score([run])
    found = figures["healthy"][0]["by_look"]
    assert counted == {
        name: tuple(found[name][key] for key in ("count", "of", "unasked")) for name in counted
    }
    apart = "1 that could not be asked" in markdown({**figures, **NOT_ASKED}).split("\n## ")[2]
    assert apart is (SILENT in (checkup, diagnose))


def test_the_one_answer_about_a_healthy_run_is_silent_only_if_both_looks_were_taken():
    whole = outcome(None, kind=Kind.HELD_OUT)
    found = score([whole, replace(whole, checkup=SILENT)])["ablation"]
    (row,) = [one["false_alarms"] for one in found if one["evidence"] == "both, as one answer"]
    assert (row["count"], row["of"], row["unasked"]) == (0, 1, 1)


def test_a_healthy_run_whose_trace_cannot_be_read_has_not_kept_silent():
    run = replace(healthy(kind=Kind.HELD_OUT), diagnoses={})
    found = score([run])["healthy"][0]["by_look"]
    assert [found[name]["of"] for name in ("checkup", "either", "any")] == [1, 0, 0]


def test_a_fault_that_hurts_and_is_not_named_first_is_listed():
    figures = score([healthy(), outcome("kl-sign", checkup=["H24"], after=0.1)])
    assert [row["fault"] for row in figures["missed"]] == ["kl-sign"]
    assert "not first in the one answer about every run: kl-sign." in markdown(
        {**figures, **NOT_ASKED}
    )


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


def test_a_held_out_setup_that_calibration_has_too_is_named_and_not_counted(tmp_path):
    cells = tmp_path / "cells"
    for rate, seed in ((3e-3, 100), (2e-3, 101)):
        run = outcome(None, kind=Kind.HELD_OUT, seed=seed, checkup=["H24"]).cell
        facts = replace(run, changes={**run.changes, "learning_rate": rate}).to_json()
        (cells / run.name).mkdir(parents=True)
        (cells / run.name / "cell.json").write_text(json.dumps({"cell": facts, "training": {}}))
    figures = score(read_all(tmp_path))
    assert figures["cells"] == {"held-out": 1, "repeated": 1}
    assert figures["repeated"] == {"healthy-s100": "lora"}
    assert "healthy-s100 (there lora)" in markdown({**figures, **NOT_ASKED})


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
