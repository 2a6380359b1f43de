"""One real step of a user's trainer beside the specified one: silent where it is healthy, the first
stage that departs where it is not, and nothing left changed."""

import gc
import inspect
import math
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from trl import GRPOTrainer
from trl.trainer import grpo_trainer
from trl.trainer.utils import RepeatSampler

from flatline.bench.mutants.planting import Ground
from flatline.hypotheses import find
from flatline.hypotheses.base import Level
from flatline.live.departure.loss import CORRECTION, Pass, judge_correction, judge_loss, ways_apart
from flatline.live.trl.departure.asked import asked_of
from flatline.live.trl.departure.data import rows_of
from flatline.live.trl.departure.gold import _shifted
from flatline.live.trl.departure.next_rows import _length_departs, _shuffles, early_end
from flatline.live.trl.departure.sampled import Sampled, judge_drawing, judge_limit
from flatline.live.trl.departure.scored import sampling_hooks
from flatline.live.trl.departure.stages import _dealt
from flatline.live.trl.measure.order import short_step
from flatline.live.trl.subject import TrlSubject
from flatline.spec import STAGES, Asked
from flatline.spec.numerics import TOLERANCE

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))

import foreign_script
from family import healthy as rloo
from foreign_faults import FAULTS, faulty
from foreign_script import build, correct, script_of

torch.set_num_threads(1)
foreign_script.ADAPTED = ["q_proj", "v_proj"]  # on all seven of a block, half of a pass is theirs


def departures(trainer):
    subject = TrlSubject(trainer)
    with subject.standing_still():
        found = subject.departures()
    assert tuple(found) == STAGES
    return found


def departing(found) -> list[str]:
    return [stage for stage, one in found.items() if one.departs]


def made(kind, name="grpo"):
    """A trainer of a script with a class of its author's own."""
    script = script_of(name)
    script.trainer = kind
    return build(script)


@pytest.mark.parametrize(
    "setting",
    ["grpo", "full", "two-iterations", "cut-masked", "vespo", "entropy-bonus", "off-policy-masked"],
)
def test_a_healthy_step_is_the_specified_one_at_every_stage(setting):
    found = departures(build(script_of(setting)))
    assert {stage for stage, one in found.items() if one.departs is not False} == set()


@pytest.mark.parametrize(
    "name",
    [
        "prompts-lowercased",
        "padded-on-the-right",
        "mask-shifted-when-cut",
        "second-weight-ignored",
        "gold-of-the-next-row",
        "batch-baseline",
        "reference-is-the-policy",
        "divided-by-the-limit",
        "weights-restored",
        "sampler-at-half-scale",
    ],
)
def test_the_first_stage_that_departs_is_where_the_fault_is(name):
    expected = next(one.stage for one in FAULTS if one.name == name)
    assert departing(departures(build(faulty(name))))[0] == expected


@pytest.mark.skipif(sys.gettrace() is not None, reason="a debugger or coverage is following")
@pytest.mark.parametrize("name", ["only-praise", "clip-bounds-swapped", "sign-flipped"])
def test_the_first_line_that_is_named_is_in_the_users_own_fault(name):
    fault = next(one for one in FAULTS if one.name == name)
    trainer = build(faulty(name))
    before, drawn = state_of(trainer), torch.get_rng_state()
    subject = TrlSubject(trainer)
    with subject.standing_still():
        found = subject.departures()
        where = subject.lines_of(found[fault.stage])
    assert departing(found)[0] == fault.stage
    lines, start = inspect.getsourcelines(fault.plant)
    assert where[0].file.endswith("foreign_faults.py")
    assert where[0].line in range(start, start + len(lines))
    assert where[0].source in "".join(lines)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert all(map(torch.equal, before, state_of(trainer)))


def state_of(trainer):
    return [weight.detach().clone() for weight in trainer.model.parameters()]


def test_what_is_drawn_from_is_what_the_model_makes_of_its_heads_logits():
    class Scaled(torch.nn.Module):
        """As Cohere's and Granite's models do."""

        def __init__(self):
            super().__init__()
            self.lm_head = torch.nn.Linear(4, 6)

        def forward(self, hidden):
            return SimpleNamespace(logits=self.lm_head(hidden) / 8)

    model, hidden = Scaled(), torch.randn(2, 3, 4)
    with sampling_hooks(model) as heard:
        found = model(hidden)
    assert torch.equal(heard[0], found.logits[:, -1])
    model(hidden)
    assert len(heard) == 1


