"""Weights that several processes share: what is read of them, and what is left open."""

from types import SimpleNamespace

import pytest
import torch

from flatline.live.held import elements, held, is_part, rows
from flatline.live.trl.recorder.recording import Recording
from flatline.live.weights import Census


class Zero3:
    """DeepSpeed's optimizer as far as it is asked: a float32 part for each weight."""

    def __init__(self, model, share=1.0):
        self.masters = {}
        for weight in model.parameters():
            whole = weight.detach().float().flatten().clone()
            self.masters[id(weight)] = whole[: int(len(whole) * share)]
            weight.ds_numel, weight._z3_optimizer = len(whole), self
            weight.data = torch.empty(0, dtype=torch.bfloat16)

    def get_local_fp32_param(self, weight):
        return self.masters[id(weight)]

    def step(self):
        for master in self.masters.values():
            master += 1e-6


def rows_of(census, optimizer):
    census.before_step(readable=False)
    optimizer.step()
    return census.after_step(1).rows()


def test_zero3_weights_are_read_where_they_are_stepped():
    model = torch.nn.Linear(4, 3)
    norm = model.weight.norm().item()
    optimizer = Zero3(model)
    weight, bias = rows_of(Census(model), optimizer)
    assert (weight["size"], bias["size"]) == (12, 3) and weight["sampled"] == 12
    assert weight["changed_share"] == 1.0, "a bfloat16 copy would have lost this step"
    assert weight["update_norm"] == pytest.approx(1e-6 * 12**0.5, rel=0.1)
    assert weight["norm"] == pytest.approx(norm, rel=1e-4), "one process holds all of it"
    assert weight["dtype"] == "float32" and weight["grad_norm"] is None


def test_a_part_of_a_weight_has_no_norm_and_stands_for_the_whole_change():
    model = torch.nn.Linear(4, 4, bias=False)
    optimizer = Zero3(model, share=0.5)
    (row,) = rows_of(Census(model), optimizer)
    assert row["norm"] is None and (row["size"], row["sampled"]) == (16, 8)
    assert row["update_norm"] == pytest.approx(4e-6, rel=0.1)


def test_zero2_reads_its_float32_fragment_and_nothing_of_what_others_step():
    model = torch.nn.Linear(2, 2).bfloat16()
    model.weight._hp_mapping = SimpleNamespace(hp_fragment=torch.zeros(4))
    model.bias._hp_mapping = None
    assert held(model.weight).dtype is torch.float32 and not is_part(model.weight)
    assert held(model.bias).numel() == 0 and is_part(model.bias) and elements(model.bias) == 2


@pytest.mark.parametrize("optimizer", [None, torch.optim.SGD([torch.nn.Parameter(torch.ones(2))])])
def test_nothing_is_said_about_an_optimizer_that_holds_other_tensors(optimizer):
    model = torch.nn.Linear(2, 2)
    zero = Zero3(model)
    assert {row["in_optimizer"] for row in rows_of(Census(model, optimizer), zero)} == {None}


def trainer_of(model, *, deepspeed):
    return SimpleNamespace(
        model=model,
        optimizer=None,
        is_deepspeed_enabled=deepspeed,
        state=SimpleNamespace(global_step=0),
        processing_class=None,
        accelerator=SimpleNamespace(process_index=0, unwrap_model=lambda it: it),
    )


@pytest.mark.parametrize("deepspeed", [True, False])
def test_a_step_inside_the_backward_pass_is_seen_as_well_as_one_behind_it(deepspeed):
    model = torch.nn.Linear(2, 2, bias=False)
    sink = SimpleNamespace(update_run=lambda **_: None)
    recording = Recording(trainer_of(model, deepspeed=deepspeed), sink, guard=None)
    recording.begin_step()
    if not deepspeed:
        recording.gradients_are_whole()
    with torch.no_grad():
        model.weight += 1.0
    recording.gradients_are_whole()
    (row,) = recording._counted().after_step(1).rows()
    assert row["update_norm"] == pytest.approx(2.0) and row["changed_share"] == 1.0


def test_the_rows_of_a_weight_that_is_split_are_those_of_the_whole():
    weight = torch.nn.Parameter(torch.empty(0))
    weight.ds_shape = torch.Size([277, 32])
    assert rows(weight) == 277 and rows(torch.ones(5, 2)) == 5
