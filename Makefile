# make demo, make test: everything they need beyond Python 3.10+, a C++17 compiler and make is set up in .venv by themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MODEL := models/SmolLM2-135M-Instruct.Q4_1.gguf
ANER_CMAKE_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help demo test native-tests native-benches lint model build clean

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

demo: build model ## install, fetch the demo model, generate, and print the answer with its timings and memory
	$(BIN)/python bench/demo.py $(MODEL)

test: build model native-tests lint ## install and run every test
	$(BIN)/python -m pytest

native-tests: $(VENV)/.tools ## build the native test program
	$(BIN)/cmake -S . -B build/native -G Ninja -DANER_MODULE=OFF -DANER_TESTS=ON -DANER_WERROR=ON -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja
	$(BIN)/cmake --build build/native --target aner_core_tests

native-benches: $(VENV)/.tools ## build the native benchmarks and run them; each fails beyond its limit
	$(BIN)/cmake -S . -B build/benches -G Ninja -DANER_MODULE=OFF -DANER_BENCHES=ON -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja
	$(BIN)/cmake --build build/benches --target prompt_lookup_bench
	build/benches/prompt_lookup_bench

lint: build ## ruff and mypy --strict
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

build: $(VENV)/.tools ## install aner into .venv, editable; a second call rebuilds only what changed
	$(BIN)/pip install --quiet --no-build-isolation --config-settings=cmake.define.ANER_WERROR=ON $(ANER_CMAKE_ARGS) --editable .

$(VENV)/.tools: pyproject.toml tools/check_prerequisites.py
	@$(PYTHON) tools/check_prerequisites.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet "scikit-build-core>=0.10" "cython>=3.1" "cmake>=3.21" ninja
	$(BIN)/pip install --quiet --group test
	touch $@

model: $(MODEL) ## the demo model, by hash

$(MODEL): tools/demo_model.py tools/demo_model.txt | $(VENV)/.tools
	$(BIN)/python tools/demo_model.py $@

clean: ## remove the environment, the builds and the model
	rm -rf $(VENV) build models vendor/llama.cpp/source
