# Every target sets up what it needs; `make demo` and `make test` work on a fresh checkout.

VENV ?= .venv
PYTHON ?= python3
DEMO ?= smollm2-selfdraft
BIN := $(VENV)/bin
# Stamps: what is installed is enough to export and run; and to test and check.
RUNS := $(VENV)/.runs
DEVELOPS := $(VENV)/.develops
EXPORTER := $(wildcard export/*.py export/*/*.py) specedge/contract.py specedge/config.py

.PHONY: help install demo test test-unit check format docs verify-full gpu-bundle clean

help:
	@echo "make demo         export SmolLM2 (93 MB to fetch), probe it, and decode plainly and speculatively"
	@echo "make test         unit tests, and end-to-end ones on SmolLM2"
	@echo "make test-unit    the tests that need no download"
	@echo "make check        format, lint, types, generated docs; what CI checks"
	@echo "make format       format, and write docs/cli.md"
	@echo "make verify-full  the full equality matrices, docs/equality.md and docs/coupled.md"
	@echo "make gpu-bundle   build/gpu-kit: what a GPU box without network needs for bench/gpu_check.py"
	@echo "make clean        remove what make made, the cache of fetched weights excepted"

install: $(DEVELOPS)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(RUNS): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[cpu,export,guidance]'
	touch $@

$(DEVELOPS): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $(RUNS) $@

# A bundle is made again when its config or the exporter changes.
bundles/%/specedge.json: configs/%.toml $(EXPORTER)
	$(BIN)/specedge export $< -o bundles/$* --force

demo: $(RUNS)
	$(MAKE) --no-print-directory bundles/$(DEMO)/specedge.json
	$(BIN)/specedge probe bundles/$(DEMO) --budget 40
	$(BIN)/python bench/demo.py bundles/$(DEMO)

test: $(DEVELOPS)
	$(MAKE) --no-print-directory bundles/smollm2/specedge.json bundles/smollm2-selfdraft/specedge.json
	$(BIN)/python -m pytest -q -m "not slow and not gpu"

test-unit: $(DEVELOPS)
	$(BIN)/python -m pytest -q -m "not slow and not gpu and not model"

check: $(DEVELOPS)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python tools/link_tree.py
	cd build/tree && $(abspath $(BIN))/mypy -p specedge --config-file ../../pyproject.toml
	$(BIN)/python tools/cli_docs.py --check

format: $(DEVELOPS)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/python tools/cli_docs.py

docs: $(DEVELOPS)
	$(BIN)/python tools/cli_docs.py

verify-full: $(DEVELOPS)
	$(MAKE) --no-print-directory bundles/smollm2/specedge.json bundles/smollm2-selfdraft/specedge.json
	$(BIN)/python bench/verify_full.py --output docs/equality.md
	$(BIN)/python bench/coupled.py --output docs/coupled.md

# ONNXRUNTIME_GPU=wheel or its folder: in pieces beside the kit; GPU_PYTHON=3.11: the box's Python
gpu-bundle: $(RUNS)
	$(BIN)/python bench/gpu_kit.py build/gpu-kit \
		$(addprefix --with-onnxruntime-gpu ,$(ONNXRUNTIME_GPU)) $(addprefix --python ,$(GPU_PYTHON))

clean:
	rm -rf build dist bundles .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis
