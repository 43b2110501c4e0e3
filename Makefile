# Each command makes .venv if it is missing and installs what it needs from the registries; what is there is left alone.
PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin
PIP     = $(BIN)/python -m pip install --quiet --disable-pip-version-check

# What the extension is made of: a change of any of these builds it anew.
BUILT_FROM = pyproject.toml setup.py $(wildcard native/*.py native/*.c native/*.h native/*.cdef native/interface/*.h)

.DEFAULT_GOAL = help
.PHONY: help demo test test-long lab bench lint clean

help:  ## show this list
	@sed -n 's/^\([a-z-]*\):.*## /make \1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 16

demo: $(VENV)/.kit  ## the whole tour in the terminal; writes kit-demo.html
	$(BIN)/kit demo

test: $(VENV)/.test  ## format, lint, types, and every test this machine can run; says what it skipped and why
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -m "not long"

test-long: $(VENV)/.test  ## every test, also those that take minutes
	$(BIN)/python -m pytest

lab: $(VENV)/.lab  ## open the notebooks in JupyterLab
	$(BIN)/jupyter lab notebooks

bench: $(VENV)/.test  ## measure against peers, side by side
	$(BIN)/python -m benchmarks

lint: $(VENV)/.test  ## format the sources and mend what the linter can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:  ## remove everything that was built, and .venv
	rm -rf build dist *.egg-info kit/_ggml kit/_native*.so $(VENV)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip

$(VENV)/.kit: $(BIN)/python $(BUILT_FROM)
	$(PIP) --editable .
	touch $@

# kit is there (never take it from a registry): only what the extra adds is installed, nothing is built twice
$(VENV)/.test $(VENV)/.lab: $(VENV)/.%: $(VENV)/.kit
	$(BIN)/python -m pip show --quiet ggml-kit || $(PIP) --editable .
	$(PIP) 'ggml-kit[$*]'
	touch $@
