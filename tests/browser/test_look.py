"""Every page looked at as a person would, on a desk and on a phone, in light and in the dark:
nothing is cut off, nothing touches, nothing fades into the page. `measured.js` measures it."""

import json
import shutil
import threading
from pathlib import Path

import pytest

from flatline.report import write_report
from flatline.report.web import diagnoses
from tests.browser.conftest import complaints, css, served, wait
from tests.web_runs import conclude, hostile_rows, investigate, record

HERE = Path(__file__).parent
TREE = HERE.parents[1]
MEASURED = (HERE / "measured.js").read_text()
LONG = "2026-11-15/musique-lora-r16-lr1e-5-beta0.04-and-a-long-name-seed3"
PAGES = (
    "/",
    "/run/recorded",
    f"/run/{LONG}",
    "/run/grpo-lora.json",
    "/rollouts/recorded",
    "/rollout/recorded?step=1&rollout=0",
    "/rollout/hostile?step=1&rollout=0",
    "/compare",
    f"/compare?a=recorded&b={LONG}",
    "/compare?a=recorded&b=recorded&step_a=1&rollout_a=0&step_b=1&rollout_b=1",
    "/journal/journal",
    "/journal/investigation",
    "/experiment/experiments/mask",
    "/experiment/investigation/experiments/kl",
    "/run/not-here",
)
DESK, PHONE = 1280, 390
SCHEMES = pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    shutil.copytree(TREE / "examples" / "recorded", folder / "recorded")
    shutil.copytree(TREE / "examples" / "journal", folder / "journal")
    shutil.copy(TREE / "docs" / "real-logs" / "grpo-lora.json", folder)
    record(folder / "hostile", rows=hostile_rows())
    told(record(folder / LONG, steps=30))
    investigate(folder / "investigation")
    conclude(folder / "experiments" / "mask")
    return folder


def told(run):
    """A run with all that a list can say of one: a model, a fault, a kept diagnosis."""
    facts = json.loads((run / "run.json").read_text())
    asked = {"task": "musique", "model": "Qwen/Qwen2.5-1.5B-Instruct"}
    (run / "run.json").write_text(json.dumps({**facts, "requested": asked, "fault": "kl-in-rows"}))
    first = {"level": "fault", "hypothesis": "H33", "name": "group-integrity"}
    answer = "Your groups are mixed up: advantages go to the wrong completions."
    said = {"headline": answer, "findings": [first]}
    (run / "diagnosis.json").write_text(json.dumps(said))


@pytest.fixture(scope="module")
def site(runs):
    with served(runs) as address:
        yield address


def opened(window, address):
    """A page with all its charts drawn and everything unfolded, ready to be measured."""
    window.get(address)
    wait(lambda: window.execute_script("return document.readyState") == "complete")
    window.execute_script("window.dispatchEvent(new Event('beforeprint'))")
    window.execute_script("for (const one of document.querySelectorAll('details')) one.open = true")
    window.execute_script(MEASURED)
    return window


def measured(window, what):
    return window.execute_script(f"return measured.{what}")


def assert_sound(browser, address, width):
    """A page in the light and, without being loaded again, in the dark."""
    window = opened(browser(width=width), address)
    assert not [one for one in complaints(window) if "404" not in one]
    wide = "return document.documentElement.scrollWidth"
    # A phone's first layout may be wider for a moment, until the page has its scale.
    assert width == DESK or wait(lambda: window.execute_script(wide) <= width, seconds=5)
    for dark in (False, True):
        browser(width=width, dark=dark)
        assert not measured(window, "wrongs()"), dark


WIDTHS = pytest.mark.parametrize("width", [DESK, PHONE], ids=["desk", "phone"])


@WIDTHS
@pytest.mark.parametrize("address", PAGES)
def test_nothing_is_cut_off_or_touches_or_fades(site, browser, address, width):
    assert_sound(browser, site + address, width)


@WIDTHS
def test_nothing_is_wrong_with_a_report_of_two_runs(runs, tmp_path, browser, width):
    write_report(runs / "recorded", tmp_path / "report.html", other=runs / LONG)
    assert_sound(browser, (tmp_path / "report.html").as_uri(), width)
    window = browser(width=width)
    assert css(window, ".plot > svg")


