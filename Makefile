# Every target works on a fresh machine and again at once when called twice.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NATIVE := $(shell find native -name '*.cpp' -o -name '*.hpp') CMakeLists.txt pyproject.toml constraints.txt
DEVICES := $(shell find src/phalanx/virtual_gpus/native src/phalanx/virtual_gpus/building -type f -name '*.[ch]pp' -o -name '*.py')
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: demo test check bench gpu sanitize model fuzz stress flaky faults hosts upstream frameworks clean
.DELETE_ON_ERROR:

demo: $(VENV)/.devices
	@$(BIN)/python examples/01_train_characters.py

# Twice as many tests at a time as a small machine has cores: half of the time, a test waits for other processes.
WORKERS ?= 4
test: $(VENV)/.devices
	@$(BIN)/python -m pytest -q -n '$(WORKERS)' --dist worksteal

check: $(VENV)/.devices
	@PATH="$(CURDIR)/$(BIN):$$PATH" ./check

bench: $(VENV)/.devices
	@./dev bench all

# All checks and benchmarks that need a GPU, in under 8 minutes, with a python3 whose torch has CUDA and that has phalanx
# (pip install --no-build-isolation --no-deps .). RESULTS=folder for what it writes.
RESULTS ?= benchmarks/results
gpu:
	@$(PYTHON) benchmarks/gpu_checks '$(RESULTS)'

# The native tests under the thread, the address and the undefined-behaviour sanitizer.
sanitize:
	@./native/tests/run thread address undefined

# The model of the protocol (native/model/README.md), with spin.
model:
	@./native/model/run

# Arbitrary bytes for the readers of group memory, as long as SECONDS says.
SECONDS ?= 60
fuzz:
	@./native/tests/fuzz '$(SECONDS)'

# 1,000 random kills, 10,000 groups opened and closed, 500 open at once, 256 ranks in one group.
stress: $(VENV)/.built
	@$(BIN)/python -m pytest -q tests/stress --whole-stress

# The tests that involve clocks, signals or processes, again and again while all cores are busy. RUNS=30; JOBS=16 has so many runs
# at the same time; SUITE=all runs all tests so, and SUITE='tests/rank_errors -k timeout' what you name. PYTHON=python3 takes a
# Python that has phalanx, instead of making a virtual environment.
RUNS ?= 30
JOBS ?= 1
SUITE ?= processes
OTHER_PYTHON := $(if $(filter command environment,$(firstword $(origin PYTHON))),$(PYTHON))
flaky: $(if $(OTHER_PYTHON),,$(VENV)/.devices)
	@JOBS='$(JOBS)' PYTHON='$(or $(OTHER_PYTHON),$(BIN)/python)' ./tests/flaky '$(RUNS)' '$(SUITE)'

# Every operation with every fault on four ranks: does each survivor name the culprit?
faults: $(VENV)/.built
	@./dev faults

# Several hosts on one machine, as network namespaces (root): all tests over them. `./dev hosts` makes such hosts to try out.
hosts: $(VENV)/.built
	@$(BIN)/python -m pytest -q tests/hosts --over-hosts all

# torch's own tests against phalanx. MODE=plain|gloo|nccl|vgloo|mpi with WORLD=2|3|4|8; MODE=all (virtual GPUs, ends with
# the union over all modes); MODE=multigpu or dist2 with PYTORCH_TESTS=folder of PyTorch's sources.
MODE ?= all
WORLD ?= 2 4 8
PYTORCH_TESTS ?=
upstream: $(VENV)/.devices $(VENV)/.torchvision
	@bad=0; for mode in $(MODE); do case $$mode in \
	  all) ./dev upstream --mode all --at-least 270 || bad=1 ;; \
	  multigpu) ./dev upstream --mode multigpu --at-least 61 $(if $(PYTORCH_TESTS),--tests '$(PYTORCH_TESTS)') || bad=1 ;; \
	  dist2) ./dev upstream --mode dist2 --at-least 23 $(if $(PYTORCH_TESTS),--tests '$(PYTORCH_TESTS)') || bad=1 ;; \
	  *) for world in $(WORLD); do ./dev upstream --mode $$mode --world $$world || bad=1; done ;; \
	  esac; done; exit $$bad

# One test of upstream's converts a ResNet-50. Without dependencies: they would bring another torch. It runs without, too.
$(VENV)/.torchvision: $(VENV)/.torch
	-@$(PIP) install --no-deps torchvision==0.28.0 pillow
	@touch $@

# Frameworks and a notebook over phalanx, in an environment of their own.
frameworks: .venv-frameworks/.ready
	@.venv-frameworks/bin/python -m pytest -q tests/frameworks tests/documents/test_blocks.py -k frameworks

.venv-frameworks/.ready: constraints.txt pyproject.toml
	@$(PYTHON) -m venv .venv-frameworks
	@.venv-frameworks/bin/python -m pip --disable-pip-version-check --quiet install -r constraints.txt
	@.venv-frameworks/bin/python -m pip --disable-pip-version-check --quiet install -c constraints.txt '.[test]' accelerate lightning \
	  transformers deepspeed jupyter_client ipykernel
	@.venv-frameworks/bin/python -c 'import torch; assert torch.__version__.startswith("2.13.0"), torch.__version__'
	@touch $@

$(VENV)/.torch: constraints.txt
	@echo "making a virtual environment with torch (minutes, once)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install -r constraints.txt
	@touch $@

$(VENV)/.built: $(VENV)/.torch $(NATIVE)
	@echo "building phalanx (a minute, once)"
	@$(PIP) install -c constraints.txt -e '.[dev,bench]'
	@touch $@

# What programs with virtual GPUs need is built at their first use; here ahead of it.
$(VENV)/.devices: $(VENV)/.built $(DEVICES)
	@$(BIN)/phalanx devices build
	@touch $@

clean:
	rm -rf $(VENV) .venv-frameworks build
