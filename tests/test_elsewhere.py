"""A line is named alike wherever the library lies in which it was changed."""

import os
import sys
from types import ModuleType

import pytest
import torch
from trl.trainer import grpo_trainer

from flatline.live.where import package
from flatline.live.where.package import PARTS_OF_TRL, in_library, library_of
from flatline.live.where.tracing import follows


@pytest.fixture
def fresh():
    """What is installed is read anew, which is dear, and once more when the test is over."""
    package._distributions.cache_clear()
    yield
    in_library.cache_clear()
    package._distributions.cache_clear()


@pytest.fixture
def loaded(tmp_path, monkeypatch):
    """Loads an empty module of that name from a file under a folder."""

    def load(name, place):
        file = tmp_path / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x = 1\n")
        module = ModuleType(name)
        module.__file__ = str(file)
        if file.name == "__init__.py":
            module.__path__ = [str(file.parent)]
        monkeypatch.setitem(sys.modules, name, module)
        return str(file)

    return load


def installed(folder, name, package, origin=None):
    """What pip writes of a distribution."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "RECORD").write_text(f"{package}/__init__.py,,\n")
    if origin is not None:
        (info / "direct_url.json").write_text(origin)


def test_a_module_of_trl_or_of_what_it_is_built_on_is_a_librarys_wherever_it_lies(loaded):
    for name in ("trl.trainer.mine", "transformers.trainer", "torch.nn.mine"):
        assert in_library(loaded(name, f"clones/{name}.py"))
    assert in_library(os.__file__) and in_library(torch.nn.__file__)
    assert in_library(pytest.__file__) and not in_library(__file__)


def test_a_script_is_the_users_own_even_where_it_has_the_name_of_a_library(loaded, tmp_path):
    assert not in_library(loaded("__main__", "trl.py"))
    assert not in_library(loaded("test", "test.py")), "the standard library has one of that name"
    assert not in_library(str(tmp_path / "trl" / "run" / "train.py")), "a folder is no package"
    assert not in_library("<ipython-input-3-abc>")


def test_a_package_is_the_users_own_where_it_was_installed_from_a_folder_of_this_machine(
    loaded, tmp_path, monkeypatch, fresh
):
    site = tmp_path / "site-packages"
    monkeypatch.syspath_prepend(str(site))
    here, gone = (f'{{"url": "file://{one}", "dir_info": {{}}}}' for one in (tmp_path, "/no/more"))
    for name, origin in (("mylab", here), ("einsums", None), ("condas", gone)):
        installed(site, name, name, origin)
    assert not in_library(loaded("mylab.rewards", "site-packages/mylab/rewards.py"))
    assert in_library(loaded("einsums.core", "site-packages/einsums/core.py"))
    assert in_library(loaded("condas.core", "site-packages/condas/core.py"))
    assert not in_library(loaded("einsums", "project/einsums.py")), "another of the same name"
    assert not in_library(loaded("dropped", "site-packages/dropped.py")), "nobody installed it"


def test_a_copy_of_trl_under_another_name_is_trl_and_a_users_package_beside_it_is_not(loaded):
    for part in PARTS_OF_TRL:
        loaded("unused", f"lab/mytrl/{part}")
    loaded("lab", "lab/__init__.py")
    loaded("lab.mytrl", "lab/mytrl/__init__.py")
    assert library_of("lab.mytrl.trainer.grpo_trainer") == "trl"
    assert library_of("lab.trl.rewards") == "lab" and library_of("lab") == "lab"
    assert follows(loaded("lab.mytrl.trainer.grpo_trainer", "lab/mytrl/trainer/grpo_trainer.py"))
    assert not in_library(loaded("lab.rewards", "lab/rewards.py"))


def test_trl_and_the_users_own_code_are_followed_and_other_libraries_and_flatline_are_not():
    assert follows(grpo_trainer.__file__) and follows(__file__)
    for other in (torch.nn.functional, sys.modules["transformers.trainer"], package):
        assert not follows(other.__file__)
