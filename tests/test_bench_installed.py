"""`flatline bench` where flatline was installed, without the repository."""

import pytest
from typer.testing import CliRunner

from flatline.cli import bench
from flatline.errors import ConfigError


@pytest.fixture
def installed(monkeypatch, tmp_path):
    monkeypatch.setattr(bench, "CLONE", tmp_path)
    return bench.group()


@pytest.mark.parametrize("typed", [[], ["--quick"], ["report", "runs/bench"]])
def test_the_benchmark_of_planted_faults_says_where_it_is(installed, typed):
    result = CliRunner().invoke(installed, typed)
    assert isinstance(result.exception, ConfigError)
    assert "in a clone of it" in str(result.exception)


def test_mutants_of_ones_own_script_are_installed(installed):
    assert "--script" in CliRunner().invoke(installed, ["mutants", "--help"]).output
