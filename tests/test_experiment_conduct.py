import json
from dataclasses import replace

import pytest

from flatline.config import RunConfig
from flatline.errors import ConfigError
from flatline.experiment import Arm, Role, arms_of, conduct, mechanism_of
from flatline.experiment.evidence import Watched
from flatline.experiment.outcome import Sight
from flatline.experiment.runs import job_of
from flatline.verdict import Presence, Ruling
from tests.experiments import COMMAND, Pretended, config_plan, outcome_of, plan_of


def clear(job):
    """The treated arm gains a lot, and H09 is seen in the control only."""
    treated = job.role is Role.TREATED
    gain = 0.3 + 0.02 * (job.seed % 2) if treated else 0.01 * job.seed
    return outcome_of(gain, level="ok" if treated else "fault")


def nothing(job):
    """H09 flips between the arms, and the outcome scatters around no effect."""
    treated = job.role is Role.TREATED
    scatter = (0.06, -0.05, 0.04, -0.06, 0.05, -0.04)[job.seed]
    return outcome_of(scatter if treated else 0.0, level="ok" if treated else "fault")


def carry_out(tmp_path, plan, came_to, **kwargs):
    executor = Pretended(came_to)
    return conduct(plan, tmp_path / plan.name, tmp_path / "runs", executor, **kwargs), executor


def with_negative(plan, **seeds):
    config = replace(plan.treated[0].config, learning_rate=0.0)
    arm = Arm(name="learning-rate-0", role=Role.NEGATIVE, config=config)
    return replace(plan, arms=(*plan.arms, arm), **seeds)


def test_a_clear_effect_stops_at_the_first_look(tmp_path):
    result, executor = carry_out(tmp_path, config_plan(looks=(3, 4, 5)), clear)
    assert result.verdict.ruling is Ruling.VALIDATED
    assert result.looks[-1].seeds == 3
    assert len(executor.started) == 6


def test_no_clear_effect_goes_on_to_the_last_look(tmp_path):
    result, executor = carry_out(tmp_path, config_plan(looks=(3, 4, 6)), nothing)
    assert [look.seeds for look in result.looks] == [3, 4, 6]
    assert result.verdict.ruling is Ruling.INCONCLUSIVE
    assert len(executor.started) == 12


def test_all_arms_of_a_seed_run_before_the_next_seed(tmp_path):
    _, executor = carry_out(tmp_path, with_negative(config_plan(looks=(3,))), clear)
    assert executor.started == [
        ("beta 0.04", 0),
        ("beta 0", 0),
        ("learning-rate-0", 0),
        ("beta 0.04", 1),
        ("beta 0", 1),
        ("beta 0.04", 2),
        ("beta 0", 2),
    ]


def test_the_plan_is_on_disk_before_the_first_run(tmp_path):
    def look(job):
        assert (tmp_path / "h09-beta" / "plan.json").is_file()
        return clear(job)

    carry_out(tmp_path, config_plan(), look)


def test_a_finished_run_is_never_run_again(tmp_path):
    first, _ = carry_out(tmp_path, config_plan(looks=(3, 4)), clear)
    again, executor = carry_out(tmp_path, config_plan(looks=(3, 4)), clear)
    assert executor.started == []
    assert again == first


def test_an_interrupted_experiment_comes_to_the_same_as_one_that_was_not(tmp_path):
    plan = config_plan(looks=(3, 4, 6))
    whole, _ = carry_out(tmp_path / "whole", plan, nothing)
    broken = tmp_path / "broken"
    for most in (2, 3, 4, 20):
        count = iter(range(most))

        def interrupted(job, count=count):
            if next(count, None) is None:
                raise KeyboardInterrupt
            return nothing(job)

        try:
            parts, _ = carry_out(broken, plan, interrupted)
        except KeyboardInterrupt:
            continue
    assert parts.looks == whole.looks
    assert parts.verdict == whole.verdict


