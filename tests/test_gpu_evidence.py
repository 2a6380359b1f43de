"""The evidence from the GPU: a kept file for each visit, and a page whose tables they print."""

import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "recipes" / "qwen-musique"))

import packing  # noqa: E402
import pairs  # noqa: E402
import tables  # noqa: E402

from flatline import Recorder  # noqa: E402
from flatline.config import RunConfig  # noqa: E402
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
DIAGNOSIS = {
    "summary": "H03 is suspected.",
    "findings": [
        {"hypothesis": "H03", "name": "kl", "level": "suspect", "text": "1.03 nat", "fix": "..."},
        {"hypothesis": "H38", "name": "hacking", "level": "ok", "text": "none", "fix": ""},
        {"hypothesis": "H01", "name": "scaling", "level": "ok", "text": "fine", "fix": ""},
    ],
}


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


@pytest.mark.parametrize("file", [KEPT, PAIRS, FOURTH], ids=lambda file: file.parent.name)
def test_rewards_from_the_kept_plays_are_those_that_the_verdict_was_taken_on(file):
    """The verdict was made from the runs, the tables are made from the kept plays."""
    kept = json_in(file)
    (row,) = (
        line for line in tables.shown(kept, "arms").splitlines() if "| healthy - mask |" in line
    )
    assert f"{kept['verdict']['verdict']['effect']['value']:+.3f} [" in row


def a_run(folder: Path, name: str) -> None:
    run = folder / "runs" / name
    with Recorder(run, settings={"num_generations": 2}) as recorder:
        recorder.log_step(step=0, heldout_reward=0.4)
        recorder.log_step(step=1, reward=0.123456789, kl=0.5)
    (run / "config.toml").write_text('task = "gsm8k"\nseed = 0\nmodel = "/tmp/m"\n')
    plays = {"step": 0, "problems": ["a", "b"], "rewards": [1.0, 0.25]}
    plays |= {"plays": {"combined": [1.0, 0.25], "format": [1.0, None]}}
    (run / "heldout.jsonl").write_text(json.dumps(plays) + "\n")
    (folder / f"diagnose-{name}.out").write_text(json.dumps(DIAGNOSIS))
    for kind, text in (("names", name), ("progress", "1.0 1\n2.0 end peak 8.78 reserved 9 GiB\n")):
        (folder / kind).mkdir(exist_ok=True)
        (folder / kind / name).write_text(text)


def test_a_run_is_kept_with_its_plays_curves_and_alarms(tmp_path):
    a_run(tmp_path, "gsm8k-mask-2")
    kept = packing.pack_run(tmp_path, "gsm8k-mask-2", tmp_path / "runs" / "gsm8k-mask-2")
    assert kept["arm"] == "gsm8k-mask"
    assert kept["settings"] == {"task": "gsm8k", "seed": 0}
    assert kept["steps"] == {"step": [1], "reward": [0.12346], "kl": [0.5]}
    assert kept["heldout"] == [{"step": 0, "plays": {"combined": [1, 0.25], "format": [1, None]}}]
    assert kept["peak_gib"] == 8.78
    told = kept["diagnosis"]
    assert [one["hypothesis"] for one in told["findings"]] == ["H03", "H38"]
    assert told["levels"] == {"ok": 2, "suspect": 1}


