# Every target sets up .venv first (once); `make setup` alone does nothing when it is up to date.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STUDY ?= quickstart

.PHONY: setup demo check security test test-slow faults test-browser test-gpu bench bench-peers bench-gpu clean

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	touch $@

demo: setup
	$(BIN)/sweep run $(STUDY)

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python docs/generate.py --check

# Bandit, the tests of docs/security.md with a thousand cases per property, and known holes in the dependencies, for which
# the advisory database must be within reach.
security: setup
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[security]'
	$(BIN)/bandit --quiet --configfile pyproject.toml --recursive sweep reports studies benchmarks
	PROPERTY_CASES=1000 $(BIN)/python -m pytest -n 2 --timeout 3600 tests/test_security*.py tests/test_properties.py
	$(BIN)/python tests/audit_dependencies.py

test: setup
	$(BIN)/python -m pytest -n 3 -m "not slow and not gpu"

test-slow: setup
	$(BIN)/python -m pytest -m "slow and not gpu"

# The whole storm of faults upon real studies, of which `make test` has a tenth but for clusters and kills; its last line says what was lost.
faults: setup
	SWEEP_STORM=1 $(BIN)/python -m pytest -q -n 2 --timeout 1800 tests/faults

test-browser: setup
	$(BIN)/python -m pytest -m browser

test-gpu: setup
	$(BIN)/python -m pytest -m gpu tests/gpu

# Every benchmark of benchmarks/, one after the other; on an otherwise idle machine.
bench: setup
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	missed=; for name in $$($(BIN)/python -m benchmarks --list); do \
	$(BIN)/python -m benchmarks $$name --save || missed="$$missed $$name"; done; \
	test -z "$$missed" || { echo "missed:$$missed"; exit 1; }

# The benchmark against Syne Tune, in an environment of its own; its dependencies are in the file, so that none is added.
bench-peers: setup .venv-peers/.ready
	$(BIN)/python -m benchmarks search_moasha --save

.venv-peers/.ready: constraints-peers.txt
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/pip install --quiet --disable-pip-version-check --no-deps -r constraints-peers.txt
	touch $@

# What the benchmarks ask of a CUDA device.
bench-gpu: setup
	$(BIN)/python -m benchmarks.gpu

clean:
	rm -rf $(VENV) .venv-peers .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
