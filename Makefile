# Thin: each line is a command that you could type. README has them for people without make.
PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
NB     ?=
ARGS   ?=
# Another torch than requirements.txt asks for, as pip takes it: TORCH="--pre torch --index-url https://…/nightly/cpu"
TORCH  ?=

.PHONY: run lab test test-launch refresh index lint changes versions new clean

run: $(VENV)/installed   ## all notebooks through papermill, and a report: make run NB="06 polar" ARGS="--resume"
	$(BIN)/python -m utils.batch $(NB) $(ARGS)

test: $(VENV)/tests      ## everything: the tools, and every output of every notebook
	$(BIN)/python -m pytest $(ARGS)

test-launch: $(VENV)/launch  ## the ways in, for real: JupyterLab in Chromium, Binder's build and limits
	$(BIN)/python -m pytest -m launch tests/launch -n 0 $(ARGS)

# binder/labconfig: JupyterLab then asks nothing at its first start, and wraps long lines
lab: $(VENV)/installed   ## JupyterLab on the first page
	JUPYTER_CONFIG_PATH="$(CURDIR)/binder" $(BIN)/jupyter lab notebooks/00_start_here.ipynb $(ARGS)

refresh: $(VENV)/installed  ## run notebooks again in place and store what they print: make refresh NB=06
	$(BIN)/python -m utils.refresh $(NB)

index: $(VENV)/installed    ## write README's table of notebooks again
	$(BIN)/python -m utils.index

lint: $(VENV)/installed     ## what is wrong with the notebooks, in a few seconds
	$(BIN)/python -m utils.lint $(NB)

changes: $(VENV)/installed   ## what the last run says otherwise than the stored notebooks, as Markdown
	@$(BIN)/python -m utils.changes $(ARGS)

versions: $(VENV)/installed  ## all notebooks under other releases of torch: make versions ARGS="2.13.0"
	$(BIN)/python -m utils.versions $(ARGS)

new: $(VENV)/installed      ## the skeleton of a notebook: make new TITLE="Sort with torch.sort"
	$(BIN)/python -m utils.new "$(TITLE)" $(ARGS)

clean:                      ## what the tools made: reports, executed copies, what torch.compile generated
	rm -rf build

# The stamp is written last: an installation that broke off is done again, and so is one with another TORCH.
ifneq ($(strip $(TORCH)),)
ifneq ($(strip $(TORCH)),$(shell cat $(VENV)/torch.txt 2>/dev/null))
.PHONY: $(VENV)/installed
endif
endif
$(VENV)/installed: requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else f"torch-whatsnew needs Python 3.11 or newer, and $(PYTHON) is {v[0]}.{v[1]}: make run PYTHON=python3.12")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
ifeq ($(strip $(TORCH)),)
	$(BIN)/python -m pip install --disable-pip-version-check -r requirements.txt
else
	$(BIN)/python -m pip install --disable-pip-version-check $(TORCH)
	grep -v '^torch[<>=]' requirements.txt > $(VENV)/others.txt
	$(BIN)/python -m pip install --disable-pip-version-check -r $(VENV)/others.txt
	echo '$(strip $(TORCH))' > $(VENV)/torch.txt
endif
	touch $@

$(VENV)/tests: $(VENV)/installed tests/requirements.txt
	$(BIN)/python -m pip install --disable-pip-version-check -r tests/requirements.txt
	touch $@

$(VENV)/launch: $(VENV)/tests tests/launch/requirements.txt
	$(BIN)/python -m pip install --disable-pip-version-check -r tests/launch/requirements.txt
	touch $@
