"""Whatever kind of object holds it: what changed is put back, into the same object."""

import array
import collections
import functools
import io
import itertools
import random
import sqlite3
import sys
import types
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from flatline.live.restore.snapshot import Snapshot, differing

TOTAL = 0
NOTES = []


class Plain:
    kinds = {}  # noqa: RUF012

    def __init__(self, **held):
        vars(self).update(held)


class Slotted:
    __slots__ = ("_hidden", "count", "later")

    def __init__(self):
        self.count, self._hidden = 1, [1]


@dataclass(frozen=True, slots=True)
class Frozen:
    values: list


class Listed(list):
    """With a method that must not be asked."""

    def append(self, value):
        raise AssertionError

    def clear(self):
        raise AssertionError


def snapshot_of(**users):
    return Snapshot(models=[nn.Module()], users=users, machinery={})


def change_dict(one):
    one["a"], one["new"] = 5, 6
    del one["b"]


def advance(one):
    for _ in range(3):
        next(one.it)


def note():
    global TOTAL
    TOTAL += 1
    NOTES.append(TOTAL)


def counted():
    calls, held = 0, {"times": []}

    def reward(x=collections.Counter()):  # noqa: B006
        nonlocal calls
        calls += 1
        held["times"].append(calls)
        x["asked"] += 1
        reward.calls = calls
        note()
        return calls, list(held["times"]), dict(x), vars(reward).get("calls"), TOTAL, len(NOTES)

    return reward


def drawn(one):
    return [float(torch.rand((), generator=one.torch)), one.python.random(), one.numpy.random()]


def circle():
    one = Plain(count=0, others=[])
    one.others.append(one)
    one.map = {"me": one}
    return one


def grow(one):
    one.count += 1
    one.others.append(one.map)
    one.map["further"] = one.others


def rewrite(file):
    file.seek(0, 2)
    file.write("more" if isinstance(file, io.StringIO) else b"more")


KINDS = {
    "a dictionary": (lambda: {"a": 1, "b": [2]}, change_dict, repr),
    "an ordered dictionary": (
        lambda: collections.OrderedDict(a=1, b=2, c=3), lambda d: (d.move_to_end("a"), d.pop("b")),
        repr),
    "a defaultdict": (
        lambda: collections.defaultdict(list, a=[1]),
        lambda d: (d["a"].append(2), d["b"].append(3)), repr),
    "a counter": (lambda: collections.Counter("abca"), lambda c: c.update("zz"), repr),
    "a list": (lambda: [1, [2], {"a": {3}}], lambda v: (v[2]["a"].add(4), v.pop(1)), repr),
    "a list of another class": (lambda: Listed([1, 2]), lambda v: list.pop(v), repr),
    "a bounded deque": (lambda: collections.deque([1, 2], maxlen=2), lambda d: d.append(3), repr),
    "a set": (lambda: {1, 2, 3}, lambda s: (s.add(9), s.discard(1)), sorted),
    "a tuple of lists": (lambda: ([1], {"a": 1}), lambda t: t[0].append(2), repr),
    "bytes": (lambda: bytearray(b"abc"), lambda b: b.extend(b"d"), bytes),
    "an array": (lambda: array.array("d", [1, 2]), lambda a: a.append(3), list),
    "a numpy array": (lambda: np.arange(4.0), lambda a: np.add(a, 1, out=a), np.ndarray.tolist),
    "an array of objects": (
        lambda: np.array([[1], None], dtype=object), lambda a: a[0].append(2), np.ndarray.tolist),
    "attributes": (
        lambda: Plain(a=1, inner=Plain(b=[1])),
        lambda o: (setattr(o, "c", 1), o.inner.b.append(2), delattr(o, "a")),
        lambda o: (sorted(vars(o)), o.inner.b)),
    "slots": (
        Slotted, lambda o: (setattr(o, "later", 1), setattr(o, "count", 2), o._hidden.append(2)),
        lambda o: (o.count, o._hidden, hasattr(o, "later"))),
    "a frozen dataclass": (lambda: Frozen([1]), lambda o: o.values.append(2), repr),
    "a namespace": (
        lambda: types.SimpleNamespace(a=1, b=[1]), lambda o: (setattr(o, "a", 2), o.b.append(2)),
        repr),
    "an attribute of the class": (
        Plain, lambda o: (Plain.kinds.update(a=1), setattr(Plain, "extra", 1)),
        lambda o: (dict(Plain.kinds), hasattr(Plain, "extra"))),
    "a closure, its defaults, attributes and module": (counted, lambda f: f(), lambda f: f()[1:]),
    "a bound method": (
        lambda: Plain(items=[1]).__init__, lambda m: m(new=1), lambda m: sorted(vars(m.__self__))),
    "a method of a list": (lambda: [1].append, lambda m: m(2), lambda m: m.__self__[:]),
    "a partial": (
        lambda: functools.partial(print, [1], end={"a": 1}),
        lambda p: (p.args[0].append(2), p.keywords["end"].clear()), lambda p: (p.args, p.keywords)),
    "random generators": (
        lambda: Plain(
            torch=torch.Generator().manual_seed(1),
            python=random.Random(2), numpy=np.random.default_rng(3)),
        drawn,
        lambda o: (
            o.torch.get_state().tolist(), o.python.getstate(), str(o.numpy.bit_generator.state))),
    "an old generator of numpy": (
        lambda: np.random.RandomState(1), lambda r: r.rand(), lambda r: r.get_state()[2]),
    "itertools.count": (lambda: Plain(it=itertools.count(4)), advance, lambda o: repr(o.it)),
    "an iterator over a list": (
        lambda: Plain(it=iter([1, 2, 3, 4])), advance, lambda o: o.it.__length_hint__()),
    "a file in memory": (lambda: io.StringIO("text"), rewrite, lambda f: (f.getvalue(), f.tell())),
    "bytes in memory": (lambda: io.BytesIO(b"text"), rewrite, lambda f: (f.getvalue(), f.tell())),
    "a circle": (circle, grow, lambda o: (o.count, len(o.others), sorted(o.map))),
    "a tensor": (lambda: torch.arange(3.0), lambda t: t.add_(1), torch.Tensor.tolist),
    "a tensor in half precision": (
        lambda: torch.ones(3, dtype=torch.bfloat16), lambda t: t.mul_(3), torch.Tensor.tolist),
    "a part of a tensor": (
        lambda: torch.zeros(4, 4)[:, 1], lambda t: t.add_(1), torch.Tensor.tolist),
    "a tensor made for inference": (
        lambda: made_for_inference(), lambda t: change_for_inference(t), torch.Tensor.tolist),
    "another memory of a tensor": (
        lambda: nn.Parameter(torch.ones(2)), lambda p: setattr(p, "data", torch.zeros(3)),
        torch.Tensor.tolist),
    "a gradient": (
        lambda: nn.Parameter(torch.ones(2)),
        lambda p: (p.sum().backward(), p.requires_grad_(False)),
        lambda p: (p.grad, p.requires_grad)),
    "an attribute of a weight": (
        lambda: nn.Parameter(torch.ones(2)), lambda p: setattr(p, "mean", 1),
        lambda p: hasattr(p, "mean")),
    "a module": (
        lambda: nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)),
        lambda m: (m.eval(), m[1].running_mean.add_(1), m.append(nn.Dropout())),
        lambda m: (m.training, m[1].running_mean.tolist(), len(m))),
}  # fmt: skip


