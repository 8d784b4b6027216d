# Two commands matter: `make demo` and `make test`. Each sets up what it needs in .venv, once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test test-flower flower-demo check format docs digits bench bench-quick clean

demo: $(VENV)/.core
	$(BIN)/udjfl compare --data dirty-digits --seeds 5

test: check
	$(BIN)/python -m pytest -n 2 -m "not processes"

test-flower: $(VENV)/.flower
	$(BIN)/python -m pytest tests/flower

flower-demo: $(VENV)/.flower
	$(BIN)/python scripts/flower_demo.py

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.core
	$(BIN)/python scripts/make_methods_page.py

digits: $(VENV)/.core
	$(BIN)/python scripts/make_dirty_digits.py

bench: $(VENV)/.core
	$(BIN)/python -m benchmarks full

bench-quick: $(VENV)/.core
	$(BIN)/python -m benchmarks quick

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "udjfl needs Python 3.11 or newer; name one with: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "Installing udjfl into $(VENV) (once; a few minutes on a new machine)"
	$(PIP) --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.core
	$(PIP) --editable '.[dev]'
	@touch $@

$(VENV)/.flower: $(VENV)/.dev
	$(PIP) --editable '.[dev,flower]'
	@touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
