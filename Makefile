# Every target sets up what it needs; a machine with Python >= 3.11, pip and make is enough.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
PIP_INSTALL := -m pip install -q --disable-pip-version-check -c constraints.txt

INTEGRATION_BIN := .venv-integrations/bin
INTEGRATION_INSTALLED := .venv-integrations/.installed
INTEGRATION_TESTS := $(wildcard tests_integrations/test_*.py tests_integrations/*/test_*.py)
INTEGRATION_REQUIREMENTS := $(wildcard tests_integrations/requirements.txt)

# The version is pinned, so do not ask the network whether there is a newer one.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
# Keep the theme's announcement out of the build log.
export NO_MKDOCS_2_WARNING := 1

# Many tests wait for processes they started, so that three at a time keep two cores busy.
PROCESSES ?= 3

.DEFAULT_GOAL := help
.PHONY: help demo test chaos lint format bench docs test-integrations clean

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(INSTALLED)  ## Train a digit classifier with every strategy
	$(BIN)/python examples/digits.py

# Many tests compile the same small programs, in this process and in those they start.
test test-integrations chaos: export JAX_COMPILATION_CACHE_DIR := $(CURDIR)/.xla_cache
test test-integrations chaos: export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS := 0
test test-integrations chaos: export JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES := -1
# Where the environment forbids it, as in many images, each process would compile the library again.
test test-integrations chaos: export PYTHONDONTWRITEBYTECODE :=

# Lint goes first, so that the output ends with pytest's summary line. The files with the longest
# tests begin first, so that no process is left with one of them at the end.
test: lint  ## Check the code, then run all tests and the examples in docstrings
	$(BIN)/python -m pytest -n $(PROCESSES) --dist loadfile --no-loadscope-reorder -m "not chaos" \
		--doctest-modules tests/processes tests src

chaos: $(INSTALLED) $(INTEGRATION_INSTALLED)  ## Run the tests that take minutes: 50 killed workers, a table of 4 GB, Keras's own
	$(BIN)/python -m pytest -m chaos tests
	$(INTEGRATION_BIN)/python -m pytest -m chaos tests_integrations

lint: $(INSTALLED)  ## Run the static checks only
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo
	$(BIN)/pyright

format: $(INSTALLED)  ## Fix formatting, and what else ruff can fix by itself
	$(BIN)/ruff check --fix --exit-zero .
	$(BIN)/ruff format .

bench: $(INSTALLED)  ## Measure, and rewrite docs/performance.md
	$(BIN)/python -m benchmarks all --write docs/performance.md

docs: $(INSTALLED)  ## Build the documentation into site/
	$(BIN)/mkdocs build --strict

ifeq ($(INTEGRATION_TESTS),)
test-integrations:  ## Test together with other libraries, in an environment of their own
	@echo "There are no integration tests yet."
else
test-integrations: $(INTEGRATION_INSTALLED)
	$(INTEGRATION_BIN)/python -m pytest -n $(PROCESSES) --dist loadfile -m "not chaos" tests_integrations
endif

clean:  ## Remove everything that was built or installed here
	rm -rf .venv .venv-integrations site dist .xla_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python $(PIP_INSTALL) -e ".[dev]"
	touch $@

$(INTEGRATION_INSTALLED): pyproject.toml constraints.txt $(INTEGRATION_REQUIREMENTS)
	$(PYTHON) -m venv .venv-integrations
	$(INTEGRATION_BIN)/python $(PIP_INSTALL) -e ".[dev]" $(addprefix -r ,$(INTEGRATION_REQUIREMENTS))
	touch $@
