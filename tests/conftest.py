"""Fixtures for all tests: small notebooks made in code, so that a test shows what is wrong with them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from utils.paths import ROOT
from utils.refresh import normalise


def pytest_configure() -> None:
    """Ctrl-C reaches what the tests start: a shell that starts a job in the background has it ignore SIGINT."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def left_as_found() -> Iterator[None]:
    """What a test changes of the process is put back: its environment, what it does at a signal."""
    environment = dict(os.environ)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    own = {name: value for name, value in os.environ.items() if name == "PYTEST_CURRENT_TEST"}
    environment.pop("PYTEST_CURRENT_TEST", None)
    if dict(os.environ) != environment | own:
        os.environ.clear()
        os.environ.update(environment | own)
    for number, handler in handlers.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)


def stdout(text: str) -> Any:
    return new_output("stream", name="stdout", text=text)


def notebook(*cells: Any, **tutorial: Any) -> Any:
    """A notebook in normal form. A string is a code cell, a (source, output text) pair one that printed it."""
    nb = new_notebook()
    for index, cell in enumerate(cells):
        if isinstance(cell, str):
            cell = new_code_cell(cell)
        elif isinstance(cell, tuple):
            cell = new_code_cell(cell[0], outputs=[stdout(cell[1])] if cell[1] else [])
        cell.id = f"c{index}"
        nb.cells.append(cell)
    if tutorial:
        nb.metadata["tutorial"] = tutorial
    normalise(nb)
    return nb


def text(source: str) -> Any:
    return new_markdown_cell(source)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write a notebook to a file in the test's own folder: `write("01_name.ipynb", cell, …)`."""

    def _write(name: str, *cells: Any, **tutorial: Any) -> Path:
        path = tmp_path / name
        nbformat.write(notebook(*cells, **tutorial), path)
        return path

    return _write


@pytest.fixture
def python(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run `python -m …` as a person would, with more environment as keywords."""

    def _python(*args: Any, timeout: float = 240, **environment: str) -> subprocess.CompletedProcess[str]:
        hidden = ("PYTEST_CURRENT_TEST", "PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_ADDOPTS")
        env = {k: v for k, v in os.environ.items() if k not in hidden} | {"CI": "1"} | environment
        command = [sys.executable, "-m", *map(str, args)]
        return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=timeout)

    return _python
