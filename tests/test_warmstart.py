"""Warm starts: which problems are used, what is learnt, what is left behind."""

import json
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from flatline import cli
from flatline.config import RunConfig
from flatline.evaluate import evaluate
from flatline.rollout.chat import ChatFormat
from flatline.rollout.record import Author
from flatline.tasks import make_task
from flatline.training.models import load_policy
from flatline.training.scripted import ScriptedPlay
from flatline.training.warmstart_fit import IGNORED, fit, row_of
from flatline.training.warmstart_rest import write_rest
from tests import musique_rows, tiny

DATA = ["--datasets", "lab,,train[:24]", "--eval-datasets", "lab,,validation[:6]"]
SMALL = ["--steps", "2", "--batch-size", "4", "--eval-samples", "2", "--lora-r", "8", "--json"]


def flatline(*arguments: str):
    return CliRunner().invoke(cli.app, list(arguments))


def toy_play(question: str, answer: str, calls: int = 1):
    tokenizer, task = tiny.tokenizer_with(), tiny.ToyTask()
    chat = ChatFormat(tokenizer, task.tools)
    play = ScriptedPlay(chat, task, tiny.problem(question=question))
    for _ in range(calls):
        play.call(tiny.ToolCall(name="look", arguments={"query": question}))
    return play.finish(answer)


def silent(*_) -> None:
    """Nobody watches."""


def test_only_tokens_that_the_player_wrote_have_a_label():
    play = toy_play("Who?", "It is the one.")
    row = row_of(play)
    ids = [*play.prompt_ids, *play.completion_ids]
    authors = [Author.PROMPT] * len(play.prompt_ids) + play.authors
    assert row["input_ids"] == ids
    assert {Author.TOOL, Author.TEMPLATE} <= set(authors)
    for id, label, author in zip(ids, row["labels"], authors, strict=True):
        assert label == (id if author is Author.MODEL else IGNORED)


def test_the_loss_is_the_mean_surprise_at_the_players_tokens_whatever_the_padding(tmp_path):
    plays = [toy_play("Who?", "x"), toy_play("Who is the tallest of them all?", "It is y.", 2)]
    model = tiny.tiny_model()
    expected, count = 0.0, 0
    for play in plays:
        ids = [*play.prompt_ids, *play.completion_ids]
        with torch.no_grad():
            logps = model(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
        for at, author in enumerate(play.authors, len(play.prompt_ids)):
            if author is Author.MODEL:
                expected -= float(logps[at - 1, ids[at]])
                count += 1
    config = RunConfig(batch_size=2, output_dir=str(tmp_path))
    losses = fit(model, plays, config, steps=1, rate=0.0, on_step=silent)
    assert losses[0] == pytest.approx(expected / count, rel=1e-4)


@pytest.mark.parametrize("name", ["musique", "gsm8k", "toolmath"])
def test_the_rest_reads_back_as_the_problems_that_were_not_used(name, tmp_path):
    config = RunConfig(task=name, datasets="lab,,train[:12]")
    task = make_task(name)
    problems = task.load(config.datasets, split="train")
    used = {problem.id for problem in problems[:4]}
    spec = write_rest(config, used, tmp_path)
    back = task.load(spec, split="train")
    left = {problem.question: problem for problem in problems if problem.id not in used}
    assert len(back) == len(left) == 8
    for problem in back:
        assert replace(problem, id=left[problem.question].id) == left[problem.question]


@pytest.mark.parametrize("how", ["--peft", "--no-peft"])
def test_the_saved_model_is_the_one_that_was_evaluated_and_training_starts_from_it(tmp_path, how):
    folder = tmp_path / "warm"
    result = flatline("warmstart", "musique", *DATA, *SMALL, how, "--output-dir", str(folder))
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert printed["steps"] == 2
    assert printed["after"]["entropy"]["n"] == 6
    record = json.loads((folder / "warmstart.json").read_text())
    rest = [json.loads(line)["id"] for line in (folder / "rest.jsonl").read_text().splitlines()]
    assert not set(record["used"]) & set(rest)
    assert len(set(record["used"]) | set(rest)) == 24

    replayed = _score(str(folder / "model"))
    assert replayed == pytest.approx(printed["after"]["parts"]["combined"]["value"], abs=1e-6)
    assert {p.name for p in (folder / "model").iterdir()} >= {"model.safetensors", "config.json"}

    more = flatline(
        *["train", "musique", "--model", printed["model"], "--datasets", printed["rest"]],
        *["--eval-datasets", "lab,,validation[:4]", "--batch-size", "8", "--num-generations", "4"],
        *["--max-steps", "1", "--output-dir", str(tmp_path / "run"), "--json"],
    )
    assert more.exit_code == 0, more.output
    assert json.loads(more.stdout)["steps"] == 1


def _score(model: str) -> float:
    from flatline.rollout.engine import Engine, Limits
    from flatline.rollout.sampling import Sampling

    policy, task = load_policy(model), make_task("musique")
    engine = Engine(
        policy.model,
        policy.tokenizer,
        task,
        sampling=Sampling(),
        limits=Limits(max_new_tokens=96),
        max_batch=256,
    )
    problems = task.load("lab,,validation[:6]", split="validation")
    return evaluate(problems, engine, samples=2).parts["combined"].value


def test_a_finished_warm_start_is_not_overwritten(tmp_path):
    (tmp_path / "warmstart.json").write_text("{}")
    result = flatline("warmstart", "musique", *DATA, "--output-dir", str(tmp_path))
    assert result.exit_code == 2
    assert "holds a finished warm start" in result.stderr


def test_a_template_without_tools_that_the_model_brought_is_replaced_and_saved(tmp_path):
    """The model would else be served in another format than the one it was taught."""
    source = tmp_path / "tiny"
    tokenizer = tiny.tokenizer_with(None)
    tokenizer.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
    )
    tokenizer.save_pretrained(source)
    tiny.tiny_model(vocab=len(tokenizer), max_position_embeddings=4096).save_pretrained(source)
    data = musique_rows.write(tmp_path / "m.jsonl", musique_rows.row())
    result = flatline(
        *["warmstart", "musique", "--model", str(source), "--datasets", data, "--eval-limit", "0"],
        *["--share", "1", "--steps", "1", "--batch-size", "1", "--max-new-tokens", "400"],
        *["--lora-r", "2", "--json", "--output-dir", str(tmp_path / "out")],
    )
    assert result.exit_code == 0, result.output
    assert "chat template without tools" in result.stderr
    saved = load_policy(str(tmp_path / "out" / "model")).tokenizer
    assert ChatFormat(saved, make_task("musique").tools).notice is None
    assert json.loads(result.stdout)["rest"] is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--share", "0"], "--share 0.0 must be above 0"),
        (["--eval-datasets", "lab,,train[:6]"], "6 of 6 held-out problems are training problems"),
        (["--chat-template", "plain.jinja"], "chat template without tools"),
        (["--datasets", "flat.jsonl"], "question_decomposition"),
    ],
)
def test_bad_input_is_a_message_and_exit_code_two(arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain.jinja").write_text(
        "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"
    )
    row = {k: v for k, v in musique_rows.row().items() if k != "question_decomposition"}
    musique_rows.write(tmp_path / "flat.jsonl", row)
    result = flatline("warmstart", "musique", *DATA, *SMALL, "--output-dir", "out", *arguments)
    assert result.exit_code == 2, result.output
    assert words in result.stderr
    assert not (tmp_path / "out" / "warmstart.json").exists()
