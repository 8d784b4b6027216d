# Two commands matter: `make demo` and `make test`. Each sets up what it needs in .venv, once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test browser test-flower test-logs test-minimum soak flower-demo coverage check format \
	docs docs-check digits bench bench-quick mutants clean

demo: $(VENV)/.report
	$(BIN)/udjfl demo --html demo-report.html

test: check $(VENV)/.browser
	$(BIN)/python -m pytest -n 2 -m "not processes and not soak"

# The browser that tests open pages in; without it they are skipped.
browser:
	command -v chromium > /dev/null || { \
		sudo=$$(test $$(id -u) = 0 || echo sudo); \
		$$sudo apt-get update && $$sudo apt-get install --yes --no-install-recommends chromium; }

coverage: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 -m "not processes and not soak" --cov

# Run it after a change of the dependencies. Unless pip has an index with CPU builds of torch, it
# downloads several GB.
MINIMUM := .venv-minimum
MINIMUM_TESTS := tests/methods/test_contract.py tests/methods/test_e2fl.py tests/models tests/cli \
	tests/report tests/test_resume*.py tests/test_exports.py tests/test_settings.py \
	tests/test_statistics.py

test-minimum:
	rm -rf $(MINIMUM)
	$(PYTHON) -m venv $(MINIMUM)
	$(PYTHON) scripts/minimum_versions.py test > $(MINIMUM)/constraints.txt
	$(MINIMUM)/bin/python -m pip install --quiet --constraint $(MINIMUM)/constraints.txt \
		--editable '.[test]'
	$(MINIMUM)/bin/udjfl compare --help > $(MINIMUM)/help.txt
	$(MINIMUM)/bin/udjfl compare --data dirty-digits --rounds 2 --seeds 2
	$(MINIMUM)/bin/udjfl run --method rawls --rounds 2 --out $(MINIMUM)/run
	$(MINIMUM)/bin/udjfl resume $(MINIMUM)/run
	$(MINIMUM)/bin/python -m pytest -W default $(MINIMUM_TESTS)
	$(PYTHON) scripts/minimum_versions.py flower > $(MINIMUM)/constraints.txt
	$(MINIMUM)/bin/python -m pip install --quiet --constraint $(MINIMUM)/constraints.txt \
		--editable '.[test,flower]'
	$(MINIMUM)/bin/python -m pytest -W default -m "not processes" tests/flower

# Real SuperLinks and SuperNodes on the loopback interface: several minutes.
test-flower: $(VENV)/.flower
	$(BIN)/python -m pytest tests/flower tests/deployment -m "processes and not soak" --durations=0

# Runs written through mlflow, wandb (offline) and tensorboard, read back from their local stores.
# `make test` skips what is not installed.
test-logs: $(VENV)/.logs
	$(BIN)/python -c "import mlflow, tensorboard, wandb"
	$(BIN)/python -m pytest tests/training/test_run_logs.py -rs --durations=4

# Every fault at every effect on the disk, kills, races, changed bits, fault schedules, damaged
# input and command lines, with their counts: hours, most of them in UDJFL_FUZZ_INPUTS (a million)
# inputs for each reader. Then a hundred clients, nine methods against the simulator, broken
# networks, and twenty nodes of which something is killed every minute.
soak: $(VENV)/.flower
	$(BIN)/python -m pytest -n 2 -m "soak and not processes" -rP --durations=0
	$(BIN)/python -m pytest tests/flower tests/deployment -m "soak and processes" -rP --durations=0

# One thing in a module changed at a time: some test has to fail. Survivors are printed; minutes for
# each module. One module: make mutants MODULES=src/udjfl/metrics/groups.py TESTS=tests/metrics
MODULES :=
TESTS := tests/methods
mutants: $(VENV)/.dev
ifneq ($(MODULES),)
	$(BIN)/python scripts/mutants.py $(MODULES) --tests $(TESTS)
else
	$(BIN)/python scripts/mutants.py src/udjfl/statistics.py --tests tests/test_statistics.py
	$(BIN)/python scripts/mutants.py src/udjfl/_measures.py --tests tests/metrics \
		tests/test_statistics.py
	$(BIN)/python scripts/mutants.py src/udjfl/metrics/*.py --tests tests/metrics
	$(BIN)/python scripts/mutants.py src/udjfl/training/round.py --tests \
		tests/training/test_round*.py tests/training/test_scripted_clients.py
	$(BIN)/python scripts/mutants.py src/udjfl/methods/*.py --tests tests/methods
endif

flower-demo: $(VENV)/.flower
	$(BIN)/python apps/flower/demo.py $(ARGS)

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The site, in build/site: open index.html there, no server needed.
docs: $(VENV)/.docs
	$(BIN)/python scripts/make_methods_page.py
	$(BIN)/python scripts/make_choosing_page.py
	$(BIN)/python scripts/make_site.py

# Every code block of README.md and docs/ is run, or listed with the reason why not: minutes.
# One page: make docs-check PAGES=docs/tour.md
docs-check: $(VENV)/.docs $(VENV)/.flower
	$(BIN)/python scripts/check_docs.py $(PAGES)

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

$(VENV)/.report: $(VENV)/.core
	$(PIP) --editable '.[report,frames]'
	@touch $@

$(VENV)/.dev: $(VENV)/.core
	$(PIP) --editable '.[dev]'
	@touch $@

$(VENV)/.flower: $(VENV)/.dev
	$(PIP) --editable '.[dev,flower]'
	@touch $@

$(VENV)/.logs: $(VENV)/.dev
	$(PIP) --editable '.[dev,tensorboard,mlflow,wandb]'
	@touch $@

$(VENV)/.browser: $(VENV)/.flower
	$(PIP) --editable '.[dev,flower,browser]'
	@touch $@

$(VENV)/.docs: $(VENV)/.core
	$(PIP) --editable '.[docs]'
	@touch $@

clean:
	rm -rf $(VENV) $(MINIMUM) .coverage .coverage.* .mypy_cache .ruff_cache .pytest_cache .hypothesis \
		build/docs build/site
