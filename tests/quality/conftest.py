"""Measurements take minutes: they run with `make quality`, not with every test run."""

from tests.quality.report import LINES


def pytest_ignore_collect(collection_path, config):
    named = any("quality" in str(argument) for argument in config.invocation_params.args)
    return None if named else True


def pytest_terminal_summary(terminalreporter):
    if LINES:
        terminalreporter.section("measured")
        terminalreporter.write_line("\n".join(LINES))
