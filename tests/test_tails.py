"""Chances and quantiles beside values that scipy 1.17.1 gave: `stdtrit(freedom, (1 + level) / 2)`,
`2 * stdtr(freedom, -t)`, `binom.sf(count - 1, total, rate)` and `betaincinv(a, b, share)`."""

import math

import pytest

from flatline.stats import t_score
from flatline.tails import beta_below, beta_quantile, binomial, students

NEAR = pytest.approx
QUANTILES = {
    1: (1.0, 12.706204736174694, 636.6192487687897),
    1.3: (0.9095175281352076, 7.500529325562029, 153.26589277351601),
    2: (0.8164965809277261, 4.302652729749462, 31.599054576445365),
    5: (0.7266868438004226, 2.5705818356363146, 6.868826625881276),
    19: (0.6876214602039602, 2.0930240544083087, 3.883405852592131),
    63.7: (0.6783607305684591, 1.9979108690536687, 3.449920730058617),
    999: (0.6747354103467192, 1.9623414611334493, 3.3002924403987666),
    1000: (0.6747351646070093, 1.9623390808264083, 3.300282648423944),
    20_000: (0.6745020171411138, 1.9600826051581348, 3.2910132833642876),
}
"""Degrees of freedom -> quantiles of the levels 0.5, 0.95 and 0.999."""
BEYOND = {
    1: (1.0, 0.8144528418445154, 0.5, 0.24223788318168682, 0.0021220580484409713),
    2: (1.0, 0.7924856608401776, 0.4226497308103742, 0.12961172022151082, 1.1110925929355216e-05),
    5: (1.0, 0.7762490422632745, 0.3632174676491229, 0.05449009934237626, 7.809907457922212e-12),
    19: (1.0, 0.7674346603392634, 0.329876800921125, 0.02174041116839744, 2.1821139242877516e-36),
}
"""Degrees of freedom -> chances beyond 0, 0.3, 1, 2.5 and 300."""


@pytest.mark.parametrize("freedom", QUANTILES)
def test_students_quantile_is_that_of_scipy(freedom):
    found = [t_score(freedom, level) for level in (0.5, 0.95, 0.999)]
    assert found == NEAR(QUANTILES[freedom], rel=1e-11)


@pytest.mark.parametrize("freedom", BEYOND)
def test_students_tail_is_that_of_scipy_however_small(freedom):
    found = [students(t, freedom) for t in (0.0, 0.3, -1.0, 2.5, 300.0)]
    assert found == NEAR(BEYOND[freedom], rel=1e-11)


def test_students_tail_is_right_where_nothing_is_left_of_either_side():
    assert 1 - students(1e-8, 1) == NEAR(2e-8 / math.pi, rel=1e-6)
    assert students(1e200, 3) == 0.0 and students(math.inf, 3) == 0.0
    assert math.isnan(students(math.nan, 3))


@pytest.mark.parametrize(
    ("count", "total", "rate", "chance"),
    [
        (1, 1, 0.5, 0.5),
        (3, 4, 0.1, 0.0037),
        (9, 16, 0.2, 0.001475938254848001),
        (16, 16, 0.05, 1.5258789062500013e-21),
        (60, 64, 0.9, 0.220468904160452),
        (40, 1000, 0.01, 4.688553566249777e-13),
        (5000, 10000, 0.5, 0.5039893230696917),
        (0, 7, 0.3, 1.0),
        (8, 7, 0.3, 0.0),
        (3, 7, 1.0, 1.0),
        (3, 7, 0.0, 0.0),
    ],
)
def test_the_binomial_tail_is_that_of_scipy(count, total, rate, chance):
    assert binomial(count, total, rate) == NEAR(chance, rel=1e-10)


@pytest.mark.parametrize("rate", [0.03, 0.5, 0.8])
def test_the_binomial_tail_is_the_sum_of_its_parts(rate):
    for count in range(1, 24):
        parts = [math.comb(23, k) * rate**k * (1 - rate) ** (23 - k) for k in range(count, 24)]
        assert binomial(count, 23, rate) == NEAR(math.fsum(parts), rel=1e-12)


@pytest.mark.parametrize(
    ("share", "a", "b", "quantile"),
    [
        (0.025, 1, 10, 0.0025285785444617848),
        (0.975, 2, 9, 0.4450161170281954),
        (0.025, 10, 1, 0.6915028921812392),
        (0.975, 40, 961, 0.05293093578544508),
        (0.025, 3, 9998, 6.187148574838713e-05),
        (0.5, 2, 2, 0.5),
    ],
)
def test_the_beta_quantile_is_that_of_scipy(share, a, b, quantile):
    found = beta_quantile(share, a, b)
    assert found == NEAR(quantile, rel=1e-10)
    assert beta_below(found, a, b) == NEAR(share, rel=1e-10)
