"""Tiles of a product on a GPU: whole, within memory, sums within int32."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from np_ozaki import tiling
from np_ozaki.engines.parallel import ranges
from np_ozaki.numerics.moduli import MODULI
from np_ozaki.tiling import (
    INT8_K_BLOCK,
    choose_cuda_tiles,
    choose_residue_tiles,
    padded,
)

sizes = st.one_of(st.integers(1, 100), st.integers(1, 3_000_000))
products = st.tuples(st.integers(1, 100_000), sizes, sizes, sizes)
planes = st.integers(1, 50)
budgets = st.one_of(st.integers(1, 1 << 24), st.integers(1, 1 << 40))


def volume(tiles):
    return tiles.batch, tiles.m, tiles.n, tiles.k


@given(products, planes, budgets, st.booleans())
def test_tiles_cover_a_product_once(product, count, budget, host):
    tiles = choose_cuda_tiles(*product, num_planes=count, budget=budget, host=host)
    for size, tile in zip(product, volume(tiles), strict=True):
        assert 1 <= tile <= size
        if -(-size // tile) < 1000:
            parts = ranges(size, tile)
            assert [p.start for p in parts] == [0, *(p.stop for p in parts[:-1])]
            assert parts[-1].stop == size


@given(products, planes, budgets, st.booleans())
def test_tiles_keep_to_the_budget_or_are_the_smallest(product, count, budget, host):
    tiles = choose_cuda_tiles(*product, num_planes=count, budget=budget, host=host)
    smallest = (tiles.m, tiles.n) == (1, 1) and tiles.k <= 16
    assert tiles.workspace_bytes <= budget or (smallest and tiles.batch == 1)


@given(products, planes, budgets, budgets, st.booleans())
def test_more_memory_never_makes_a_tile_smaller(product, count, one, other, host):
    less, more = (
        choose_cuda_tiles(*product, num_planes=count, budget=x, host=host)
        for x in sorted((one, other))
    )
    assert all(x <= y for x, y in zip(volume(less), volume(more), strict=True))


@given(products, planes, budgets, st.booleans())
def test_blocks_of_k_are_whole_words_and_fit_int32(product, count, budget, host):
    tiles = choose_cuda_tiles(*product, num_planes=count, budget=budget, host=host)
    assert tiles.k <= INT8_K_BLOCK
    assert tiles.k == product[3] or tiles.k % 16 == 0
    assert tiles.inner == product[3]
    # One matrix of a batch at a time, unless all of each fits.
    assert tiles.batch == 1 or volume(tiles)[1:] == product[1:]
    # cuBLAS counts the matrices of a stack in a grid of less than 2^16.
    assert tiles.batch * count < 1 << 16


def test_sums_of_a_longest_block_fit_int32():
    # Beside a residue that an earlier block has left; p = 256 may wrap.
    odd = max(p // 2 for p in MODULI if p % 2)
    assert INT8_K_BLOCK * odd**2 + odd < 2**31
    # Planes of the certificate, and of scaling "accurate".
    assert INT8_K_BLOCK * 127**2 < 2**31
    assert INT8_K_BLOCK * 64**2 < 2**31


def test_k_is_not_cut_while_memory_and_int32_allow():
    tiles = choose_cuda_tiles(1, 300, 300, INT8_K_BLOCK, num_planes=15, budget=1 << 40)
    assert tiles.k == INT8_K_BLOCK
    more = choose_cuda_tiles(
        1, 300, 300, INT8_K_BLOCK + 1, num_planes=15, budget=1 << 40
    )
    assert more.k == INT8_K_BLOCK


@pytest.mark.parametrize("host", [False, True])
def test_products_of_one_tile_stay_below_two_gigabytes(host):
    for m, n in ((100_000, 100_000), (3, 50_000_000), (50_000_000, 3)):
        tiles = choose_cuda_tiles(1, m, n, 64, num_planes=16, budget=1 << 50, host=host)
        assert 4 * 16 * tiles.m * tiles.n <= tiling._PRODUCT_BYTES


def test_operands_on_the_host_come_in_several_panels():
    sizes = {"batch": 1, "m": 1024, "n": 16384, "k": 8192, "num_planes": 15}
    whole = choose_cuda_tiles(**sizes, budget=1 << 40)
    panels = choose_cuda_tiles(**sizes, budget=1 << 40, host=True)
    assert panels.n < whole.n
    assert panels.m == whole.m
    assert panels.workspace_bytes > 16 * (panels.m + panels.n) * 8192


@given(st.integers(0, 10**9), st.sampled_from([1, 16, 32]))
def test_padded_is_the_next_multiple(size, to):
    assert padded(size, to) % to == 0
    assert 0 <= padded(size, to) - size < to


# ---- Residue tiles ---------------------------------------------------------------


@given(products, planes, budgets, st.booleans(), st.booleans(), st.booleans())
def test_residue_tiles_cover_a_product_within_the_budget(
    product, count, budget, host, winograd, symmetric
):
    batch, m, n, k = product
    if symmetric:
        n = m
    tiles = choose_residue_tiles(
        batch,
        m,
        n,
        k,
        num_planes=count,
        budget=budget,
        host=host,
        winograd=winograd,
        symmetric=symmetric,
    )
    if tiles is None:
        return
    assert k <= INT8_K_BLOCK
    assert tiles.fused
    assert tiles.k == tiles.inner == k
    assert tiles.workspace_bytes <= budget
    for size, tile in zip((batch, m, n), volume(tiles), strict=False):
        assert 1 <= tile <= size
    assert tiles.batch == 1 or (tiles.m, tiles.n) == (m, n)
    assert winograd or tiles.products == 1
    assert not (tiles.symmetric and tiles.products > 1)


def test_residue_tiles_ask_for_all_of_k():
    sizes = {"batch": 1, "m": 512, "n": 512, "num_planes": 15}
    assert choose_residue_tiles(**sizes, k=INT8_K_BLOCK, budget=1 << 40).fused
    assert choose_residue_tiles(**sizes, k=INT8_K_BLOCK + 1, budget=1 << 40) is None
    assert choose_residue_tiles(**sizes, k=4096, budget=1 << 20) is None


def test_memory_of_the_largest_product_that_was_measured():
    sizes = {"batch": 1, "m": 16384, "n": 16384, "k": 16384, "num_planes": 14}
    plain = choose_residue_tiles(**sizes, budget=1 << 36, winograd=False)
    assert plain.workspace_bytes < 8e9
    assert plain.m == 16384
    short = choose_residue_tiles(**sizes, budget=2 * 10**9)
    # Rows are made again for each of a few panels only.
    assert -(-16384 // short.n) <= 6


def test_seven_products_are_for_large_ones():
    least = tiling._WINOGRAD_SIZE
    for size, products in ((least - 1, 1), (least, 7)):
        tiles = choose_residue_tiles(
            1, size, least, 2 * least, num_planes=14, budget=1 << 36
        )
        assert tiles.products == products
