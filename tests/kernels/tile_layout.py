"""Residue tiles as NumPy lays them out: see `np_ozaki.engines.cuda_tiles`."""

import numpy as np

from np_ozaki.engines.cuda_tiles import tile_shape

GARBAGE = 0x5B
"""In bytes of entries outside."""


def places():
    """Return row and column in a tile of every byte of a plane."""
    g, c, t, b = np.indices((2, 8, 128, 16))
    row = 64 * g + t // 32 * 16 + t % 32 // 4 + 8 * (b >> 1 & 1)
    column = 32 * c + 8 * (b >> 2) + 2 * (t % 4) + (b & 1)
    return row, column


def tile_corners(m, n, symmetric):
    """Return the first row and column of every tile of a matrix, in order."""
    shape = tile_shape(m, n, symmetric=symmetric)
    if symmetric:
        return [
            (128 * i, 256 * square_column)
            for square_row in range(shape.tile_columns)
            for square_column in range(square_row, shape.tile_columns)
            for i in (2 * square_row, 2 * square_row + 1)
        ]
    return [
        (128 * i, 256 * j)
        for i in range(shape.tile_rows)
        for j in range(shape.tile_columns)
    ]


def tiles_of(residues, symmetric=False):
    """Return (planes, batch, m, n) of int8 in tiles, with garbage outside."""
    planes, batch, m, n = residues.shape
    row, column = places()
    parts = []
    for h in range(batch):
        for first_row, first_column in tile_corners(m, n, symmetric):
            i, j = row + first_row, column + first_column
            inside = (i < m) & (j < n)
            part = np.full((planes, *row.shape), GARBAGE, np.uint8)
            part[:, inside] = residues[:, h, i[inside], j[inside]].view(np.uint8)
            parts.append(part)
    return np.concatenate([x.reshape(-1) for x in parts])


def residues_in(tiles, planes, shape, symmetric=False):
    """Return (planes, batch, m, n) residues of tiles, and which of them are there."""
    batch, m, n = shape
    row, column = places()
    residues = np.zeros((planes, batch, m, n), np.int8)
    there = np.zeros((batch, m, n), bool)
    parts = iter(tiles.view(np.int8).reshape(-1, planes, *row.shape))
    for h in range(batch):
        for first_row, first_column in tile_corners(m, n, symmetric):
            i, j = row + first_row, column + first_column
            inside = (i < m) & (j < n)
            part = next(parts)
            residues[:, h, i[inside], j[inside]] = part[:, inside]
            there[h, i[inside], j[inside]] = True
    return residues, there
