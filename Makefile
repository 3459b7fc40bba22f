# Everything a reader of the project runs. Settings, each from the command line or the environment:
#   PYTHON       interpreter that makes the environment (3.11 or newer)
#   VENV         where the environment lies
#   CONSTRAINTS  pip constraints file
#   PYTEST_ARGS  further arguments for pytest
#   ROOM         for test: a room, such as kernels, whose tests alone are run
#   MUTATIONS_ARGS  arguments for test-mutations, such as --resume or --only kernels
PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS ?= constraints.txt
PYTEST_ARGS ?=
ROOM ?=
MUTATIONS_ARGS ?=
# Test processes; each is held to one thread by tests/conftest.py.
WORKERS ?= 2

PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
VENV_ARVIZ1 ?= .venv-arviz1
STAMP_ARVIZ1 := $(VENV_ARVIZ1)/.installed
# Prints the first Python 3.12 that runs (a name on PATH may be a shim that does not), or nothing.
FIND_PYTHON312 = for p in $(PYTHON312) python3.12 "$$(pyenv prefix 3.12 2>/dev/null)/bin/python"; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))' 2>/dev/null && echo "$$p" && break; done

.DEFAULT_GOAL := help
.PHONY: help install stan-headers demo test test-long test-benchmarks test-docs test-slow test-mutations test-arviz1 \
	lint types docs linkcheck dist quick-start clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP)  ## make the environment and install everything into it

# One pip call for all parts, so that the constraint on torch holds for whatever asks for it. The pip
# that Python 3.11 brings knows no dependency groups, hence the first line.
$(STAMP): pyproject.toml $(CONSTRAINTS)
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if v >= (3, 11) else \
	"ppl-ext needs Python 3.11 or newer, found %d.%d: name one with make PYTHON=..." % v)'
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	$(PY) -m pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS) -e ".[all]" --group dev
	@touch $@

# Only its files are used: Stan's headers and compiler, for a BRIDGESTAN folder without its own.
stan-headers: $(STAMP)  ## install Stan's headers and compiler, as files (httpstan)
	$(PY) -m pip install --quiet --disable-pip-version-check --no-deps httpstan==4.13.0

demo: $(STAMP)  ## fit the demonstration models with every engine and write out/
	$(PY) -m benchmarks demo

# Test processes take whole files, whose tests share compiled programs; tests/conftest.py puts the
# longest first, in place of those with most tests.
# The order of sets is in the text of NumPyro's programs, by which JAX finds what it has compiled.
PYTEST := PYTHONHASHSEED=0 $(PY) -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder
BENCHMARKS := tests/benchmarks tests/examples

test: $(STAMP)  ## run the fast tests, with ROOM=kernels those that can notice a fault in that room
	$(PYTEST) $(if $(ROOM),$$($(PY) -m tests.rooms $(ROOM)),$(BENCHMARKS:%=--ignore=%)) $(PYTEST_ARGS)

test-long: $(STAMP)  ## run the long tests that `make test` leaves out, listed in tests/long.txt
	$(PYTEST) -m "long and not slow and not docs" $(BENCHMARKS:%=--ignore=%) $(PYTEST_ARGS)

test-benchmarks: $(STAMP)  ## run the fast tests of benchmarks and of docs/examples
	$(PYTEST) $(BENCHMARKS) $(PYTEST_ARGS)

test-docs: $(STAMP)  ## run the code on the pages of the documentation
	$(PYTEST) -m docs $(PYTEST_ARGS)

test-slow: $(STAMP)  ## run the slow tests
	$(PYTEST) -m slow $(PYTEST_ARGS)

test-mutations: $(STAMP)  ## plant faults in a copy and see which test notices each, write out/ (hours)
	$(PY) -m tests.mutations $(MUTATIONS_ARGS)

# ArviZ 1.x needs Python 3.12; the NumPyro half alone keeps this second environment small.
test-arviz1:  ## run the ArviZ tests of the NumPyro half with ArviZ 1.x (needs Python 3.12)
	@python312="$$($(FIND_PYTHON312))"; \
	if [ -n "$$python312" ]; then $(MAKE) --no-print-directory run-test-arviz1 PYTHON312="$$python312"; \
	elif [ -n "$$CI" ]; then echo "test-arviz1: no Python 3.12 found, and CI must have one" >&2; exit 1; \
	else echo "test-arviz1 skipped: no Python 3.12 found (name one with make PYTHON312=...)"; fi

.PHONY: run-test-arviz1
run-test-arviz1: $(STAMP_ARVIZ1)
	$(VENV_ARVIZ1)/bin/python -m pytest tests/diagnostics/test_arviz.py -k numpyro $(PYTEST_ARGS)

$(STAMP_ARVIZ1): pyproject.toml
	test -x $(VENV_ARVIZ1)/bin/python || $(PYTHON312) -m venv $(VENV_ARVIZ1)
	$(VENV_ARVIZ1)/bin/python -m pip install --quiet --disable-pip-version-check \
		-e ".[numpyro]" "arviz>=1" equinox flax "h5netcdf[h5py]" matplotlib pytest pytest-timeout scipy
	@touch $@

lint: $(STAMP)  ## check style and formatting
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

types: $(STAMP)  ## check types
	$(PY) -m mypy

docs: $(STAMP)  ## build the documentation, warnings are errors
	$(PY) -m sphinx -q -W --keep-going -b html docs docs/_build/html

# Runs no tutorial. Hosts that do not answer are listed as ignored, with the reason.
linkcheck: $(STAMP)  ## see that links of the documentation lead somewhere, where hosts can be reached
	$(PY) -m sphinx -b linkcheck -D nb_execution_mode=off docs docs/_build/linkcheck

dist: $(STAMP)  ## build the wheel and the source archive into dist/, and check them
	rm -rf dist
	$(PY) -m build --outdir dist .
	$(PY) -m twine check --strict dist/*

# HOST, VERSIONS (lowest or newest) and ARCHIVE (wheel or sdist) choose one of the eight.
HOST ?= numpyro
VERSIONS ?= newest
ARCHIVE ?= wheel
quick-start: dist  ## install from dist/ into an empty environment and run the quick start there
	$(PYTHON) .ci/from_archive.py --host $(HOST) --versions $(VERSIONS) --archive $(ARCHIVE)

clean:  ## remove what the other targets made
	rm -rf $(VENV) $(VENV_ARVIZ1) build dist docs/_build docs/api out .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
