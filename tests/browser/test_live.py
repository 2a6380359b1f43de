"""Pages that follow a run while it trains, without being loaded again."""

from flatline.experiment import load_plan
from tests.browser.conftest import served, wait
from tests.traces import healthy_rows
from tests.web_runs import begin, investigate, log, record


def points(window) -> int:
    """Points of the curve of raw rewards: the other lines have none."""
    return len(window.find_elements("css selector", ".plot[data-figure=reward] circle"))


def state(window) -> str:
    return window.find_element("css selector", ".live .state").text


def test_a_page_follows_a_recording_to_its_end(tmp_path, browser):
    rows = healthy_rows(steps=8, prompts=3, generations=4)
    recorder = begin(tmp_path / "live", rows)
    for step in (1, 2, 3):
        log(recorder, rows, step)
    window = browser()
    with served(tmp_path) as site:
        window.get(f"{site}/run/live")
        wait(lambda: points(window) == 3)
        assert state(window) == "still running"
        window.execute_script("window.kept = 'not loaded again'")
        for step in (4, 5, 6, 7, 8):
            log(recorder, rows, step)
        wait(lambda: points(window) == 8)
        assert "step 8" in window.find_element("css selector", ".live").text
        recorder.close()
        wait(lambda: state(window) == "finished")
        wait(lambda: "still training" not in window.find_element("tag name", "main").text)
        assert window.execute_script("return window.kept") == "not loaded again"


def test_what_a_reader_opened_stays_open(tmp_path, browser):
    rows = healthy_rows(steps=8, prompts=3, generations=4)
    recorder = begin(tmp_path / "live", rows)
    log(recorder, rows, 1)
    window = browser()
    with served(tmp_path) as site:
        window.get(f"{site}/run/live")
        window.execute_script(
            "for (const one of document.querySelectorAll('details.rest')) one.open = true"
        )
        for steps in (range(2, 3), range(3, 9)):
            for step in steps:
                log(recorder, rows, step)
            said = f"step {steps[-1]}"
            wait(lambda said=said: said in window.find_element("css selector", ".live").text)
        wait(lambda: points(window) == 8)
        wait(lambda: window.find_elements("css selector", "details.rest")[-1].get_attribute("open"))
    recorder.close()


def test_the_list_follows_runs_that_begin_and_end(tmp_path, browser):
    rows = healthy_rows(steps=2)
    record(tmp_path / "old", rows=rows)
    window = browser()

    def listed() -> str:
        return window.find_element("css selector", "table.runs").text

    with served(tmp_path) as site:
        window.get(site)
        assert "still running" not in listed()
        recorder = begin(tmp_path / "new", rows)
        log(recorder, rows, 1)
        wait(lambda: "still running" in listed())
        recorder.close()
        wait(lambda: listed().count("finished") == 2)


def test_an_experiment_and_a_journal_follow_their_files(tmp_path, browser):
    investigate(tmp_path / "journal")
    plan = load_plan(tmp_path / "journal" / "experiments" / "kl")
    window = browser()

    def text() -> str:
        return window.find_element("tag name", "main").text

    with served(tmp_path) as site:
        window.get(f"{site}/experiment/journal/experiments/kl")
        window.execute_script("window.kept = true")
        rows = healthy_rows(steps=1)
        recorder = begin(tmp_path / f"{plan.control.digest}-s0", rows)
        log(recorder, rows, 1)
        wait(lambda: "Not counted yet" in text() and "still running, step 1" in text())
        recorder.close()
        wait(lambda: "finished, step 1" in text())
        assert window.execute_script("return window.kept")
        window.get(f"{site}/journal/journal")
        window.execute_script("document.querySelector('details[open]').open = false")
        with (tmp_path / "journal" / "01-experiments-log.md").open("a") as notes:
            notes.write("\nSomething new.\n")
        wait(lambda: "Something new." in text())
        closed = "return document.querySelector('details').open"
        assert not window.execute_script(closed), "what the reader closed was opened again"