def test_a_sampler_that_always_takes_the_likeliest_token_departs():
    trainer = build(script_of("grpo"))
    trainer.generation_config.do_sample = False
    assert departing(departures(trainer))[0] == "completions"


def test_passes_that_count_twice_train_on_rows_that_are_dealt_out_wrongly():
    """As RLOO of TRL 0.26: counted where rows are dealt out and where the pass is over."""
    trainer = build(script_of("grpo"))
    prepare = trainer._prepare_inputs

    def counting(rows):
        found = prepare(rows)
        trainer._step += 1
        return found

    trainer._prepare_inputs = counting
    assert departing(departures(trainer))[0] == "rows"


def test_a_sampler_that_gives_prompts_and_completions_alone_is_known():
    trainer = build(script_of("grpo"))
    asked = asked_of(trainer, 4)
    for result in (([[5]], [[6, 7]]), ([[5]], [[6, 7]], 2), ([[5]], [[6, 7]], None, [{}])):
        rows = rows_of(trainer, asked, SimpleNamespace(generated=SimpleNamespace(result=result)))
        assert [(row.prompt, row.completion) for row in rows] == [([5], [6, 7])]


def test_the_trainer_is_left_as_it_was():
    trainer = build(script_of("two-iterations"))
    weights = [weight.detach().clone() for weight in trainer.model.parameters()]
    functions, limit = list(trainer.reward_funcs), trainer.generation_config.max_new_tokens
    arguments, drawn = dict(vars(trainer.args)), torch.get_rng_state()
    held = set(vars(trainer))
    TrlSubject(trainer).departures()
    now = list(trainer.model.parameters())
    assert all(torch.equal(a, b) for a, b in zip(weights, now, strict=True))
    assert all(weight.grad is None for weight in now)
    assert trainer.reward_funcs == functions
    assert trainer.generation_config.max_new_tokens == limit
    assert trainer.generation_kwargs["max_new_tokens"] == limit
    assert vars(trainer.args) == arguments and set(vars(trainer)) == held
    assert torch.equal(torch.get_rng_state(), drawn)
    assert trainer.optimizer is None and trainer.lr_scheduler is None


def test_what_is_not_specified_is_unknown_and_not_wrong():
    script = script_of("grpo")
    script.asked |= {"use_adaptive_entropy": True, "entropy_coef": 0.01}
    found = departures(build(script))
    assert departing(found) == []
    assert found["loss"].departs is None and found["advantages"].departs is False


def test_an_argument_without_a_definition_is_named():
    trainer = build(script_of("grpo"))
    trainer.args.use_liger_kernel = True
    assert asked_of(trainer, 4).besides == ("a fused loss",)


def test_ratios_are_put_on_both_sides_of_the_clip_and_between():
    asked = Asked(group=2, rows_in_pass=2, longest=8, clip_low=0.1, clip_high=0.3)
    above, below, *between = (math.exp(way) for way in ways_apart(asked, TOLERANCE["fp32"]))
    assert above > 1.3 and below < 0.9
    assert [0.9 < one < 1.3 for one in between] == [True, True]
    assert max(between) > 1.1, "exchanged bounds would stop it"
    narrow = Asked(group=2, rows_in_pass=2, longest=8, clip_low=3e-4, clip_high=4e-4)
    assert len(ways_apart(narrow, TOLERANCE["bf16"])) == 2


@pytest.mark.parametrize(
    ("passes", "in_generation", "rows", "expected"),
    [
        (2, 2, 8, (2, 2)),
        (16, 16, 8, (8, 8)),
        (2, 4, 8, (2, 4)),
        (3, 3, 8, (1, 1)),
        (4, 1, 8, (4, 4)),
    ],
)
def test_few_rows_are_dealt_out_as_nearly_as_asked(passes, in_generation, rows, expected):
    args = SimpleNamespace(gradient_accumulation_steps=passes, steps_per_generation=in_generation)
    assert _dealt(args, rows) == expected


