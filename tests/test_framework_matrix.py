"""The table of frameworks: every cell has a reason or a proof, and every proof is a test.

In a cell either code of the framework itself ran, and the table of proofs says which, or the cell
says `not run` with a letter.
"""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "frameworks.md").read_text()
ABOVE, BELOW = PAGE.split("## The proofs")
PROOF = re.compile(r"^\| ([A-Z]\d) \| ([^|]*) \|([^|]*)\|$", flags=re.MULTILINE)
PROOFS = {code: re.findall(r"`([^`]+)`", cell) for code, cell, _ in PROOF.findall(BELOW)}
RAN = {code: real.strip() for code, _, real in PROOF.findall(BELOW)}
"""What ran of the framework, with its version; nothing where only its format was used."""
NAMED = re.compile(r"(?P<file>[\w/]+\.py)::(?P<function>\w+)(\[(?P<case>[\w-]+)\])?")
COLUMNS = ["record", "checkup", "diagnose", "experiment"]
CODE, REASON = re.compile(r"\b[A-Z]\d\b"), re.compile(r"- ([a-z])")
NOT_RUN = re.compile(r"\(not run: ([a-z])\)")
REASONS = set(re.findall(r"^- ([a-z]): ", ABOVE, flags=re.MULTILINE))
MENTIONED = (
    *("TRL", "vLLM server", "verifiers", "verl", "prime-rl", "OpenRLHF", "NeMo-RL", "SkyRL"),
    *("Recorder", "OpenAI client", "W&B", "MLflow", "TensorBoard", "trackio"),
)


def rows():
    """The cells of each framework."""
    lines = [line for line in ABOVE.split("\n- a:")[0].splitlines() if line.startswith("| ")]
    head, *body = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    assert head[1:] == COLUMNS
    return {first: cells for first, *cells in body}


def test_every_framework_has_a_row():
    names = " ".join(rows())
    assert [name for name in MENTIONED if name not in names] == []


def test_every_cell_has_a_proof_or_says_why_there_is_none():
    for framework, cells in rows().items():
        for column, cell in zip(COLUMNS, cells, strict=True):
            codes, why = CODE.findall(cell), REASON.fullmatch(cell)
            assert codes or why, (framework, column, cell)
            assert set(codes) <= PROOFS.keys(), (framework, column, cell)
            assert why is None or why[1] in REASONS, (framework, column, cell)


def test_in_every_cell_code_of_the_framework_ran_or_the_cell_says_that_it_did_not():
    """Cells have parts (`log N1 D3, rollouts N2 D4`), and each is held to it."""
    for framework, cells in rows().items():
        for part in (part for cell in cells for part in cell.split(", ")):
            ran = [code for code in CODE.findall(part) if RAN[code]]
            said = NOT_RUN.findall(part)
            assert ran or said or REASON.match(part), (framework, part)
            assert set(said) <= REASONS, (framework, part)


@pytest.mark.parametrize("code", [code for code, real in RAN.items() if real])
def test_what_ran_is_said_with_its_version_or_names_a_proof_that_says_it(code):
    real = RAN[code]
    named = re.findall(r"\b[A-Z]\d\b", real) if real.startswith("as ") else []
    assert all(RAN[one] and not RAN[one].startswith("as ") for one in named), real
    versioned = re.search(r"\d+\.\d+|as installed", real)
    assert versioned or named or real.startswith("no framework: "), real


def test_every_proof_is_asked_for():
    assert set(PROOFS) == set(CODE.findall(ABOVE))


@pytest.mark.parametrize("code", PROOFS)
def test_every_proof_is_a_test_that_exists(code):
    assert PROOFS[code]
    for name in PROOFS[code]:
        found = NAMED.fullmatch(name)
        assert found and found["file"].startswith("tests/"), name
        text = (ROOT / found["file"]).read_text()
        functions = {node.name for node in ast.parse(text).body if hasattr(node, "name")}
        assert found["function"] in functions, name
        assert found["case"] is None or f'"{found["case"]}": ' in text, name
