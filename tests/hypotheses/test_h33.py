"""H33 group-integrity."""

from types import SimpleNamespace

import numpy as np
from tests.hypotheses.edited import levels_of
from tests.traces import healthy_rows, healthy_trace, rollout_rows, run_facts, trace_of

from flatline.hypotheses.base import Level
from flatline.hypotheses.h10_template_drift import TemplateDrift
from flatline.hypotheses.h33_group_integrity import GroupIntegrity
from flatline.live.stage_found import departs, same, unknown
from flatline.live.where.place import Where
from flatline.trace import Trace
from flatline.trace.recorder import Recorder

H = GroupIntegrity()
LINE = Where(file="train.py", line=7, source="return Mine(rows)", function="Mine.sampler")
AS_ASKED = same("rows", "Groups are whole.")
DIFFER = [[0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 0.0]] * 8


def changed(change, steps=6, **settings):
    rows = healthy_rows(steps=steps)
    change(rows["rollouts"])
    return Trace.from_rows(run=run_facts(**settings), **rows)


def order(*, specified=AS_ASKED, **changes):
    facts = {
        "groups_whole": True,
        "groups_per_step": np.full(20, 8),
        "unique_per_step": np.full(20, 8),
        "dataset_size": 1000,
        "visited_share": 1.0,
        "epoch_complete": True,
    }
    found = SimpleNamespace(**{**facts, **changes})
    rows = departs("rows", "") if changes else specified
    return SimpleNamespace(
        data_order=lambda: found,
        trace=healthy_trace(steps=1),
        departures=lambda: {"rows": rows},
        lines_of=lambda stage: (LINE,),
    )


