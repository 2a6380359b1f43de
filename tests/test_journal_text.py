"""Hand-written bytes survive, and text of others cannot break a file."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from flatline.errors import ConfigError
from flatline.journal import frontmatter, markers
from flatline.journal.entry import Status, read_entry
from flatline.markdown import inline, one_line

FILE = Path("hypotheses/h03-x.md")
BY_HAND = """---
# my own order of things
status: pending   # since March
code: 'H03'
title: "KL: too heavy?"
mood: [grim, {deep: yes}]
priority: MEDIUM
confidence:
experiments:
  - first-try  # on the old cluster
  - second
related: [ H01,
           H09 ]
---

# Prose with trailing blanks   

<!-- flatline:results -->
old
<!-- /flatline:results -->
no newline at the end"""

HOSTILE = [
    "a | b",
    "two\nlines\r\nand\x0bmore",
    "`code` and `unclosed",
    "<script>alert(1)</script>",
    "<!-- /flatline:status -->",
    "[click](javascript:alert(1))",
    "![x](http://t.example/p.png)",
    "&lt;b&gt; \\| **bold** __x__ ~~y~~",
    "\x1b[31mred\x1b[0m \u202egnirts",
    "---",
    "\ufffe\ud800",
]


def rendered(markdown: str) -> str:
    return MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(markdown)


@pytest.mark.parametrize("text", HOSTILE)
def test_text_of_others_stays_in_its_cell(text):
    html = rendered(f"| a | b |\n|---|---|\n| {inline(text)} | end |\n\nafter")
    assert html.count("<td>") == 2 and "<td>end</td>" in html and "<p>after</p>" in html
    assert not any(f"<{tag}" in html for tag in ("script", "a ", "img", "strong", "em>", "s>"))


@given(st.text(max_size=60))
def test_no_text_ends_its_line_or_makes_a_tag_or_a_marker(text):
    made = inline(text)
    assert len(made.splitlines()) <= 1
    assert "<" not in made and not markers.spans(f"x {made}\n")


def test_only_what_is_between_the_markers_changes():
    made = markers.filled(BY_HAND, "results", "new\ntext\n")
    assert made == BY_HAND.replace("old\n", "new\ntext\n")
    assert markers.filled(BY_HAND, "status", "x") is None


def test_windows_line_ends_stay():
    text = "a\r\n<!-- flatline:x -->\r\nold\r\n<!-- /flatline:x -->\r\nb"
    made = markers.filled(text, "x", "one\ntwo")
    assert made == "a\r\n<!-- flatline:x -->\r\none\r\ntwo\r\n<!-- /flatline:x -->\r\nb"


@pytest.mark.parametrize(
    "text",
    [
        "<!-- flatline:a -->\n",
        "<!-- /flatline:a -->\n",
        "<!-- flatline:a -->\n<!-- flatline:b -->\n<!-- /flatline:a -->\n<!-- /flatline:b -->\n",
        "<!-- flatline:a -->\n<!-- /flatline:a -->\n" * 2,
    ],
)
def test_half_a_pair_of_markers_is_an_error_with_its_line(text):
    with pytest.raises(ConfigError, match=r"h03-x.md:\d .*flatline:"):
        markers.spans(text, file=FILE)


def test_front_matter_written_by_hand_is_read():
    entry = read_entry(BY_HAND, FILE)
    assert (entry.code, entry.title, entry.priority) == ("H03", "KL: too heavy?", "medium")
    assert entry.status is Status.PENDING and entry.confidence is None
    assert entry.related == ("H01", "H09") and entry.experiments == ("first-try", "second")


def test_only_changed_values_change_and_comments_stay():
    changes = {
        "status": "partial",
        "confidence": "high",
        "experiments": ["third"],
        "note": 'a: "b"',
    }
    made = frontmatter.changed(BY_HAND, changes, FILE)
    expected = (
        BY_HAND.replace("status: pending   #", "status: partial   #")
        .replace("confidence:\n", "confidence: high\n")
        .replace("  - second\n", "  - second\n  - third\n")
        .replace("H09 ]\n---", 'H09 ]\nnote: "a: \\"b\\""\n---')
    )
    assert made == expected


def test_changing_to_what_is_there_changes_nothing():
    changes = {"status": "pending", "experiments": ["second"], "confidence": None}
    assert frontmatter.changed(BY_HAND, changes, FILE) == BY_HAND


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("experiments: []", "experiments: [new]"),
        ("experiments: [a, b]  # x", "experiments: [a, b, new]  # x"),
        ("experiments: null", "experiments: [new]"),
        ("experiments:\n- a\n- b # c", "experiments:\n- a\n- b # c\n- new"),
    ],
)
def test_lists_grow_in_the_style_they_have(before, after):
    text = f"---\ncode: H01\n{before}\nlast: 1\n---\nprose"
    assert frontmatter.changed(text, {"experiments": ["new"]}, FILE) == text.replace(before, after)


def test_front_matter_with_windows_line_ends_keeps_them():
    text = BY_HAND.replace("\n", "\r\n")
    made = frontmatter.changed(text, {"status": "testing", "experiments": ["third"]}, FILE)
    assert made.count("\r\n") == made.count("\n") == text.count("\n") + 1


VALID = "---\ncode: H03\ntitle: x\npriority: high\nstatus: pending\n---\n"


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("# no front matter", 1, "is missing"),
        ("---\ncode: H03\n", 1, "never closed"),
        (VALID.replace("title: x", "title: a: b"), 3, "not valid YAML"),
        (VALID.replace("title: x", "title: [a"), 4, "not valid YAML"),
        (VALID.replace("high", "urgent"), 4, "`high`, `medium` or `low`"),
        (VALID.replace("pending", "done"), 5, "`validated`"),
        (VALID.replace("H03", "H3"), 2, "a code such as"),
        (VALID.replace("title: x\n", ""), 2, "`title` is missing"),
        (VALID.replace("title: x", "title: x\nrelated: H01"), 4, "a list of codes"),
        (VALID.replace("title: x", "title: x\nexperiments: [../../x]"), 4, "without blanks"),
        (VALID.replace("title: x", "title: x\ntitle: y"), 4, "twice"),
        (VALID.replace("title: x", "title: !!python/object:os.x []"), 3, "not valid YAML"),
        (VALID.replace("title: x", "a: &a [1, 1]\nb: [*a, *a]"), 3, "reference"),
        (VALID.replace("title: x", "title: x\norder: first"), 4, "a whole number"),
        (VALID.replace("title: x", "title: x\ncost_minutes: -1"), 4, "minutes"),
        ("---\n- a\n- b\n---\n", 2, "`name: value`"),
        (VALID.replace("title: x", "title: " + "[" * 2000), 5, "not valid YAML"),
        (VALID.replace("title: x", "title: " + "[" * 9000 + "]" * 9000), 2, "not valid YAML"),
    ],
)
def test_wrong_front_matter_is_told_with_file_line_and_what_to_write(text, line, said):
    with pytest.raises(ConfigError) as caught:
        read_entry(text, FILE)
    message = str(caught.value)
    assert message.startswith(f"{FILE}:{line}: ") and said in message
    assert len(message) < 1000


@given(st.text(max_size=80))
def test_any_front_matter_is_read_or_refused_with_a_message(text):
    with contextlib.suppress(ConfigError):
        read_entry(f"---\n{text}\n---\n", FILE)


@given(st.text(max_size=40))
def test_any_note_comes_back_as_it_was(text):
    note = one_line(text)
    made = frontmatter.changed(VALID, {"note": note}, FILE)
    assert read_entry(made, FILE).note == note
