"""The live pages in a real Chromium: clicked, typed at, looked at in the dark and on a phone."""

from pathlib import Path

import numpy as np
import pytest

from flatline.report import write_report
from tests.browser.conftest import complaints, css, served, wait
from tests.traces import healthy_rows
from tests.web_runs import hostile_rows, investigate, record

WORST = 3
"""Position where sampler and trainer of the broken run differ most."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    record(folder / "healthy", steps=12)
    record(folder / "broken", rows=_disagreeing())
    record(folder / "hostile", rows=hostile_rows())
    record(folder / "crashed", steps=2, clean=False)
    investigate(folder / "investigation")
    return folder


@pytest.fixture(scope="module")
def site(runs):
    with served(runs) as address:
        yield address


def _disagreeing():
    rows = healthy_rows(steps=12, prompts=3, generations=4)
    for row in rows["tokens"]:
        trainer = np.array(row["sampler"])
        trainer[[1, WORST]] -= (0.5, 6.0)
        row["trainer"] = trainer
        row["prompt_attended"] = np.zeros(6, np.uint8)
    return rows


def drawn(window):
    """Charts are drawn when the reader comes near."""
    window.execute_script("document.querySelector('.plot').scrollIntoView()")
    wait(lambda: css(window, ".plot > svg"))


def keys(window, *pressed):
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(window).send_keys(*pressed).perform()


def test_from_the_list_to_a_run_to_its_rollouts_to_one_of_them(site, browser):
    window = browser()
    window.get(site)
    window.find_element("link text", "broken").click()
    drawn(window)
    assert css(window, ".verdict .headline")[0].text == "Your trainer cannot see the question."
    window.find_element("link text", "rollouts").click()
    css(window, "table.rollouts a.row")[0].click()
    wait(lambda: css(window, ".tokens .q5"))
    assert "step=1&rollout=0" in window.current_url
    assert css(window, ".prompt-tokens .hid")
    assert not complaints(window)


def test_a_filter_narrows_the_list_and_stays_in_the_address(site, browser):
    window = browser()
    window.get(f"{site}/rollouts/healthy")
    field = window.find_element("name", "from")
    field.send_keys("2")
    window.find_element("name", "to").send_keys("2")
    css(window, "form.filters button")[0].click()
    wait(lambda: any("12 rollouts" in one.text for one in css(window, ".count")))
    assert window.current_url.endswith("?from=2&to=2&order=step"), window.current_url
    assert {row.text.split(",")[0] for row in css(window, "a.row")} == {"step 2"}


def test_the_search_narrows_while_one_types(site, browser):
    window = browser()
    window.get(site)
    window.find_element("name", "q").send_keys("crash")
    wait(lambda: css(window, ".count")[0].text == "1 shown")
    assert [row.text for row in css(window, ".runs a.row") if row.is_displayed()] == ["crashed"]
    window.refresh()
    assert [row.text for row in css(window, ".runs a.row") if row.is_displayed()] == ["crashed"]


def test_the_token_view_colours_by_what_is_chosen_and_shows_the_numbers(site, browser):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.support.ui import Select

    window = browser()
    window.get(f"{site}/rollout/broken?step=1&rollout=0")
    tokens = wait(lambda: css(window, ".tokens .t"))
    colours = {_colour(tokens[WORST])}
    for mode in ("author", "trained", "sampler", "advantage"):
        Select(css(window, "select.mode")[0]).select_by_value(mode)
        assert f"colour={mode}" in window.current_url
        colours.add(_colour(tokens[0]))
    assert len(colours) >= 4
    ActionChains(window).move_to_element(tokens[WORST]).perform()
    said = css(window, ".inspector")[0].text
    assert "at\n3" in said and "author\nmodel" in said and "6.0000" in said


def _colour(element):
    return element.value_of_css_property("background-color")


def test_a_link_to_a_token_shows_it_again(site, browser):
    window = browser()
    window.get(f"{site}/rollout/broken?step=1&rollout=0")
    css(window, "button.worst")[0].click()
    address = window.current_url
    assert f"token={WORST}" in address
    window.get("about:blank")
    window.get(address)
    wait(lambda: css(window, ".tokens .here"))
    assert "6.0000" in css(window, ".inspector")[0].text


def test_everything_can_be_done_with_keys_alone(site, browser):
    window = browser()
    window.get(site)
    keys(window, "j")
    assert window.switch_to.active_element.text == "investigation"
    keys(window, "j", "j", "j", "k")
    assert window.switch_to.active_element.text == "broken"
    keys(window, "\ue007")
    wait(lambda: window.current_url.endswith("/run/broken"))
    window.get(f"{site}/rollouts/broken")
    keys(window, "j", "\ue007")
    wait(lambda: css(window, ".tokens .t"))
    keys(window, "w")
    assert f"token={WORST}" in window.current_url
    keys(window, "w")
    assert "token=1" in window.current_url
    keys(window, "\ue014")
    assert "token=2" in window.current_url
    keys(window, "n")
    wait(lambda: "rollout=1" in window.current_url)
    keys(window, "u")
    wait(lambda: "/rollouts/broken?from=1" in window.current_url)
    keys(window, "/")
    assert window.switch_to.active_element.get_attribute("name") == "from"
    keys(window, "\ue00c", "?")
    assert css(window, "dialog.keys[open]")


def test_two_runs_are_laid_over_each_other(site, browser):
    window = browser()
    window.get(f"{site}/compare?a=healthy&b=broken")
    drawn(window)
    assert "Training reward" in css(window, "main")[0].text
    window.get(f"{site}/compare?a=healthy&b=broken&step_a=1&rollout_a=0&step_b=1&rollout_b=1")
    assert len(css(window, ".tokens")) == 2
    assert "They part at token" in css(window, ".verdict")[0].text
    assert not complaints(window)


def assert_no_barriers(browser, window):
    """What axe finds serious on an open page, in the light and in the dark."""
    axe = pytest.importorskip("axe_core_python")
    window.execute_script((Path(axe.__file__).parent / "axe.min.js").read_text(encoding="utf-8"))
    for dark in (False, True):
        browser(dark=dark)
        found = window.execute_async_script("axe.run().then(arguments[0])")["violations"]
        serious = [one for one in found if one["impact"] in ("serious", "critical")]
        assert not [(one["id"], one["nodes"][0]["html"][:200]) for one in serious], dark


@pytest.mark.parametrize(
    "address",
    [
        "/",
        "/run/broken",
        "/rollouts/broken",
        "/rollout/broken?step=1&rollout=0",
        "/compare?a=healthy&b=broken",
        "/compare?a=healthy&b=broken&step_a=1&rollout_a=0&step_b=1&rollout_b=1",
        "/journal/investigation",
        "/experiment/investigation/experiments/kl",
    ],
)
def test_no_serious_barrier_to_access(site, browser, address):
    window = browser()
    window.get(site + address)
    if "/run/" in address or address.endswith("healthy&b=broken"):
        drawn(window)
    assert_no_barriers(browser, window)


def test_a_report_with_everything_unfolded_has_no_serious_barrier(runs, tmp_path, browser):
    page = tmp_path / "report.html"
    write_report(runs / "broken", page, other=runs / "healthy")
    window = browser()
    window.get(page.as_uri())
    drawn(window)
    assert not complaints(window)
    window.execute_script("for (const one of document.querySelectorAll('details')) one.open = true")
    assert len([one for one in css(window, ".tokens") if one.is_displayed()]) > 1
    assert_no_barriers(browser, window)


def test_a_report_draws_what_comes_near_and_all_of_it_for_paper(runs, tmp_path, browser):
    page = tmp_path / "report.html"
    write_report(runs / "broken", page)
    window = browser()
    window.get(page.as_uri())
    window.execute_script("location.hash = 'charts'")
    wait(lambda: css(window, "#reward .plot > svg"))
    all_of_it = len(css(window, ".plot"))
    assert len(css(window, ".plot[data-drawn]")) < all_of_it
    window.execute_script("window.dispatchEvent(new Event('beforeprint'))")
    wait(lambda: len(css(window, ".plot[data-drawn]")) == all_of_it)


def test_a_chart_answers_the_pointer_and_shows_a_part_and_all_of_it_again(runs, tmp_path, browser):
    from selenium.webdriver.common.action_chains import ActionChains

    page = tmp_path / "report.html"
    write_report(runs / "broken", page)
    window = browser()
    window.get(page.as_uri())
    window.execute_script("location.hash = 'reward'")
    wait(lambda: css(window, "#reward .plot > svg circle"))

    def points():
        return len(css(window, "#reward .plot > svg circle"))

    (first, *_) = css(window, "#reward .plot > svg circle")
    ActionChains(window).move_to_element(first).perform()
    assert "mean of the step, raw" in css(window, "#reward .tip")[0].text
    ticks = [one.text for one in css(window, "#reward .tick")]
    chart = css(window, "#reward .plot > svg")[0]
    drag = ActionChains(window).move_to_element_with_offset(chart, -100, 0).click_and_hold()
    drag.move_by_offset(200, 0).release().perform()
    wait(lambda: [one.text for one in css(window, "#reward .tick")] != ticks)
    chart = css(window, "#reward .plot > svg")[0]
    ActionChains(window).double_click(chart).perform()
    wait(lambda: [one.text for one in css(window, "#reward .tick")] == ticks)
    before = points()
    css(window, "#reward .names button")[1].click()
    wait(lambda: points() < before)


HOSTILE = (
    "/rollout/hostile?step=1&rollout=0",
    "/compare?a=healthy&b=hostile&step_a=1&rollout_a=0&step_b=1&rollout_b=1",
    "/journal/investigation",
    "/run/hostile",
    "/rollouts/hostile",
)


@pytest.mark.parametrize("address", HOSTILE)
def test_hostile_text_does_nothing(site, browser, address):
    window = browser()
    window.get(site + address)
    wait(lambda: window.execute_script("return document.readyState") == "complete")
    for token in css(window, ".tokens .t")[:2]:
        window.execute_script("arguments[0].scrollIntoView({block: 'center'})", token)
        token.click()
    assert window.execute_script("return window.hacked === undefined")
    assert not css(window, "main img, main textarea, main iframe, main [onerror], main [onload]")
    assert not css(window, "a[href^=javascript]")
    written = window.execute_script("return document.querySelector('main').textContent")
    assert "{{7" in written or "/run/" in address
    assert not complaints(window)
