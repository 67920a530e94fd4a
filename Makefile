# make check: what CI runs, in the current environment, except .ci/readme; .ci/pages runs every page. make quick: three minutes, while you work.
# ROTATION: the number of the run. Tests with many cases run a quarter of them, another quarter for each number.
ROTATION ?= $(shell git rev-list --count HEAD 2>/dev/null || echo 0)
export OMP_NUM_THREADS ?= 1
PYTEST = python -m pytest -q -n 2 --dist worksteal --rotation $(ROTATION)

QUICK = tests/sphere tests/distributions tests/losses tests/data tests/evaluation tests/models

.PHONY: check quick core-quick fast again timm slow sweeps lint types contracts test pages page docs accuracy benchmarks

check: lint types contracts pages page docs test

quick:
	$(MAKE) -j2 lint types contracts core-quick

# One case of every test of the packages that need no server, cluster or training.
core-quick:
	$(PYTEST) -m "not slow and not long" --quick $(QUICK)

fast:
	$(PYTEST) -m "not slow" --durations=15

# Tests that failed in the last run, one at a time; those that pass now are written to .pytest_cache/flaky.json.
again:
	cp .pytest_cache/v/cache/lastfailed .pytest_cache/flaky.json
	python -m pytest -q -n 0 --rotation $(ROTATION) --last-failed --last-failed-no-failures none

# The encoders of timm, in a separate environment: with torchvision's CUDA build, other packages cannot be imported.
timm:
	python -m venv .venv-timm
	python -c "import site; print(f'import site; site.addsitedir({site.getsitepackages()[0]!r})')" \
	  > $$(echo .venv-timm/lib/python*/site-packages)/base.pth
	.venv-timm/bin/pip install --no-deps torchvision==0.28.0 timm==1.0.30
	.venv-timm/bin/python -m pytest -q tests/encoders/test_timm.py

slow:
	$(PYTEST) -m slow --durations=15

# Every case of every test, with the long fault injections: hours.
sweeps:
	$(PYTEST) --sweeps

lint:
	ruff check .
	ruff format --check .

types:
	pyright

contracts:
	lint-imports

test:
	$(PYTEST) --durations=15

# Numbers and tables of the pages against their records; `python tools/pages.py --write` rewrites them.
pages:
	python tools/pages.py

# The explorer's page: types, and the bundle in the package byte for byte as web/ builds it (update it: npm run build).
page:
	cd web && npm ci --no-audit --no-fund && npm run check
	out=$$(mktemp -d) && (cd web && npx vite build --logLevel warn --outDir "$$out" --emptyOutDir) && \
	  diff -rq "$$out" src/aureole/explorer/explorer_page; status=$$?; rm -rf "$$out"; exit $$status

docs:
	sphinx-build -W --keep-going -q -b html docs docs/_build/html

# The records that the docs read. Run from a clean tree, so that they name a commit.
accuracy:
	python -m pytest tests/sphere/test_accuracy.py -q --write-accuracy results/sphere/accuracy.json

benchmarks:
	OMP_NUM_THREADS=2 python -m benchmarks.sampling
	python -m benchmarks.import_time

# About the code itself: sizes against their budgets, import cycles, duplicated code.
.PHONY: stats clones core install install-newest install-lowest wheels lock sbom audit
SOURCES = $(wildcard src/aureole paper/src)

stats:
	python tools/stats.py

# Changes of the code that no test notices; hours for all of them, so a sample of each file: make mutations SAMPLE=20
.PHONY: mutations
mutations:
	PYTHONPATH=src python tools/mutations.py --sample $(or $(SAMPLE),20)

clones:
	pylint --disable=all --enable=duplicate-code --min-similarity-lines=12 --ignore-imports=y \
	  --ignore-docstrings=y --ignore-signatures=y --ignore-comments=y --score=n $(SOURCES)

# The mathematics alone, for the lowest torch that pyproject.toml allows.
core:
	$(PYTEST) tests/sphere tests/distributions tests/losses

# Development environments, see CONTRIBUTING.md. TORCH_INDEX: the options of pip that select PyTorch's CPU build.
TORCH_INDEX ?=
NEWEST = $(shell sed -n 's/^torch==//p' constraints.txt)
LOWEST = $(shell sed -nE 's/.*"torch>=([0-9.]+)".*/\1/p' pyproject.toml)
PAPER = $(if $(wildcard paper/pyproject.toml),-e ./paper)

install:
	pip install $(TORCH_INDEX) torch==$(NEWEST)
	pip install --require-hashes --no-deps -r requirements.lock
	pip install --no-deps --no-build-isolation -e . $(PAPER)

install-newest:
	pip install $(TORCH_INDEX) torch==$(NEWEST)
	pip install -c constraints.txt -e ".[dev]" $(PAPER)

install-lowest:
	pip install $(TORCH_INDEX) "torch==$(LOWEST).*"
	pip freeze | grep '^torch==' > .torch-lowest.txt
	pip install -c .torch-lowest.txt -e ".[test]"

wheels:
	python -m build
	$(if $(PAPER),python -m build --outdir dist paper)

# Versions and hashes on Linux x86-64 with Python 3.11, without torch, triton and CUDA packages: of the extra `dev` in
# requirements.lock, and of the container image, with the same versions, in requirements-serve.lock.
# Versions stay as they are unless you add --upgrade to TORCH or delete the file.
# Where the CPU build of torch is a file: make lock TORCH="--find-links <folder of the wheel>"
TORCH ?= --torch-backend cpu
IMAGE_EXTRAS = serve search postgres images text
COMPILE = uv pip compile pyproject.toml --quiet --constraints constraints.txt $(TORCH) --python-version 3.11 \
  --python-platform x86_64-unknown-linux-gnu --generate-hashes --no-annotate --no-emit-package torch \
  --no-emit-package pip --custom-compile-command "make lock"
lock:
	$(COMPILE) --extra dev --output-file requirements.lock
	echo hatchling | $(COMPILE) - $(IMAGE_EXTRAS:%=--extra %) --constraints requirements.lock \
	  --output-file requirements-serve.lock
	! grep -nE '^(torch|triton|nvidia-.*|cuda-.*)==|://' requirements.lock requirements-serve.lock

# Known vulnerabilities of the locked packages, and of torch; needs the network.
audit:
	pip-audit --require-hashes --disable-pip -r requirements.lock
	pip-audit --no-deps --disable-pip -r constraints.txt

# The software bill of materials of an environment; by default, the one that runs `python`.
SBOM_PYTHON ?= $(shell command -v python)
sbom:
	mkdir -p dist
	cyclonedx-py environment --pyproject pyproject.toml --output-reproducible --of JSON -o dist/sbom.json $(SBOM_PYTHON)