def test_gold_of_few_values_matches_a_neighbour_by_chance():
    """Yes or no: any row's gold pays as often as the neighbour's."""

    def either(offset, group):
        return [0.0, 0.0, 0.0, 0.0] if offset == 0 else [1.0, 1.0, 1.0, 0.0]

    def shifted(offset, group):
        return [1.0, 1.0, 1.0, 0.0] if offset == -1 else [0.0] * 4

    assert _shifted("correct", either, 4) is None
    found = _shifted("correct", shifted, 4)
    assert found is not None and 0 < found.by_chance < 1e-3 and "before" in found.text


class Quantised(torch.nn.Module):
    """A linear layer of which only 8-bit numbers are kept, as a base under adapters may have it."""

    def __init__(self, linear):
        super().__init__()
        self.scale = linear.weight.detach().abs().amax(1, keepdim=True) / 127
        rounded = (linear.weight.detach() / self.scale).round().to(torch.int8)
        self.weight = torch.nn.Parameter(rounded, requires_grad=False)
        self.in_features, self.out_features = linear.in_features, linear.out_features

    def forward(self, x):
        return x @ (self.weight.to(x.dtype) * self.scale.to(x.dtype)).T


def quantised(trainer):
    """Every layer that carries an adapter, as QLoRA has them."""
    for module in trainer.model.modules():
        if hasattr(module, "lora_A"):
            module.base_layer = Quantised(module.base_layer)
    return trainer


def test_a_quantised_base_is_looked_at_like_any_other():
    found = departures(quantised(build(script_of("grpo"))))
    assert departing(found) == []
    assert {stage for stage, one in found.items() if one.departs is None} <= {"update"}


def test_a_fault_over_a_quantised_base_is_named_at_its_stage():
    assert departing(departures(quantised(build(faulty("sign-flipped")))))[0] == "gradient"


def paying(*functions, rows=None):
    """A healthy script with other reward functions."""
    script = script_of("grpo")
    script.rewards = list(functions)
    script.rows = rows or script.rows
    return departures(build(script))["rewards"]


def test_gold_that_no_answer_can_match_is_suspected():
    rows = script_of("grpo").rows
    for row in rows[::8]:
        row["answer"] += " units"
    found = paying(correct, rows=rows)
    assert found.departs and found.by_chance, "another reason is possible"
    assert "8 of 64 rows" in found.text and "units" in found.examples[0]


def lengths_of(completions):
    return [float(len(one[0]["content"])) for one in completions]


def above_average_of_the_batch(completions, **_):
    lengths = lengths_of(completions)
    return [length - sum(lengths) / len(lengths) for length in lengths]


def shortest_of_its_group(completions, **_):
    lengths = lengths_of(completions)
    groups = [lengths[k : k + 4] for k in range(0, len(lengths), 4)]
    return [float(length == min(group)) for group in groups for length in group]


LOTS = torch.Generator().manual_seed(0)


def by_lot(completions, **_):
    return torch.rand(len(completions), generator=LOTS).tolist()


@pytest.mark.parametrize("function", [above_average_of_the_batch, shortest_of_its_group, by_lot])
def test_a_reward_that_compares_prompts_of_the_batch_is_suspected_and_no_other(function):
    found = paying(function)
    assert found.departs is bool(found.by_chance) is (function is above_average_of_the_batch)


def rows_found(trainer):
    return departures(trainer)["rows"]


def test_a_buffer_that_is_never_filled_again_departs_at_the_rows():
    class Mine(GRPOTrainer):
        def _prepare_inputs(self, rows):
            self._step = self._step % self.args.steps_per_generation or bool(self._buffered_inputs)
            return super()._prepare_inputs(rows)

    subject = TrlSubject(made(Mine))
    with subject.standing_still():
        assert subject.departures()["rows"].departs
        assert find("H33").probe(subject).level is Level.FAULT


def test_a_count_of_passes_that_does_not_begin_with_0_departs():
    trainer = build(script_of("grpo"))
    trainer._step = 1
    assert rows_found(trainer).departs


def as_sampled(rows):
    return rows


@pytest.fixture
def library(request):
    """A module in which one change can be planted: its tree takes one at most."""
    gc.unfreeze()  # conftest froze what it imported, and functions are looked for
    ground = Ground(request.param)
    gc.collect()
    gc.freeze()  # else every training of the tests to come looks through all of it
    yield ground
    ground.clear()


