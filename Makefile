# make check: what CI runs, in the current environment, but for .ci/readme. make quick: the same without the slow tests.
export OMP_NUM_THREADS ?= 1
PYTEST = python -m pytest -q -n 2 --dist worksteal

.PHONY: check quick lint types contracts test docs accuracy benchmarks

check: lint types contracts docs test

quick: lint types contracts
	$(PYTEST) -m "not slow"

lint:
	ruff check .
	ruff format --check .

types:
	pyright

contracts:
	lint-imports

test:
	$(PYTEST) --durations=15

docs:
	sphinx-build -W --keep-going -q -b html docs docs/_build/html

# The records that the docs read. Run from a clean tree, so that they name a commit.
accuracy:
	python -m pytest tests/sphere/test_accuracy.py -q --write-accuracy results/sphere/accuracy.json

benchmarks:
	OMP_NUM_THREADS=2 python -m benchmarks.sampling
	python -m benchmarks.import_time
