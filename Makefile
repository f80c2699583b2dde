# All targets need only Python >= 3.11, a C++17 compiler and pip, without root.
#   make demo    train, export, verify and benchmark on real data; prints the path of the report
#   make test    lint, types and the default test suite
#   make check   lint, types and a few tests of each package
#   make matrix  the same library under several onnxruntime releases, the server with KServe's client
#                (each in its own venv)
#   make docs    the documentation site in build/site; warnings and broken links fail
#   make lowest  every extra with the lowest versions that are declared; make newest: the newest
#   make bench-kernels   every kernel against the limits of this CPU, into out/
#   make deepsparse-env  DeepSparse in .cache/, for fanin bench layer --engines dense,condensed,deepsparse
#   make languages  the example apps of all languages whose compilers are here, built and run
#   make cross-check  every kernel and ONNX Runtime on emulated CPUs: older x86 and Arm64
#   make wheels   sdist and wheels into dist/; check-wheels: runs them in bare environments
#   make release-check  everything that a release needs (hours); docs/releasing.md
#   make sanitize  op and kernel tests under AddressSanitizer and UBSan, threads under ThreadSanitizer

PYTHON ?= python3
VENV := .venv
TEST_WORKERS ?= 2
BIN := $(VENV)/bin
# Suppresses pip's notices; a failing install still prints its error.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
NATIVE_SOURCES := CMakeLists.txt $(shell find ort_ops/csrc cmake -type f)
FORMATTED := $(shell find ort_ops/csrc examples/cpp_app examples/languages -name '*.h' -o -name '*.c' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh')

.PHONY: help env demo test check lint types format pytest matrix lowest newest languages cross-check sanitize \
  docs wheels check-wheels release-check bench-layer bench-kernels deepsparse-env clean

help:
	@sed -n 's/^#   //p' Makefile

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fanin needs Python 3.11 or newer; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)

# An editable install sees changed Python files at once; changed dependencies or native code need a
# new install. The stamp avoids one when the environment is up to date.
STAMP := $(VENV)/.installed
$(STAMP): pyproject.toml $(NATIVE_SOURCES) | $(BIN)/python
	$(PIP) --editable '.[dev]'
	touch $@

env: $(STAMP)

demo: env
	$(BIN)/python examples/demo.py

lint: types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@$(BIN)/clang-format --dry-run --Werror $(FORMATTED)

# The package's installed layout, made of links: mypy does not follow an editable install.
TYPING := build/typing
TYPED := -p fanin
types: env
	@rm -rf $(TYPING) && mkdir -p $(TYPING)/fanin
	@ln -s $(addprefix $(CURDIR)/,trainer export ort_ops deploy $(wildcard src/fanin/*)) $(TYPING)/fanin/
	cd $(TYPING) && $(CURDIR)/$(BIN)/mypy --config-file $(CURDIR)/pyproject.toml \
	  --cache-dir $(CURDIR)/.mypy_cache $(TYPED)
	$(BIN)/lint-imports --cache-dir .mypy_cache/imports

format: env
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(FORMATTED)

pytest: env
	$(BIN)/python -m pytest \
	  -m 'not matrix and not lowest and not newest and not slow and not emulated' \
	  -n $(TEST_WORKERS) --dist worksteal

test: lint pytest

# A few test files of each package, which together take a minute or two.
QUICK := base onnx_file trainer/test_update_reference.py trainer/test_structures.py \
  ort_ops/test_condensed.py ort_ops/test_op_values.py export/test_onnx_op.py \
  export/test_onnx_convert.py deploy/test_open_session.py deploy/test_serve_app.py
check: lint
	$(BIN)/python -m pytest -m 'not slow' -n $(TEST_WORKERS) $(addprefix tests/,$(QUICK))

matrix: env
	$(BIN)/python -m pytest -m matrix

lowest newest: env
	$(BIN)/python -m pytest -m $@ tests/end_to_end

# Node.js needs two packages of the npm registry; the other apps need no package.
LANGUAGES := .cache/languages
languages: env
	if command -v npm >/dev/null; then \
	  $(MAKE) -C examples/languages BUILD=$(CURDIR)/$(LANGUAGES) node; fi
	$(BIN)/python -m pytest -rs tests/deploy/test_languages.py tests/deploy/test_languages_docs.py

cross-check: env
	$(BIN)/python -m pytest -m emulated

sanitize: env
	tools/sanitize.sh

SITE := build/site
DOCS_STAMP := $(VENV)/.docs
$(DOCS_STAMP): pyproject.toml | $(STAMP)
	$(PIP) --editable '.[docs]'
	touch $@

# -E reads all pages again: a link may break because of another page.
docs: env $(DOCS_STAMP)
	$(BIN)/python -m sphinx --builder html --fail-on-warning --keep-going -E --quiet \
	  --conf-dir docs/site --doctree-dir build/doctrees . $(SITE)
	$(BIN)/python docs/site/check_links.py $(SITE)

# CHECK_WHEELS="--root FOLDER --emulated FOLDER": other distributions, see tools/wheels/check.py.
wheels: env
	$(BIN)/python tools/wheels/build.py $(WHEELS)

check-wheels: env
	$(BIN)/python tools/wheels/check.py --bench $(CHECK_WHEELS)

release-check: env
	$(BIN)/python tools/release_check.py --versions $(TAG)
	$(MAKE) test
	$(MAKE) matrix lowest newest cross-check
	$(MAKE) wheels WHEELS=--twice
	$(MAKE) check-wheels

bench-layer: env
	$(BIN)/fanin bench layer --out out/bench-layer

bench-kernels: env
	$(BIN)/fanin bench kernels --out out/bench-kernels
	$(BIN)/fanin bench scaling --of outputs --out out/bench-scaling

# DeepSparse needs an older Python, NumPy and onnx than fanin, so it has its own environment. The
# Neural Magic DeepSparse Community License allows no production use; fanin only compares with it.
DEEPSPARSE := .cache/deepsparse-venv
DEEPSPARSE_PYTHON ?= python3.11

deepsparse-env: $(DEEPSPARSE)/.ready

$(DEEPSPARSE)/.ready:
	$(DEEPSPARSE_PYTHON) -c 'import sys; sys.exit(sys.version_info >= (3, 12) and "DeepSparse needs Python 3.11 or older; set DEEPSPARSE_PYTHON=")'
	$(DEEPSPARSE_PYTHON) -m venv $(DEEPSPARSE)
	$(DEEPSPARSE)/bin/python -m pip install --quiet --disable-pip-version-check \
	  deepsparse==1.8.0 'numpy<2' 'protobuf<4' onnx==1.14.1
	touch $@

clean:
	rm -rf build out .cache $(VENV)
