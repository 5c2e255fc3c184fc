# Every target works on a fresh machine and again at once when called twice.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NATIVE := $(shell find native -name '*.cpp' -o -name '*.hpp') CMakeLists.txt pyproject.toml constraints.txt
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: demo test check bench sanitize stress clean
.DELETE_ON_ERROR:

demo: $(VENV)/.built
	@$(BIN)/python examples/01_train_characters.py

test: $(VENV)/.built
	@$(BIN)/python -m pytest -q

check: $(VENV)/.built
	@PATH="$(CURDIR)/$(BIN):$$PATH" ./check

bench: $(VENV)/.built
	@$(BIN)/phalanx bench all

# The native tests under the thread and the address sanitizer.
sanitize:
	@./native/tests/run thread address

stress: $(VENV)/.built
	@$(BIN)/python -m pytest -q tests/stress

$(VENV)/.torch: constraints.txt
	@echo "making a virtual environment with torch (minutes, once)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install -r constraints.txt
	@touch $@

$(VENV)/.built: $(VENV)/.torch $(NATIVE)
	@echo "building phalanx (a minute, once)"
	@$(PIP) install -c constraints.txt -e '.[dev,bench]'
	@touch $@

clean:
	rm -rf $(VENV) build
