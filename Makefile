# Every target sets up .venv first (once); `make setup` alone does nothing when it is up to date.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STUDY ?= quickstart
# For the two ends of the ranges; 'torch torchvision' takes the newest build that the registry has.
TORCH ?= torch==2.13.0 torchvision==0.28.0
# Tests that use every dependency, which both ends run.
ENDS := answer cli dashboard exchange models monitor optuna own_data statistics \
	ray report run_trial samplers slurm store study terminal versions

.PHONY: setup demo check docs security lock test test-all test-slow durations test-oldest test-newest faults test-import test-scripts test-browser test-gpu bench bench-gpu rehearse-gpu clean

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14) and "Python 3.11 to 3.14 is needed: make PYTHON=python3.11 ...")'
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

# The documentation as a site, which works from the disk: site/index.html. The variable turns off an announcement of its maker.
docs: setup
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

# Bandit, the tests of docs/security.md with a thousand cases per property, and known holes in the dependencies, for which
# the advisory database must be within reach.
security: setup
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[security]'
	$(BIN)/bandit --quiet --configfile pyproject.toml --recursive sweep reports studies benchmarks
	PROPERTY_CASES=1000 $(BIN)/python -m pytest -n 2 --timeout 3600 tests/test_security*.py tests/test_properties.py
	$(BIN)/python -m pip_audit --local --skip-editable --strict --progress-spinner off

# The lock files and the two ends of the ranges, from pyproject.toml and constraints.txt. The comments at the begin of a
# file stay; all but the first file are without torch, because a digest belongs to one build.
ALL := --universal --python-version=3.11
LOCKED := $(ALL) --generate-hashes --constraints=constraints.txt
LOWEST := --python-version=3.11 --python-platform=linux --resolution=lowest-direct
EXTRAS := --extra=dashboard --extra=postgres --extra=ray --extra=slurm --extra=suite
BARE := --overrides=$(VENV)/overrides.txt
resolve = { sed '/^[^\#]/,$$d' $(1); $(BIN)/python -m uv pip compile --quiet --no-header --no-annotate --upgrade \
	pyproject.toml $(2); } >$(1).new && mv $(1).new $(1)

lock: setup
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[lock]'
	printf "torch ; sys_platform == 'never'\ntorchvision ; sys_platform == 'never'\n" >$(VENV)/overrides.txt
	$(call resolve,requirements.lock,$(LOCKED))
	$(call resolve,requirements-without-torch.lock,$(LOCKED) $(BARE))
	$(call resolve,constraints-oldest.txt,$(LOWEST) $(EXTRAS) $(BARE))
	$(call resolve,constraints-newest.txt,$(ALL) $(EXTRAS) $(BARE))

# The product on one machine; `make test-all` adds clusters, PostgreSQL, a browser, storms, the wheel and the benchmarks.
test: setup
	$(BIN)/python -m pytest -n 2 -m "not wide and not slow and not gpu"

# A file at a time: its clusters, servers and browsers are started once.
test-all: setup
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "wide and not slow and not gpu"

test-slow: setup
	$(BIN)/python -m pytest -m "slow and not gpu"

# Where the time of `make test` goes: the 50 slowest parts, on an otherwise idle machine.
durations: setup
	$(BIN)/python -m pytest -q -n 2 -m "not wide and not slow and not gpu" --durations=50 | sed -n '/slowest/,$$p' >tests/durations.txt

# A part of the suite that uses every dependency, with the oldest and the newest versions of the ranges in pyproject.toml.
test-oldest test-newest: test-%: .venv-%/.ready
	.venv-$*/bin/python -m pytest -n 2 -m "not slow and not gpu" $(ENDS:%=tests/test_%.py)

.PRECIOUS: .venv-%/.ready
.venv-%/.ready: pyproject.toml constraints-%.txt
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/pip install --quiet --disable-pip-version-check -c constraints-$*.txt $(TORCH) -e '.[dashboard,postgres,ray,slurm,suite]'
	touch $@

# The whole storm of faults upon real studies, of which `make test-all` has a tenth but for clusters and kills.
faults: setup
	SWEEP_STORM=1 $(BIN)/python -m pytest -q -n 2 --timeout 1800 tests/faults

# Records of MLflow and TensorBoard, and the recipes for MLflow and W&B: with their packages (200 MB), without which these tests are skipped.
test-import: setup
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[import]' wandb
	$(BIN)/python -m pytest tests/test_foreign_sources.py

# Scripts of several frameworks as trials. Ultralytics is a tool of this test and nothing that the product needs: its
# license is AGPL-3.0. It is installed without its dependencies, because its OpenCV needs a display.
test-scripts: setup
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[scripts]' opencv-python-headless polars requests
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps ultralytics ultralytics-thop
	$(BIN)/python -m pytest -n 2 tests/test_script_frameworks.py

test-browser: setup
	$(BIN)/python -m pytest tests/browser

test-gpu: setup
	$(BIN)/python -m pytest -m gpu tests/gpu

# Every benchmark of benchmarks/, one after the other; on an otherwise idle machine.
bench: setup
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	missed=; for name in $$($(BIN)/python -m benchmarks --list); do \
	$(BIN)/python -m benchmarks $$name --save || missed="$$missed $$name"; done; \
	test -z "$$missed" || { echo "missed:$$missed"; exit 1; }

# What the benchmarks ask of a CUDA device, 40 minutes; again for what is left. The rehearsal takes some minutes on a CPU.
bench-gpu: setup
	$(BIN)/python -m benchmarks.gpu

rehearse-gpu: setup
	$(BIN)/python -m benchmarks.gpu --rehearse

clean:
	rm -rf $(VENV) .venv-oldest .venv-newest site .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
