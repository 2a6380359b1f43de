"""The real verifiers library against `flatline serve`: the same problems, tools and rewards.

Everything is installed as a user would: an environment of its own, `vf-eval` and `vf-validate` from
the command line, the served lab policy behind an address on loopback.
"""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
import torch

from flatline.rollout.engine import Engine, Limits
from flatline.rollout.sampling import Sampling
from flatline.rollout.table import Job
from flatline.tasks.musique import Musique
from flatline.trace.importers import open_log
from flatline.training.lab.tokenizer import checkpoint_folder
from flatline.training.models import load_policy
from tests.quality.report import report

ROOT = Path(__file__).parent.parent.parent
PROBLEMS = (0, 1, 12, 19, 35, 73, 78, 88)
"""Some that the lab policy solves and some that it does not, in several ways."""
TOKENS = 128
TASK = Musique()


@pytest.fixture(scope="module")
def tools(tmp_path_factory):
    """The folder of verifiers' commands, in an environment of its own."""
    folder = tmp_path_factory.mktemp("verifiers")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    packages = ["-e", ROOT, "-e", ROOT / "environments" / "vf_musique", "uv"]
    subprocess.run([folder / "bin" / "pip", "install", "--quiet", *packages], check=True)
    return folder / "bin"


@pytest.fixture(scope="module")
def address():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [Path(sys.executable).parent / "flatline", "serve", "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        try:
            _wait_for(f"http://127.0.0.1:{port}/health", server)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            server.terminate()


def _wait_for(url, server):
    for _ in range(600):
        assert server.poll() is None, "the server stopped"
        try:
            with urllib.request.urlopen(url):
                return
        except OSError:
            time.sleep(0.1)
    raise AssertionError("the server did not answer within a minute")


def run(tools, command, folder, *options):
    """Run a command of verifiers into a folder; the folder of its run."""
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    known = {"PATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [tools / command, "vf-musique", *options, "--no-rich", "-o", folder],
        env={**os.environ, **known},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (made,) = [path for path in folder.iterdir() if path.is_dir()]
    return made


def evaluated(tools, folder, address, *options):
    client = ["--client.base-url", address, "--client.api-key-var", "NO_KEY", "--no-push"]
    limits = ["-m", "lab", "--sampling.max-tokens", str(TOKENS)]
    return run(tools, "vf-eval", folder, *client, *limits, *options) / "traces.jsonl"


def test_a_greedy_evaluation_earns_what_flatline_gives(tools, address, tmp_path):
    chosen = ["--select.include.idx", ",".join(map(str, PROBLEMS))]
    saved = evaluated(tools, tmp_path, address, *chosen, "--sampling.temperature", "0")
    episodes = [json.loads(line) for line in saved.read_text().splitlines()]
    theirs = {one["task"]["key"]: one["traces"][0]["rewards"] for one in episodes}
    policy = load_policy("lab")
    engine = Engine(
        policy.model,
        policy.tokenizer,
        TASK,
        sampling=Sampling(temperature=0),
        limits=Limits(max_new_tokens=TOKENS),
    )
    loaded = TASK.load("lab", split="validation")
    problems = [loaded[i] for i in PROBLEMS]
    ours = {
        rollout.problem_id: {"combined": rollout.score.reward, **rollout.score.parts}
        for rollout in engine.play([Job(problem, 0) for problem in problems], seed=0)
    }
    assert len({parts["combined"] for parts in ours.values()}) > 3, "too little is compared"
    for id, parts in ours.items():
        assert {name: one["score"] for name, one in theirs[id].items()} == pytest.approx(parts)
    report(f"vf-eval and flatline agree on all reward parts of {len(ours)} greedy plays")
    trace = open_log(saved)
    assert sorted(trace.rollouts["reward"]) == pytest.approx(
        sorted(parts["combined"] for parts in ours.values())
    )
    diagnosed = subprocess.run(
        [Path(sys.executable).parent / "flatline", "diagnose", saved, "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert diagnosed.returncode in (0, 1), diagnosed.stderr
    assert len(json.loads(diagnosed.stdout)["findings"]) > 0


def test_the_training_client_gets_exact_tokens_and_log_probs(tools, address, tmp_path):
    """Where the renderer takes a thought out of the history, a trace has more than one branch."""
    renderer = ["--client.renderer.name", "default", "--client.renderer.tool-parser", "qwen3"]
    model = ["--client.type", "train", "--client.renderer-model-name", checkpoint_folder()]
    count = ["-n", "4", "-r", "2", "--sampling.temperature", "1"]
    saved = evaluated(tools, tmp_path, address, *model, *renderer, *count)
    policy = load_policy("lab")
    traces = [json.loads(line)["traces"][0] for line in saved.read_text().splitlines()]
    branches = [branch for trace in traces for branch in _branches(trace["nodes"])]
    off = max(_gap(policy, branch) for branch in branches)
    assert off < 1e-4
    rewarded = sum(trace["rewards"]["combined"]["score"] for trace in traces) / len(traces)
    report(
        f"training client: {len(traces)} rollouts in {len(branches)} branches, log-probs within "
        f"{off:.0e} of one pass over the saved ids; mean reward {rewarded:.2f}"
    )


def _branches(nodes):
    """Every path from the root to a leaf: what the model read, and wrote at its end."""
    parents = {node.get("parent") for node in nodes}
    for leaf in set(range(len(nodes))) - parents:
        path, at = [], leaf
        while at is not None:
            path.insert(0, nodes[at])
            at = nodes[at].get("parent")
        yield path


def _gap(policy, branch):
    """The largest distance between the sampler's log-probs and those of one pass over all."""
    ids, mask, theirs = (
        [value for node in branch for value in node[name]]
        for name in ("token_ids", "mask", "logprobs")
    )
    with torch.no_grad():
        logps = policy.model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
    ours = [float(logps[i - 1, id]) for i, id in enumerate(ids) if mask[i]]
    return max((abs(a - b) for a, b in zip(ours, theirs, strict=True)), default=0.0)


def test_gold_earns_the_maximum_and_doing_nothing_does_not(tools, tmp_path):
    made = run(tools, "vf-validate", tmp_path, "-n", "12", "--runtime.type", "subprocess")
    summary = json.loads((made / "summary.json").read_text())
    assert summary["checks"]["gold"]["valid"] == summary["checks"]["noop"]["valid"] == 12
    report("vf-validate: 12 of 12 gold plays earn the maximum, 12 of 12 untouched tasks do not")
