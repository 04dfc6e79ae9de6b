"""A log-normal length in tokens, cut to bounds, whose mean after the cut is the one that was asked for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from blink.common.errors import InputError
from blink.workload.requests import Column

# Below this share of the log-normal inside the bounds the shape is no longer a log-normal but a pile at one bound.
INSIDE_SHARE_MIN = 0.01
_BISECTIONS = 80
_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class TruncatedLogNormal:
    """Whole tokens k in [minimum, maximum] with ln of the length ~ Normal(mu, sigma), conditioned on the bounds.

    `mean` is the mean after truncation; mu is solved for. `sigma` is the standard deviation of the log before it.
    A draw is a real x in [minimum - 1/2, maximum + 1/2], rounded, so that rounding does not shift the mean.

    Raises InputError when the bounds are not 1 <= minimum < maximum, sigma is not positive, or no log-normal with at
    least 1 % of its mass inside the bounds has that mean.
    """

    mean: float
    sigma: float
    minimum: int
    maximum: int

    def __post_init__(self) -> None:
        if not 1 <= self.minimum < self.maximum:
            bounds = f"{self.minimum}..{self.maximum}"
            raise InputError(f"lognormal: bounds {bounds} are not allowed; need 1 <= minimum < maximum")
        if not (math.isfinite(self.sigma) and self.sigma > 0):
            raise InputError(f"lognormal: sigma {self.sigma} is not allowed; it must be finite and greater than 0")
        if not self.minimum < self.mean < self.maximum:
            raise InputError(f"lognormal: mean {self.mean} is not between the bounds {self.minimum} and {self.maximum}")
        solve_mu(self.mean, self.sigma, self.minimum, self.maximum)

    @property
    def mu(self) -> float:
        """Mean of the log before truncation."""
        return solve_mu(self.mean, self.sigma, self.minimum, self.maximum)

    def quantile(self, uniforms: NDArray[np.float64]) -> Column:
        """Inverse of the distribution function: uniform numbers in [0, 1) to lengths, one for one."""
        low, high = _bounds(self.mu, self.sigma, self.minimum, self.maximum)
        share_low, share_high = _NORMAL.cdf(low), _NORMAL.cdf(high)
        shares = np.clip(share_low + uniforms * (share_high - share_low), 1e-300, 1 - 2**-53)
        logs = np.array([_NORMAL.inv_cdf(share) for share in shares.tolist()], dtype=np.float64)
        lengths = np.rint(np.exp(self.mu + self.sigma * logs))
        return np.clip(lengths, self.minimum, self.maximum).astype(np.int64)


def sigma_from_cv(cv: float) -> float:
    """sigma of the log for a coefficient of variation (before truncation): sqrt(ln(1 + cv^2))."""
    if not (math.isfinite(cv) and cv > 0):
        raise InputError(f"lognormal: cv {cv} is not allowed; it must be finite and greater than 0")
    return math.sqrt(math.log1p(cv * cv))


def truncated_mean(mu: float, sigma: float, minimum: int, maximum: int) -> float:
    """Mean of a log-normal conditioned on [minimum - 1/2, maximum + 1/2].

    E[X | a < X < b] = exp(mu + sigma^2/2) * (Phi(z_b - sigma) - Phi(z_a - sigma)) / (Phi(z_b) - Phi(z_a)),
    z = (ln x - mu) / sigma: Johnson, Kotz and Balakrishnan, Continuous Univariate Distributions 1, chapter 14.
    """
    low, high = _bounds(mu, sigma, minimum, maximum)
    return math.exp(mu + sigma * sigma / 2) * _share(low - sigma, high - sigma) / _share(low, high)


@lru_cache(maxsize=256)
def solve_mu(mean: float, sigma: float, minimum: int, maximum: int) -> float:
    """The mu for which `truncated_mean` is `mean`, by bisection: the mean rises with mu."""
    low, high = _mu_range(sigma, minimum, maximum)
    reach = truncated_mean(low, sigma, minimum, maximum), truncated_mean(high, sigma, minimum, maximum)
    if not reach[0] <= mean <= reach[1]:
        raise InputError(
            f"lognormal: mean {mean} cannot be reached with sigma {sigma} and bounds {minimum}..{maximum}; "
            f"reachable: {reach[0]:.1f} to {reach[1]:.1f}"
        )
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if truncated_mean(middle, sigma, minimum, maximum) < mean:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _mu_range(sigma: float, minimum: int, maximum: int) -> tuple[float, float]:
    """The values of mu between which at least INSIDE_SHARE_MIN of the mass is inside the bounds."""
    log_low, log_high = math.log(minimum - 0.5), math.log(maximum + 0.5)
    centre = (log_low + log_high) / 2
    if _share(*_bounds(centre, sigma, minimum, maximum)) < INSIDE_SHARE_MIN:
        raise InputError(f"lognormal: sigma {sigma} is too wide for the bounds {minimum}..{maximum}")
    inside, outside = centre, log_high + 40 * sigma
    for _ in range(_BISECTIONS):
        middle = (inside + outside) / 2
        if _share(*_bounds(middle, sigma, minimum, maximum)) >= INSIDE_SHARE_MIN:
            inside = middle
        else:
            outside = middle
    return 2 * centre - inside, inside


def _bounds(mu: float, sigma: float, minimum: int, maximum: int) -> tuple[float, float]:
    return (math.log(minimum - 0.5) - mu) / sigma, (math.log(maximum + 0.5) - mu) / sigma


def _share(low: float, high: float) -> float:
    """Phi(high) - Phi(low), from the tail where both are small so that nothing cancels."""
    if low > 0:
        low, high = -high, -low
    return (math.erfc(-high / math.sqrt(2)) - math.erfc(-low / math.sqrt(2))) / 2
