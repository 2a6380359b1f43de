"""The public surface is small and true."""

import tomllib

import flatline
from tests.front_door import ROOT


def test_every_exported_name_exists():
    assert flatline.__all__
    assert all(hasattr(flatline, name) for name in flatline.__all__)


def test_at_most_fifteen_names_are_exported_in_order():
    assert len(flatline.__all__) <= 15
    assert flatline.__all__ == sorted(flatline.__all__)


def test_the_version_is_the_package_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert flatline.__version__ == project["version"]


def test_functions_stay_functions_once_their_modules_are_loaded():
    import flatline.diagnosis.checkup
    import flatline.diagnosis.report

    assert callable(flatline.checkup) and callable(flatline.diagnose)
    assert flatline.diagnose is flatline.diagnosis.report.diagnose
    assert flatline.checkup is flatline.diagnosis.checkup.checkup
