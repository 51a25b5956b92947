# Two commands need nothing but Python 3.11, pip, make and a C compiler:
#   make quickstart   train a small translation model on 2 CPU workers and score it
#   make test         the test suite
# Both install into .venv first, once.

PYTHON ?= python3
VENV   := .venv
READY  := $(VENV)/.ready
BIN    := $(VENV)/bin
# the command's exit status, after a line with its time
timed   = began=$$(date +%s); $(1); status=$$?; echo "suite: $$(($$(date +%s) - began)) s"; exit $$status
# where real processes work together; the rest are unit tests
DISTRIBUTED := tests/backends tests/papers tests/comm tests/launch tests/faults tests/golden tests/system
TEST   = -m pytest -n 3 --dist loadfile --no-loadscope-reorder -m "not long"
CONSTRAINTS := -c constraints.txt
PIP    := $(BIN)/python -m pip --disable-pip-version-check
CORES  := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
# fairseq's six extensions are compiled next to each other, without debug symbols. torch would take
# them one by one if it found ninja, hence one in front that does not work.
BUILD  := PATH="$(CURDIR)/$(VENV)/build:$$PATH" DIST_EXTRA_CONFIG="$(CURDIR)/$(VENV)/build/parallel.cfg" \
	  TORCH_NO_COMPILER_WRAPPER=1 CFLAGS="-g0 $(CFLAGS)"

.PHONY: setup test test-unit test-distributed test-long test-versions quickstart bench lint format clean
.DEFAULT_GOAL := help

help:
	@sed -n '1,4p' Makefile | cut -c3-
	@echo "also: make lint, make format, make test-unit, make test-distributed, make test-long (kill-and-resume series, slow system tests), make test-versions (half of the tests on every Python found), make bench (an hour), make clean"

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "Python 3.10 or newer is needed (3.11 is tested): make PYTHON=python3.11"; exit 1; }
	@echo "[1/4] a virtual environment in $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "[2/4] build tools"
	@$(PIP) install --quiet $(CONSTRAINTS) pip setuptools wheel numpy cython
	@echo "[3/4] torch"
	@$(PIP) install --no-compile $(CONSTRAINTS) torch
	@echo "[4/4] fairseq and this package (fairseq is compiled here on $(CORES) cores, the first time)"
	@mkdir -p $(VENV)/build && printf '#!/bin/sh\nexit 1\n' > $(VENV)/build/ninja && chmod +x $(VENV)/build/ninja
	@printf '[build_ext]\nparallel = %s\n' $(CORES) > $(VENV)/build/parallel.cfg
	@$(BUILD) $(PIP) install --no-compile --no-build-isolation $(CONSTRAINTS) -e '.[test]'
	@touch $(READY)

test: $(READY)
	@$(call timed,$(BIN)/python $(TEST) tests)

test-unit: $(READY)
	@$(call timed,$(BIN)/python $(TEST) $(DISTRIBUTED:%=--ignore %) tests)

test-distributed: $(READY)
	@$(call timed,$(BIN)/python $(TEST) $(DISTRIBUTED))

test-long: $(READY)
	@$(call timed,$(BIN)/python -m pytest -m long tests)

quickstart: $(READY)
	@bash examples/translation/quickstart.sh

test-versions:
	@bash tests/versions.sh

bench: $(READY)
	@bash benchmarks/run.sh

lint: $(READY)
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

format: $(READY)
	@$(BIN)/ruff check --fix . && $(BIN)/ruff format .

clean:
	rm -rf build quickstart-run .mypy_cache .pytest_cache .ruff_cache
