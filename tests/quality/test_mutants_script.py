"""`flatline bench mutants --script` on somebody's own loop."""

import subprocess
import sys

from flatline.bench.mutants.study import MUTANTS_FILE, rows_in
from flatline.bench.mutants.tables import markdown
from tests.test_mutants import figures_of

LOOP = """
import subprocess
import sys

import torch

torch.manual_seed(int(sys.argv[1]))
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def wanted(x):
    unused = 1 - 1
    return x.sum(dim=1, keepdim=True)


def train():
    for _ in range(4):
        x = torch.randn(8, 3)
        loss = ((model(x) - wanted(x)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


train()
"""


def test_a_team_learns_which_defects_of_its_own_script_nobody_would_notice(tmp_path):
    script, out = tmp_path / "train.py", tmp_path / "out"
    script.write_text(LOOP)
    command = ["bench", "mutants", "--script", f"{script} 3", "--count", "12", "--out", str(out)]
    code = "import sys; from flatline.cli import main; sys.exit(main())"
    said = subprocess.run(
        [sys.executable, "-c", code, *command, "--jobs", "2"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    rows = rows_in(out / MUTANTS_FILE)
    assert {one["effect"] for one in rows} >= {"changes", "same"}
    report = markdown(figures_of(out))
    assert "train.py 3" in report and "train.py 3" in said.stdout
    silent = figures_of(out)["splits"]["development"]["silent"]
    assert any("zero_grad" in one or "wanted" in one or "train" in one for one in silent)
