"""Principal components of noisy low-rank data, by scikit-learn.

The solver "covariance_eigh" forms the covariance matrix and its eigenvectors, which is
the fast way for many more rows than columns.
"""

import argparse

import numpy as np
from sklearn.decomposition import PCA


def main(small: bool = False) -> dict[str, float]:
    """Fit, project and reconstruct; print and return what does not depend on signs."""
    rows, columns, rank = (1000, 100, 10) if small else (4000, 250, 20)
    rng = np.random.default_rng(5)
    factors = rng.standard_normal((rows, rank)) * np.linspace(5, 1, rank)
    data = factors @ rng.standard_normal((rank, columns))
    data += 0.1 * rng.standard_normal(data.shape)

    pca = PCA(n_components=rank, svd_solver="covariance_eigh").fit(data)
    scores = pca.transform(data)
    error = np.linalg.norm(pca.inverse_transform(scores) - data)

    results = {
        "explained variance": float(pca.explained_variance_.sum()),
        "largest component": float(pca.explained_variance_[0]),
        "noise variance": float(pca.noise_variance_),
        "scores": float(np.linalg.norm(scores)),
        "reconstruction error": float(error),
        "log-likelihood": float(pca.score(data)),
    }
    for name, value in results.items():
        print(f"{name:24} {value:.10g}")
    return results


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="fewer rows and columns")
    main(parser.parse_args().small)
