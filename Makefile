# Each command makes .venv if it is missing and installs what it needs from the registries.
PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin

.PHONY: demo test test-long lab bench lint clean

demo: $(VENV)/.kit
	$(BIN)/kit demo

test: $(VENV)/.test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -m "not long"

test-long: $(VENV)/.test
	$(BIN)/pytest

lab: $(VENV)/.lab
	$(BIN)/jupyter lab notebooks

bench: $(VENV)/.test
	$(BIN)/python -m benchmarks

lint: $(VENV)/.test
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

NATIVE = $(wildcard native/*.py native/*.c native/*.h native/*.cdef native/interface/*.h)

$(VENV)/.kit: $(BIN)/python pyproject.toml $(NATIVE)
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/.test: $(VENV)/.kit
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	touch $@

$(VENV)/.lab: $(VENV)/.kit
	$(BIN)/python -m pip install --quiet --editable '.[lab]'
	touch $@

clean:
	rm -rf build dist *.egg-info kit/_ggml kit/_native*.so $(VENV)
