# Every target makes its own environment in .venv and installs what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test lint format bench docs clean

$(VENV)/.base: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade "pip>=25.1"
	$(PIP) --editable .
	touch $@

$(VENV)/.demo: $(VENV)/.base
	$(PIP) "matplotlib>=3.10" "click>=8.1" "rich>=13.9"
	touch $@

$(VENV)/.test: $(VENV)/.base
	$(PIP) --group test
	touch $@

$(VENV)/.docs: $(VENV)/.test
	$(PIP) --group docs
	touch $@

demo: $(VENV)/.demo ## classify the clouds of a real image
	$(BIN)/undulatus demo

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint ## lint, format check, strict types, tests
	$(BIN)/python -m pytest -q -n 2

format: $(VENV)/.test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.docs ## the documentation, in docs/_build/html
	$(BIN)/sphinx-build -W -b html docs docs/_build/html

clean:
	rm -rf $(VENV) docs/_build docs/api
