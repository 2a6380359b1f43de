"""Advice is in the words of the trainer that it is for."""

import ast
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.traces import healthy_rows, run_facts

import flatline.hypotheses
from flatline.config import RunConfig
from flatline.diagnosis.lacking import Origin
from flatline.diagnosis.report import guarded
from flatline.hypotheses import HYPOTHESES
from flatline.hypotheses.base import Hypothesis, Level
from flatline.hypotheses.wording import FLATLINE, PLAIN, TRL, names_of, worded
from flatline.trace import Trace
from flatline.trace.importers import open_log

FOLDER = Path(flatline.hypotheses.__file__).parent


def fixes():
    """Every piece of text that stands in a `fix` of a hypothesis, with its file."""
    for file in sorted(FOLDER.glob("h[0-9]*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            given = isinstance(node, ast.keyword) and node.arg == "fix"
            owned = isinstance(node, ast.Assign) and "fix" in map(ast.unparse, node.targets)
            if given or owned:
                texts = [one.value for one in ast.walk(node.value) if isinstance(one, ast.Constant)]
                yield from ((file.name, text) for text in texts if isinstance(text, str))


def run(**facts):
    return Trace.from_rows(run={**run_facts(), **facts}, **healthy_rows(steps=1))


class Asking(Hypothesis):
    id, name, fix = "H99", "asking", "Lower {beta}, raise {max_completion_length}."

    def sign(self, trace):
        return self.found(Level.FAULT, "Seen.")


def advice(at):
    return guarded(Asking(), Asking().sign, at, origin=Origin.LIVE).fix


@pytest.mark.parametrize("names", [TRL, {}], ids=["TRL", "any trainer"])
def test_no_fix_names_a_flag_of_flatline_to_another_trainer(names):
    said = [(file, worded(text, names)) for file, text in fixes()]
    assert len(said) > len(HYPOTHESES)
    flags = [(file, text) for file, text in said if re.search(r"(?<!\w)--[a-z]", text)]
    assert flags == []
    assert not [text for _, text in said if re.search(r"\{\w", text)]


def test_no_fix_has_a_number_for_a_setting_that_nobody_tried():
    assert not [text for _, text in fixes() if re.search(r"\} to (?!0\b|1\b)[\d.]", text)]


def test_every_name_of_trl_is_one_of_its_arguments():
    from peft import LoraConfig
    from trl import GRPOConfig

    known = {*GRPOConfig.__dataclass_fields__, *LoraConfig.__dataclass_fields__}
    assert {name.strip("`") for name in TRL.values()} - known == {"flatline.checkup(trainer)"}


def test_every_flag_of_flatline_is_one_of_a_run():
    flags = {f"`--{name.replace('_', '-')}`" for name in RunConfig.__dataclass_fields__}
    assert set(FLATLINE.values()) - flags == {"`flatline checkup`"}
    assert set(FLATLINE) <= set(PLAIN)


def test_advice_for_a_trl_trainer_names_its_arguments():
    assert advice(run()) == "Lower `beta`, raise `max_completion_length`."
    assert names_of(SimpleNamespace(ours=False)) == TRL


def test_advice_for_a_run_of_flatline_names_its_flags():
    ours = run(requested=RunConfig().to_dict())
    assert advice(ours) == "Lower `--kl-beta`, raise `--max-new-tokens`."
    assert names_of(SimpleNamespace(ours=True)) == FLATLINE


def test_advice_for_a_log_uses_the_names_of_its_configuration(tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_text("".join(f'{{"step": {i}, "reward": 0.5}}\n' for i in range(1, 5)))
    trace = open_log(log)
    assert advice(trace).startswith("Lower the weight of the KL term")
    trace.run["setting_names"] = {"beta": "actor_rollout_ref.actor.kl_loss_coef"}
    assert advice(trace).startswith("Lower `actor_rollout_ref.actor.kl_loss_coef`")