def two_steps():
    return build(script_of("two-steps-a-generation"))


CHANGED = {
    "a dataset that is repeated as a stream would be": (
        *("trl.trainer.grpo_trainer", lambda: build(script_of("grpo")), "rows"),
        *("GRPOTrainer.get_train_dataloader", "if isinstance(dataset, IterableDataset)", ""),
    ),
    "a sampler that is not told the seed": (
        *("trl.trainer.grpo_trainer", lambda: build(script_of("grpo")), "rows"),
        *("GRPOTrainer._get_train_sampler", "RepeatSampler(data_source", "shuffle_dataset)"),
    ),
    "a sampler that makes no use of the seed": (
        *("trl.trainer.utils", lambda: build(script_of("grpo")), "rows"),
        *("RepeatSampler.__iter__", "if self.shuffle", "if not"),
    ),
    "a sampler that keeps another number than it is told": (
        *("trl.trainer.utils", lambda: build(script_of("grpo")), "rows"),
        *("RepeatSampler.__init__", "mini_repeat_count", "repeat_count"),
    ),
    "a generation that is not shuffled": (
        *("trl.trainer.grpo_trainer", two_steps, "rows"),
        *("GRPOTrainer._prepare_inputs", "generation_batch = shuffle_sequence_dict(", ""),
    ),
    "prompts that are repeated for the steps of an evaluation": (
        *("trl.trainer.grpo_trainer", two_steps, "rows"),
        *("GRPOTrainer._get_train_sampler", "self.num_iterations *", "self.num_iterations"),
    ),
    "a loader that takes a pass for a generation": (
        *("trl.trainer.grpo_trainer", two_steps, "rows"),
        *("GRPOTrainer.get_train_dataloader", "self._train_batch_size *", "self._train_batch_size"),
    ),
    "a KL that is not added": (
        *("trl.trainer.grpo_trainer", lambda: build(script_of("grpo")), "ratio and KL"),
        *("GRPOTrainer._compute_loss", "per_token_loss = per_token_loss + self.beta", ""),
    ),
    "weights of rewards that are not taken": (
        *("trl.trainer.grpo_trainer", lambda: build(script_of("two-rewards-weighted")), "rewards"),
        *("GRPOTrainer.__init__", "if args.reward_weights is not None", "if not"),
    ),
    "advantages of RLOO that are turned": (
        *("trl.trainer.rloo_trainer", lambda: rloo("rloo"), "advantages"),
        *("RLOOTrainer._generate_and_score_completions", "rewards - baselines", "-("),
    ),
    "old log-probs of RLOO that are none": (
        *("trl.trainer.rloo_trainer", lambda: rloo("two-iterations"), "log-probs"),
        *("RLOOTrainer._generate_and_score_completions", "old_per_token_logps * c", "completion"),
    ),
    "a loss of RLOO without advantages": (
        *("trl.trainer.rloo_trainer", lambda: rloo("rloo"), "loss"),
        *("RLOOTrainer._compute_loss", "coef_1 * advantages", "coef_1 /"),
    ),
}
"""What is changed in the library -> module, a trainer, the stage, function, beginning of the text
before, and what it becomes or a part of that."""


@pytest.mark.parametrize(
    ("library", "case"),
    [(case[0], case) for case in CHANGED.values()],
    ids=CHANGED,
    indirect=["library"],
)
def test_the_changed_line_of_the_library_is_among_those_shown_and_its_function_first(library, case):
    _, made, stage, function, before, after = case
    possible = [
        one
        for one in library.sites.at(range(1, 9999))
        if one.function == function and one.before.startswith(before) and after in one.after
    ]
    change = min(possible, key=lambda one: one.after != after)
    library.plant(change)
    subject = TrlSubject(made())
    with subject.standing_still():
        found = subject.departures()[stage]
        where = subject.lines_of(found)
    library.clear()
    assert found.departs and where[0].function == function
    assert {change.line, library.sites.statement(change)} & {place.line for place in where}


