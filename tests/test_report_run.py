"""The page of a run: what it says first, what it draws, and what it does with bad data."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from flatline.diagnosis.report import diagnose
from flatline.hypotheses import HYPOTHESES
from flatline.hypotheses.base import HasSign
from flatline.report import examples, page_of, run_charts
from flatline.report.charts import MOST_POINTS, thinned
from flatline.report.run_charts import CHARTS, POINTS_TO, draw
from flatline.report.run_state import State, state_of
from flatline.report.series import Run
from flatline.trace import Trace
from tests.report_pages import HOSTILE, Page, begin, record
from tests.traces import blind_rows, healthy_rows, run_facts, trace_of


def run_of(trace: Trace, folder: Path | None = None) -> Run:
    return Run(trace=trace, folder=folder, name="a run")


def charts_of(trace: Trace, folder: Path | None = None):
    charts, missing = draw(run_of(trace, folder), diagnose(trace))
    return {chart.id: chart for chart in charts}, {one.what: one.why for one in missing}


def lines(chart) -> dict:
    return {line["name"]: line for line in chart.figure["data"] if "name" in line}


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Page:
    return Page(page_of(record(tmp_path_factory.mktemp("runs") / "blind", blind_rows())))


def test_the_page_needs_nothing_but_itself(page):
    for tag, attrs in page.tags:
        assert "src" not in attrs, tag
        assert tag != "link"
        assert (attrs.get("href") or "#").startswith("#")


def test_every_link_inside_the_page_has_a_target(page):
    ids = {attrs["id"] for _, attrs in page.tags if "id" in attrs}
    links = {attrs["href"][1:] for attrs in page.all("a") if attrs.get("href")}
    assert links <= ids
    assert len([a["id"] for _, a in page.tags if "id" in a]) == len(ids)


def test_a_finding_and_its_charts_name_each_other(page):
    trace = Trace.from_rows(run=run_facts(), **blind_rows())
    charts, _ = charts_of(trace)
    assert "H09" in charts["gap"].findings
    assert not charts["entropy"].findings
    assert "#gap" in {attrs.get("href") for attrs in page.all("a")}
    steps = {e.step for f in diagnose(trace).alarms if f.hypothesis == "H09" for e in f.evidence}
    marked = {
        shape["x0"] for shape in charts["gap"].figure["layout"]["shapes"] if shape["type"] == "line"
    }
    assert steps and steps <= marked


def test_findings_point_to_charts_that_exist():
    charts, missing = charts_of(Trace.from_rows(run=run_facts(), **healthy_rows()))
    assert not missing
    assert {id for ids in POINTS_TO.values() for id in ids} <= set(charts)
    assert set(POINTS_TO) == {one.id for one in HYPOTHESES if isinstance(one, HasSign)}


def test_the_reward_is_drawn_raw_and_smoothing_is_labelled():
    trace = Trace.from_rows(run=run_facts(), **healthy_rows())
    charts, _ = charts_of(trace)
    drawn = lines(charts["reward"])
    step, reward = trace.rollouts["step"], trace.rollouts["reward"]
    means = [reward[step == at].mean() for at in drawn["mean of the step, raw"]["x"]]
    assert drawn["mean of the step, raw"]["y"] == pytest.approx(means, rel=1e-4)
    assert "smoothed: visual aid only" in drawn
    low, high = min(means), max(means)
    band = drawn["95 % interval over prompts"]["y"]
    assert min(band) < low and max(band) > high
    assert min(band) >= 0 and max(band) <= 1


def test_heldout_rewards_have_intervals_where_every_play_was_kept(tmp_path):
    folder = record(tmp_path / "run")
    plays = [
        {"step": s, "problems": list("abcd"), "rewards": [0, 1, r, 1.0]}
        for s, r in ((0, 0), (10, 1))
    ]
    (folder / "heldout.jsonl").write_text("".join(json.dumps(one) + "\n" for one in plays))
    chart = charts_of(Trace.open(folder), folder)[0]["heldout"]
    line = lines(chart)["held-out reward, 95 % interval"]
    assert line["y"] == [0.5, 0.75]
    assert min(line["error_y"]["array"]) > 0.05
    assert "4 problems" in chart.note


@pytest.mark.parametrize("text", ["{broken", "[]\n", '{"step": 0}\n'])
def test_a_broken_heldout_file_costs_the_interval_and_not_the_page(tmp_path, text):
    folder = record(tmp_path / "run")
    (folder / "heldout.jsonl").write_text(text)
    chart = charts_of(Trace.open(folder), folder)[0]["heldout"]
    assert lines(chart)["held-out reward"]["y"] == [0.4, 0.7]
    assert "No interval" in chart.note


def test_what_was_not_recorded_is_listed_with_what_it_needs():
    charts, missing = charts_of(trace_of([[0, 1, 1, 0], [1, 1, 0, 0]]))
    assert {"reward", "advantage"} == set(charts)
    assert missing["held-out reward"] == "needs steps.heldout_reward"
    assert missing["log-probs of sampler and trainer"].startswith("needs tokens")
    assert missing["updates of the weights"].startswith("needs weights")


def test_a_chart_that_trips_over_odd_data_does_not_cost_the_others(monkeypatch):
    def trip(run):
        raise ValueError("odd")

    monkeypatch.setattr(run_charts, "CHARTS", (("odd things", trip), *CHARTS))
    charts, missing = charts_of(Trace.from_rows(run=run_facts(), **healthy_rows()))
    assert len(charts) == len(CHARTS)
    assert "ValueError: odd" in missing["odd things"]


@pytest.mark.parametrize("rewards", [[[0.5], [1.0]], [[np.nan, np.nan]], [[0.2, 0.2]], [[5, -3]]])
def test_odd_rewards_trip_no_chart(rewards):
    trace = trace_of(rewards, parts={"a": 1.0, "b": float("nan")}, hops=3)
    _, missing = charts_of(trace)
    assert not [why for why in missing.values() if "defect" in why]


def test_a_log_without_rollouts_is_drawn_from_its_steps(tmp_path):
    log = tmp_path / "log.jsonl"
    rows = [{"step": i, "reward": 0.5 + 0.001 * i, "kl": 0.01} for i in range(1, 30)]
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = Page(page_of(log))
    assert {"reward", "kl"} <= set(page.figures)
    assert "log of another tool" in page.text
    assert "Not drawn" in page.text
    assert "flatline.attach(trainer, run_dir)" in page.text


def test_a_run_that_recorded_nothing_yet_has_a_page(tmp_path):
    folder = tmp_path / "run"
    recorder = begin(
        folder, {"rollouts": [], "tokens": [], "weights": [], "vocabulary": [], "steps": []}
    )
    page = Page(page_of(folder))
    recorder.close()
    assert "still training" in page.text and "never made an optimizer step" not in page.text
    assert not page.figures
    assert "never made an optimizer step" in page_of(folder), "it has ended, and made none"


def test_the_state_of_a_run_is_told_from_its_end_and_its_lock(tmp_path):
    folder = tmp_path / "run"
    recorder = begin(folder)
    assert state_of(Trace.open(folder).run, folder) is State.RUNNING
    recorder.close()
    facts = Trace.open(folder).run
    assert state_of(facts, folder) is State.FINISHED
    assert state_of({**facts, "ended": None}, folder) is State.CRASHED
    assert state_of(facts, None) is State.LOG


def test_two_looks_at_a_lock_at_once_do_not_see_each_other(tmp_path):
    folder = record(tmp_path / "run")
    with ThreadPoolExecutor(8) as pool:
        seen = set(pool.map(lambda _: state_of({"ended": None}, folder), range(400)))
    assert seen == {State.CRASHED}


def test_hostile_text_does_nothing(tmp_path):
    rows = blind_rows()
    for row in rows["rollouts"]:
        row |= {"prompt": HOSTILE, "completion": HOSTILE, "gold": HOSTILE, "finish": HOSTILE}
        row["prompt_id"] += HOSTILE
        row["parts"] = {HOSTILE: row["reward"], "<b>": 1.0}
    for row in rows["weights"]:
        row["name"] += HOSTILE
    rows["vocabulary"] = [{"id": i, "text": HOSTILE} for i in range(100)]
    folder = record(tmp_path / f"run{HOSTILE.replace('/', '')}", rows)
    html = page_of(folder)
    page = Page(html)
    assert not page.all("img") and not page.all("b")[len(page.figures) :]
    assert not [attrs for _, attrs in page.tags if any(name.startswith("on") for name in attrs)]
    assert page.scripts == 5  # what draws the charts, flatline and tokens
    own = re.sub(r"<script>.*?</script>|<style>.*?</style>", "", html, flags=re.DOTALL)
    assert "\u202e" not in own and "\x1b" not in own
    # Not a number that was computed; a clock may stand at 17:49.
    assert "{{7*7}}" in page.text and not re.search(r"(?<!:)49</", own)


def test_a_long_line_is_thinned_and_keeps_its_largest_and_smallest():
    values = np.zeros(10 * MOST_POINTS + 7)
    values[12_345], values[4_321] = 5.0, -5.0
    kept = thinned(values)
    assert len(kept) <= MOST_POINTS + 2
    assert {12_345, 4_321} <= set(kept.tolist())


def test_rollouts_to_look_at_are_evidence_and_the_largest_and_smallest_disagreement():
    trace = Trace.from_rows(run=run_facts(), **blind_rows())
    report = diagnose(trace)
    chosen = examples.chosen(trace, report)
    reasons = " ".join(why for one in chosen for why in one.why)
    assert "An example of H09" in reasons
    assert "differ most" in reasons and "differ least" in reasons
    assert len(chosen) <= examples.MOST


def test_a_run_of_which_part_was_lost_is_not_green_and_says_what_was_lost(tmp_path):
    run = record(tmp_path / "run", rows=healthy_rows(steps=8))
    (rollouts,) = run.glob("rollouts.*.parquet")
    rollouts.write_bytes(rollouts.read_bytes()[:200])
    page = page_of(run)
    assert 'class="verdict fault"' in page
    assert '<details class="notice" open>' in page
    assert "Healthy: " not in page.partition('class="verdict fault"')[2].partition("</section>")[0]


def test_a_run_that_learns_with_a_reservation_is_not_green():
    logs = Path(__file__).parents[1] / "docs" / "real-logs"
    page = page_of(logs / "by-heart.jsonl")
    assert "Your run learns, with one reservation" in page
    assert 'class="verdict unknown"' in page and 'class="verdict ok"' not in page
