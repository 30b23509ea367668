# The set-up is done once in .venv, and again whenever pyproject.toml or constraints.txt change.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
DOCS_STAMP := $(VENV)/.docs-installed
SITE   ?= build/site
# NumPy 2, which Python 3.13 has, declares its types in the syntax of Python 3.12.
TYPES   = $(shell $(BIN)/python -c 'import sys; print("--python-version=3.13" * (sys.version_info >= (3, 13)))')
# How many tests run at once: some wait for processes and sockets, so more than there are of two cores.
JOBS   ?= $(shell [ "$$(nproc 2> /dev/null || echo 2)" -ge 4 ] && echo 4 || echo 3)
EXAMPLES ?= 10000
SEED     ?= $(shell date +%s)

.DEFAULT_GOAL := help
.PHONY: help install demo test slow check proto proto-check stubs docs docs-install docs-site images-check image-test structure bench gpu-check fuzz crash soak mutants clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# The first process that imports a module compiles it, and the others read that: pip would compile all of every package.
export PYTHONDONTWRITEBYTECODE :=

# MXNet needs NumPy 1.26, which has no wheels for Python 3.13: there it is left out, and so are its tests.
# The stamp comes last: a failed install leaves none.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; (3, 10) <= v < (3, 14) or sys.exit( \
	  f"Python 3.10 to 3.13 is needed, this is {v[0]}.{v[1]}; name another: make PYTHON=python3.11"); \
	  v < (3, 13) or print(f"MXNet is left out: it has no packages for Python {v[0]}.{v[1]}", file=sys.stderr)'
	@rm -f $@
	$(PYTHON) -m venv $(VENV)
	@echo "setting up $(VENV): pip installs every framework and tool, which takes some minutes" >&2
	@if [ -t 1 ]; then set --; else set -- --quiet; fi; \
	  $(BIN)/python -m pip install "$$@" --disable-pip-version-check --no-compile -c constraints.txt -e '.[all,dev]'
	@touch $@

install: $(STAMP) ## set up .venv with every framework and tool

demo: $(STAMP) ## evaluate DigitsCNN on real handwritten digits with every framework
	@BIN=$(BIN) tools/demo.sh

# Huge pages spare the kernel most of its work for the memory of networks; clocks are judged without them.
test: check ## everything that CI runs: check, then all tests
	GLIBC_TUNABLES=glibc.malloc.hugetlb=1 $(BIN)/python -m pytest -m "not real_time and not slow" -n $(JOBS) --dist loadfile --no-loadscope-reorder
	$(BIN)/python -m pytest -m real_time $$(grep -rl --include='test_*.py' 'mark\.real_time' tests)

slow: $(STAMP) ## train each of DLBS's models for two steps, run and export the largest networks, fill memory, and count intervals
	$(BIN)/python -m pytest -m slow tests/cli/test_benchmark_models.py tests/contract/test_zoo_models.py \
	  tests/contract/test_zoo_models_mxnet.py tests/integration/test_memory_processes.py \
	  tests/integration/test_generation_truth.py

check: $(STAMP) proto-check ## installed packages, lint, types, import rules, generated stubs
	$(BIN)/python -m pip check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --num-workers=2 $(TYPES)
	$(BIN)/lint-imports

proto: $(STAMP) ## generate the stubs from the .proto files
	@PYTHON=$(BIN)/python tools/make_stubs.sh

proto-check: $(STAMP) # fails when the committed stubs are not what the .proto files give
	@PYTHON=$(BIN)/python tools/check_protos.sh

stubs: $(STAMP) ## generate what is made of tables and requests: stubs of the operators' classes, arguments of loads
	$(BIN)/python -m tools.operator_stubs
	$(BIN)/python -m tools.library_arguments

docs: $(STAMP) ## write docs/commands.md from the commands, and the tables of docs/operators.md and docs/operators-classes.md
	$(BIN)/python -m tools.command_reference
	$(BIN)/python -m tools.operator_table

$(DOCS_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e '.[docs]'
	@touch $@

docs-install: $(DOCS_STAMP) # what docs-site requires; it needs Python 3.11 or newer

docs-site: $(DOCS_STAMP) ## build the site of the documentation in build/site; SITE is another folder
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet --fresh-env -c docs -d build/doctrees . $(SITE)

images-check: $(STAMP) ## run the commands of the Dockerfiles on this machine; IMAGES names some
	$(BIN)/python -m tools.check_images $(IMAGES)

image-test: ## build the ONNX Runtime and MXNet images with buildah and test them; as root, without an engine
	@tools/image_test.sh

gpu-check: $(STAMP) ## run every GPU path on this machine; FRAMEWORKS names some frameworks
	$(BIN)/python -m tools.gpu_check $(FRAMEWORKS)

fuzz: $(STAMP) ## run the fuzzers longer; EXAMPLES is how many examples each takes
	INFEROMETER_FUZZ_EXAMPLES=$(EXAMPLES) $(BIN)/python -m pytest --timeout=0 tests/fuzz

crash: $(STAMP) ## kill 200 runs at random moments and check what is kept; SEED chooses the moments
	INFEROMETER_CRASH_RUNS=200 INFEROMETER_CRASH_SEED=$(SEED) $(BIN)/python -m pytest tests/crash

soak: $(STAMP) ## send a served agent 1,000,000 calls of many kinds, and then more while processes are killed or clients leave
	$(BIN)/python -m tests.soak
	INFEROMETER_SOAK_STREAMS=10000 $(BIN)/python -m pytest -s tests/integration/test_left_streams.py
	INFEROMETER_SOAK_CALLS=100000 INFEROMETER_SOAK_KILLS=20 $(BIN)/python -m pytest -s tests/integration/test_killed_processes.py

mutants: $(STAMP) ## break 40 lines of the source one by one, each of which a test must find; ONLY chooses by file or name
	$(BIN)/python -m tools.mutants --only "$(ONLY)"

structure: $(STAMP) ## measure the structure of the source, which tests/architecture bounds
	@$(BIN)/python -m tools.structure

bench: $(STAMP) ## measure speed, each figure as a ratio taken side by side
	$(BIN)/python -m tests.perf

clean: ## remove what the other targets made
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
