# Every target sets up .venv by itself. pip, not uv: the pinned torch is the CPU build there.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
# Tests start hundreds of processes: each would compile 700 modules where this is set to anything.
export PYTHONDONTWRITEBYTECODE :=

# Files about the laboratory and its tooling alone, a minute and more together: `make quality` runs them.
SLOW := $(addprefix tests/test_,faults.py faults_catalogue.py faults_of_scale.py faults_of_reward_and_play.py \
	lab.py mutants.py train_cli.py training.py warmstart.py warmstart_plays.py)

.PHONY: demo test lint installed golden chromium quality museum verl family audit bench investigation lab docs schemas clean

demo: $(READY)
	$(BIN)/flatline demo

# Side by side what keeps one core busy each; then work stealing: the tests of a file stay together,
# so what they share is made once.
test: $(READY)
	$(MAKE) --no-print-directory --jobs 2 --output-sync lint installed
	$(BIN)/pytest -n 2 --dist worksteal $(addprefix --ignore=,$(SLOW))

installed: $(READY)
	$(BIN)/pytest tests/quality/test_package_install.py

lint: $(READY)
	$(BIN)/ruff check src bench tests benchmarks museum recipes scripts environments
	$(BIN)/ruff format --check src bench tests benchmarks museum recipes scripts environments
	$(BIN)/mypy

# What flatline answers to every kept log, recording and live script, against the kept answers.
golden: $(READY)
	$(BIN)/python -m tests.golden

# For the tests of the pages; without it they are skipped. Debian and Ubuntu, as root.
chromium:
	apt-get update -qq
	apt-get install --yes --quiet --quiet --no-install-recommends chromium chromium-driver fonts-noto-color-emoji

quality: $(READY) audit
	$(BIN)/pytest $(SLOW)
	$(BIN)/pytest tests/quality --timeout=3600

# Real releases with real defects, each beside the one that mended it. Fetches their wheels.
museum: $(READY)
	$(BIN)/python -m museum --keep

# verl, for its tests and for benchmarks/verl_live.py; without it these are skipped.
verl: $(READY)
	$(BIN)/pip install --quiet --upgrade --no-deps --target build/verl --requirement tests/verl_lab/requirements.txt

# unsloth and ms-swift, for tests/quality/test_trl_family.py; without them these are skipped.
family: $(READY)
	for name in unsloth ms-swift; do $(BIN)/pip install --quiet --upgrade --no-deps --target build/$$name \
		--requirement tests/family_lab/$$name.txt || exit 1; done

# Known holes in what is pinned. Asks pypi.org; without it, that is said and nothing else.
audit: $(READY)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[audit]"
	$(BIN)/python scripts/audit.py

bench: $(READY)
	$(BIN)/python benchmarks/engine.py --rounds 12
	$(BIN)/python benchmarks/retrieval.py
	$(BIN)/python benchmarks/step_time.py
	$(BIN)/python benchmarks/healthy.py
	$(BIN)/python benchmarks/recorder.py
	$(BIN)/python benchmarks/trace_scale.py
	$(BIN)/python benchmarks/record_cost.py
	$(BIN)/flatline bench
	$(BIN)/flatline bench report runs/bench

# The seeds' investigation, with its runs; goes on where it was interrupted.
investigation: $(READY)
	$(BIN)/python benchmarks/investigation.py

# Builds the lab policy anew. Minutes on a GPU; hours on two cores.
lab: $(READY)
	$(BIN)/python -m flatline.training.lab.build --out src/flatline/training/lab/checkpoint

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[train,semantic,ray,dev]"
	touch $(READY)

# The site, into build/site; a link that leads nowhere is an error.
docs: $(READY)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[docs]"
	$(BIN)/mkdocs build --strict --quiet

# The JSON Schemas of what --json prints.
schemas: $(READY)
	$(BIN)/python scripts/json_schemas.py

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis
