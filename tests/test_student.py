"""Student's t by special functions: the same as scipy.stats, without waiting for it."""

import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from sweep.analysis.statistics.intervals import t_density, t_quantile, t_upper_tail


@pytest.mark.parametrize("degrees", [1, 2, 3, 9, 400])
def test_the_same_as_scipys_distribution(degrees: int) -> None:
    values = np.linspace(-30.0, 30.0, 13)
    np.testing.assert_allclose(t_upper_tail(values, degrees), stats.t.sf(values, degrees), rtol=1e-9)
    np.testing.assert_allclose(t_density(values, degrees), stats.t.pdf(values, degrees), rtol=1e-9)
    assert t_quantile(0.95, degrees) == pytest.approx(stats.t.ppf(0.975, degrees))


def test_without_degrees_the_density_is_the_normal_one() -> None:
    values = np.linspace(-4.0, 4.0, 9)
    np.testing.assert_allclose(t_density(values, 0), stats.norm.pdf(values), rtol=1e-12)


def test_a_report_waits_for_no_statistics_package() -> None:
    code = "import sys, reports.page.html, reports.figures.all_figures; "
    code += "print([m for m in ('scipy.stats', 'scipy.optimize', 'torch')"
    code += " if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
