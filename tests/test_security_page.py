"""SECURITY.md names tests; a claim whose test is gone is no claim."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
TESTS = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))


def test_every_test_that_is_named_is_there():
    text = (ROOT / "SECURITY.md").read_text()
    names = set(re.findall(r"\b(test_\w+)\b(?!\.py)", text))
    files = {path.rstrip(".") for path in re.findall(r"tests/[\w/]+(?:\.py)?", text)}
    assert len(names) > 5 and files
    assert not [name for name in names if f"def {name}(" not in TESTS]
    assert not [path for path in files if not (ROOT / path).exists()]


def test_every_threat_has_a_test():
    rows = re.findall(
        r"^\| (?!threat|-)(.+) \| .+ \| (.+) \|$", (ROOT / "SECURITY.md").read_text(), re.M
    )
    assert len(rows) > 15
    assert not [threat for threat, test in rows if "tests/" not in test]
