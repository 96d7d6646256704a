# Every target sets up what it needs in .venv; nothing outside this folder is touched.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# Three at a time (tests that wait leave room), file by file, the longest first (tests/conftest.py).
TOGETHER := -n 3 --dist loadfile --no-loadscope-reorder

.PHONY: quickstart test fmt lint type layers unit e2e vllm config docs links package clean

quickstart: $(VENV)/local
	$(BIN)/patchwright quickstart

test: $(VENV)/dev lint type layers
	$(BIN)/pytest $(TOGETHER)

fmt: $(VENV)/dev
	$(BIN)/ruff check --fix src tests
	$(BIN)/ruff format src tests

lint: $(VENV)/dev
	$(BIN)/ruff check src tests
	$(BIN)/ruff format --check src tests

type: $(VENV)/dev
	$(BIN)/mypy

layers: $(VENV)/dev
	$(BIN)/lint-imports

unit: $(VENV)/dev
	$(BIN)/pytest $(TOGETHER) -m "not e2e"

e2e: $(VENV)/dev
	$(BIN)/pytest $(TOGETHER) -m e2e

# A real vLLM (its CPU build, 3.5 GB) in an environment of its own, and the tests that need one.
vllm: $(VENV)/dev
	PYTHON=$(PYTHON) bash tests/vllm_environment.sh $(VENV)/vllm
	PATCHWRIGHT_VLLM=$(abspath $(VENV)/vllm/bin/python) $(BIN)/pytest -m vllm tests/engine

$(BIN)/python:
	$(PYTHON) -c "import sys; assert sys.version_info >= (3, 11), f'Patchwright needs Python 3.11 or newer, this is {sys.version}: set PYTHON=python3.12'"
	$(PYTHON) -m venv $(VENV)

$(VENV)/local: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e '.[local]'
	touch $@

$(VENV)/dev: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e '.[local,dev]'
	touch $@ $(VENV)/local

$(VENV)/docs: pyproject.toml constraints.txt | $(VENV)/dev
	$(INSTALL) -e '.[docs]'
	touch $@

clean:
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis

config: $(VENV)/dev
	$(BIN)/python -m patchwright.recipes.reference > docs/config.md.new && mv docs/config.md.new docs/config.md
	$(BIN)/python -m patchwright.cli.reference > docs/cli.md.new && mv docs/cli.md.new docs/cli.md

docs: $(VENV)/docs config
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going -b html docs build/docs
	@echo build/docs/index.html

# Asks the servers of other people's pages, so `docs` does not.
links: $(VENV)/docs
	$(BIN)/sphinx-build --quiet --keep-going -b linkcheck docs build/links

package: $(VENV)/dev
	tests/package/smoke.sh $(BIN)/python
