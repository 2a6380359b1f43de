"""One of several processes that train a small model together; started by `tests/launched.py`.

Accelerate starts neither FSDP nor DeepSpeed on CPUs. All that keeps them from it is the choice of
the backend, so it is made here: gloo, on this machine's CPU, in the place of NCCL on GPUs.
"""

import hashlib
import json
import os
import sys
from pathlib import Path

import torch

torch.set_num_threads(1)

ENVIRONMENT = {
    "ddp": {},
    "fsdp2": {
        "ACCELERATE_USE_FSDP": "true",
        "FSDP_VERSION": "2",
        "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
        "FSDP_RESHARD_AFTER_FORWARD": "true",
        "FSDP_CPU_RAM_EFFICIENT_LOADING": "false",
    },
    "zero3": {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3"},
}


def prepare(kind):
    """Before anything of accelerate is used."""
    from accelerate.state import PartialState
    from accelerate.utils import DistributedType

    os.environ |= ENVIRONMENT[kind]
    if kind == "ddp":
        return
    os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"
    PartialState._prepare_backend = lambda *_, **__: ("gloo", DistributedType.MULTI_GPU)
    if kind == "zero3":
        import deepspeed.comm.torch  # noqa: F401

        # It would compile an operator that only makes gathering faster.
        sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None


def trainer_in(folder, kind, **changes):
    from tests.test_attach import letters, trainer_of

    settings = {"per_device_train_batch_size": 4, "learning_rate": 2e-4, "use_cpu": kind == "ddp"}
    # Every row is judged by both: one that is not counts as 0 inside its group, which H68 says.
    settings["reward_funcs"] = (letters, briefness)
    return trainer_of(folder, **{**settings, **changes})


def briefness(completion_ids, **_):
    return [float(min(len(ids), 9)) for ids in completion_ids]


def fingerprint(trainer):
    """Of all bits that this process holds of weights and of what the optimizer knows of them."""
    from flatline.live.held import at_rest, parts

    at_rest(trainer.model)
    found = hashlib.sha256()
    own = [part for weight in trainer.model.parameters() for part in parts(weight)]
    optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
    states = [] if optimizer is None else optimizer.state.values()
    own += [one for state in states for one in state.values() if isinstance(one, torch.Tensor)]
    for tensor in own:
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        found.update(local.detach().contiguous().cpu().numpy().tobytes())
    return found.hexdigest()[:16]


def say(what, **facts):
    """A line of this process, in a file of its own: lines on one stdout run into each other."""
    rank = int(os.environ["RANK"])
    with (Path(os.environ["SAID"]) / f"said_{rank}.jsonl").open("a", encoding="utf-8") as lines:
        lines.write(json.dumps({"what": what, "process": rank, **facts}) + "\n")


# -- faults that only exist between processes


def same_prompts(trainer):
    """The loader is not split."""
    from accelerate.state import AcceleratorState

    from flatline.live.trl.alone import _changed

    load = trainer.get_train_dataloader

    def unsplit():
        one = {"num_processes": 1, "process_index": 0}
        with _changed(AcceleratorState._shared_state, one):
            return load()

    trainer.get_train_dataloader = unsplit


def groups_dealt_out(trainer):
    """Each process takes every other row of the batch."""
    same_prompts(trainer)
    load, rank = trainer.get_train_dataloader, trainer.accelerator.process_index

    def dealt():
        batches = iter(load())
        for first in batches:
            yield [*first, *next(batches)][rank::2]

    trainer.get_train_dataloader = dealt


def gathered_backwards(trainer):
    """Rewards of the last process first."""
    calculate = trainer._calculate_rewards

    def turned(*args, **kwargs):
        return torch.cat(calculate(*args, **kwargs).chunk(trainer.accelerator.num_processes)[::-1])

    trainer._calculate_rewards = turned


def loss_times_processes(trainer):
    compute = trainer._compute_loss
    trainer._compute_loss = lambda *a, **k: compute(*a, **k) * trainer.accelerator.num_processes


def weights_apart(trainer):
    """One process changes a weight after all were given the same."""
    prepare = trainer.accelerator.prepare

    def prepared(*args, **kwargs):
        found = prepare(*args, **kwargs)
        if trainer.accelerator.process_index and len(args) > 1:
            with torch.no_grad():
                next(trainer.model.parameters()).add_(1e-4)
        return found

    trainer.accelerator.prepare = prepared


def gradients_not_averaged(trainer):
    trainer.accelerator.prepare_model = lambda model, **_: model


FAULTS = {
    one.__name__: one
    for one in (
        same_prompts,
        groups_dealt_out,
        gathered_backwards,
        loss_times_processes,
        weights_apart,
        gradients_not_averaged,
    )
}


# -- what is asked of the processes


def train(folder, kind):
    """Without flatline."""
    trainer = trainer_in(folder, kind)
    trainer.train()
    say("train", weights=fingerprint(trainer))


def look(folder, kind):
    """Look, record, train. DeepSpeed is looked at where training begins."""
    import flatline

    trainer = trainer_in(folder, kind)
    flatline.attach(trainer, folder.parents[1] / "run")
    if kind == "zero3":
        trainer.add_callback(_look_at_begin(trainer))
    else:
        _say_look(trainer)
    trainer.train()
    say("trained", weights=fingerprint(trainer))


def _say_look(trainer):
    import flatline

    report = flatline.checkup(trainer)
    say("look", levels={one.hypothesis: [one.level, one.text] for one in report.findings})


def _look_at_begin(trainer):
    from transformers import TrainerCallback

    class Look(TrainerCallback):
        def on_train_begin(self, *_, **__):
            before = fingerprint(trainer)
            _say_look(trainer)
            say("begin", same=before == fingerprint(trainer))

    return Look()


def fault(folder, kind, *names):
    """H60 on each of the named faults."""
    import flatline
    from flatline.hypotheses import find

    for name in names:
        trainer = trainer_in(folder / name, kind, max_steps=3)
        FAULTS[name](trainer)
        (found,) = flatline.checkup(trainer, hypotheses=[find("H60")]).findings
        say(name, level=found.level, text=found.text)


def gradients(folder, kind, *names):
    """What the named faults do to the gradient that this process steps with."""

    def made(name, draw):
        trainer = trainer_in(folder / f"{name}{draw}", kind, max_grad_norm=0)
        if name:
            FAULTS[name](trainer)
        return first_gradient(trainer, 1000 * draw + trainer.accelerator.process_index)

    say("gradients", **turned(made, names))


def turned(made, names):
    """How far each fault turns a gradient, and how far other random numbers do, which are healthy:
    cosines and lengths."""
    healthy = [made(None, draw) for draw in range(4)]
    found = {name: [made(name, draw) for draw in range(4)] for name in names}
    chance = {"healthy": [apart(one, healthy[0]) for one in healthy[1:]]}
    return chance | {name: list(map(apart, found[name], healthy)) for name in names}


def first_gradient(trainer, seed):
    """What the optimizer is given for its first step, all weights in one row."""
    from transformers import PrinterCallback, TrainerCallback

    class Keep(TrainerCallback):
        def on_pre_optimizer_step(self, *_, **__):
            taken.append(torch.cat([one.grad.flatten() for one in trainer.model.parameters()]))

    taken = []
    trainer.add_callback(Keep())
    trainer.remove_callback(PrinterCallback)
    trainer.args.max_steps = 1
    torch.manual_seed(seed)
    trainer.train()
    return taken[0]


def apart(found, healthy):
    cosine = torch.cosine_similarity(found, healthy, dim=0)
    return float(cosine), float(found.norm() / healthy.norm())


def fail(folder, kind):
    """The reward function of one process raises."""
    import flatline

    def paid(completions, **_):
        if int(os.environ["RANK"]) == 1:
            raise ValueError("no judge here")
        return [float(len(str(one))) for one in completions]

    trainer = trainer_in(folder, kind, reward_funcs=[paid], reward_weights=None)
    found = flatline.checkup(trainer)
    say("fail", levels={one.hypothesis: [one.level, one.text] for one in found.findings})


def soon(folder, kind):
    """A checkup for which one process has all the time there is, and the other none."""
    import flatline

    budget = (600.0, 0.01)[int(os.environ["RANK"])]
    found = flatline.checkup(trainer_in(folder, kind), budget=budget).findings
    say("soon", unknown=sorted(one.hypothesis for one in found if one.level == "unknown"))


def main():
    folder, kind, *asked = sys.argv[1:]
    prepare(kind)
    own = Path(folder) / os.environ["RANK"]
    for what in asked:
        work, *names = what.split(",")
        globals()[work](own / work, kind, *names)


if __name__ == "__main__":
    main()
