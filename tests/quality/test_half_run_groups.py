"""FSDP groups of modules of which a pass ran one and not the other."""

import socket

import pytest
from torch import nn

from flatline.live.held import at_rest

dist = pytest.importorskip("torch.distributed")


@pytest.fixture
def group():
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    dist.init_process_group("gloo", f"tcp://localhost:{port}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_no_group_is_half_run_once_the_weights_rest(group):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (1,))
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    norm, head = model[1], model[2]
    fully_shard([norm, head], mesh=mesh)
    fully_shard(model, mesh=mesh)
    half_run = norm._get_fsdp_state()._modules_to_run_forward
    # What torch 2.11 is left with by a fused loss, which reads the head's weight and never calls
    # the head: the next pass believes the group is put together, and reads the parts.
    half_run.add(head)
    at_rest(model)
    assert not half_run
