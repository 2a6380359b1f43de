"""The command line of training. The five `train` lines of the seeds are kept here as they stand."""

import json
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flatline import cli

SEEDS = {
    "no-peft": """
        python scripts/train_musique.py train \\
            --model "Qwen/Qwen2.5-7B-Instruct" \\
            --no-peft \\
            --kl-beta 0.0 \\
            --batch-size 2 \\
            --gradient-accumulation-steps 16 \\
            --max-steps 100""",
    "debug": """
        python scripts/train_musique.py train \\
            --datasets "bdsaglam/musique-mini,answerable,train[:100]" \\
            --batch-size 8 --num-generations 8 \\
            --max-steps 50 --logging-steps 1 \\
            --output-dir ./outputs/debug-h0X-test""",
    "gsm8k": """
        accelerate launch \\
            --num-processes 3 \\
            --config-file configs/zero3.yaml \\
            scripts/train_gsm8k.py train \\
            --model Qwen/Qwen2.5-3B-Instruct \\
            --loss-type "grpo" \\
            --lora-r 16 \\
            --lora-alpha 32 \\
            --batch-size 16 \\
            --num-generations 8 \\
            --gradient-accumulation-steps 8""",
    "scale-rewards-false": """
        python scripts/train_musique.py train \\
            --datasets "bdsaglam/musique-mini,answerable,train[:100]" \\
            --scale-rewards false \\
            --batch-size 8 --num-generations 8 \\
            --max-steps 50 --logging-steps 1""",
    "no-scale-rewards": """
        accelerate launch \\
            --num-processes 3 \\
            --config-file configs/zero3.yaml \\
            scripts/train_musique.py train \\
            --datasets "bdsaglam/musique-mini,answerable,train" \\
            --model Qwen/Qwen2.5-7B-Instruct \\
            --bf16 \\
            --loss-type "grpo" \\
            --no-scale-rewards \\
            --lora-r 16 \\
            --lora-alpha 32 \\
            --batch-size 8 \\
            --num-generations 8 \\
            --gradient-accumulation-steps 4 \\
            --max-grad-norm 0.1 \\
            --learning-rate 1e-5 \\
            --num-epochs 10""",
}
EXPECTED = {
    "no-peft": {"peft": False, "gradient_accumulation_steps": 16, "learning_rate": 1e-6},
    "debug": {"datasets": "bdsaglam/musique-mini,answerable,train[:100]", "max_steps": 50},
    "gsm8k": {"task": "gsm8k", "lora_r": 16, "lora_alpha": 32, "batch_size": 16},
    "scale-rewards-false": {"scale_rewards": "none"},
    "no-scale-rewards": {"scale_rewards": "none", "bf16": True, "num_epochs": 10},
}


def command(name: str) -> list[str]:
    """The arguments of `flatline` that a seed's line means."""
    words = shlex.split(SEEDS[name].replace("\\\n", " "))
    script = next(i for i, word in enumerate(words) if word.endswith(".py"))
    task = Path(words[script]).stem.removeprefix("train_")
    assert words[script + 1] == "train"
    return ["train", task, *words[script + 2 :]]


def flatline(*arguments: str):
    return CliRunner().invoke(cli.app, list(arguments))


@pytest.mark.parametrize("name", SEEDS)
def test_a_seeds_line_prints_its_effective_config(name):
    result = flatline(*command(name), "--dry-run", "--json")
    assert result.exit_code == 0, result.output
    planned = json.loads(result.stdout)
    assert EXPECTED[name].items() <= planned["config"].items()
    assert planned["trl"]["loss_type"] == "grpo"
    assert planned["cost"]["completions_per_step"] > 0


@pytest.mark.parametrize("name", ["no-peft", "no-scale-rewards"])
def test_a_seeds_line_trains_in_the_lab(name, tmp_path):
    lab = ["--model", "lab", "--datasets", "lab,,train[:32]", "--max-steps", "1"]
    small = ["--eval-datasets", "lab,,validation[:2]", "--output-dir", str(tmp_path), "--json"]
    result = flatline(*command(name), *lab, *small)
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert printed["steps"] == 1
    assert printed["after"]["n"] == 2
    assert (tmp_path / "model").is_dir()


def test_a_dry_run_of_the_lab_shows_the_trainer_as_it_is_and_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = ["--datasets", "lab,,train[:16]", "--eval-datasets", "lab,,validation[:4]"]
    result = flatline("train", "musique", *data, "--kl-beta", "0.1", "--dry-run", "--json")
    planned = json.loads(result.stdout)
    assert planned["trl"]["output_dir"] == planned["config"]["output_dir"] == "outputs"
    effective = planned["effective"]
    assert effective["lora"]["layers"] == 28
    assert effective["reference"] == "the policy with its adapter off"
    assert effective["sizes"]["prompts_per_step"] == 8
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["chess"], "musique, gsm8k, toolmath"),
        (["musique", "--batch-size", "12", "--dry-run"], "no whole groups"),
        (["musique", "--fault", "nothing"], "No fault is called"),
    ],
)
def test_bad_input_is_a_message_and_exit_code_two(arguments, words):
    result = flatline("train", *arguments)
    assert result.exit_code == 2
    assert words in result.stderr


@pytest.mark.parametrize("words", [("train", "musique", "--dry-run"), ("checkup", "musique")])
@pytest.mark.parametrize("below", ["", "/sub/further"])
def test_a_folder_that_cannot_be_is_refused_as_training_would(words, below, tmp_path):
    (tmp_path / "file").write_text("mine")
    result = flatline(*words, "--output-dir", f"{tmp_path}/file{below}")
    assert result.exit_code == 2
    assert f"--output-dir {tmp_path}/file{below} cannot be written" in result.stderr
    assert (tmp_path / "file").read_text() == "mine"


def test_a_toml_file_gives_the_same_run_as_flags(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('model = "some/model"\nlora_r = 4\nscale_rewards = "batch"\n')
    flags = ["--model", "some/model", "--lora-r", "4", "--scale-rewards", "batch"]
    runs = [
        flatline("train", "musique", *how, "--dry-run", "--json")
        for how in (["--config", str(file)], flags)
    ]
    assert runs[0].stdout == runs[1].stdout != ""
