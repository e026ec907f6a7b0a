# Everything a user types; needs make and Python 3.11, 3.12 or 3.13, the first of which is taken, and makes .venv/ by itself.
PYTHON ?= $(firstword $(foreach minor,11 12 13,$(shell command -v python3.$(minor))) python3)
BIN := .venv/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
UV := uv==0.13.9
PACKAGES := -c constraints.txt -e '.[dev]'
WITH_UV := UV_FIND_LINKS="$${UV_FIND_LINKS:-$$PIP_FIND_LINKS}" $(BIN)/uv pip install --quiet --python $(BIN)/python $(PACKAGES)
INSTALLED := .venv/.installed
# one worker more than there are cores, since many tests wait for servers, and at most four
WORKERS := $(shell $(PYTHON) -c 'import os; print(min(4, 1 + (os.cpu_count() or 1)))')
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# a link, an anchor or a page of the navigation that is missing is an error
SITE := rm -rf site && $(BIN)/sphinx-build -q -W --keep-going -E -d .venv/doctrees docs site

# each of some hundred processes would compile what it imports
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help run test test-all services check docs pictures look house clean

help:            ## What there is to type
	@grep -E '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 10

run: $(INSTALLED)    ## Partition the embedded digits, diagnose them, compare five methods
	@$(BIN)/siloflow partition
	@$(BIN)/siloflow diagnose
	@$(BIN)/siloflow compare local_only fedavg ifca conditional uefl

test: $(INSTALLED)   ## The fast tests: all but those marked slow
	@$(PYTEST) -m "not slow"

test-all: $(INSTALLED)  ## Every test
	@$(PYTEST)

services: $(INSTALLED)  ## The tests on PostgreSQL and an S3-compatible store (needs postgres and initdb)
	@$(PIP) install -c constraints.txt -e '.[services]'
	@$(BIN)/python -m pytest -m services

check: $(INSTALLED)  ## Format, lint, types, import contracts, links of the site, and that README and docs are true
	@$(BIN)/ruff format --check --quiet . || { echo "not formatted: run $(BIN)/ruff format ."; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports --no-cache > .venv/imports.log || { cat .venv/imports.log; exit 1; }
	@$(SITE)
	@$(BIN)/python -m pytest tests/test_docs.py -m "not slow"

docs: $(INSTALLED)   ## Write the tables of docs/ from the records and types, and build the site into site/
	@$(BIN)/python -m publications.render.doc_tables
	@$(BIN)/python tests/json_tables.py
	@$(SITE)
	@echo "built site/index.html"

pictures: $(INSTALLED)  ## The pictures of docs/ from real runs: figures, MLflow's and Prefect's pages (needs chromium)
	@$(BIN)/python tests/look.py pictures
	@$(BIN)/python -m benchmarks.advice.draw_matrix
	@$(BIN)/python -m publications.render.draw_privacy

look: $(INSTALLED)   ## Schedule and both pages in a headless browser, pictures into runs/look (needs chromium)
	@$(BIN)/python tests/look.py

house: $(INSTALLED)  ## Lines, types and longest functions of the code, and frames from a command to the engine
	@$(BIN)/python tests/house.py

clean:           ## Remove the environment, caches and the site; data and runs stay
	rm -rf .venv site .pytest_cache .mypy_cache .ruff_cache .hypothesis build *.egg-info

# Exact pins are in constraints.txt. uv installs them several times faster than pip, which does it where uv cannot. PyTorch's own
# index has builds without CUDA for machines without a GPU; where it does not answer, builds are PyPI's, or those of pip's own folder.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -m venv .venv
	@echo "installing into .venv with $(UV) (once; a minute or two)"
	@{ $(PIP) install $(UV) && { $(WITH_UV) --torch-backend=auto || $(WITH_UV); }; } > .venv/install.log 2>&1 \
		|| { echo "uv cannot be had or cannot install: see .venv/install.log; installing with pip (some minutes)"; \
			$(PIP) install $(PACKAGES) > .venv/install.log 2>&1; } \
		|| { tail -n 20 .venv/install.log; exit 1; }
	@touch $@
