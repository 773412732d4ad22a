"""A ridge regression of cycle time on what cycles drafted: how it is solved and how it forgets.

ms per cycle = a + b [share of cycles that draft] + c [drafted tokens] + d [share of cycles with a rejection]

The prior is a *shape*: ratios of b, c and d to a. The scale has no prior, so one answer of any arm sets it. Solved by
elimination in plain floats: four unknowns, once or twice for every answer, and a call into an array library takes
longer. Where it misleads: features that were never apart in what was played (one depth alone) are told apart by the
prior, which `core.outlook` accounts for; kernel cliffs are no line at all, and are the arms' residuals' business.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

Vector = tuple[float, float, float, float]
Sums = tuple[float, ...]
NO_SUMS: Sums = (0.0,) * 14

# Relative noise of one answer's cycle time that the regression assumes: 1-3% in public repeats.
TIME_SD = 0.03
# Shape of T(n)/T(0) before anything is known (share that drafts, per drafted token, per rejection), and how far from
# it real machines are: public fits run from .11 to 1.05 per drafted token.
SHAPE_PRIOR: Vector = (1.0, 0.02, 0.2, 0.03)
SHAPE_SD: Vector = (0.0, 0.15, 0.15, 0.12)
# What a drafted token, and drafting at all, cost at most in units of T(0) (public fits end at 1.05): two depths near
# each other say little about none at all.
STEEPEST = 1.5
# The same of a rejection: 5.9 was measured, for a draft of sixteen on a model that computes what it kept once more.
DEAREST = 6.0


@dataclass(frozen=True, slots=True)
class Fit:
    """A ridge regression of cycle time: its solution, and its sums, in total and by arm.

    Sums are x x' (upper triangle by rows, 10) and x y (4). Each arm forgets by its own answers only: what an arm that
    is no longer played once showed keeps its place in the line (directional forgetting, Kulhavy 1987).
    """

    coef: Vector = SHAPE_PRIOR
    total: Sums = NO_SUMS
    by_arm: Mapping[str, Sums] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cycle:
    """A mean cycle. drawn: 1, share that drafts, drafted tokens, share with a rejection; weight: 0 .. 1."""

    drawn: Vector
    cycle_ms: float
    weight: float


def line(coef: Vector, drawn: Vector) -> float:
    """ms of a cycle with these features."""
    return coef[0] * drawn[0] + coef[1] * drawn[1] + coef[2] * drawn[2] + coef[3] * drawn[3]


def off_line(coef: Vector, own: Sums) -> float:
    """Log of an arm's mean cycle time over the line's at its mean features."""
    return math.log(own[10] / (coef[0] * own[0] + coef[1] * own[1] + coef[2] * own[2] + coef[3] * own[3]))


def fitted(fit: Fit, name: str, seen: Cycle, *, keep: float, prior: Vector, sd: Vector) -> Fit:
    """The regression after one answer of an arm, weighted so that equal relative errors count alike."""
    x0, x1, x2, x3 = seen.drawn
    y = seen.cycle_ms
    unit = seen.weight / (y * y * TIME_SD * TIME_SD)
    u = unit * y
    w1, w2 = unit * x1, unit * x2
    squares = (w1 * x1, w1 * x2, w1 * x3, w2 * x2, w2 * x3, unit * x3 * x3)
    new: Sums = (unit * x0, w1, w2, unit * x3, *squares, u * x0, u * x1, u * x2, u * x3)
    old = fit.by_arm.get(name)
    if old is None:
        own, total = new, tuple([t + n for t, n in zip(fit.total, new, strict=True)])
    else:
        own = tuple([keep * o + n for o, n in zip(old, new, strict=True)])
        total = tuple([t - o + n for t, o, n in zip(fit.total, old, own, strict=True)])
    return Fit(_solved(total, prior, sd), total, {**fit.by_arm, name: own})


def scaled(fit: Fit, share: float) -> Fit:
    """The regression with `share` of its evidence; what it says stays, until the next answer."""
    if share == 1.0:
        return fit
    by_arm = {name: tuple([share * x for x in own]) for name, own in fit.by_arm.items()}
    return Fit(fit.coef, tuple([share * x for x in fit.total]), by_arm)


def _solved(total: Sums, prior: Vector, sd: Vector) -> Vector:
    """Ridge solution around scale x prior, with non-negative costs; the scale itself has no prior.

    The scale is that of the data on the prior's shape: s = m'xy / m'xx m.
    """
    a, b, c, d, e, f, g, h, i, j, y0, y1, y2, y3 = total
    _, m1, m2, m3 = prior
    v0 = a + b * m1 + c * m2 + d * m3
    v1 = b + e * m1 + f * m2 + g * m3
    v2 = c + f * m1 + h * m2 + i * m3
    v3 = d + g * m1 + i * m2 + j * m3
    scale = (y0 + m1 * y1 + m2 * y2 + m3 * y3) / (v0 + m1 * v1 + m2 * v2 + m3 * v3)
    p1, p2, p3 = [1.0 / (s * s * scale * scale) for s in sd[1:]]
    k1, k2, k3 = m1 * scale, m2 * scale, m3 * scale
    first = _solve4(
        (a, b, c, d, e + p1, f, g, h + p2, i, j + p3),
        (y0, y1 + p1 * k1, y2 + p2 * k2, y3 + p3 * k3),
    )
    s, k, per_token, per_rejection = first
    s = max(s, 0.2 * scale)
    free = (k / s, per_token / s, per_rejection / s)
    per_token = min(max(free[1], 0.01), STEEPEST)
    k, per_rejection = min(max(free[0], -per_token), STEEPEST), min(max(free[2], 0.0), DEAREST)
    if s == first[0] and (k, per_token, per_rejection) == free:
        return first
    # A bound holds (a cycle that drafts takes no less than one that does not): the scale again, for these ratios.
    u0 = a + b * k + c * per_token + d * per_rejection
    u1 = b + e * k + f * per_token + g * per_rejection
    u2 = c + f * k + h * per_token + i * per_rejection
    u3 = d + g * k + i * per_token + j * per_rejection
    s = (y0 + k * y1 + per_token * y2 + per_rejection * y3) / (
        u0 + k * u1 + per_token * u2 + per_rejection * u3
    )
    return (s, s * k, s * per_token, s * per_rejection)


def _solve4(xx: tuple[float, ...], xy: Vector) -> Vector:
    """Solve a symmetric positive 4 x 4 system by elimination."""
    a, b, c, d, e, f, g, h, i, j = xx
    y0, y1, y2, y3 = xy
    r = b / a
    e, f, g, y1 = e - r * b, f - r * c, g - r * d, y1 - r * y0
    q = c / a
    h, i, y2 = h - q * c, i - q * d, y2 - q * y0
    p = d / a
    j, y3 = j - p * d, y3 - p * y0
    r = f / e
    h, i, y2 = h - r * f, i - r * g, y2 - r * y1
    q = g / e
    j, y3 = j - q * g, y3 - q * y1
    r = i / h
    j, y3 = j - r * i, y3 - r * y2
    z3 = y3 / j
    z2 = (y2 - i * z3) / h
    z1 = (y1 - f * z2 - g * z3) / e
    return ((y0 - b * z1 - c * z2 - d * z3) / a, z1, z2, z3)


def uncertainty(fit: Fit) -> tuple[tuple[Vector, ...], Vector]:
    """Rows r (4,) and weights w of which sum w (r x)^2 is the variance of the line at features x, in ms^2.

    The inverse of the ridge's precision by elimination: its factor L D L' is triangular, and so is the inverse of L.
    """
    a, b, c, d, e, f, g, h, i, j = fit.total[:10]
    scale = fit.coef[0]
    p1, p2, p3 = [1.0 / (sd * sd * scale * scale) for sd in SHAPE_SD[1:]]
    e, h, j = e + p1, h + p2, j + p3
    least = 1e-12 * (a + e + h + j)  # one depth alone leaves it nearly singular
    a, e, h, j = a + least, e + least, h + least, j + least
    b1, c1, d1 = b / a, c / a, d / a
    e, f, g, h, i, j = e - b1 * b, f - b1 * c, g - b1 * d, h - c1 * c, i - c1 * d, j - d1 * d
    f2, g2 = f / e, g / e
    h, i, j = h - f2 * f, i - f2 * g, j - g2 * g
    i3 = i / h
    j -= i3 * i
    c0 = f2 * b1 - c1
    rows = (
        (1.0, 0.0, 0.0, 0.0),
        (-b1, 1.0, 0.0, 0.0),
        (c0, -f2, 1.0, 0.0),
        (g2 * b1 - d1 - i3 * c0, i3 * f2 - g2, -i3, 1.0),
    )
    return rows, (1.0 / a, 1.0 / e, 1.0 / h, 1.0 / j)
