# Two commands: `make demo` and `make test`. Each makes .venv with what it needs, on nothing but Python and an index.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
# One thread each: two workers with two threads on two cores wait for each other most of the time.
WORKERS ?= 2

.PHONY: demo test slow campaign lint gsm8k benchmarks docs clean

demo: $(VENV)/.demo
	$(BIN)/humanline reproduce --quick

test: $(VENV)/.dev lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) -m "not slow and not gpu" --durations 8

slow: $(VENV)/.dev
	$(BIN)/python -m pytest -m slow

# Runs that are killed, starved, lied to or given hostile files, by the thousand: under an hour on two cores.
campaign: $(VENV)/.dev
	$(BIN)/python -m tests.campaign --processes $(WORKERS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

gsm8k: $(VENV)/.train
	$(BIN)/python examples/gsm8k/run.py

benchmarks: $(VENV)/.bench
	$(BIN)/python -m benchmarks

# The pages as a site, in build/site. Read from the source: nothing of what training needs is installed for it.
docs: $(VENV)-docs/.docs
	$(VENV)-docs/bin/python scripts/build_docs.py

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.train: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable '.[train]'
	touch $@

$(VENV)/.demo: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable '.[train,plots]'
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable '.[train,dev]'
	touch $@

$(VENV)/.bench: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable '.[train,bench]'
	touch $@

$(VENV)-docs/.docs: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)-docs
	$(VENV)-docs/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-docs
