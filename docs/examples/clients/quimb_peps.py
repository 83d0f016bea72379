"""The norm of a random projected entangled-pair state, by quimb.

The double layer of a square lattice is contracted exactly, and again approximately from
the boundary with a bounded bond dimension; then a local expectation value.
"""

import argparse

import numpy as np
import quimb.tensor as qtn


def main(small: bool = False) -> dict[str, float]:
    """Contract the network in two ways, print and return the norms."""
    side, bond, kept = (4, 3, 24) if small else (4, 4, 32)
    state = qtn.PEPS.rand(side, side, bond_dim=bond, seed=11, dtype="float64")
    norm = state.make_norm()
    exact = norm.contract(all, optimize="greedy")
    boundary = norm.contract_boundary(max_bond=kept, cutoff=0.0)

    flip = np.array([[0.0, 1.0], [1.0, 0.0]])
    site = (side // 2, side // 2)
    flipped = state.gate(flip, site, contract=True).mangle_inner_()
    overlap = (state.H & flipped).contract(all, optimize="greedy")

    results = {
        "norm, exact": float(exact),
        "norm, boundary": float(boundary),
        "spin flip in the middle": float(overlap / exact),
    }
    for name, value in results.items():
        print(f"{name:24} {value:.10g}")
    return results


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="a smaller lattice")
    main(parser.parse_args().small)