def test_the_list_of_runs_shows_its_last_column_on_a_desk(site, browser):
    window = opened(browser(), site)
    assert not measured(window, "sideways()")
    last = css(window, "table.runs thead th")[-1].rect
    assert last["x"] + last["width"] <= DESK


WITH_INTERVALS = ("/experiment/experiments/mask", "/run/recorded", f"/run/{LONG}")


@pytest.mark.parametrize("address", WITH_INTERVALS)
def test_intervals_stay_inside_their_chart(site, browser, address):
    window = opened(browser(), site + address)
    assert css(window, ".plot svg svg path")
    assert not measured(window, "leaving()")


def test_names_below_a_chart_do_not_touch_on_a_phone_and_are_all_there(site, browser):
    window = opened(browser(width=PHONE), f"{site}/experiment/experiments/mask")
    assert not measured(window, "touching()")
    said = css(window, "#arms")[0].text
    assert all(name in said for name in ("learning rate of 0 throughout", "shuffled rewards"))


@SCHEMES
def test_what_the_trainer_could_not_see_is_a_bar_that_stands_out(site, browser, dark):
    window = opened(browser(dark=dark), f"{site}/run/recorded")
    contrast, covered = measured(window, "bar('.sides .black')")
    assert contrast >= 3, contrast
    assert covered, "what is under the bar can be read"


@SCHEMES
def test_a_threshold_is_told_from_the_data_without_its_colour(site, browser, dark):
    window = opened(browser(dark=dark), f"{site}/run/{LONG}")
    data, limit = (
        measured(window, "line('#truncation', 0)"),
        measured(window, "line('#truncation', 1)"),
    )
    assert "share" in data["name"] and "25%" in limit["name"]
    assert contrast_of(data, limit) >= 2.5, "as bright as each other: red and green would decide"
    assert data["dash"] is data["dash_in_legend"] is None
    assert limit["dash"] == limit["dash_in_legend"] is not None


def contrast_of(one, other):
    high, low = sorted((one["light"], other["light"]), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_two_runs_that_are_ticked_in_the_list_are_compared(site, browser):
    window = browser()
    window.get(site)
    compare = css(window, "#compare button")[0]
    assert not compare.is_enabled()
    for name in ("recorded", "hostile"):
        css(window, f'input[value="{name}"]')[0].click()
    assert compare.is_enabled()
    compare.click()
    wait(lambda: "/compare?a=hostile&b=recorded" in window.current_url)
    assert css(window, ".verdict")


def test_a_run_is_diagnosed_from_the_list_while_its_pages_answer(runs, browser, monkeypatch):
    may_end, real = threading.Event(), diagnoses.diagnose

    def slow(*asked, **more):
        may_end.wait(60)
        return real(*asked, **more)

    monkeypatch.setattr(diagnoses, "diagnose", slow)
    window = browser()

    def row():
        return next(one.text for one in css(window, "table.runs tr") if "recorded" in one.text)

    with served(runs) as site:
        window.get(site)
        assert "not diagnosed yet" in row()
        css(window, 'button[aria-label="Diagnose recorded"]')[0].click()
        wait(lambda: "being diagnosed" in row())
        window.get(f"{site}/rollouts/recorded")
        assert css(window, "table.rollouts")
        window.get(site)
        assert "being diagnosed" in row()
        may_end.set()
        wait(lambda: "Your trainer cannot see" in row())


def test_a_journal_opens_with_its_answer(site, browser):
    window = browser(width=PHONE)
    window.get(f"{site}/journal/journal")
    answer = css(window, "main > section")[0]
    assert answer.rect["y"] < 300
    said = answer.text
    assert "H09 Loss mask used as attention mask: held-out reward +0.196 [+0.045, +0.347]" in said
    assert "H01 Advantage scaling" in said[said.index("Ruled out") : said.index("Next")]
    assert "flatline journal resolve" in said[said.index("Next") :]
