"""The evidence from the GPU: a kept file for each visit, and a page whose tables they print."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "recipes" / "qwen-musique"))

import tables  # noqa: E402

from flatline.files import json_in  # noqa: E402

RESULTS = ROOT / "evidence" / "investigation"
STORY = ROOT / "docs" / "real-model.md"
VISITS = (
    *("gpu-2026-11-15", "gpu-2026-11-15-long", "gpu-2026-11-15-pairs"),
    "gpu-2026-11-16-fourth-pair",
)
FILES = KEPT, LONG, PAIRS, FOURTH = tuple(RESULTS / visit / "summary.json" for visit in VISITS)
OTHERS = {"": KEPT, " long": LONG, " pairs": PAIRS, " fourth": FOURTH}
BLOCK = re.compile(
    r"<!-- begin: tables.py print (\S+)( long| pairs| fourth)? -->\n(.*?)\n<!-- end -->", re.DOTALL
)


def test_the_story_shows_what_the_kept_files_print():
    blocks = BLOCK.findall(STORY.read_text(encoding="utf-8"))
    assert blocks
    for section, other, shown in blocks:
        file = OTHERS[other]
        assert shown.strip() == tables.shown(json_in(file), section).strip(), (
            f"Type `python recipes/qwen-musique/tables.py print {file.relative_to(ROOT)} {section}`"
            f" and put it between the marks of {STORY.name}"
        )


@pytest.mark.parametrize("file", FILES, ids=VISITS)
def test_a_kept_file_is_small_and_names_no_folder_of_a_machine(file):
    text = file.read_text(encoding="utf-8")
    assert len(text) < 300_000
    assert not re.findall(r"/(?:tmp|root|home|work|opt)/", text)
