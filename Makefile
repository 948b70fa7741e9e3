# Everything here needs Python 3.11 or newer and make; the rest is installed into .venv.
#
#   make demo          the main job on a SQLite file: `make demo ARGS=--postgres` on PostgreSQL 18

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
JOBS ?= 2

BIN := $(VENV)/bin
QUIET := -qq --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help demo test test-long mutants lint format bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/demo.stamp ## rows written, nudged and relayed by real processes; every row is counted
	@$(BIN)/threadmill-sa demo $(ARGS)

test: $(VENV)/test.stamp ## the default suite, on SQLite and an embedded PostgreSQL 18
	@$(BIN)/pytest -q -n $(JOBS) --dist worksteal $(ARGS)

# The processes come last and alone: how fast they recover is measured.
LONG := THREADMILL_HYPOTHESIS_PROFILE=long $(BIN)/pytest -q --timeout 3600 -m long

test-long: $(VENV)/test.stamp ## what `make test` leaves out: large searches, every fault, recoveries
	@$(LONG) -n $(JOBS) --dist worksteal --ignore tests/processes $(ARGS); searched=$$?; \
		$(LONG) tests/processes $(ARGS) && exit $$searched

mutants: $(VENV)/test.stamp ## each guard taken out in a copy: a test must notice (ARGS="-k nudge")
	@$(BIN)/python -m tests.mutants $(ARGS)

lint: $(VENV)/lint.stamp ## ruff, mypy and the layers of the package
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports --no-cache > $(VENV)/lint-imports.log || { cat $(VENV)/lint-imports.log; exit 1; }

format: $(VENV)/lint.stamp ## let ruff write the layout
	@$(BIN)/ruff format --quiet .
	@$(BIN)/ruff check --quiet --fix .

bench: $(VENV)/test.stamp ## the benchmarks; results in benchmarks/results
	@set -e; for file in benchmarks/bench_*.py; do \
		$(BIN)/python -m benchmarks.$$(basename $$file .py) $(ARGS); \
	done

clean: ## remove the environment and what tools left behind
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis dist build

# A stamp for each set of packages, so that `make demo` waits for no test tool.
# What is installed is told on stderr: the first time takes half a minute, and stdout is --json's.
$(VENV)/base.stamp:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or newer is needed: make PYTHON=python3.12 ..." >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install $(QUIET) --upgrade 'pip>=25.1'
	@touch $@

$(VENV)/demo.stamp: $(VENV)/base.stamp pyproject.toml
	@echo "installing what the demo needs into $(VENV)" >&2
	@$(BIN)/python -m pip install $(QUIET) -e '.[demo]'
	@touch $@

$(VENV)/test.stamp: $(VENV)/demo.stamp pyproject.toml
	@echo "installing what the tests need into $(VENV)" >&2
	@$(BIN)/python -m pip install $(QUIET) --group test
	@touch $@

$(VENV)/lint.stamp: $(VENV)/test.stamp pyproject.toml
	@echo "installing what the linters need into $(VENV)" >&2
	@$(BIN)/python -m pip install $(QUIET) --group lint
	@touch $@