def made_for_inference():
    with torch.inference_mode():
        return torch.ones(2)


def change_for_inference(tensor):
    with torch.inference_mode():
        tensor.add_(1)


@pytest.mark.parametrize("kind", KINDS)
def test_what_changed_is_put_back_into_the_same_object(kind):
    make, change, read = KINDS[kind]
    thing = make()
    snapshot = snapshot_of(thing=thing)
    digests = snapshot.digests()
    before = read(thing)
    for _ in range(2):  # a snapshot is gone back to again and again
        snapshot.put_back()
        change(thing)
        assert differing(digests, snapshot.digests()), "the change must be one that is seen"
        snapshot.put_back()
        assert differing(digests, snapshot.digests()) == ()
    assert read(thing) == before
    assert snapshot.not_kept == ()


def test_two_names_of_one_object_still_name_one_object():
    shared = [torch.zeros(2)]
    one = Plain(a=shared, b={"c": shared}, first=shared[0])
    snapshot = snapshot_of(one=one)
    one.a, one.first = [torch.ones(2)], None
    shared[0].add_(1)
    shared.clear()
    snapshot.put_back()
    assert one.a is one.b["c"] is shared and one.first is shared[0]
    assert one.first.tolist() == [0, 0]


def test_two_tensors_of_one_memory_have_one_memory_again():
    weight, slow = nn.Parameter(torch.ones(2)), torch.zeros(2)
    weight.data = slow
    snapshot = snapshot_of(slow=slow, weight=weight)
    weight.data = torch.full((2,), 7.0)
    snapshot.put_back()
    slow.add_(1)
    assert weight.tolist() == [1, 1]


@pytest.mark.parametrize("number", [1e-30, float("inf"), 0.0, -0.0, float("nan")])
def test_a_single_bit_of_a_tensor_is_seen(number):
    tensor = torch.zeros(3)
    snapshot = snapshot_of(tensor=tensor)
    before = snapshot.digests()
    tensor[1] = number
    seen = differing(before, snapshot.digests())
    assert seen == (("tensor",) if tensor.view(torch.int32)[1] else ())


def test_values_that_change_places_are_seen():
    tensor = torch.tensor([1.0, 2.0, 2.0, 1.0])
    snapshot = snapshot_of(tensor=tensor)
    before = snapshot.digests()
    tensor.copy_(tensor.flip(0).roll(1))
    assert differing(before, snapshot.digests()) == ("tensor",)