def transpose(rows):
    """Give each rollout of a step the rewards of another, as the wrong layout of a batch does."""
    for step in {row["step"] for row in rows}:
        mine = [row for row in rows if row["step"] == step]
        pay = [(row["reward"], row["parts"], row["advantage"]) for row in mine]
        for at, row in enumerate(mine):
            row["reward"], row["parts"], row["advantage"] = pay[at % 8 * 8 + at // 8]


def test_two_prompts_in_one_group_are_a_fault():
    ids = [f"p{at // 8}" for at in range(64)]
    ids[3] = "stranger"
    assert H.sign(trace_of(DIFFER, prompt_id=ids)).level is Level.FAULT


def test_a_group_of_the_wrong_size_is_a_fault_unless_it_is_in_the_last_step_or_imported():
    rows = rollout_rows(DIFFER[:2], step=1)[:-1] + rollout_rows(DIFFER[:2], step=2)[:-3]
    whole_before = rollout_rows(DIFFER[:2], step=1) + rollout_rows(DIFFER[:2], step=2)[:-3]
    assert H.sign(Trace.from_rows(run=run_facts(), rollouts=rows)).level is Level.FAULT
    assert H.sign(Trace.from_rows(run=run_facts(), rollouts=whole_before)).level is Level.OK
    imported = {**run_facts(), "source": "import:verl"}
    assert H.sign(Trace.from_rows(run=imported, rollouts=rows)).level is Level.OK


def test_a_run_that_was_resumed_with_larger_groups_is_no_fault(tmp_path):
    for size, steps in ((2, (1, 2)), (4, (3, 4))):
        with Recorder(tmp_path, settings={"num_generations": size}) as recorder:
            for step in steps:
                rows = rollout_rows([[0.0, 1.0] * (size // 2)] * 4, step=step)
                recorder.log_rollouts(rows)
    assert H.sign(Trace.open(tmp_path)).level is Level.OK
    with Recorder(tmp_path, settings={"num_generations": 4}) as recorder:
        for step in (5, 6):
            recorder.log_rollouts(rollout_rows([[0.0, 1.0] * 2] * 4, step=step)[:-1])
    assert H.sign(Trace.open(tmp_path)).level is Level.FAULT


def misread(rows):
    for row in rows:
        if row["parts"]["exact_match"]:
            row["parts"] = {"exact_match": 0.0, "format": 1.0}


def test_unrecorded_aliases_and_a_strict_format_are_no_exchange():
    rng = np.random.default_rng(0)

    def lenient(rows):
        for row in rows:
            right = bool(row["parts"]["exact_match"])
            if rng.random() < 0.2:
                row["parts"] = {"exact_match": float(not right)}

    assert H.sign(changed(lenient)).level is not Level.FAULT


def test_advantages_that_do_not_follow_their_rewards_are_suspected():
    rng = np.random.default_rng(0)

    def shuffled(rows):
        for row in rows:
            row["advantage"] = rng.normal()

    assert H.sign(changed(shuffled)).level is Level.SUSPECT


def test_prompts_that_stand_in_a_step_several_times_are_suspected():
    def repeated(rows):
        for row in rows:
            row["prompt_id"] = f"{row['step']}-{row['group'] // 4}"

    found = H.sign(changed(repeated))
    assert found.level is Level.SUSPECT
    assert found.measured.value == 0.75


def test_problems_that_share_their_prompt_cannot_be_told_apart():
    def one_game(rows):
        for row in rows:
            row["prompt_id"] = "Play Wordle like an expert."

    def three_games(rows):
        for row in rows:
            row["prompt_id"] = str(row["group"] % 3)

    for games in (one_game, three_games):
        found = H.sign(changed(games, steps=12))
        assert found.level is Level.UNKNOWN


def one_prompt_of(golds, **settings):
    def alike(rows):
        for row in rows:
            row["prompt_id"] = "same"
            row["gold"] = str(row["group"] % golds)

    return H.sign(changed(alike, **{"prompt_texts": 1, "dataset_size": 64, **settings}))


def few(rows):
    for row in rows:
        row["prompt_id"] = str(row["group"] % 4)


def test_the_probe_reads_the_sampler():
    assert H.probe(order()).level is Level.OK
    mixed = H.probe(order(groups_whole=False))
    assert mixed.level is Level.FAULT and mixed.where == (LINE,)
    assert H.probe(order(unique_per_step=np.full(20, 2))).level is Level.FAULT
    assert H.probe(order(visited_share=0.5)).level is Level.SUSPECT


def test_the_probe_also_looks_at_the_batch_that_was_played():
    subject = order()
    subject.trace = changed(transpose, steps=1)
    assert H.probe(subject).level is Level.FAULT


IN_A_ROW = ("prompt_ids", "ids")


def moved(*, with_advantages=False, ids=lambda ids: ids):
    """Each row is trained in the place of the one eight places before it, in another group."""
    rows = healthy_rows(steps=3)
    for step in range(1, 4):
        rollouts, tokens = (
            [row for row in rows[name] if row["step"] == step] for name in ("rollouts", "tokens")
        )
        had = [{name: np.array(row[name]) for name in IN_A_ROW} for row in tokens]
        for at in range(len(tokens)):  # unlike any other: healthy rows are often the same
            had[at]["ids"] = np.concatenate([had[at]["ids"][:-1], [at]])
        advantages = [row["advantage"] for row in rollouts]
        for at, (rollout, row) in enumerate(zip(rollouts, tokens, strict=True)):
            source = (at + 8) % len(tokens)
            row |= had[source] | {f"sampled_{name}": had[at][name] for name in IN_A_ROW}
            row["ids"] = ids(row["ids"])
            rollout["as_sampled"] = 0
            if with_advantages:
                rollout["advantage"] = advantages[source]
    return Trace.from_rows(run=run_facts(), **rows)


def test_rows_whose_ids_changed_places_without_their_advantages_are_a_fault():
    found = H.sign(moved())
    assert found.level is Level.FAULT and found.proven
    assert {"H10", "H11", "H19", "H20", "H50", "H54", "H57", "H68"} <= set(found.explains)


def test_rows_that_went_with_their_advantages_are_not_said_to_have_left_them():
    assert "another order" not in H.sign(moved(with_advantages=True)).text


def test_ids_that_nobody_sampled_are_no_other_order():
    assert "another order" not in H.sign(moved(ids=lambda ids: ids + 1)).text


def test_a_template_that_is_retrained_is_left_to_h10_where_rows_are_their_own():
    assert TemplateDrift().sign(moved(ids=lambda ids: ids + 1)).proven
    assert not TemplateDrift().sign(moved()).proven


test_levels_of_the_sign = levels_of(H.sign, {
    "rewards that changed places are a fault although they agree with their parts": ("fault",
        lambda: changed(transpose)),
    "one batch is enough to see that rewards changed places": ("fault",
        lambda: changed(transpose, steps=1)),
    "right answers paid as wrong alone are left to h39": ("ok", lambda: changed(misread)),
    "a data set smaller than a step must repeat prompts": ("ok",
        lambda: changed(few, dataset_size=4)),
    "healthy runs of several shapes are whole (2)": ("ok",
        lambda: healthy_trace(steps=3, prompts=2, generations=16)),
    "groups of one": ("unknown",
        lambda: trace_of([[1.0], [0.0]], run=run_facts(num_generations=None))),
})  # fmt: skip


test_levels = levels_of(None, {
    "one prompt for rows with different answers": ("fault", lambda: one_prompt_of(7)),
    "one prompt is no fault where answers agree or more is shown than a text": ("no fault",
        lambda: one_prompt_of(1)),
    "one prompt is no fault where answers agree or more is shown than a text (2)": ("no fault",
        lambda: one_prompt_of(7, prompt_texts=None)),
    "one prompt is no fault where answers agree or more is shown than a text (3)": ("no fault",
        lambda: one_prompt_of(7, prompt_texts=2)),
})  # fmt: skip

test_levels_of_the_probe = levels_of(H.probe, {
    "a next generation that is not as specified is told": ("fault",
        lambda: order(specified=departs("rows",
            "The second generation trains on completions of the one before.", "0"))),
    "a next generation that is not as specified is told (2)": ("ok",
        lambda: order(specified=unknown("rows", "Not specified."))),
})  # fmt: skip
