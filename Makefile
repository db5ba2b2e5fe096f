# Every target works on a fresh clone with Python >= 3.11 and nothing else: it makes .venv and installs what it needs
# once per change of pyproject.toml.

.PHONY: pipeline-demo run test bench lint docs sim reliability features clean help
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 2
SEEDS ?= 1000
SCALE ?= 1
DATA_DIR ?= ./data

help:
	@echo "make run       start the server on $(DATA_DIR)"
	@echo "make test      the whole test suite (WORKERS=$(WORKERS), TESTS=path, HEADRACE_SEEDS=n for more random cases)"
	@echo "make lint      format check, lint, types, import contracts"
	@echo "make pipeline-demo  orders, workers and jobs on Spark in one go, ending in a report for the browser"
	@echo "make bench     probes of this machine and all workloads (WORKLOADS='journal batch')"
	@echo "make sim       the simulations and property tests with SEEDS=$(SEEDS) random cases"
	@echo "make reliability  the goals of docs/internals/reliability.md against real servers (GOALS='R5 R8' SCALE=0.1 SEED=7)"
	@echo "make features  which ids of the feature list have a test, and which not"
	@echo "make docs      build the documentation into ./site"
	@echo "make clean     remove everything that was built, .venv included; ./data stays"

# A python that is too old, cannot make environments, or is only a stub on PATH is passed over.
$(BIN)/python:
	@for python in "$${PYTHON:-python3}" python3.14 python3.13 python3.12 python3.11; do \
	    if "$$python" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	        echo "making $(VENV) with $$("$$python" --version)"; \
	        exec "$$python" -m venv $(VENV); \
	    fi; \
	done; \
	echo "Headrace needs Python 3.11 or newer with the venv module; found $$(python3 --version 2>/dev/null || echo none)." >&2; \
	echo "Install one (on Debian and Ubuntu: python3 and python3-venv), or name it: make PYTHON=/path/to/python3.12" >&2; \
	exit 1

# One stamp per set of extras; the stamp's name is the set.
$(VENV)/.installed-%: pyproject.toml | $(BIN)/python
	@echo "installing headrace[$*]"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	@touch $@

run: $(VENV)/.installed-http,columns
	$(BIN)/headrace serve --data-dir $(DATA_DIR)

test: $(VENV)/.installed-test
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadgroup $(TESTS)

pipeline-demo: $(VENV)/.installed-spark
	$(BIN)/python examples/pipeline_demo.py --out ./pipeline-demo

sim: $(VENV)/.installed-test
	HEADRACE_SEEDS=$(SEEDS) $(BIN)/python -m pytest -q -n $(WORKERS) --timeout 0 $(wildcard tests/sim tests/props)

reliability: $(VENV)/.installed-test
	$(BIN)/python tests/reliability --goals '$(GOALS)' --scale $(SCALE) $(if $(SEED),--seed $(SEED))

bench: $(VENV)/.installed-test
	$(BIN)/python -m bench $(WORKLOADS)

lint: $(VENV)/.installed-lint
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

features: $(VENV)/.installed-test
	@$(BIN)/python -m pytest -q --features

docs: $(VENV)/.installed-docs
	$(BIN)/mkdocs build --strict --site-dir site

clean:
	rm -rf $(VENV) site build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
