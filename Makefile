# `make` lists the targets. Everything is installed into .venv, the first time it is needed.

ARGS =
CONSTRAINTS = constraints.txt
# The first of these that runs and is 3.10 or newer (a pyenv shim may exist and not run).
PYTHON = $(shell for p in python3.11 python3.12 python3.10 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && echo $$p && break; done)

# Twice quiet: pip's errors are shown, its warnings are not.
PIP = .venv/bin/python -m pip install --quiet --quiet --disable-pip-version-check $(if $(CONSTRAINTS),-c $(CONSTRAINTS))

.PHONY: help demo test lint docs bench clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-6s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo '  ARGS="..." goes to demo, test and bench; PYTHON=... builds .venv; CONSTRAINTS= installs without pins.'

demo: .venv/.stamp  ## experience replay with and without MKD on the digits, three seeds
	.venv/bin/onepass run er er+mkd --data digits --seeds 0 1 2 $(ARGS)

test: .venv/.stamp  ## the test suite
	.venv/bin/python -m pytest --numprocesses auto --maxprocesses 8 --dist worksteal $(ARGS)

lint: .venv/.lint  ## ruff, formatting, types
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/pyright

docs: .venv/.docs  ## these pages, into build/docs; a warning is an error
	.venv/bin/sphinx-build -W --keep-going -q docs build/docs
	@echo build/docs/index.html

bench: .venv/.stamp  ## time one training step
	.venv/bin/python bench/step.py $(ARGS)

clean:  ## remove .venv, caches and builds (runs/ stays)
	rm -rf .venv build dist src/*.egg-info .pytest_cache .ruff_cache
	find src tests examples bench -name __pycache__ -type d -prune -exec rm -rf {} +

# .installing becomes .stamp when all went well. Found here, it says that an install was cut short and nobody knows what
# .venv holds: begin again. Its time is the start's, so that an edit made during the install is not missed.
.venv/.stamp: pyproject.toml $(CONSTRAINTS)
	@if test -e .venv/.installing; then rm -rf .venv; fi
	@if test -z "$(PYTHON)"; then echo 'No Python 3.10 or newer on the PATH. Say which to use: make PYTHON=/path/to/python3.11 ...' >&2; exit 1; fi
	@echo 'Installing onepass and its tests into .venv (a few minutes the first time)'
	@mkdir -p .venv && rm -f $@ && touch .venv/.installing
	@test -x .venv/bin/pip || $(PYTHON) -m venv .venv
	@$(PIP) torch
	@$(PIP) -e '.[test]'
	@mv .venv/.installing $@

.venv/.lint: .venv/.stamp
	@$(PIP) -e '.[lint]'
	@touch $@

.venv/.docs: .venv/.stamp
	@$(PIP) -e '.[docs]'
	@touch $@