def test_a_failed_run_does_not_cost_the_others_and_is_tried_by_the_next_invocation(tmp_path):
    plan = config_plan(looks=(3, 4))

    def one_fails(job):
        return "out of memory" if (job.arm, job.seed) == ("beta 0", 1) else clear(job)

    result, executor = carry_out(tmp_path, plan, one_fails)
    assert executor.started.count(("beta 0", 1)) == 1
    assert result.looks[-1].which == (0, 2, 3)
    assert [run.text for run in result.failed] == ["out of memory"]
    assert result.verdict.ruling is Ruling.VALIDATED
    again, executor = carry_out(tmp_path, replace(plan, name="other"), clear)
    assert executor.started == [("beta 0", 1)]
    assert again.failed == ()


def test_an_arm_of_which_no_run_finishes_is_an_error_with_the_reason(tmp_path):
    def treated_fails(job):
        return "No module named train" if job.role is Role.TREATED else clear(job)

    with pytest.raises(ConfigError, match="No run of 'beta 0' has finished; 2 failed") as error:
        carry_out(tmp_path, config_plan(), treated_fails)
    assert "No module named train" in str(error.value)


def test_a_mechanism_that_is_absent_invalidates_without_further_seeds(tmp_path):
    def absent(job):
        return replace(
            nothing(job), findings={"H09": Sight(level="ok", text="0 hidden.", proven=False)}
        )

    result, executor = carry_out(tmp_path, config_plan(looks=(3, 6)), absent)
    assert result.verdict.ruling is Ruling.INVALIDATED
    assert len(executor.started) == 6


@pytest.mark.parametrize(
    ("levels", "presence"),
    [
        (("fault", "fault", "suspect"), Presence.PRESENT),
        (("fault", "unknown", "note"), Presence.PRESENT),
        (("ok", "ok", "fault"), Presence.ABSENT),
        (("ok", "fault", "unknown"), Presence.UNKNOWN),
        (("note", "unknown", "note"), Presence.UNKNOWN),
    ],
)
def test_a_mechanism_is_what_most_runs_that_can_tell_show(levels, presence):
    plan = config_plan(looks=(3,))
    runs = {("beta 0.04", seed): outcome_of(0.0, level=x) for seed, x in enumerate(levels)}
    assert mechanism_of(plan, runs).control is presence


def test_a_mechanism_is_direct_only_where_every_run_that_shows_it_saw_it_itself():
    plan = config_plan(looks=(3,))
    runs = {("beta 0.04", seed): outcome_of(0.0, level="fault") for seed in range(3)}
    assert mechanism_of(plan, runs).direct
    runs["beta 0.04", 1] = outcome_of(0.0, level="suspect")
    assert not mechanism_of(plan, runs).direct


@pytest.mark.parametrize(
    ("gain", "ruling"),
    [(0.2, Ruling.INCONCLUSIVE), (0.02, Ruling.VALIDATED)],  # the latter is less than matters
)
def test_a_negative_control_that_learns_makes_the_outcome_untrustworthy(tmp_path, gain, ruling):
    def gains(job):
        return outcome_of(gain) if job.role is Role.NEGATIVE else clear(job)

    result, _ = carry_out(tmp_path, with_negative(config_plan(looks=(3,))), gains)
    assert result.verdict.ruling is ruling


def test_negative_controls_run_on_their_own_seeds_within_the_first_batch(tmp_path):
    plan = with_negative(config_plan(looks=(3, 4)), negative_seeds=(0, 7))
    _, executor = carry_out(tmp_path, plan, clear)
    assert [seed for arm, seed in executor.started if arm == "learning-rate-0"] == [0, 7]


def test_of_several_treated_arms_the_one_that_is_validated_speaks(tmp_path):
    _, arms = arms_of(COMMAND, "kl_beta=0.04,0.001,0.0")

    def last_helps(job):
        helps = job.arm == "kl_beta 0.0"
        level = "fault" if job.role is Role.CONTROL else "ok"
        return outcome_of((0.3 if helps else 0.0) + 0.003 * job.seed**2 * helps, level=level)

    result, _ = carry_out(tmp_path, plan_of(arms, looks=(4, 5)), last_helps)
    assert result.looks[-1].arm == "kl_beta 0.0"
    assert result.verdict.ruling is Ruling.VALIDATED


