# Everything a developer types. `make` alone lists the targets.
#
#   PYTHON=python3.12     the Python to build the environment with (3.11 or newer)
#   VENV=.venv            where the environment goes
#   EXTRAS=dev,htp        what `make test` and `make lint` install; htp is the Hexagon emulator, on x86-64 Linux and
#                         nothing elsewhere; hub adds the stand-in for Qualcomm AI Hub
#   TORCH=torch==2.13.0   the torch of the tests; the package itself needs none
#   TORCH_INDEX=URL       take torch from another index: on Linux, plain pip fetches a CUDA build of several
#                         gigabytes, and PyTorch's install page names an index with small CPU builds
#   PYTEST="-k tree"      further arguments for pytest

PYTHON ?= python3
VENV ?= .venv
EXTRAS ?= dev,htp
TORCH ?= torch==2.13.0
TORCH_INDEX ?=
PYTEST ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
MADE := $(VENV)/.made
RUN := $(VENV)/.installed
DEV := $(VENV)/.installed-$(EXTRAS)
PHONE := $(VENV)/.installed-device

# The folder `hexgraft device sdk` gathers a target's files in. In the recipe the target is an argument, so that the
# shell may find it out.
SDK = $$($(BIN)/python -c 'import sys; from hexgraft.host.runner.sdk import sdk_folder; print(sdk_folder(sys.argv[1]))' $(1))

.DEFAULT_GOAL := help
.PHONY: help demo demo-device test test-slow lint format docs bench device device-aarch64 clean
.DELETE_ON_ERROR:

help:
	@echo "make demo        fetch a small model, export it, decode it plainly and with token trees, compare"
	@echo "make demo-device the way to a phone, on a loopback one: push, run, trace, compare with the CPU"
	@echo "make test        the tests, minutes"
	@echo "make test-slow   the tests that need longer, or a downloaded model"
	@echo "make device      gather ONNX Runtime's headers (150 MB, through npm) and build the C++ runner"
	@echo "make lint        style, formatting and types"
	@echo "make format      apply the style"
	@echo "make docs        write docs/help.md anew from the commands"
	@echo "make bench       print every measured figure"
	@echo "make clean       remove what make made"

demo: $(RUN)
	$(BIN)/hexgraft demo

# A pushed runner needs what `make device` does; a phone needs adb, which adbutils brings along.
demo-device: $(PHONE)
	@[ -f "$(call SDK,linux-$$(uname -m))/sdk.json" ] || $(BIN)/hexgraft device sdk
	$(BIN)/hexgraft device build
	$(BIN)/hexgraft device loopback -- $(BIN)/python scripts/demo_device.py

test: $(DEV)
	$(BIN)/python -m pytest -m "not slow" $(PYTEST)

test-slow: $(DEV)
	$(BIN)/python -m pytest -m slow $(PYTEST)

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python scripts/typecheck.py

format: $(DEV)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

device: $(DEV)
	@[ -f "$(call SDK,linux-x86_64)/sdk.json" ] || $(BIN)/hexgraft device sdk
	$(BIN)/hexgraft device build

# The libraries of an emulated AArch64 run, out of the same release of ONNX Runtime as is installed here.
device-aarch64: device
	@dir="$(call SDK,linux-aarch64)"; [ -f "$$dir/sdk.json" ] || { \
	  version=$$($(BIN)/python -c 'import onnxruntime; print(onnxruntime.__version__)') && \
	  $(PIP) download --quiet --no-deps --only-binary=:all: --python-version 3.11 --implementation cp \
	    --platform manylinux_2_28_aarch64 --dest build/wheels onnxruntime==$$version && \
	  $(BIN)/hexgraft device sdk --target linux-aarch64 --wheel build/wheels/onnxruntime-$$version-*aarch64.whl \
	    --headers "$(call SDK,linux-x86_64)/include"; }

docs: $(DEV)
	$(BIN)/python scripts/help.py

bench: $(RUN)
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) build dist hexgraft.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

# A venv that was interrupted half-way has no stamp, and is made anew.
$(MADE):
	@command -v $(PYTHON) >/dev/null || { \
	  echo "error: $(PYTHON) is not installed" >&2; \
	  echo "hint: install Python 3.11 or newer (Debian: apt-get install python3-venv), or name one: make PYTHON=..." >&2; \
	  exit 1; }
	@$(PYTHON) scripts/python.py
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(RUN): $(MADE) pyproject.toml
	$(PIP) install --quiet -e .
	@touch $@

$(PHONE): $(RUN)
	$(PIP) install --quiet -e ".[device]"
	@touch $@

# torch goes first and pinned, so that resolving the extras never picks another build of it.
$(DEV): $(MADE) pyproject.toml
	$(PIP) install --quiet $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) $(TORCH)
	$(PIP) install --quiet -e ".[$(EXTRAS)]"
	@touch $@ $(RUN)
