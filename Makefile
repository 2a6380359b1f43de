# Every target sets up .venv by itself. pip, not uv: the pinned torch is the CPU build there.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test lint chromium quality bench investigation lab clean

demo: $(READY)
	$(BIN)/flatline demo

test: $(READY) lint
	$(BIN)/pytest -n 2

lint: $(READY)
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy

# For the tests of the pages; without it they are skipped. Debian and Ubuntu, as root.
chromium:
	apt-get update -qq
	apt-get install --yes --quiet --quiet --no-install-recommends chromium chromium-driver fonts-noto-color-emoji

quality: $(READY)
	$(BIN)/pytest tests/quality --timeout=3600

bench: $(READY)
	$(BIN)/python benchmarks/engine.py --rounds 12
	$(BIN)/python benchmarks/retrieval.py
	$(BIN)/python benchmarks/step_time.py
	$(BIN)/python benchmarks/healthy.py
	$(BIN)/python benchmarks/recorder.py
	$(BIN)/python benchmarks/trace_scale.py
	$(BIN)/python benchmarks/faults.py
	$(BIN)/python benchmarks/diagnosis.py
	$(BIN)/python benchmarks/false_alarms.py

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

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis
