# Every target makes its own environment in .venv and installs what it needs.
PYTHON ?= python3
VENV := .venv
BENCH_VENV := .venv-bench
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo check test lint format bench docs clean

$(VENV)/.base: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade "pip>=25.1"
	$(PIP) --editable .
	touch $@

$(VENV)/.demo: $(VENV)/.base
	$(PIP) --editable ".[images]"
	touch $@

$(VENV)/.test: $(VENV)/.base
	$(PIP) --editable ".[images,seviri,cluster]" --group test
	touch $@

$(VENV)/.docs: $(VENV)/.test
	$(PIP) --group docs
	touch $@

demo: $(VENV)/.demo ## classify a real image and a month of synthetic ones; ends with a page
	$(BIN)/undulatus demo

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

CORE := tests/gp tests/estimators tests/storage tests/test_errors.py tests/test_files.py \
	tests/test_layers.py tests/test_plain.py tests/test_public_names.py tests/test_regimes.py tests/test_system.py

check: lint ## lint, types, and the tests of the core but for slow ones
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not slow" \
		--ignore tests/estimators/test_contract.py --ignore tests/estimators/test_training_dask.py $(CORE)

test: lint ## lint, format check, strict types, tests
	@{ command -v chromium || command -v chromium-browser; } >/dev/null && \
		command -v chromedriver >/dev/null || \
		echo "make test: no chromium and chromedriver: the tests in a browser will be skipped." \
		"To run them: apt-get install chromium chromium-driver" >&2
	$(BIN)/python -m pytest -q -n 2 --dist worksteal

format: $(VENV)/.test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(BENCH_VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(BENCH_VENV)
	$(BENCH_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	$(BENCH_VENV)/bin/python -m pip install --quiet --disable-pip-version-check "torch==2.13.0"
	$(BENCH_VENV)/bin/python -m pip install --quiet --disable-pip-version-check \
		--editable . gpytorch lightgbm rfflearn matplotlib psutil
	touch $@

bench: $(BENCH_VENV)/.ready ## ours and the peers on the same data; QUICK=1 for a short run
	$(BENCH_VENV)/bin/python -m benchmarks.run $(if $(QUICK),--quick) $(if $(RESUME),--resume)

docs: $(VENV)/.docs ## the documentation, in docs/_build/html; LESSONS=0 does not run the lessons
	rm -rf docs/reference/api
	$(BIN)/sphinx-build -W --keep-going -E -b html docs docs/_build/html
	$(BIN)/python docs/check_links.py docs/_build/html

clean:
	rm -rf $(VENV) $(BENCH_VENV) docs/_build docs/lessons docs/reference/api
