# ExFM from a bare clone: Python 3.11-3.13 with its venv module, and make. `make help` lists the targets.
# Every target sets the environment up first; once that is done, checking it takes a few milliseconds.

SHELL := /bin/sh
.SHELLFLAGS := -eu -c
.ONESHELL:
.DEFAULT_GOAL := help
.PHONY: help setup demo test check soak lint format docs release doctor clean

VENV := .venv
PY := $(VENV)/bin/python
# `make setup PYTHON=python3.12` names the interpreter of a new environment; otherwise the first suitable one is taken.
PYTHON ?= python3 python3.11 python3.12 python3.13
# Which pinned list: cuda where an NVIDIA driver is found, else cpu. `make setup VARIANT=cpu` overrides it.
DRIVER_FOUND = [ -e /proc/driver/nvidia/version ] || command -v nvidia-smi || ldconfig -p | grep -F libnvidia-ml.so.1
VARIANT ?= $(shell if { $(DRIVER_FOUND); } >/dev/null 2>&1; then echo cuda; else echo cpu; fi)
LIST := requirements/$(VARIANT).txt
OTHER := requirements/$(if $(filter cpu,$(VARIANT)),cuda,cpu).txt
INSTALLED_GB := $(if $(filter cpu,$(VARIANT)),5,6)
NEEDED_GB := $(if $(filter cpu,$(VARIANT)),7,9)

# fbgemm and OpenMP threads busy-wait: more of them than free cores costs a factor of 100. Workers set their own.
export OMP_NUM_THREADS ?= 1
export OMP_WAIT_POLICY ?= passive
# `make test ARGS="-k broker -x"` passes ARGS on.
ARGS ?=
# How many processes run the tests, a file each at a time: on two cores three, for a third of their time they wait for
# the broker, Ray and each other's processes. JOBS=0 is none but pytest itself (for --pdb, -s).
JOBS ?= 3
PYTEST = $(PY) -m pytest
IN_PROCESSES = -n $(JOBS) --dist loadfile --no-loadscope-reorder
# A run whose students share a process of Ray's, and a served model, where start-up takes no short cut.
PLAIN_STARTS = tests/contracts/test_shared_run.py \
    tests/contracts/test_serving.py::test_versions_are_swapped_under_load_without_a_failed_or_a_mixed_answer
# What `QUICK=1 make demo` makes smaller.
QUICK_SETTINGS := --set source.impressions=80000

help:  ## this list
	@echo "ExFM. Start with \`make demo\`. The first call of a target installs $(VENV) ($(INSTALLED_GB) GB, minutes); later calls find it done."
	echo
	sed -n 's/^\([a-z]*\):[^#]*## /  make \1@/p' Makefile | awk -F@ '{ printf "%-14s %s\n", $$1, $$2 }'
	echo
	echo "Variables:"
	echo "  ARGS      options for the command     make test ARGS='-k broker -x', make demo ARGS='--set seed=2'"
	echo "  JOBS      processes that run tests    make test JOBS=0 ARGS='-k broker --pdb'"
	echo "  QUICK     a shorter stream            QUICK=1 make demo"
	echo "  VARIANT   the pinned list: cpu, or cuda where an NVIDIA driver is found; make setup VARIANT=cpu overrides it"
	echo "  PYTHON    the interpreter of a new environment, 3.11 to 3.13; make setup PYTHON=python3.12"

