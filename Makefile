# `make help` lists the targets. PYTHON selects a Python 3.11 to 3.13; ARGS holds options of a run or of pytest.
PYTHON ?= python3
VENV := .venv
# The oldest PyTorch that pyproject.toml allows, for the rehearsal.
OLDEST := 2.11
OLDEST_VENV := .venv-$(OLDEST)
# The tests are compiled once and kept, also where PYTHONDONTWRITEBYTECODE is set: half of the time to collect them.
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(VENV)/bin/python -m pytest
# Three workers on two cores: tests wait for processes and services.
PARALLEL := -n 3 --dist worksteal
ARGS ?=
MARKS ?= not slow
PIP := --disable-pip-version-check

.PHONY: help install setup demo test test-all rehearse rehearse-oldest wheel-check lint docs reproduce clean
.DEFAULT_GOAL := help

help:
	@echo "make demo       compare fp32 and mixed precision on synthetic images in minutes, and write the page"
	@echo "make test       run the quick tests, in less than two minutes on two cores (ARGS=tests/test_cli.py: only these)"
	@echo "make test-all   run the slow tests, too, about eight minutes"
	@echo "make setup      install into $(VENV) what the tests need, too (the other targets install what they need)"
	@echo "make reproduce  train the published tootouch experiment with three seeds on a GPU (again: continues)"
	@echo "make rehearse   train under every backend on fake CUDA tensors, to find what would fail or wait on a GPU"
	@echo "make rehearse-oldest  the same with the oldest supported PyTorch"
	@echo "make wheel-check  build the wheel and use it in an empty folder: run, report, sweep"
	@echo "make lint       ruff and mypy"
	@echo "make docs       write docs/cli.md, the reference of the command line, from the help texts"

# Installs what training and reports need; `make demo` needs no more.
install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if v >= (3, 11) else "Python 3.11 or newer is needed, %s is %d.%d: set PYTHON=..." % (sys.executable, *v))'
	@$(PYTHON) -m venv $(VENV)
	@echo "installing PyTorch and the other dependencies into $(VENV): about 3 GB to download and 6 GB on disk," \
	  "a few minutes"
	@$(VENV)/bin/python -m pip install $(PIP) -c constraints.txt -e .
	@touch $@

# Installs the optional packages and the tools of the tests, too.
setup: $(VENV)/.installed-for-tests

$(VENV)/.installed-for-tests: $(VENV)/.installed
	@echo "installing Ray, Lightning, Transformers and the test tools into $(VENV): about 0.2 GB to download and" \
	  "0.8 GB on disk"
	@$(VENV)/bin/python -m pip install $(PIP) -c constraints.txt -e '.[test]'
	@touch $@

demo: install
	@$(VENV)/bin/ampcompare demo $(ARGS)

# `MARKS=` (empty) includes the slow tests.
test: setup
ifeq ($(strip $(ARGS)),)
	$(PYTEST) $(PARALLEL) -m "$(MARKS)"
else
	$(PYTEST) $(ARGS)
endif

test-all:
	@$(MAKE) test MARKS=

rehearse: setup
	$(PYTEST) -n 2 tests/rehearsal $(ARGS)

rehearse-oldest: $(OLDEST_VENV)/.installed
	OMP_NUM_THREADS=1 PYTHONPATH=$(CURDIR)/src $(OLDEST_VENV)/bin/python -m pytest -n 2 -m "not slow" tests/rehearsal tests/precision/apex $(ARGS)

# Only PyTorch is installed here. Everything else, including the CUDA libraries, comes from $(VENV).
$(OLDEST_VENV)/.installed: | setup
	@$(PYTHON) -m venv --without-pip --clear $(OLDEST_VENV)
	@echo "installing PyTorch $(OLDEST) into $(OLDEST_VENV), a few hundred MB to download"
	@$(VENV)/bin/python -m pip --python $(OLDEST_VENV)/bin/python install $(PIP) --no-deps \
	  'torch==$(OLDEST).*' 'torchvision==0.26.*'
	@folder() { $$1/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }; \
	  folder $(VENV) > "$$(folder $(OLDEST_VENV))/shared.pth"
	@touch $@

wheel-check: setup
	.ci/wheel-check $(VENV)

lint: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

docs: setup
	$(VENV)/bin/python docs/make_cli.py

reproduce: install
	@$(VENV)/bin/ampcompare reproduce tootouch device=cuda $(ARGS)

clean:
	rm -rf $(VENV) $(OLDEST_VENV) .mypy_cache .pytest_cache .ruff_cache
