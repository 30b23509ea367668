# The set-up is done once in .venv and again whenever pyproject.toml or constraints.txt change.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
SOURCES := agent client evaluators manifests protos
PROTOS := $(wildcard protos/inferscope/v1/*.proto)

.DEFAULT_GOAL := help
.PHONY: help demo test check lint proto proto-check bench install clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 22

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[all,dev]'
	$(BIN)/python -m pip check
	@touch $@

install: $(STAMP) ## set up .venv with every framework and tool

demo: $(STAMP) ## evaluate DigitsCNN on real handwritten digits with every framework
	@BIN=$(BIN) tools/demo.sh

check: $(STAMP) proto-check ## lint, types and import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: check ## everything that CI runs: check, then all tests
	$(BIN)/python -m pytest

bench: $(STAMP) ## measure speed, each figure as a ratio taken side by side
	$(BIN)/python -m tests.perf

proto: $(STAMP) ## generate the stubs from protos/**/*.proto
	PATH="$(BIN):$$PATH" $(BIN)/python -m grpc_tools.protoc -I . \
	  --python_out=. --grpc_python_out=. --mypy_out=quiet:. --mypy_grpc_out=quiet:. $(PROTOS)

proto-check: $(STAMP) # fails when the committed stubs are not what the .proto files give
	@PYTHON=$(BIN)/python tools/check_protos.sh

clean: ## remove what the other targets made
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