def stream():
    yield from range(9)


class Paid:
    def __init__(self, **held):
        vars(self).update(held)

    def __call__(self, completions):
        return [1.0 for _ in completions]


LOST = {
    "a generator": lambda folder: stream(),
    "an iterator": lambda folder: zip([1], [2], strict=True),
    "an open file": lambda folder: (folder / "log.txt").open("w"),
    "a database": lambda folder: sqlite3.connect(":memory:"),
    "an iterator in a tuple": lambda folder: (itertools.count(),),
}


@pytest.mark.parametrize("what", LOST)
def test_what_cannot_be_kept_is_named_with_its_place(what, tmp_path):
    snapshot = snapshot_of(
        **{"your reward function `Paid`": Paid(inner={"one": LOST[what](tmp_path)})}
    )
    (found,) = snapshot.not_kept
    assert "your reward function `Paid`" in found.where and ".inner['one']" in found.where
    assert found.what.startswith(what)


def test_a_client_in_the_module_of_a_reward_function_is_named():
    module = types.ModuleType("judge_of_mine")
    code = "import socket\ndef reward(where):\n    return socket.create_connection(where)\n"
    exec(code, vars(module))
    sys.modules["judge_of_mine"] = module
    try:
        (found,) = snapshot_of(**{"your reward function `reward`": module.reward}).not_kept
    finally:
        del sys.modules["judge_of_mine"]
    assert "judge_of_mine" in found.where and "socket" in found.what


HARMLESS = {
    "a compiled pattern": lambda: __import__("re").compile("a"),
    "a logger": lambda: __import__("logging").getLogger("x"),
    "a lock": lambda: __import__("threading").Lock(),
    "a path": lambda: __import__("pathlib").Path("x"),
    "standard output": lambda: sys.stdout,
    "a cached function": lambda: functools.lru_cache(lambda x: x),
    "a closed file": lambda: closed(),
}


def closed():
    file = open(__file__)  # noqa: SIM115
    file.close()
    return file


@pytest.mark.parametrize("what", HARMLESS)
def test_what_holds_no_state_of_a_training_is_not_named(what):
    snapshot = snapshot_of(paid=Paid(one=HARMLESS[what]()))
    assert snapshot.not_kept == ()


def test_a_large_container_is_kept_and_that_its_entries_are_not_is_said():
    rows = [{"n": k} for k in range(20_000)]
    data = Paid(rows=rows, texts=["a"] * 20_000)
    snapshot = snapshot_of(**{"your dataset": data})
    rows.append(1)
    data.texts[3] = "b"
    snapshot.put_back()
    assert len(rows) == 20_000 and data.texts[3] == "a"
    assert [".rows" in one for one in snapshot.not_looked_into] == [True]


def test_what_is_too_large_to_copy_is_watched(monkeypatch):
    from flatline.live.restore import tensors

    monkeypatch.setattr(tensors, "COPIED_UP_TO", 100)
    small, large = torch.zeros(10), torch.zeros(1000)
    snapshot = snapshot_of(one=Paid(large=large, small=small))
    before = snapshot.digests()
    small.add_(1), large.add_(1)
    snapshot.put_back()
    assert small.sum() == 0
    assert differing(before, snapshot.digests()) == ("one, `.large`",)


def test_a_frozen_reference_is_watched_and_not_copied():
    model, reference = nn.Linear(2, 2), nn.Linear(2, 2).requires_grad_(False)
    snapshot = Snapshot(models=[model, reference], users={}, machinery={})
    before = snapshot.digests()
    with torch.no_grad():
        model.weight.add_(1), reference.weight.add_(1)
    snapshot.put_back()
    assert differing(before, snapshot.digests()) == (
        "the reference model, `._parameters['weight']`",
    )


def test_state_of_an_optimizer_of_many_weights_is_put_back():
    weights = [nn.Parameter(torch.ones(1)) for _ in range(10_010)]
    optimizer = torch.optim.SGD(weights, lr=1.0)
    for one in weights:
        optimizer.state[one]["mean"] = torch.zeros(1)
    snapshot = Snapshot(models=[nn.Module()], optimizer=optimizer, users={}, machinery={})
    weights[-1].data.add_(1)
    optimizer.state[weights[-1]]["mean"].add_(1)
    snapshot.put_back()
    assert (weights[-1].item(), float(optimizer.state[weights[-1]]["mean"])) == (1, 0)
    assert snapshot.not_looked_into == ()


class Hostile:
    """Nothing about it can be read."""

    @property
    def __class__(self):
        raise RuntimeError

    def __getattribute__(self, name):
        raise RuntimeError


def test_an_object_that_cannot_be_read_costs_no_other(monkeypatch):
    paid = Paid(first=Hostile(), then=[1])
    snapshot = snapshot_of(paid=paid)
    paid.then.append(2)
    snapshot.put_back()
    assert paid.then == [1]
