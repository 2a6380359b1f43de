"""Attention of a decoding step on a GPU in which every row reads its own keys and no others.

torch's kernels take one width for all rows of a batch: a play of 300 tokens beside one of 6,000
reads 6,000, and whatever grows wider is recorded again. Here a row's length is a number on the
device. A row is cut into parts that are read side by side, and a second kernel adds the parts up:
few rows with many keys keep the device busy too.

Needs triton, which comes with torch where there is a GPU. `rotated` turns queries and keys by their
positions in one kernel instead of ten.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 64
"""Keys that are read at once."""
PARTS = 16
"""Of a row, at most."""
QUERIES = 16
"""The fewest that a matrix product takes; those beyond the heads that share keys are empty."""


@triton.jit  # type: ignore[untyped-decorator]
def _read_parts(  # type: ignore[no-untyped-def]  # pragma: no cover
    queries, keys, values, lengths, mixed, tops, totals,
    scale, q_row, q_head, k_row, k_head, v_row, v_head,
    HEADS: tl.constexpr, GROUP: tl.constexpr, SIZE: tl.constexpr,
    BLOCK: tl.constexpr, PARTS: tl.constexpr, QUERIES: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0) // HEADS).to(tl.int64)
    head = tl.program_id(0) % HEADS
    part = tl.program_id(1)
    length = tl.load(lengths + row).to(tl.int32)
    blocks = tl.cdiv(length, BLOCK)
    share = tl.cdiv(blocks, PARTS)
    first = part * share
    last = tl.minimum(first + share, blocks)
    if first < last:
        g = tl.arange(0, QUERIES)
        d = tl.arange(0, SIZE)
        n = tl.arange(0, BLOCK)
        q_at = queries + row * q_row + (head * GROUP + g)[:, None] * q_head + d[None, :]
        q = tl.load(q_at, mask=(g < GROUP)[:, None], other=0.0).to(keys.dtype.element_ty)
        top = tl.full([QUERIES], float("-inf"), tl.float32)
        total = tl.zeros([QUERIES], tl.float32)
        mix = tl.zeros([QUERIES, SIZE], tl.float32)
        k_from = keys + row * k_row + head * k_head
        v_from = values + row * v_row + head * v_head
        for block in range(first, last):
            at = block * BLOCK + n
            seen = at < length
            k = tl.load(k_from + at[:, None] * SIZE + d[None, :], mask=seen[:, None], other=0.0)
            scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
            scores = tl.where(seen[None, :], scores, float("-inf"))
            highest = tl.maximum(top, tl.max(scores, 1))
            weights = tl.exp(scores - highest[:, None])
            shrink = tl.exp(top - highest)
            v = tl.load(v_from + at[:, None] * SIZE + d[None, :], mask=seen[:, None], other=0.0)
            mix = mix * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
            total = total * shrink + tl.sum(weights, 1)
            top = highest
        place = (tl.program_id(0).to(tl.int64) * PARTS + part) * GROUP + g
        tl.store(tops + place, top, mask=g < GROUP)
        tl.store(totals + place, total, mask=g < GROUP)
        tl.store(mixed + place[:, None] * SIZE + d[None, :], mix, mask=(g < GROUP)[:, None])


@triton.jit  # type: ignore[untyped-decorator]
def _add_parts(  # type: ignore[no-untyped-def]  # pragma: no cover
    mixed, tops, totals, lengths, output,
    HEADS: tl.constexpr, GROUP: tl.constexpr, SIZE: tl.constexpr,
    BLOCK: tl.constexpr, PARTS: tl.constexpr, QUERIES: tl.constexpr,
):  # fmt: skip
    pair = tl.program_id(0).to(tl.int64)
    blocks = tl.cdiv(tl.load(lengths + pair // HEADS).to(tl.int32), BLOCK)
    parts = tl.cdiv(blocks, tl.cdiv(blocks, PARTS))
    g = tl.arange(0, QUERIES)
    d = tl.arange(0, SIZE)
    real = g < GROUP
    top = tl.full([QUERIES], float("-inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    mix = tl.zeros([QUERIES, SIZE], tl.float32)
    for part in range(0, parts):
        place = (pair * PARTS + part) * GROUP + g
        its_top = tl.load(tops + place, mask=real, other=0.0)
        its_mix = tl.load(mixed + place[:, None] * SIZE + d[None, :], mask=real[:, None], other=0.0)
        highest = tl.maximum(top, its_top)
        shrink = tl.exp(top - highest)
        grow = tl.exp(its_top - highest)
        total = total * shrink + tl.load(totals + place, mask=real, other=1.0) * grow
        mix = mix * shrink[:, None] + its_mix * grow[:, None]
        top = highest
    made = mix / total[:, None]
    place = (pair * GROUP + g)[:, None] * SIZE + d[None, :]
    tl.store(output + place, made.to(output.dtype.element_ty), mask=real[:, None])


def attend(query: Tensor, key: Tensor, value: Tensor, lengths_B: Tensor, scale: float) -> Tensor:
    """One query a row and head, over the first `lengths_B` keys of its row: [rows, 1, heads, size].

    Keys and values are [rows, shared heads, columns, size], the last two without gaps.
    """
    rows, heads, _, size = query.shape
    shared = key.shape[1]
    sizes: dict[str, Any] = {
        "HEADS": shared,
        "GROUP": heads // shared,
        "SIZE": size,
        "BLOCK": BLOCK,
        "PARTS": PARTS,
        "QUERIES": max(QUERIES, triton.next_power_of_2(heads // shared)),
    }
    places = (rows * shared, PARTS, heads // shared)
    mixed = torch.empty((*places, size), dtype=torch.float32, device=query.device)
    tops, totals = torch.empty((2, *places), dtype=torch.float32, device=query.device)
    output = torch.empty((rows, 1, heads, size), dtype=key.dtype, device=query.device)
    query = query[:, :, 0]
    strides = [tensor.stride(axis) for tensor in (query, key, value) for axis in (0, 1)]
    _read_parts[(rows * shared, PARTS)](
        query, key, value, lengths_B, mixed, tops, totals, scale, *strides, **sizes
    )
    _add_parts[(rows * shared,)](mixed, tops, totals, lengths_B, output, **sizes)
    return output


@triton.jit  # type: ignore[untyped-decorator]
def _rotate(  # type: ignore[no-untyped-def]  # pragma: no cover
    queries, keys, cosines, sines, new_queries, new_keys,
    tokens, q_row, q_head, q_token, k_row, k_head, k_token, c_row, c_token, s_row, s_token,
    Q_HEADS: tl.constexpr, K_HEADS: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0) // tokens).to(tl.int64)
    token = tl.program_id(0) % tokens
    head = tl.program_id(1)
    d = tl.arange(0, HALF)
    if head < Q_HEADS:
        source = queries + row * q_row + head * q_head + token * q_token
        target = new_queries + ((row * Q_HEADS + head) * tokens + token) * 2 * HALF
    else:
        source = keys + row * k_row + (head - Q_HEADS) * k_head + token * k_token
        target = new_keys + ((row * K_HEADS + head - Q_HEADS) * tokens + token) * 2 * HALF
    c_at = cosines + row * c_row + token * c_token + d
    s_at = sines + row * s_row + token * s_token + d
    low = tl.load(source + d).to(tl.float32)
    high = tl.load(source + HALF + d).to(tl.float32)
    made_low = low * tl.load(c_at) - high * tl.load(s_at)
    made_high = high * tl.load(c_at + HALF) + low * tl.load(s_at + HALF)
    tl.store(target + d, made_low.to(target.dtype.element_ty))
    tl.store(target + HALF + d, made_high.to(target.dtype.element_ty))


def rotated(
    query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, precision: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Queries and keys, [rows, heads, tokens, size], turned by their positions."""
    rows, heads, tokens, size = query.shape
    cos, sin = (angles.expand(rows, tokens, size) for angles in (cos, sin))
    new_query, new_key = (
        torch.empty(x.shape, dtype=precision, device=x.device) for x in (query, key)
    )
    strides = [x.stride(axis) for x in (query, key) for axis in (0, 1, 2)]
    strides += [x.stride(axis) for x in (cos, sin) for axis in (0, 1)]
    _rotate[(rows * tokens, heads + key.shape[1])](
        query, key, cos, sin, new_query, new_key, tokens, *strides,
        Q_HEADS=heads, K_HEADS=key.shape[1], HALF=size // 2,
    )  # fmt: skip
    return new_query, new_key
