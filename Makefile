# Everything that a fresh machine with Python >= 3.11, a C++17 compiler and pip needs: no root.
#   make demo    train, export, verify and benchmark on real data; prints where the report is
#   make test    lint and the default test suite
#   make matrix  the same library under several onnxruntime releases (each in its own venv)
#   make sanitize  op and kernel tests under AddressSanitizer and UBSan

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# pip's own notices are not ours to act on; a failing install still prints its error.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
NATIVE_SOURCES := CMakeLists.txt $(shell find ort_ops/csrc -type f)

.PHONY: help env demo test lint format pytest matrix sanitize bench-layer clean

help:
	@sed -n 's/^#   //p' Makefile

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fanin needs Python 3.11 or newer; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)

# An editable install sees changed Python files by itself; dependencies and native code need another
# one. The stamp keeps a current environment as it stands.
STAMP := $(VENV)/.installed
$(STAMP): pyproject.toml $(NATIVE_SOURCES) | $(BIN)/python
	$(PIP) --editable '.[dev]'
	touch $@

env: $(STAMP)

demo: env
	$(BIN)/python examples/demo.py

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $$(find ort_ops/csrc -name '*.h' -o -name '*.cc')

format: env
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $$(find ort_ops/csrc -name '*.h' -o -name '*.cc')

pytest: env
	$(BIN)/python -m pytest -m 'not matrix and not slow'

test: lint pytest

matrix: env
	$(BIN)/python -m pytest -m matrix

sanitize: env
	tools/sanitize.sh

bench-layer: env
	$(BIN)/fanin bench layer --out out/bench-layer

clean:
	rm -rf build out .cache $(VENV)