def test_who_deals_out_in_a_way_of_their_own_need_not_shuffle(monkeypatch):
    class Mine(GRPOTrainer):
        def _prepare_inputs(self, rows):
            return super()._prepare_inputs(rows)

    monkeypatch.setattr(grpo_trainer, "shuffle_sequence_dict", as_sampled)
    assert not rows_found(made(Mine, "two-steps-a-generation")).departs


@pytest.mark.parametrize(("helper", "shuffles"), [("shuffle_tensor_dict", True), ("other", False)])
def test_a_release_of_trl_that_does_not_shuffle_yet_is_not_asked_to(monkeypatch, helper, shuffles):
    release = ModuleType("trl.trainer.of_a_release")
    setattr(release, helper, as_sampled)
    monkeypatch.setitem(sys.modules, release.__name__, release)

    def _prepare_inputs(self, rows):
        return rows

    _prepare_inputs.__module__ = release.__name__
    trainer = type("GRPOTrainer", (), {"_prepare_inputs": _prepare_inputs})()
    assert _shuffles(trainer) is shuffles


def test_a_prompt_that_is_marked_with_other_numbers_than_1_departs():
    class Mine(GRPOTrainer):
        def _generate_and_score_completions(self, rows):
            found = super()._generate_and_score_completions(rows)
            return {**found, "prompt_mask": found["prompt_mask"] * found["prompt_ids"]}

    assert departing(departures(made(Mine)))[0] == "prompts"


def of_length(told, steps):
    """32 rows an epoch, of which a step takes 8."""

    class Told(RepeatSampler):
        __module__ = "trl.trainer.utils"

        def __len__(self):
            return told

    args = {"train_batch_size": 4, "steps_per_generation": 1, "gradient_accumulation_steps": 2}
    return SimpleNamespace(
        _get_train_sampler=lambda: Told(range(8), 4, batch_size=2, shuffle=False),
        args=SimpleNamespace(max_steps=steps, world_size=1, **args),
    )


@pytest.mark.parametrize(
    ("told", "steps", "departs"),
    [(32, 9, False), (8, 9, True), (39, -1, False), (64, -1, True), (64, 9, False), (16, 2, False)],
)
def test_an_epoch_ends_where_it_says(told, steps, departs):
    assert (_length_departs(of_length(told, steps)) is not None) == departs


@pytest.mark.parametrize(
    ("told", "steps", "noted"),
    [(16, 2, True), (16, 3, False), (16, -1, False), (32, 2, False), (64, 2, False)],
)
def test_an_epoch_that_is_too_short_is_noted_where_the_run_ends_before(told, steps, noted):
    found = early_end(of_length(told, steps))
    assert (found is not None) == noted
    assert not noted or (found.departs is False and found.added)


@pytest.mark.parametrize("setting", ["no-shuffle", "two-steps-a-generation", "a-generation-a-pass"])
def test_the_order_of_the_file_and_several_steps_a_generation_are_as_asked(setting):
    assert rows_found(build(script_of(setting))).departs is False


def drawn(temperature=1.0, limit=64, **choosing):
    return Sampled([], [], [], [], temperature, limit, choosing)


@pytest.mark.parametrize(
    ("told", "asked", "departs"),
    [
        ({"top_p": 0}, {"top_p": 1.0}, True),
        ({"top_p": 0.9, "top_k": 20}, {"top_p": 0.9, "top_k": 0}, True),
        ({"top_k": 0, "min_p": None}, {"top_k": 0, "min_p": 0.1}, False),
        ({"top_k": 5}, {"top_k": None}, False),
        ({"top_p": 0.5}, {"top_p": 1.0, "generation_kwargs": {"top_p": 0.5}}, False),
    ],
)
def test_a_sampler_that_chooses_among_other_tokens_than_asked_departs(told, asked, departs):
    found = judge_drawing(drawn(**told), SimpleNamespace(temperature=1.0, **asked))
    assert (found is not None) == departs


@pytest.mark.parametrize(("limit", "departs"), [(None, True), (12, True), (64, False)])
def test_a_sampler_that_stops_elsewhere_than_asked_departs(limit, departs):
    found = judge_limit(drawn(limit=limit), SimpleNamespace(max_completion_length=64))
    assert (found is not None) == departs


def test_adapters_in_16_bits_over_a_float32_base_depart():
    trainer = build(script_of("grpo"))
    for weight in trainer.model.parameters():
        if weight.requires_grad:
            weight.data = weight.data.to(torch.bfloat16)
    assert departures(trainer)["update"].departs


