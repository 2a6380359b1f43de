"""Dataset specs: what they mean, where rows come from, and what is said when they do not come."""

import sys
from types import SimpleNamespace

import pytest

from flatline.errors import DataError
from flatline.tasks.datasets import DatasetSpec, parse_specs, read_rows, slice_bounds
from tests.musique_rows import write


def spec(text: str) -> DatasetSpec:
    (found,) = parse_specs(text)
    return found


def numbers(text: str, *, split: str = "train", config: str | None = None) -> list[int]:
    return [row.data["n"] for row in read_rows(spec(text), split=split, default_config=config)]


def test_a_spec_has_path_config_split_and_slice_of_which_the_path_alone_is_needed():
    found = spec("data/musique,full,dev[10:20]")
    assert (found.path, found.config, found.split) == ("data/musique", "full", "dev")
    assert (found.start, found.stop) == ("10", "20")
    assert found.split_or("train") == "validation"
    assert parse_specs("a.jsonl; lab,train[:3]")[0] == DatasetSpec(path="a.jsonl", text="a.jsonl")
    assert spec("lab,train[:3]").split == "train" and spec("lab,full").config == "full"


@pytest.mark.parametrize(
    ("slice_", "bounds"),
    [
        ("[:4]", (0, 4)),
        ("[7:]", (7, 10)),
        ("[10%:30%]", (1, 3)),
        ("[-3:]", (7, 10)),
        ("", (0, 10)),
    ],
)
def test_slices_mean_what_they_mean_on_the_hub(slice_, bounds):
    assert slice_bounds(spec(f"a,b,train{slice_}"), 10) == bounds


@pytest.mark.parametrize("slice_", ["[:11]", "[10:]", "[50:60]", "[-11:]", "[:110%]"])
def test_a_slice_out_of_range_names_the_spec_the_size_and_what_to_type(slice_):
    with pytest.raises(DataError) as error:
        slice_bounds(spec(f"a,b,train{slice_}"), 10)
    assert f"`a,b,train{slice_}` is out of range" in str(error.value)
    assert "there are 10 rows" in str(error.value)
    assert "type a slice inside [0:10]" in str(error.value)


@pytest.mark.parametrize("text", ["a,b,c,d", "", "a;;b", ",full,train"])
def test_a_spec_that_cannot_be_read_shows_the_grammar(text):
    with pytest.raises(DataError, match=r"A spec is `path,config,split\[slice\]`"):
        parse_specs(text)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (
            b'{"n": 0}\n{"n": 1, "question": "Where was',
            r"jsonl:2 is not valid JSON.*\n.*cut off: down",
        ),
        (b'{"n": 0,}\n{"n": 1}\n', r"jsonl:1 is not valid JSON.*\nFix the line"),
        (b"[" * 100_000, "jsonl:1 is not valid JSON"),
        (b"9" * 5_000, "jsonl:1 is not valid JSON"),
        (b'["a", "b"]\n', "jsonl:1 is a JSON list"),
        (b"\n", "has no rows"),
        (b"\x80\x81\x82", "is not UTF-8 text"),
    ],
    ids=["cut off", "in the middle", "deep", "a long number", "a list", "empty", "binary"],
)
def test_a_file_that_cannot_be_read_is_named_with_its_line_and_what_to_do(tmp_path, content, told):
    (tmp_path / "rows.jsonl").write_bytes(content)
    with pytest.raises(DataError, match=told):
        numbers(str(tmp_path / "rows.jsonl"))


@pytest.mark.parametrize("name", ["nowhere/x.jsonl", "./nowhere", "a/b/c", "x" * 5000 + ".jsonl"])
def test_a_missing_file_is_not_looked_for_on_a_hub(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match="There is no file or folder"):
        numbers(name)


def test_a_folder_gives_the_file_of_the_split(tmp_path):
    write(tmp_path / "train.jsonl", {"n": 1})
    write(tmp_path / "dev.jsonl", {"n": 2})
    assert numbers(str(tmp_path)) == [1]
    assert numbers(f"{tmp_path},,validation") == numbers(f"{tmp_path},,dev") == [2]


def test_official_file_names_are_found_by_config_and_split(tmp_path):
    for number, name in enumerate(["ans_v1.0_train", "full_v1.0_train", "ans_v1.0_dev"]):
        write(tmp_path / f"musique_{name}.jsonl", {"n": number})
    assert numbers(f"{tmp_path},full,train") == [1]
    assert numbers(f"{tmp_path},answerable,train") == [0]
    assert numbers(f"{tmp_path},,train", config="answerable") == [0]
    assert numbers(f"{tmp_path},,validation") == [2]
    with pytest.raises(DataError, match=r"more than one file fits.*musique_ans_v1.0_train.jsonl"):
        numbers(f"{tmp_path},,train")


def fake_hub(monkeypatch, load_dataset):
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))


def test_a_hub_name_is_read_with_the_datasets_library(monkeypatch):
    def load_dataset(path, config, split):
        if split != "validation":
            raise ValueError(f"Unknown split {split!r}")
        return [{"n": n, "from": (path, config)} for n in range(5)]

    fake_hub(monkeypatch, load_dataset)
    rows = read_rows(spec("someone/musique,answerable,dev[3:]"), split="train")
    assert [row.data["n"] for row in rows] == [3, 4]
    assert rows[0].place == "someone/musique[validation]:4"
    assert rows[0].data["from"] == ("someone/musique", "answerable")


def test_a_hub_that_cannot_be_reached_says_what_was_tried(monkeypatch):
    calls = []

    def load_dataset(path, config, split):
        calls.append(split)
        raise ConnectionError("Couldn't reach the Hub")

    fake_hub(monkeypatch, load_dataset)
    with pytest.raises(DataError) as error:
        read_rows(spec("someone/gsm8k,main,dev"), split="train")
    assert "load_dataset('someone/gsm8k', 'main', split='dev') failed" in str(error.value)
    assert "Couldn't reach the Hub" in str(error.value)
    assert "A local .jsonl file or folder works offline" in str(error.value)
    assert len(calls) == 1