setup:  ## install environment, pinned packages, command exfm and the broker; instant when done, resumes when interrupted
	@say() { printf 'set-up %s\n' "$$*"; }
	fail() { printf 'set-up stopped: %s\n' "$$*" >&2; exit 1; }
	done=$(VENV)/.setup
	# What the environment was made for: its interpreter and its place (console scripts hold absolute paths).
	home() { printf '%s in %s' "$$($(PY) -V 2>/dev/null || echo none)" "$$PWD"; }
	[ -f $(LIST) ] || fail "no list $(LIST); VARIANT is cpu or cuda"
	packages="$(VARIANT) $$(cksum < $(LIST))"
	project="$$(cksum < pyproject.toml) $$(grep ^__version__ exfm/__init__.py)"
	broker="$$(cksum < streaming/broker/jars.py)"
	# The two builds of fbgemm share a folder and break each other: only the one of this list may be installed.
	fbgemm() { cd $(VENV)/lib/python3*/site-packages 2>/dev/null && echo fbgemm_gpu*-*.dist-info | sed 's/-[0-9][^ ]*//g'; }
	right=fbgemm_gpu$(if $(filter cpu,$(VARIANT)),_cpu)
	state() { printf '%s / %s / %s / %s / %s' "$$(home)" "$$(fbgemm)" "$$packages" "$$project" "$$broker"; }
	is() { [ "$$(cat "$$1" 2>/dev/null)" = "$$2" ]; }
	if is $$done/ready "$$(state)" && [ "$$(fbgemm)" = $$right ]; then exit 0; fi

	# An environment is kept when its interpreter runs, it has pip, it was not moved, and no installation in it was interrupted.
	if [ ! -e $$done/installing ] && $(PY) -c 'import pip' 2>/dev/null && { [ ! -e $$done/home ] || is $$done/home "$$(home)"; }
	then say "1/4: the environment $(VENV) exists ($$($(PY) -V))"
	else
	    suits='import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))'
	    for python in $(PYTHON) ""; do
	        if [ -n "$$python" ] && $$python -c "$$suits" 2>/dev/null; then break; fi
	    done
	    [ -n "$$python" ] || fail "it needs CPython 3.11, 3.12 or 3.13 with the venv module; tried: $(PYTHON)" \
	        "(python3 is $$(python3 -V 2>/dev/null || echo absent)). Install one (Debian and Ubuntu: python3 and python3-venv)" \
	        "or name it: make setup PYTHON=python3.12"
	    [ ! -e $$done/installing ] || say "1/4: an installation in $(VENV) was interrupted; it starts again, downloads are kept"
	    say "1/4: making the environment $(VENV) with $$python ($$($$python -V))"
	    rm -rf $(VENV)/bin  # first, so that an interrupted removal leaves nothing that looks complete
	    rm -rf $(VENV)
	    $$python -m venv $(VENV) || { rm -rf $(VENV); fail "$$python could not make $(VENV); is this folder writable, the disk full?"; }
	fi
	mkdir -p $$done
	home > $$done/home

	if is $$done/packages "$$packages" && [ "$$(fbgemm)" = $$right ]; then say "2/4: the $(VARIANT) packages are installed"
	else
	    free=$$(df -Pk . | awk 'NR == 2 { print int($$4 / 1048576) }')
	    [ -e $$done/packages ] || [ "$$free" -ge $(NEEDED_GB) ] || fail "the packages need $(NEEDED_GB) GB, this disk has $$free GB free"
	    say "2/4: installing the $(VARIANT) packages of $(LIST) ($(INSTALLED_GB) GB; a minute the first time)"
	    : > $$done/installing
	    # What only the other list has goes first: it is gigabytes, and of two builds of fbgemm neither is whole.
	    names() { sed -n 's/^\([a-z0-9-]*\)==.*/\1/p' "$$1"; }
	    surplus=$$(names $(OTHER) | grep -vxF -e "$$(names $(LIST))")
	    case "$$(fbgemm)" in
	        "fbgemm_gpu*"* | "" | $$right) ;;
	        *) surplus="$$surplus fbgemm-gpu fbgemm-gpu-cpu" ;;
	    esac
	    $(PY) -m pip uninstall -qq --yes $$surplus
	    # Nothing is installed but the files whose hashes are in the list; uv, which installs the others, comes first.
	    sed -n '/^uv==/,/[^\\]$$/p' $(LIST) > $$done/uv.txt
	    $(PY) -m pip install --quiet --disable-pip-version-check --retries 1 --no-deps --require-hashes -r $$done/uv.txt \
	        || say "2/4: uv could not be fetched"
	    { [ -x $(VENV)/bin/uv ] && $(VENV)/bin/uv pip install --python $(PY) --quiet --no-deps --require-hashes --compile-bytecode -r $(LIST); } \
	        || { say "2/4: not with uv; trying pip, with its own settings (minutes)"; \
	             $(PY) -m pip install --quiet --disable-pip-version-check --retries 1 --no-deps --require-hashes -r $(LIST); } \
	        || fail "the packages of $(LIST) could not be fetched (reasons above). Without a network set-up cannot be done;" \
	                "with a mirror or proxy, set pip's usual options (pip config, HTTPS_PROXY). What was downloaded is kept: run make again"
	    rm $$done/installing
	    echo "$$packages" > $$done/packages
	fi

	if is $$done/project "$$project"; then say "3/4: the command exfm is installed"
	else
	    say "3/4: installing the command exfm"
	    $(PY) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e . || fail "exfm itself could not be installed (reasons above)"
	    echo "$$project" > $$done/project
	fi

	say "4/4: fetching the broker (Apache Kafka, 45 MB the first time)"
	$(VENV)/bin/exfm broker fetch >/dev/null || fail "the broker's jars could not be fetched (reasons above); run make again when the network is back"
	state > $$done/ready
	say "done: $(VENV)/bin/exfm --help, make demo, make test"

