# Everything a developer or a visitor runs. Nothing is needed first but Python >= 3.11.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Processes of pytest, for two cores: some tests wait. One that has finished takes over tests of another.
PROCESSES ?= 4
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(PROCESSES) --dist worksteal

# Where this is set, every process that starts compiles all of torch again: two seconds each.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo projects test test-fast test-contract test-system test-gpu check fix setup bench docs \
	wheels clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## */  make \1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 22

setup: $(VENV)/.installed ## .venv with everything in it

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and sys.argv[1])' \
	    "evofeed needs Python 3.11 or newer: make PYTHON=python3.12 $(MAKECMDGOALS)"
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e '.[all,dev]'
	@touch $@

projects: .projects ## Boltz, OpenFold3, Protenix and AlphaFold 3, whose own code tests run

.projects: tests/kernels/af3/projects.txt | setup
	$(BIN)/python -m pip install --quiet --no-compile --no-deps --upgrade --target $@ -r $<
	$(BIN)/python -m pip install --quiet --no-compile --no-deps --upgrade --target $@ \
	    --python-version 3.12 --only-binary=:all: alphafold3-colabfold==3.1.18
	@touch $@

demo: setup ## files -> shards -> service -> training, with a report
	$(BIN)/evofeed demo
	@echo 'before that:  . $(BIN)/activate'

test: setup ## every test
	$(PYTEST) $(TESTS)

test-fast: setup ## unit tests: what finishes while you wait
	$(PYTEST) -m unit

test-contract: setup ## against recorded packs and exact bytes
	$(PYTEST) -m contract

test-system: setup ## with Ray, PostgreSQL, a browser, programs, processes
	$(PYTEST) -m system

test-gpu: setup ## every operator: on this machine's NVIDIA GPU, else interpreted
	OMP_NUM_THREADS=4 $(BIN)/python -m pytest -m gpu

check: setup ## style, types, and who imports whom
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

fix: setup ## formatting, and what ruff can repair
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup ## what a CPU can measure; benchmarks/README.md has the rest
	$(BIN)/python benchmarks/store.py
	$(BIN)/python benchmarks/service.py

docs: setup ## site/: the guides, and an API reference from the docstrings
	$(BIN)/python -m mkdocs build --strict

wheels: setup ## dist/: evofeed, and evofeed-kernels, which needs torch and triton alone
	$(BIN)/python packaging/wheels.py dist

clean: ## remove .venv and builds
	rm -rf $(VENV) .projects build dist site *.egg-info