def test_a_loss_that_is_no_number_departs_and_not_only_its_gradient():
    asked = Asked(group=2, rows_in_pass=2, longest=4)
    mask_BT = torch.ones(2, 3, dtype=torch.bool)
    inputs = {"completion_mask": mask_BT, "advantages": torch.tensor([1.0, -1.0])}
    one = Pass([0, 1], inputs, math.nan, torch.zeros(2, 3))
    one.weight_BT = torch.full((2, 3), math.nan)
    found = judge_loss(asked, [one], 6, TOLERANCE["fp32"])
    assert (found.stage, found.departs) == ("ratio and KL", True)


class DividesByTheUsualPasses(GRPOTrainer):
    def compute_loss(self, *args, **kwargs):
        self.current_gradient_accumulation_steps = self.args.gradient_accumulation_steps
        return super().compute_loss(*args, **kwargs)


@pytest.mark.parametrize(("trainer", "ratio"), [(GRPOTrainer, 1.0), (DividesByTheUsualPasses, 0.5)])
def test_the_last_step_of_an_epoch_is_measured_where_it_lacks_passes(trainer, ratio):
    script = script_of("grpo")
    script.asked |= {"steps_per_generation": 1, "max_steps": 3}
    script.trainer, script.rows = trainer, script.rows[:6]  # three passes
    found = TrlSubject(build(script)).accumulation()
    assert (found.short.passes, found.short.usual, found.short.steps) == (1, 2, 2)
    assert found.short.ratio == pytest.approx(ratio, rel=1e-3)


@pytest.mark.parametrize(("rows", "steps"), [(4, 3), (6, 1)])
def test_no_step_lacks_passes_where_they_come_out_even_or_the_run_ends_before(rows, steps):
    script = script_of("grpo")
    script.asked |= {"steps_per_generation": 1, "max_steps": steps}
    script.rows = script.rows[:rows]
    assert short_step(build(script)) is None


def judged_of_two_rows(weight_BT):
    """Rows of three tokens and of one, ratios 1, of a loss that sums each row."""
    asked = Asked(group=2, rows_in_pass=2, longest=4, loss="luspo")
    mask_BT = torch.tensor([[1, 1, 1], [1, 0, 0]]).bool()
    inputs = {"completion_mask": mask_BT, "advantages": torch.tensor([1.0, -1.0])}
    one = Pass([0, 1], inputs, -1.0, torch.zeros(2, 3))
    one.weight_BT = torch.tensor(weight_BT)
    return judge_loss(asked, [one], 4, TOLERANCE["fp32"])


def test_a_loss_on_padding_is_of_the_sum_and_not_of_the_ratio():
    right = [[-0.5, -0.5, -0.5], [0.5, 0.0, 0.0]]
    assert judged_of_two_rows(right).departs is False
    # Each row's mean over all columns, times its length.
    found = judged_of_two_rows([[-0.5, -0.5, -0.5], [1 / 6, 1 / 6, 1 / 6]])
    assert (found.stage, found.departs) == ("loss", True) and "17%" in found.text
    found = judged_of_two_rows([[-0.5, -0.3, -0.5], [1 / 6, 1 / 6, 1 / 6]])
    assert (found.stage, found.departs) == ("ratio and KL", True)


def test_weights_for_the_engine_that_sampled_depart_where_they_are_others():
    asked = Asked(group=2, rows_in_pass=2, longest=4, correction=("token_truncate", None, 2.0))
    old_BT, sampled_BT = torch.zeros(2, 2), torch.tensor([[0.0, -1.0], [0.1, 0.0]])
    told = {
        "completion_mask": torch.ones(2, 2),
        "old_per_token_logps": old_BT,
        "sampling_per_token_logps": sampled_BT,
        CORRECTION: (old_BT - sampled_BT).exp().clamp(max=2.0),
    }
    assert judge_correction(asked, told) is None
    found = judge_correction(asked, {**told, CORRECTION: (old_BT - sampled_BT).exp()})
    assert (found.stage, found.departs) == ("ratio and KL", True)
    assert "row 0, token 1: 2 was expected, 2.718 was found" in found.examples[0]