demo: setup  ## run the whole pipeline on a generated stream: minutes (QUICK=1: under one)
	@exec $(VENV)/bin/exfm stream configs/demo.yaml $(if $(QUICK),--run-dir runs/demo-quick $(QUICK_SETTINGS),--run-dir runs/demo) --until-end $(ARGS)

# Hundreds of processes import the project, and asserts are rewritten once: bytecode is kept wherever tests run.
test check soak: export PYTHONDONTWRITEBYTECODE =
check soak: export EXFM_EVERY_EXAMPLE = 1

test: setup  ## the tests of every change, about half an hour on two cores
	@exec $(PYTEST) $(IN_PROCESSES) $(ARGS)

check: setup  ## test, what needs longer for a subject that test covers quicker (marked check), and starts without short cuts
	@$(PYTEST) $(IN_PROCESSES) -m "not slow" $(ARGS)
	EXFM_PLAIN_START=1 $(PYTEST) -m "not slow" $(PLAIN_STARTS)

soak: setup $(if $(ARGS),,check)  ## check, and the tests that take minutes each (marked slow); with ARGS only those
	@exec $(PYTEST) -m slow $(ARGS)

lint: setup  ## check style and types
	@$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

format: setup  ## fix what style can be fixed automatically
	@$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

docs: setup  ## build the site of docs/ in build/site, in a small environment of its own
	@list="$$(cksum < requirements/docs.txt)"
	if [ "$$(cat .venv-docs/.list 2>/dev/null)" != "$$list" ]; then
	    for python in $(PYTHON) ""; do
	        if [ -n "$$python" ] && $$python -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then break; fi
	    done
	    [ -n "$$python" ] || { echo "docs stopped: it needs Python 3.11 or later with the venv module" >&2; exit 1; }
	    rm -rf .venv-docs
	    $$python -m venv .venv-docs
	    .venv-docs/bin/pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements/docs.txt
	    echo "$$list" > .venv-docs/.list
	fi
	rm -rf build/site docs/reference/generated
	$(PY) -m docs.generate >/dev/null
	.venv-docs/bin/sphinx-build -q -W --keep-going -b dirhtml -d build/doctrees docs build/site
	echo "the site is in build/site: .venv-docs/bin/python -m http.server --directory build/site 8000"

release: setup  ## build wheel, sdist, bill of materials and licences in dist/, and try them in an empty environment
	@exec $(PY) requirements/release.py $(ARGS)

doctor: setup  ## check every part of this machine and say what to do
	@exec $(VENV)/bin/exfm doctor $(ARGS)

clean:  ## remove the environment and caches; runs/ stays
	@rm -rf $(VENV) .venv-docs build dist docs/reference/generated *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
