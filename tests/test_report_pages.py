"""Pages in general: text cannot become markup, and a file needs nothing but itself."""

import pytest
from markupsafe import Markup

from flatline.report.markdown import rendered
from flatline.report.pages import asset_text, coded, data_block, environment
from tests.report_pages import HOSTILE, Page


def shown(template: str, **values) -> str:
    return environment().from_string(template).render(values)


def test_text_in_a_template_is_escaped_and_its_hidden_characters_are_shown():
    html = shown("<p>{{ text }}</p>", text=HOSTILE)
    assert "<img" not in html
    assert "\x1b" not in html and "\\x1b[31m" in html
    assert "\u202e" not in html and "\\u202e" in html
    assert "{{7*7}}" in html


def test_text_in_an_attribute_cannot_leave_it():
    page = Page(shown('<a title="{{ text }}">x</a>', text='" onclick="alert(1)'))
    assert set(page.all("a")[0]) == {"title"}


def test_a_data_block_gives_back_what_was_put_in_and_cannot_be_ended():
    value = {"text": HOSTILE, "numbers": [1.5, float("nan"), float("inf")], "a&b": "<!--"}
    html = str(data_block("d", value))
    assert html.lower().count("</script") == 1
    assert Page(html).blocks["d"] == {
        "text": HOSTILE,
        "numbers": [1.5, None, None],
        "a&b": "<!--",
    }


@pytest.mark.parametrize(
    "name",
    ["flatline.css", "drawing.js", "heat.js", "plots.js", "flatline.js", "tokens.css", "tokens.js"],
)
def test_assets_fetch_nothing(name):
    text = asset_text(name).replace("http://www.w3.org/2000/svg", "")  # a name, not an address
    assert "http://" not in text and "https://" not in text
    assert "url(" not in text and "@import" not in text


def test_what_stands_between_backticks_is_set_as_code_and_stays_text():
    assert coded("type `a <b>` now") == "type <code>a &lt;b&gt;</code> now"
    assert coded("one ` too many <b>\x1b") == "one ` too many &lt;b&gt;\\x1b"


def test_markup_in_markdown_is_shown_and_not_obeyed():
    html = rendered(f"# Title {HOSTILE}\n\n<script>x</script>\n\n`{HOSTILE}`", anchors={})
    page = Page(html)
    assert isinstance(html, Markup)
    assert {tag for tag, _ in page.tags} == {"h3", "p", "code"}
    assert "<script>x</script>" in page.text


@pytest.mark.parametrize(
    "target", ["javascript:alert(1)", "data:text/html,x", "file:///etc/passwd", "../../secret.md"]
)
def test_links_of_markdown_that_lead_elsewhere_are_text(target):
    links = Page(rendered(f"[click]({target})", anchors={})).all("a")
    assert all("href" not in attrs for attrs in links)


def test_links_between_files_of_a_journal_go_to_their_place_in_the_page():
    anchors = {"hypotheses/h09-x.md": "file-h09"}
    above = Page(rendered("[H09](hypotheses/h09-x.md)", anchors=anchors))
    beside = Page(rendered("[H09](h09-x.md#results)", anchors=anchors, folder="hypotheses"))
    below = Page(rendered("[H09](../hypotheses/h09-x.md)", anchors=anchors, folder="fixes"))
    assert [page.all("a")[0]["href"] for page in (above, beside, below)] == ["#file-h09"] * 3


def test_images_of_markdown_are_not_loaded():
    assert not Page(rendered("![x](https://example.org/x.png)", anchors={})).all("img")
