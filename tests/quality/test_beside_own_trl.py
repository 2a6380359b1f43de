"""The wheel without extras beside somebody's own TRL: checkup, attach and watch, and no scipy."""

import os

import pytest

from tests.quality.test_package_install import ROOT, built, environment, run  # noqa: F401


@pytest.fixture(scope="module")
def with_trl(built, tmp_path_factory):  # noqa: F811
    return environment(tmp_path_factory.mktemp("trl"), str(built[0]), "torch", "trl", "peft")


def test_beside_ones_own_trl_no_extra_is_needed(with_trl, tmp_path):
    python, plain = str(with_trl / "python"), {"PATH": os.environ["PATH"]}
    told = run(python, str(ROOT / "tests" / "beside_trl.py"), cwd=tmp_path, env=plain)
    assert told.splitlines()[-1] == "loaded: []"
    code = "import importlib.util as u; print(u.find_spec('scipy'))"
    assert run(python, "-c", code).strip() == "None"
