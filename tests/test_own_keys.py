"""Kernels of our own against torch's and transformers': the same numbers.

They need triton, which comes with torch where there is a GPU. Without one, triton's interpreter
runs them (`pip install triton`), but for bf16, which it cannot multiply.
"""

import os

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton")

from transformers.models.qwen2.modeling_qwen2 import apply_rotary_pos_emb

from flatline.rollout.own_keys import BLOCK, PARTS, attend, rotated

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PRECISIONS = [torch.float32, torch.float16, *[torch.bfloat16] * torch.cuda.is_available()]


def held(rows, heads, columns, size, dtype):
    """Keys or values as a cache holds them: more slots and columns than are read."""
    return torch.randn(rows + 1, heads, columns + 1, size, device=DEVICE).to(dtype)[:rows, :, :-1]


def attended(query, key, value, lengths):
    """What torch makes of it, with a mask."""
    group = query.shape[1] // key.shape[1]
    seen = torch.arange(key.shape[2], device=DEVICE) < lengths[:, None]
    key, value = (x.repeat_interleave(group, 1) for x in (key, value))
    mixed = scaled_dot_product_attention(
        query.to(key.dtype), key, value, attn_mask=seen[:, None, None]
    )
    return mixed.transpose(1, 2)


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize(
    ("heads", "shared", "size"), [(12, 2, 128), (4, 4, 32), (9, 3, 64), (40, 2, 16)]
)
def test_every_row_reads_what_it_has_and_no_more(heads, shared, size, dtype):
    torch.manual_seed(0)
    lengths = [1, BLOCK - 1, BLOCK, BLOCK + 1, PARTS * BLOCK + 1]
    key, value = (held(len(lengths), shared, max(lengths), size, dtype) for _ in range(2))
    wide = torch.randn(len(lengths), 1, (heads + 2) * size, device=DEVICE)
    query = wide[..., : heads * size].view(len(lengths), 1, heads, size).transpose(1, 2)
    at = torch.tensor(lengths, device=DEVICE)
    expected = attended(query, key, value, at)
    for row, length in enumerate(lengths):
        key[row, :, length:] = value[row, :, length:] = torch.nan
    made = attend(query, key, value, at, size**-0.5)
    assert made.shape == expected.shape == (len(lengths), 1, heads, size)
    tolerance = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    assert torch.allclose(made, expected, atol=tolerance)


@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("rows_of_angles", [1, 2])
def test_queries_and_keys_are_turned_as_the_model_turns_them(tokens, rows_of_angles):
    torch.manual_seed(0)
    query = torch.randn(2, tokens, 5, 64, device=DEVICE).transpose(1, 2)
    key = torch.randn(2, tokens, 2 * 64 + 7, device=DEVICE)[..., :128]
    key = key.view(2, tokens, 2, 64).transpose(1, 2)
    angles = torch.randn(rows_of_angles, tokens, 32, device=DEVICE).repeat(1, 1, 2)
    expected = apply_rotary_pos_emb(query, key, angles.cos(), angles.sin())
    for precision, tolerance in ((torch.float32, 1e-6), (torch.float16, 2e-3)):
        made = rotated(query, key, angles.cos(), angles.sin(), precision)
        for ours, theirs in zip(made, expected, strict=True):
            assert ours.dtype == precision and ours.is_contiguous()
            assert torch.allclose(ours.float(), theirs, atol=tolerance)
