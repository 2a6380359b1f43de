"""Copies that a checkup makes of weights and gradients."""

import pytest
import torch

from flatline.live import held
from flatline.live.measure.moving import moved
from flatline.live.trl.departure import stepped
from flatline.spec import gradient
from flatline.spec.gradient import compare


class Small:
    """A trainer with nothing but a model."""

    def __init__(self):
        torch.manual_seed(0)
        self.model = torch.nn.Linear(3, 2)


@pytest.mark.parametrize("room", [True, False])
def test_weights_are_moved_and_put_back_wherever_their_copies_are(monkeypatch, room):
    monkeypatch.setattr(held, "_room_for", lambda _: room)
    trainer = Small()
    before = [weight.clone() for weight in trainer.model.parameters()]
    with moved(trainer, 0.5):
        assert not torch.equal(trainer.model.weight, before[0])
    assert all(map(torch.equal, trainer.model.parameters(), before))


def test_a_copy_is_never_the_tensor_itself(monkeypatch):
    tensor = torch.zeros(2)
    for room in (True, False):
        monkeypatch.setattr(held, "_room_for", lambda _, room=room: room)
        (copy,) = held.copies([tensor])
        copy += 1
        assert tensor.tolist() == [0, 0]


def test_gradients_that_are_given_to_a_model_are_copies_and_no_others_remain():
    model = Small().model
    model(torch.ones(3)).sum().backward()
    kept = held.gradient_copies(model)
    del kept["bias"]
    held.give_gradients(model, kept)
    assert model.bias.grad is None
    model.weight.grad += 1
    assert kept["weight"].tolist() == [[1, 1, 1], [1, 1, 1]]


@pytest.mark.parametrize(("elements", "kept"), [(0, 0), (1, 1), (10, 10), (11, 6), (25, 9)])
def test_of_a_large_weight_evenly_spread_elements_are_compared(monkeypatch, elements, kept):
    monkeypatch.setattr(stepped, "MOST_ELEMENTS", 10)
    assert len(stepped._some(torch.arange(elements))) == kept


def test_gradients_in_pieces_compare_as_they_do_whole(monkeypatch):
    torch.manual_seed(0)
    a, b = torch.randn(4, 5), torch.randn(4, 5)
    pairs = [("both", a, b), ("found", a, None), ("expected", None, b), ("none", None, None)]
    whole = compare(pairs)
    monkeypatch.setattr(gradient, "PIECE", 7)
    parts = compare(pairs)
    assert parts.worst == whole.worst
    assert parts.cosine == pytest.approx(whole.cosine, rel=1e-12)
    assert parts.length == pytest.approx(whole.length, rel=1e-12)
