"""The scripts of `benchmarks/reliability`, some smaller: nothing is lost, nothing is noticed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.quality.report import report

SCRIPTS = Path(__file__).parent.parent.parent / "benchmarks" / "reliability"


def lines_of(script, *options):
    done = subprocess.run(
        [sys.executable, SCRIPTS / script, *options], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return done.stdout.strip().splitlines()


@pytest.mark.skipif(os.geteuid() != 0, reason="a small disk is mounted, which root alone may")
def test_strikes_at_random_moments_lose_nothing():
    lines = lines_of("crashes.py", "--share", "0.25", "--seed", "1")
    report("; ".join(lines[-2:]))


def test_no_error_of_the_recorder_is_noticed_by_trls_trainer():
    report(" ".join(lines_of("recorder_faults.py")[-2:]))


def test_no_damage_to_a_trace_is_silent():
    for line in lines_of("attacks.py"):
        report(line)


def test_processes_in_one_place_at_once_lose_nothing():
    for line in lines_of("together.py"):
        report(line)


def test_the_same_seed_gives_the_same_bytes():
    for line in lines_of("same.py"):
        report(line)


def test_a_bad_disk_costs_a_bounded_wait_and_memory_is_flat():
    for line in lines_of("stalls.py"):
        report(line)
