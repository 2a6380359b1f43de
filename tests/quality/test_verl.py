"""verl 0.9.1 as it is, on a CPU: its own trainer recorded, its own engine under a checkup."""

import pytest

from flatline.diagnosis.report import diagnose
from flatline.hypotheses.base import ALARMS
from flatline.trace import Trace
from tests.quality.report import report
from tests.verl_lab.launch import FAULTS, GROUP, NAMED, PACKAGES, PROMPTS, launch, look

STEPS = 12
here = pytest.mark.skipif(
    not (PACKAGES / "verl").is_dir(), reason="verl is not here; `make verl` fetches it"
)
pytestmark = here


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    return Trace.open(launch(tmp_path_factory.mktemp("healthy"), steps=STEPS))


def test_every_step_of_verls_trainer_is_recorded(healthy):
    assert healthy.steps["step"].tolist() == list(range(1, STEPS + 1))
    assert len(healthy.rollouts["reward"]) == STEPS * PROMPTS * GROUP
    assert set(healthy.groups().size) == {GROUP}
    for column in ("logprob_gap", "kl", "loss", "grad_norm", "learning_rate", "entropy"):
        assert column in healthy.steps


def test_sampler_and_trainer_agree_to_rounding(healthy):
    """Which also says that each log-prob was heard for its own token."""
    assert max(healthy.steps["logprob_gap_max"]) < 1e-4


def test_all_weights_are_sent_to_the_rollout_server_after_every_update(healthy):
    shares = [row.get("flatline/sent_changed_share") for row in healthy.steps["metrics"]]
    assert shares[1:] == [1.0] * (STEPS - 1)


def test_a_healthy_run_is_diagnosed_without_an_alarm(healthy):
    found = diagnose(healthy, correct="correct")
    assert not found.alarms
    ruled_out = sum(one.level.value == "ok" for one in found.findings)
    report(f"verl live, healthy: {ruled_out} of {len(found.findings)} causes ruled out")
    assert ruled_out >= 30


@pytest.mark.parametrize("fault", [name for name in FAULTS if name])
def test_a_planted_defect_is_named_first_from_the_recording(tmp_path, fault):
    found = diagnose(str(launch(tmp_path, steps=STEPS, fault=fault)), correct="correct")
    assert found.alarms[0].hypothesis in NAMED[fault]
    report(f"verl live, {fault}: {found.alarms[0].hypothesis} {found.alarms[0].text}")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_checkup_of_the_engine_names_the_defect_and_changes_no_bit(tmp_path, fault):
    found = look(tmp_path, fault=fault)
    alarms = [one for one in found["findings"] if one["level"] in {a.value for a in ALARMS}]
    assert found["same_bits"]
    if not fault:
        assert not alarms
    else:
        assert alarms[0]["hypothesis"] in NAMED[fault]
    report(f"verl checkup, {fault or 'healthy'}: {[one['hypothesis'] for one in alarms]}")
