"""Least squares by normal equations, and an estimate of the largest singular value.

Plain NumPy: a generated matrix of 600 columns, a solution with one step of refinement,
and a power iteration from 64 starts.
"""

import numpy as np

ROWS, COLUMNS = 900, 600


def main() -> None:
    """Generate a problem with a known solution, solve it, print how well."""
    rng = np.random.default_rng(2024)
    x = rng.standard_normal((ROWS, COLUMNS))
    solution = rng.standard_normal((COLUMNS, 64))
    y = x @ solution

    gram = x.T @ x
    inverse = np.linalg.inv(gram)
    found = np.zeros_like(solution)
    for _ in range(2):
        found += inverse @ (x.T @ (y - x @ found))

    vectors = rng.standard_normal((COLUMNS, 64))
    for _ in range(6):
        vectors = gram @ (vectors / np.linalg.norm(vectors, axis=0))
    largest = np.sqrt(np.linalg.norm(vectors, axis=0).max())

    residual = np.linalg.norm(y - x @ found) / np.linalg.norm(y)
    error = np.abs(found - solution).max()
    symmetric = np.array_equal(gram, gram.T)
    print(
        f"residual {residual:.1e}, error {error:.1e}, largest singular value "
        f"about {largest:.0f}, Gram matrix symmetric: {symmetric}"
    )


if __name__ == "__main__":
    main()
