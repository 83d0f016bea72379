"""Three classic models of statsmodels on generated data.

OLS with heteroscedasticity-robust errors, a Poisson GLM by iteratively reweighted least
squares, and a vector autoregression with forecast and impulse responses.
"""

import argparse

import numpy as np
import statsmodels.api as sm
from statsmodels.tsa.api import VAR


def ols(rng: np.random.Generator, rows: int, columns: int) -> dict[str, float]:
    """Fit a linear model whose noise grows with the first regressor."""
    x = sm.add_constant(rng.standard_normal((rows, columns)))
    noise = rng.standard_normal(rows) * (1 + np.abs(x[:, 1]))
    y = x @ rng.standard_normal(columns + 1) + noise
    fit = sm.OLS(y, x).fit(cov_type="HC1")
    return {
        "ols coefficients": float(np.linalg.norm(fit.params)),
        "ols robust errors": float(np.linalg.norm(fit.bse)),
        "ols R squared": float(fit.rsquared),
        "ols F": float(fit.fvalue),
    }


def glm(rng: np.random.Generator, rows: int, columns: int) -> dict[str, float]:
    """Fit counts with a logarithmic link."""
    x = sm.add_constant(rng.standard_normal((rows, columns)))
    rate = np.exp(x @ (rng.standard_normal(columns + 1) / columns))
    fit = sm.GLM(rng.poisson(rate), x, family=sm.families.Poisson()).fit(tol=1e-10)
    return {
        "glm coefficients": float(np.linalg.norm(fit.params)),
        "glm errors": float(np.linalg.norm(fit.bse)),
        "glm deviance": float(fit.deviance),
        "glm log-likelihood": float(fit.llf),
    }


def var(rng: np.random.Generator, steps: int, series: int) -> dict[str, float]:
    """Simulate a stable process of order two and fit one of order four."""
    first = 0.5 * np.eye(series) + 0.1 * rng.standard_normal((series, series)) / series
    y = np.zeros((steps, series))
    for t in range(2, steps):
        y[t] = first @ y[t - 1] - 0.2 * y[t - 2] + rng.standard_normal(series)
    fit = VAR(y).fit(4)
    return {
        "var coefficients": float(np.linalg.norm(fit.params)),
        "var residual covariance": float(np.linalg.norm(fit.sigma_u)),
        "var AIC": float(fit.aic),
        "var forecast": float(np.linalg.norm(fit.forecast(y[-4:], 10))),
        "var impulse responses": float(np.linalg.norm(fit.irf(8).orth_irfs)),
    }


def main(small: bool = False) -> dict[str, float]:
    """Fit the three models, print and return what a user would look at."""
    rng = np.random.default_rng(7)
    divisor = 3 if small else 1
    results = {
        **ols(rng, 3000 // divisor, 120 // divisor),
        **glm(rng, 2400 // divisor, 60 // divisor),
        **var(rng, 1500 // divisor, 12),
    }
    for name, value in results.items():
        print(f"{name:24} {value:.10g}")
    return results


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="smaller problems")
    main(parser.parse_args().small)