def a_folder(tmp_path: Path) -> Path:
    """What a visit leaves, as small as it can be."""
    a_run(tmp_path, "gsm8k-mask-2")
    look, estimate = json.dumps(DIAGNOSIS), {"value": 0.1, "low": 0.0, "high": 0.2, "n": 3}
    plan = {"question": "?", "outcome": "heldout_reward", "family": 5, "looks": [3], "arms": []}
    texts = {
        "log.txt": "95 start\n177 warmstart rc 0 82.0 s\n",
        "gpu.csv": "10 50, 1024 0.1\n",
        "warmstart.out": json.dumps(dict.fromkeys(packing.WARMSTART, 1)),
        "baseline.out": json.dumps(dict.fromkeys(packing.BASELINE, 1)),
        "verdict.out": json.dumps({"plan": plan, "verdict": {"effect": estimate}}),
        "checkup-preset.out": look,
        "runs/0a-checkup.json": look,
        "engine-96.out": "| loop |",
        "checkup-healthy.out": "| stage |",
        "vllm/log.txt": "lab-vllm-train 0 64\n1\t/tmp/o/vllm\n",
        "vllm/direct.json": json.dumps(
            {"model": "/tmp/m", "vllm": "0.25.1", "bf16": {"tokens": 2}}
        ),
        "vllm/big-zero-train.err": "Traceback\nModuleNotFoundError: No module named 'pydantic'\n",
    }
    for model in ("lab", "big"):
        a_run(tmp_path / "vllm", f"{model}-vllm")
        texts[f"vllm/{model}-vllm-diagnose.out"] = f"INFO vLLM\n{json.dumps(DIAGNOSIS, indent=1)}"
        texts[f"vllm/{model}-vllm-checkup.out"] = look
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def a_short_folder(tmp_path: Path) -> Path:
    """A visit that had trainings, ZeRO-3 and no other stage."""
    a_run(tmp_path, "healthy-0")
    zero = tmp_path / "vllm"
    log = "lab-zero-train 0 53\nlab-zero-checkup 1 43\ngaps 0 1\ndone 245\n"
    texts = {"log.txt": "93 start\n", "gpu.csv": "10 50, 1024 0.1\n", "vllm/log.txt": log}
    texts["vllm/lab-zero-checkup.err"] = "W\nflatline: Weights are sharded.\nSee /tmp/o/vllm\n"
    for model in ("lab", "big"):
        a_run(zero, f"{model}-zero3")
        texts[f"vllm/{model}-zero-diagnose.out"] = json.dumps(DIAGNOSIS)
        facts = zero / "runs" / f"{model}-zero3" / "run.json"
        versions = {"versions": {"deepspeed": "0.19.8"}}
        facts.write_text(json.dumps(json.loads(facts.read_text()) | versions))
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def packed(monkeypatch, folder: Path, file: Path) -> None:
    monkeypatch.setattr(sys, "argv", ["tables.py", "pack", str(folder), str(file)])
    tables.main()


def test_a_folder_of_results_becomes_one_file_without_its_paths(tmp_path, monkeypatch):
    file = tmp_path / "summary.json"
    packed(monkeypatch, a_folder(tmp_path), file)
    kept = json_in(file)
    assert kept["problems"] == {"gsm8k": ["a", "b"]}
    assert list(kept["runs"]) == ["gsm8k-mask-2"]
    assert kept["verdict"]["plan"] == {
        **{"question": "?", "outcome": "heldout_reward"},
        **{"family": 5, "looks": [3]},
    }
    assert kept["vllm"]["log"] == ["lab-vllm-train 0 64"]
    assert kept["vllm"]["zero3"] == "ModuleNotFoundError: No module named 'pydantic'"
    assert "/tmp/" not in file.read_text()


def test_of_a_visit_with_fewer_stages_what_is_there_is_kept(tmp_path, monkeypatch):
    file = tmp_path / "summary.json"
    packed(monkeypatch, a_short_folder(tmp_path), file)
    kept = json_in(file)
    assert set(kept) == {"log", "problems", "runs", "gpu", "zero"}
    assert kept["zero"]["version"] == "0.19.8"
    assert kept["zero"]["log"] == ["lab-zero-train 0 53", "lab-zero-checkup 1 43", "gaps 0 1"]
    assert kept["zero"]["said"] == {"lab-zero-checkup": "flatline: Weights are sharded."}
    assert list(kept["zero"]["runs"]) == ["lab", "1.5B"]
    assert "/tmp/" not in file.read_text()
    sections = tables.held(kept)
    assert {"ran", "arms", "zero"} <= set(sections)
    assert not {"baseline", "verdict", "checkups", "vllm", "recorder", "trend"} & set(sections)


def test_where_the_reward_went_and_what_explains_an_alarm_is_kept(tmp_path):
    more = {"trend": {"text": "It rises.", "flat": False}, "explained_by": {"H03": "H09"}}
    a_run(tmp_path, "mask-0")
    (tmp_path / "diagnose-mask-0.out").write_text(json.dumps(DIAGNOSIS | more))
    run = packing.pack_run(tmp_path, "mask-0", tmp_path / "runs" / "mask-0")
    kept = {"runs": {"mask-0": run}}
    assert tables.shown(kept, "trend").splitlines()[-1] == "| mask-0 | It rises. |"
    assert "H03 kl, suspect (a consequence of H09): 1.03 nat" in tables.shown(kept, "diagnoses")


