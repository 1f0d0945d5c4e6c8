# The five commands a newcomer needs; `make help` lists them. Everything runs in .venv, made once from constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help install demo test lint unit system integration bench docs clean

help: ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "CacheCraft needs Python 3.11 or newer, this is %s; try: make PYTHON=python3.12 ..." % sys.version.split()[0])'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV) (once, a few minutes) ..."
	@$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

install: $(STAMP) ## make .venv with everything in it, pinned

demo: $(STAMP) ## discover a policy and compare it with known ones on a real model
	$(BIN)/cachecraft demo

test: lint unit system integration ## lint, unit tests, whole runs on tiny models, then the tests on the default model

lint: $(STAMP) ## ruff, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

unit: $(STAMP) ## the unit tests, offline
	$(BIN)/python -m pytest -q -n auto --dist loadfile -m "not system and not integration"

system: $(STAMP) ## whole runs, processes that die, browsers, on tiny models; offline
	$(BIN)/python -m pytest -q -n auto --dist loadfile -m system

integration: $(STAMP) ## the tests on the default model
	$(BIN)/python -m pytest -q -m integration tests/integration

bench: $(STAMP) ## the measurements behind the numbers in README and docs
	$(BIN)/python benchmarks/efficiency.py
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/vs_kvpress.py

docs: $(STAMP) ## the reference, from the docstrings, into docs/build
	$(BIN)/pdoc --docformat google --output-directory docs/build cachecraft '!cachecraft.cli'
	@echo "Open docs/build/index.html"

clean: ## remove .venv, caches and built docs (runs and models stay)
	rm -rf $(VENV) build dist docs/build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
