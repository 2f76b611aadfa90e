# What people and CI run. `make help` lists the commands; each sets up what it needs, once.
#
#   PYTHON  the interpreter that makes the environment          make test PYTHON=python3.12
#   TORCH   what pip installs as PyTorch                        make demo TORCH='torch==2.12.*'
#           empty: use the PyTorch that PYTHON already has      make demo TORCH=
#   VENV    where the environment lies                          make test VENV=/tmp/env
#   MINDSPORE, MSVENV   likewise for the targets that end in -mindspore
#   JOBS    test processes at once                              make test JOBS=1
#   ARGS    passed on to pytest or the benchmark                make test ARGS='-k memo -x'

PYTHON ?= python3
TORCH  ?= torch==2.13.0
VENV   ?= $(if $(strip $(TORCH)),.venv,.venv-system)
JOBS   ?= auto
MINDSPORE ?= mindspore==2.10.0
MSVENV ?= .venv-mindspore
ARGS   ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Heavy tests lie side by side: one process would be given most of them, and the others wait.
SPREAD := -n $(JOBS) --dist worksteal
# Versions and checksums of everything but the framework; `make lock` writes them.
LOCKED := $(PIP) install --quiet --require-hashes --no-deps
# An environment is made anew when what it is made from changes.
MADE_FROM := $(wildcard pyproject.toml setup.py requirements/*.txt src/msprobe/*/*.[ch] src/msprobe/*/*/*.[ch])

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo demo-mindspore test test-slow test-mindspore lint format types docs screenshots check bench setup lock audit clean FORCE

help: ## list the commands
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

demo: $(VENV)/.ready ## train a small transformer twice, record it, show what was recorded
	@scripts/demo $(BIN)

test: $(VENV)/.ready-dev ## run all tests but the slow ones
	$(BIN)/python -m pytest $(SPREAD) -m 'not slow' $(ARGS)

test-slow: $(VENV)/.ready-dev ## run the slow ones: corpora, real process groups, trainers
	$(BIN)/python -m pytest $(SPREAD) -m slow $(ARGS)

demo-mindspore: $(MSVENV)/.ready ## the same with a MindSpore net
	@scripts/demo-mindspore $(MSVENV)/bin

test-mindspore: $(MSVENV)/.ready ## run the tests of capture in MindSpore, in an environment of their own
	GLOG_v=3 $(MSVENV)/bin/python -m pytest $(SPREAD) tests/mindspore $(ARGS)

lint: $(VENV)/.ready-dev ## check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.ready-dev ## put the style right where a program can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/.ready-dev ## check types
	$(BIN)/mypy --num-workers 2

docs: $(VENV)/.ready-dev ## build the documentation into site/
	$(BIN)/python scripts/generate_reference.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "documentation: site/index.html"

screenshots: $(VENV)/.ready-dev ## make the pictures of the documentation anew
	$(BIN)/python scripts/screenshots.py

check: lint types docs test test-slow test-mindspore ## everything that CI runs

bench: $(VENV)/.ready ## measure what recording costs
	$(BIN)/python benchmarks/capture.py $(ARGS)

setup: $(VENV)/.ready-dev ## make the environment only

LOCK := $(BIN)/uv pip compile --quiet --upgrade --generate-hashes --universal --python-version 3.11 --no-annotate --no-header --no-emit-package torch --no-emit-package torchvision
lock: $(BIN)/python ## choose the newest versions of the tools, with checksums: requirements/
	$(PIP) install --quiet uv
	$(LOCK) --extra dev pyproject.toml -o requirements/dev.txt
	$(LOCK) --extra test pyproject.toml requirements/mindspore.in -o requirements/mindspore.txt

audit: $(BIN)/python ## ask for known vulnerabilities of the locked versions
	$(PIP) install --quiet pip-audit
	$(BIN)/pip-audit --strict --progress-spinner off --disable-pip --no-deps -r requirements/dev.txt -r requirements/mindspore.txt

clean: ## remove what the commands made
	rm -rf demo_output site build dist .venv .venv-system .venv-mindspore .pytest_cache .mypy_cache .ruff_cache

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "msprobe needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(if $(strip $(TORCH)),,--system-site-packages) $(VENV) || { rm -rf $(VENV); exit 1; }

# Holds the last TORCH, so that another one installs itself.
$(VENV)/.torch: $(BIN)/python FORCE
	@echo '$(TORCH)' | cmp -s - $@ || echo '$(TORCH)' > $@

$(VENV)/.ready: $(VENV)/.torch $(MADE_FROM)
	$(PIP) install --quiet --editable . $(if $(strip $(TORCH)),'$(TORCH)')
	@touch $@

$(VENV)/.ready-dev: $(VENV)/.torch $(MADE_FROM)
	$(LOCKED) -r requirements/dev.txt
	$(PIP) install --quiet --editable '.[dev]' $(if $(strip $(TORCH)),'$(TORCH)')
	@touch $(VENV)/.ready $@

# MindSpore needs an older NumPy than the rest, and cannot share a process with PyTorch.
$(MSVENV)/.mindspore:
	@test -x $(MSVENV)/bin/python || $(PYTHON) -m venv $(MSVENV) || { rm -rf $(MSVENV); exit 1; }
	$(MSVENV)/bin/python -m pip --disable-pip-version-check install --quiet '$(MINDSPORE)' 'numpy<2'
	@touch $@

$(MSVENV)/.locked: $(MSVENV)/.mindspore requirements/mindspore.txt
	$(subst $(BIN),$(MSVENV)/bin,$(LOCKED)) -r requirements/mindspore.txt
	@touch $@

$(MSVENV)/.ready: $(MSVENV)/.locked $(MADE_FROM)
	$(MSVENV)/bin/python -m pip --disable-pip-version-check install --quiet --editable '.[test]' '$(MINDSPORE)' 'numpy<2'
	@touch $@
