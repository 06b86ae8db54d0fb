# `make demo` and `make test` need Python 3.11 or newer and nothing else.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
CORE := $(VENV)/.core
BROWSER := $(VENV)/.browser
OTHERS := .venv-others
CHROMIUM := $(shell command -v chromium || command -v chromium-browser || command -v google-chrome)

.PHONY: torch demo test lint types unit wheel fuzz bounds bench bench-clock bench-engine bench-models bench-quadratic \
	bench-planner bench-everyday bench-flower bench-one-line bench-torch bench-others bench-growth flower-demo test-flower test-slow test-torch test-track test-browser publish-check check-accelerator lock format clean

# Twenty unequal clients train a model of scikit-learn's digits under five schemes, three learning rates, three seeds.
demo: $(CORE)
	$(BIN)/fedtempo run --out results/demo --overwrite

test: lint types unit wheel

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

# Two processes, a file at a time: files share what they compile. With Chromium pages are tested, too.
unit: $(READY) $(if $(CHROMIUM),$(BROWSER))
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder \
		-m "not slow and not torch and not track$(if $(CHROMIUM),, and not browser)"

# The wheel as a user gets it: built, unpacked beside nothing of this checkout, imported and run.
wheel: $(READY)
	$(BIN)/python tests/wheel_smoke.py

# Ready for an index: sdist and wheel, twine, a bare environment, its size and the seconds that it takes.
publish-check: $(READY)
	$(BIN)/python tests/publish_check.py

# A SuperLink and four SuperNodes of unequal speed on this machine train digits with FedAvg and with FedFix.
flower-demo: $(CORE)
	$(BIN)/python examples/flower/demo.py --out results/flower-demo

# The documentation as a site, in site/: its examples run, every public name is there, every link leads somewhere.
.PHONY: docs
docs: $(READY)
	PIP_CONSTRAINT=constraints.txt $(BIN)/pip install -qq --disable-pip-version-check -r requirements/docs.txt
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m "not torch and not track" \
		tests/test_site.py tests/test_examples.py tests/test_api_examples.py
	$(BIN)/python docs/site/build.py

# Tests of many seconds each that have quicker ones beside them.
test-slow: $(READY)
	FEDTEMPO_FULL_COMPILE=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m slow
	FEDTEMPO_FULL_COMPILE=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest tests/problems/test_models.py -k torch

# PyTorch modules: the engine, the compiled form, data sets.
test-torch: torch
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m torch

# MLflow and Weights & Biases, without a network.
test-track: $(READY)
	PIP_CONSTRAINT=constraints.txt $(BIN)/pip install -qq --disable-pip-version-check -r requirements/track.txt
	$(BIN)/python -m pytest -m track

# Pages in a real browser: sliders, charts, live pages.
test-browser: $(READY) $(BROWSER)
	command -v chromium || command -v chromium-browser || command -v google-chrome || (apt-get update -qq && apt-get install -y -qq chromium)
	$(BIN)/python -m pytest -m browser

# Real Flower processes that are killed, turned away or lie: about ten minutes.
test-flower: $(READY)
	$(BIN)/python -m pytest -s tests/flower/test_real.py tests/flower/long_running.py

# Many times the random cases of `make test`, on the clock and on Flower's side.
fuzz: $(READY)
	FEDTEMPO_CASES=4000 $(BIN)/python -m pytest tests/clock/test_rival.py tests/clock/test_server.py
	FEDTEMPO_CASES=40000 $(BIN)/python -m pytest -n 2 tests/flower/test_fuzz.py

# Theorems 1 to 3 on 500 random problems: what was measured stays below what is promised.
bounds: $(READY)
	$(BIN)/python benchmarks/bounds.py --cases 500

# The quadratic model against simulation: stability limits and loss curves of every scheme.
bench-quadratic: $(READY)
	$(BIN)/python benchmarks/quadratic_model.py

# The planner's choices on sixty settings, judged by what every cell of their grids gives; random search and TPE beside.
bench-planner: $(READY)
	PIP_CONSTRAINT=constraints.txt $(BIN)/pip install -qq --disable-pip-version-check -r requirements/bench.txt
	$(BIN)/python benchmarks/planner.py

# A PyTorch module on the clock beside a tidy loop in plain PyTorch.
bench-torch: torch
	$(BIN)/python benchmarks/torch_engine.py

# FLGo's and APPFL's simulators and plain loops on the same work in the same run, from an environment of its own.
bench-others: $(OTHERS)/.ready
	$(OTHERS)/bin/python benchmarks/others.py

# How cost grows with clients, parameters, runs and delay.
bench-growth: $(READY)
	$(BIN)/python benchmarks/growth.py

# What a round costs on Flower, transport and ours apart, and how many updates a second the server takes.
bench-flower: $(READY)
	$(BIN)/python benchmarks/flower_overhead.py

# One changed line: every scheme beside FedAvg at FedAvg's local rate, in 16 settings.
bench-one-line: torch
	$(BIN)/python benchmarks/one_line.py

bench-everyday: $(READY)
	$(BIN)/python benchmarks/everyday.py --before $(BEFORE)

bench: bench-clock bench-engine bench-models

bench-clock: $(READY)
	$(BIN)/python benchmarks/clock.py

bench-engine: torch
	$(BIN)/python benchmarks/engine.py

# One step of every network: equal to PyTorch's, and how fast beside it.
bench-models: torch
	$(BIN)/python benchmarks/models.py

torch: $(READY)
	PIP_CONSTRAINT=constraints.txt $(BIN)/pip install -qq --disable-pip-version-check -r requirements/torch.txt

# The same batches and answers on this machine's accelerator as by the plain loop.
check-accelerator: $(READY)
	$(BIN)/python benchmarks/accelerator.py

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# What users install is enough for the demo; the rest is installed for the tests.
$(CORE): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fedtempo needs Python 3.11 or newer: make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv --clear $(VENV)
	PIP_CONSTRAINT=constraints.txt $(BIN)/pip install -qq --disable-pip-version-check --editable .
	touch $@

$(READY): $(CORE)
	PIP_CONSTRAINT=constraints.txt $(BIN)/pip install -qq --disable-pip-version-check --editable '.[dev,parquet]'
	touch $@

$(BROWSER): $(READY) requirements/browser.txt
	PIP_CONSTRAINT=constraints.txt $(BIN)/pip install -qq --disable-pip-version-check -r requirements/browser.txt
	touch $@

$(OTHERS)/.ready: pyproject.toml constraints.txt requirements/torch.txt requirements/others.txt
	$(PYTHON) -m venv --clear $(OTHERS)
	PIP_CONSTRAINT=constraints.txt $(OTHERS)/bin/pip install -qq --disable-pip-version-check --editable . -r requirements/torch.txt
	$(OTHERS)/bin/pip install -qq --disable-pip-version-check --no-deps -r requirements/others.txt
	touch $@

lock:
	$(PYTHON) -m venv --clear .venv-lock
	.venv-lock/bin/pip install --quiet pip-tools
	.venv-lock/bin/pip-compile --quiet --upgrade --strip-extras --allow-unsafe --no-header --no-annotate \
		--no-emit-index-url --no-emit-trusted-host --no-emit-find-links --output-file constraints.txt requirements/all.in
	rm -rf .venv-lock

clean:
	rm -rf $(VENV) $(OTHERS) .venv-lock build dist site results .pytest_cache .mypy_cache .ruff_cache .hypothesis