def test_a_section_that_a_visit_has_not_is_told_in_one_line(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["tables.py", "print", str(LONG), "baseline"])
    with pytest.raises(SystemExit) as told:
        tables.main()
    assert str(told.value).endswith("holds nothing for baseline: not part of this visit.")
    assert len(str(told.value).splitlines()) == 1


def test_all_of_a_visit_with_fewer_stages_is_printed(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["tables.py", "print", str(LONG)])
    tables.main()
    printed = re.findall(r"^## (\S+)$", capsys.readouterr().out, re.MULTILINE)
    assert printed == tables.held(json_in(LONG))


def test_a_checkup_that_fired_is_not_told_as_silent():
    said = "| stage |\n\n| measurement |\n\n| probe | seconds |\n|---|---|\n\nH01 ok; H09 fault"
    shown = tables.shown({"tables": {"checkup-healthy": said}}, "checkup-time")
    assert shown.endswith("Of 2 hypotheses 1 are ok, 0 unknown (), H09 fired.")


def test_runs_on_other_problems_are_not_put_beside_each_other(tmp_path, monkeypatch):
    folder = a_folder(tmp_path)
    a_run(folder, "gsm8k-mask-3")
    scores = folder / "runs" / "gsm8k-mask-3" / "heldout.jsonl"
    scores.write_text(scores.read_text().replace('"a"', '"c"'))
    with pytest.raises(SystemExit, match="other problems"):
        packed(monkeypatch, folder, tmp_path / "summary.json")


def test_a_folder_of_something_else_is_told_without_a_traceback(tmp_path, monkeypatch):
    with pytest.raises(SystemExit, match="`pack` wants the folder"):
        packed(monkeypatch, tmp_path, tmp_path / "summary.json")
    assert not (tmp_path / "summary.json").exists()


def test_one_section_is_printed_alone(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["tables.py", "print", str(KEPT), "verdict"])
    tables.main()
    printed = capsys.readouterr().out
    assert printed.startswith("## verdict\n")
    assert printed.count("## ") == 1


def test_json_is_found_behind_the_log_lines_of_a_library(tmp_path):
    file = tmp_path / "train.out"
    file.write_text('INFO {"cache": 1}\nWARNING slow\n{\n  "steps": 3\n}\n')
    assert packing.json_after_log(file) == {"steps": 3}


def test_samples_of_the_gpu_are_kept_as_means_of_ten_seconds(tmp_path):
    (tmp_path / "gpu.csv").write_text("10 50, 1024 0.1\n12 100, 4096 0.1\n21 0, 0 0.1\n23 broken\n")
    assert packing.gpu(tmp_path / "gpu.csv") == [[10, 75.0, 4.0], [20, 0.0, 0.0]]


def test_a_fourth_pair_beside_the_kept_ones_is_judged_as_investigate_judges(tmp_path):
    kept = json_in(PAIRS)
    config = RunConfig(task="musique", fault="mask-as-attention", max_steps=36)
    for arm in ("healthy", "mask"):  # as if it had been trained and packed
        kept["runs"][f"{arm}-3"] = kept["runs"][f"{arm}-0"]
    found = pairs.carry_on(kept, config, tmp_path, (3, 4), jobs=1)
    assert [look["seeds"] for look in found["looks"]] == [3, 4]
    assert found["plan"]["family"] == kept["verdict"]["plan"]["family"] == 5
    assert [look["settled"] for look in found["looks"]] == [False, True]
    verdict = found["verdict"]
    assert (verdict["verdict"], verdict["effect"]["n"]) == ("validated", 4)
    assert verdict["mechanism"]["treated"] == "absent"
    (row,) = (one for one in found["runs"] if (one["role"], one["seed"]) == ("treated", 1))
    assert f"{row['value']:+.3f}" in tables.shown(kept, "heldout")