def test_an_outcome_that_no_run_records_is_an_error_that_lists_what_is(tmp_path):
    with pytest.raises(ConfigError, match="it records: heldout_reward, reward") as error:
        carry_out(tmp_path, config_plan(outcome="metric:accuracy"), clear)
    assert "metric:accuracy" in str(error.value)


def test_a_metric_of_which_less_is_better_is_read_with_its_sign_turned(tmp_path):
    def loss(job):
        known = clear(job)
        return replace(known, outcomes={"metric:loss": known.outcomes["reward"]})

    more = carry_out(tmp_path / "more", config_plan(outcome="metric:loss"), loss)[0].verdict
    less = carry_out(tmp_path / "less", config_plan(outcome="metric:-loss"), loss)[0].verdict
    assert more.effect.value > 0
    assert less.effect.value == -more.effect.value
    assert (less.effect.low, less.effect.high) == (-more.effect.high, -more.effect.low)
    assert more.ruling is not less.ruling


def test_arms_with_different_problems_are_refused(tmp_path):
    def other(job):
        return replace(clear(job), problems_digest=job.arm)

    with pytest.raises(ConfigError, match="different held-out problems"):
        carry_out(tmp_path, config_plan(), other)


def test_runs_recorded_into_one_folder_are_refused_and_made_again(tmp_path):
    def same(job):
        return replace(clear(job), trace=str(tmp_path / "one"))

    with pytest.raises(ConfigError, match="same folder") as error:
        carry_out(tmp_path, config_plan(), same)
    assert "{run_dir}" in str(error.value)
    assert not list((tmp_path / "runs").rglob("outcome.json"))


def test_the_result_on_disk_has_the_shape_that_other_parts_read(tmp_path):
    carry_out(tmp_path, config_plan(looks=(3, 4)), clear)
    found = json.loads((tmp_path / "h09-beta" / "result.json").read_text())
    plan = json.loads((tmp_path / "h09-beta" / "plan.json").read_text())
    assert found["plan"] == plan["digest"]
    assert found["verdict"]["verdict"] == "validated"
    assert found["looks"][0]["effect"]["n"] == 3
    first = found["runs"][0]
    assert first["folder"].startswith("../runs/")
    assert (first["arm"], first["status"], first["level"]) == ("beta 0.04", "finished", "fault")
    assert first["after"] - first["before"] == pytest.approx(first["value"])


OK, ALARM, LOST = (
    Sight(level=level, text=f"It is {level}.", proven=False) for level in ("ok", "fault", "unknown")
)


@pytest.mark.parametrize(
    "signs, probe, presence, direct",
    [
        ([LOST, LOST], OK, Presence.ABSENT, True),
        ([LOST, LOST], ALARM, Presence.PRESENT, True),
        ([OK, OK], OK, Presence.ABSENT, True),
        ([OK, OK], None, Presence.ABSENT, False),
        ([OK, OK], ALARM, Presence.PRESENT, True),
        ([ALARM, ALARM], OK, Presence.PRESENT, True),  # seen in the runs, and a broken invariant
        ([LOST], LOST, Presence.UNKNOWN, False),
    ],
)
def test_a_checkup_tells_what_the_runs_cannot(signs, probe, presence, direct):
    watched = Watched("as it is", signs, probe)
    assert (watched.presence, watched.direct) == (presence, direct)


def test_a_config_reaches_the_run_through_a_file_that_can_be_read_back(tmp_path):
    from flatline.config import load_config

    odd = 'a "quoted"\\path\x7f,é'
    config = RunConfig(max_steps=60, kl_beta=0.04, datasets=odd, learning_rate=1e-5)
    arm = Arm(name="a", role=Role.CONTROL, config=config)
    job = job_of(arm, 3, tmp_path)
    (tmp_path / "c.toml").write_text(job.config)
    expected = replace(config, seed=3, output_dir=job.folder)
    assert load_config(tmp_path / "c.toml") == expected
    assert job.steps == 60
