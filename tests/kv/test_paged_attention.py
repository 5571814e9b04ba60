"""paged_attention against softmax(q k / sqrt d) v written out over whole, unpaged sequences."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from backend.errors import ModelUnavailable
from backend.kv.paged_attention import Bundle, PackedBatch, Row, paged_attention
from backend.kv.paged_cache import PagedCache

HEAD_SIZE = 8
BLOCK_SIZE = 4
POOL_BLOCKS = 40


def plain_attention(query: Tensor, key: Tensor, value: Tensor, window: int | None, scaling: float) -> Tensor:
    """Softmax attention of one sequence, position by position.

    query is [heads, T, size], the last T of the N positions of key and value, [kv_heads, N, size] each.
    Returns [T, heads, size].
    """
    heads, num_new = query.shape[:2]
    num_tokens = key.shape[1]
    group = heads // key.shape[0]
    out = torch.zeros(num_new, heads, value.shape[-1], dtype=query.dtype)
    for head in range(heads):
        for new in range(num_new):
            at = num_tokens - num_new + new
            first = 0 if window is None else max(0, at - window + 1)
            scores = key[head // group, first : at + 1] @ query[head, new] * scaling
            out[new, head] = torch.softmax(scores, 0) @ value[head // group, first : at + 1]
    return out


class Case:
    """Sequences with random keys and values, laid out in a pool as their tables say."""

    def __init__(
        self, lengths: list[int], new: list[int], heads: tuple[int, int], dtype: torch.dtype, scattered: bool
    ):
        generator = torch.Generator().manual_seed(sum(lengths) * 31 + heads[0])

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

        self.new = new
        self.queries = [normal(heads[0], count, HEAD_SIZE) for count in new]
        self.keys = [normal(heads[1], length, HEAD_SIZE) for length in lengths]
        self.values = [normal(heads[1], length, HEAD_SIZE) for length in lengths]
        # Slots nobody owns hold garbage: reading one of them cannot go unnoticed.
        self.pools = [
            torch.full((POOL_BLOCKS * BLOCK_SIZE, heads[1], HEAD_SIZE), 1e3, dtype=dtype) for _ in range(2)
        ]
        order = (
            torch.randperm(POOL_BLOCKS, generator=generator).tolist()
            if scattered
            else list(range(POOL_BLOCKS))
        )
        self.rows: list[Row] = []
        start = 0
        for number, length in enumerate(lengths):
            count = -(-length // BLOCK_SIZE)
            table, order = order[:count], order[count:]
            for place in range(length):
                slot = table[place // BLOCK_SIZE] * BLOCK_SIZE + place % BLOCK_SIZE
                self.pools[0][slot] = self.keys[number][:, place]
                self.pools[1][slot] = self.values[number][:, place]
            contiguous = table == list(range(table[0], table[0] + count))
            assert contiguous is not scattered or count == 1
            self.rows.append(
                Row(start, start + new[number], length, table[0] * BLOCK_SIZE, None)
                if contiguous
                else Row(start, start + new[number], length, None, torch.tensor(table))
            )
            start += new[number]

    def paged(self, window: int | None, scaling: float) -> Tensor:
        packed = PackedBatch(self.rows, None, BLOCK_SIZE)
        query = torch.cat(self.queries, 1)[None]
        out, weights = paged_attention(
            torch.nn.Module(), query, *self.pools, None, scaling=scaling, sliding_window=window, packed=packed
        )
        assert weights is None
        return out[0]

    def plain(self, window: int | None, scaling: float) -> Tensor:
        rows = zip(self.queries, self.keys, self.values, strict=True)
        return torch.cat([plain_attention(q, k, v, window, scaling) for q, k, v in rows])


STEPS = {
    "prefill": ([7], [7]),
    "one token": ([1], [1]),
    "decode": ([9], [1]),
    "chunk": ([13], [5]),
    "ragged prefill": ([3, 40, 16], [3, 40, 16]),
    "ragged decode": ([3, 40, 16, 1], [1, 1, 1, 1]),
    "all at once": ([11, 1, 25, 8, 17], [11, 1, 1, 4, 16]),
}


@pytest.mark.parametrize("scattered", [False, True], ids=["one piece", "scattered"])
@pytest.mark.parametrize("window", [None, 1, 3, 8, 100])
@pytest.mark.parametrize("heads", [(4, 4), (6, 2), (9, 3), (4, 1)])
@pytest.mark.parametrize("step", STEPS)
def test_pages_equal_plain_attention(
    step: str, heads: tuple[int, int], window: int | None, scattered: bool
) -> None:
    case = Case(*STEPS[step], heads, torch.float64, scattered)
    torch.testing.assert_close(case.paged(window, 0.3), case.plain(window, 0.3), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("window", [None, 1, 3, 8, 100])
@pytest.mark.parametrize("heads", [(4, 4), (6, 2), (4, 1)])
@pytest.mark.parametrize(
    ("lengths", "new", "bundles"),
    [
        ([9, 9, 9], [1, 1, 1], [[0, 1, 2]]),
        ([16, 16], [1, 1], [[0, 1]]),
        ([9, 5, 9, 1, 12, 5], [1, 1, 1, 1, 7, 1], [[0, 2], [1, 5]]),
    ],
)
def test_rows_of_one_length_are_attended_to_together(
    lengths: list[int], new: list[int], bundles: list[list[int]], heads: tuple[int, int], window: int | None
) -> None:
    case = Case(lengths, new, heads, torch.float64, scattered=True)
    bundled = {place for members in bundles for place in members}
    packed = PackedBatch(
        [row for place, row in enumerate(case.rows) if place not in bundled],
        None,
        BLOCK_SIZE,
        [
            Bundle(
                torch.tensor([case.rows[place].start for place in members]),
                torch.stack([table_of(case.rows[place]) for place in members]),
                lengths[members[0]],
            )
            for members in bundles
        ],
    )
    query = torch.cat(case.queries, 1)[None]
    out, _ = paged_attention(
        torch.nn.Module(), query, *case.pools, None, scaling=0.3, sliding_window=window, packed=packed
    )
    torch.testing.assert_close(out[0], case.plain(window, 0.3), rtol=1e-10, atol=1e-10)


def table_of(row: Row) -> Tensor:
    if row.block_ids is not None:
        return row.block_ids
    assert row.first_slot is not None
    first = row.first_slot // BLOCK_SIZE
    return torch.arange(first, first + -(-row.num_tokens // BLOCK_SIZE))


@pytest.mark.parametrize("step", STEPS)
def test_float32_stays_within_rounding(step: str) -> None:
    case = Case(*STEPS[step], (6, 2), torch.float32, scattered=True)
    torch.testing.assert_close(case.paged(None, 0.3), case.plain(None, 0.3), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("lengths", [[5], [1], [3, 1, 12]])
def test_without_a_cache_rows_attend_to_the_packed_keys_of_their_own(
    lengths: list[int], window: int | None
) -> None:
    case = Case(lengths, lengths, (6, 2), torch.float64, scattered=False)
    starts = [sum(lengths[:number]) for number in range(len(lengths))]
    rows = [
        Row(start, start + length, length, start, None) for start, length in zip(starts, lengths, strict=True)
    ]
    out, _ = paged_attention(
        torch.nn.Module(),
        torch.cat(case.queries, 1)[None],
        torch.cat(case.keys, 1)[None],
        torch.cat(case.values, 1)[None],
        None,
        scaling=0.3,
        sliding_window=window,
        packed=PackedBatch(rows, None, 0),
    )
    torch.testing.assert_close(out[0], case.plain(window, 0.3), rtol=1e-10, atol=1e-10)


def test_the_default_scale_is_one_over_the_root_of_the_head_size() -> None:
    case = Case([9], [4], (4, 2), torch.float64, scattered=True)
    packed = PackedBatch(case.rows, None, BLOCK_SIZE)
    out, _ = paged_attention(torch.nn.Module(), case.queries[0][None], *case.pools, None, packed=packed)
    torch.testing.assert_close(out[0], case.plain(None, HEAD_SIZE**-0.5))


@pytest.mark.parametrize("wanted", ["position_bias", "head_mask"])
def test_what_it_does_not_compute_is_refused_by_name(wanted: str) -> None:
    case = Case([4], [4], (4, 2), torch.float32, scattered=False)
    packed = PackedBatch(case.rows, None, BLOCK_SIZE)
    with pytest.raises(ModelUnavailable, match=f"Module cannot be paged: its attention uses {wanted}"):
        paged_attention(
            torch.nn.Module(),
            case.queries[0][None],
            *case.pools,
            None,
            packed=packed,
            **{wanted: torch.ones(1)},
        )


def test_a_call_that_lost_the_batch_is_refused() -> None:
    case = Case([4], [4], (4, 2), torch.float32, scattered=False)
    with pytest.raises(ModelUnavailable, match="does not pass the batch through"):
        paged_attention(torch.nn.Module(), case.queries[0][None], *case.pools, None)


# The tensors


def test_the_cache_writes_each_token_to_its_slot_and_nothing_else() -> None:
    cache = PagedCache(num_blocks=3, block_size=2)
    states = torch.arange(2 * 3 * 4, dtype=torch.float32).reshape(1, 2, 3, 4)  # [1, kv_heads, T, size]
    cache.packed = PackedBatch([], torch.tensor([5, 0, 3]), 2)
    keys, values = cache.update(states, states + 100, 0)
    assert keys.shape == values.shape == (6, 2, 4)
    for token, slot in enumerate((5, 0, 3)):
        assert torch.equal(keys[slot], states[0, :, token])
        assert torch.equal(values[slot], states[0, :, token] + 100)
    assert not keys[[1, 2, 4]].any()
    assert cache.num_bytes == 2 * 6 * 2 * 4 * 4


def test_blocks_are_copied_whole_in_every_layer() -> None:
    cache = PagedCache(num_blocks=4, block_size=2)
    cache.copy_blocks([(0, 1)])  # before the first forward there is nothing to copy
    pools = []
    for layer in range(2):
        cache.packed = PackedBatch([], torch.arange(4), 2)
        pools.extend(cache.update(torch.randn(1, 1, 4, 3), torch.randn(1, 1, 4, 3), layer))
    before = [pool.clone() for pool in pools]
    cache.copy_blocks([(0, 3), (1, 2)])
    for pool, old in zip(pools, before, strict=True):
        assert torch.equal(pool[:4], old[:4])
        assert torch.equal(pool[6:8], old[0:2])
        assert torch.equal(pool[4:6], old[2:4])
