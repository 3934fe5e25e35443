# Sediment: `make demo` shows it, `make test` proves it. Both set everything up first.
# Needs Python 3.10 to 3.12; the tests on real servers also Java, Maven and redis-server.

SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
IN_RANGE := import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))

# The first interpreter that runs and has a version we support (a name on the PATH may not run).
PYTHON ?= $(shell for p in python3.12 python3.11 python3.10 python3 python; do \
	$$p -c '$(IN_RANGE)' >/dev/null 2>&1 && { echo $$p; break; }; done)

.DEFAULT_GOAL := help
.PHONY: help setup demo test soak traffic lint bench constraints clean

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.ready  ## Make .venv with everything in it

$(VENV)/.ready: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Sediment needs Python 3.10, 3.11 or 3.12; none was found." \
		"Install one, or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python3.12"; exit 1; }
	@echo "Setting up $(VENV) with $$($(PYTHON) --version) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: setup  ## Ingest a conversation and show what is remembered of it
	@$(BIN)/sediment demo

test: setup  ## Run every test, on real Kafka, Redis and milvus-lite
	@$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile

soak: setup  ## Seeded faults on real processes: RUNS=100 SEED=0 JOBS=1 MINUTES=0 (no end) LEDGER=file
	@$(BIN)/python -m tests.faults --runs $(or $(RUNS),100) --seed $(or $(SEED),0) \
		--jobs $(or $(JOBS),1) --minutes $(or $(MINUTES),0) $(if $(LEDGER),--ledger $(LEDGER))

traffic: setup  ## Two hours of traffic, compressed, with disturbances: MINUTES=20 RATE=200 SCOPES=1000 OUT=folder
	@$(BIN)/python -m benchmarks.traffic --minutes $(or $(MINUTES),20) --rate $(or $(RATE),200) \
		--scopes $(or $(SCOPES),1000) $(if $(OUT),--out $(OUT))

lint: setup  ## Check style and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

bench: setup  ## Measure, each figure beside its ceiling; results in benchmarks/results
	@$(BIN)/python -m benchmarks

constraints: setup  ## Renew constraints.txt for every supported Python found here
	@$(BIN)/python .ci/constraints.py

clean:  ## Remove what setup, demo and tests made here
	rm -rf $(VENV) .cache .sediment build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
