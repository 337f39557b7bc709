"""One notebook, run by papermill in a process of its own. The batch runner starts these and listens to them.

Imported once by the fork server that the workers come from, so papermill and nbconvert are paid for once, not once a
notebook. Nothing of JupyterLab is imported.
"""

from __future__ import annotations

import base64
import logging
import os
import time
from collections.abc import Callable
from typing import Any

from utils.kernels import private_transport, skip_iri_grammar

skip_iri_grammar()

import nbconvert  # noqa: E402
import nbformat  # noqa: E402
import papermill  # noqa: E402
from nbclient.exceptions import CellTimeoutError, DeadKernelError  # noqa: E402
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook  # noqa: E402
from papermill.engines import NBClientEngine, papermill_engines  # noqa: E402
from papermill.exceptions import PapermillExecutionError  # noqa: E402

from utils import gate  # noqa: E402
from utils.catalog import code_cells, read, tags  # noqa: E402
from utils.claims import VERDICT_MIME  # noqa: E402
from utils.gate import SKIPPED_MIME  # noqa: E402
from utils.jobs import DIED, FAILED, PASSED, TIMED_OUT, Job  # noqa: E402
from utils.notebook import MACHINE_MIME  # noqa: E402

SAVE_EVERY = 2.0  # seconds; papermill would write the whole file twice a cell

#: Made and used once before the workers are forked, so that none of them reads templates and highlighters again.
HTML = nbconvert.HTMLExporter(mathjax_url="", require_js_url="", jquery_url="")
HTML.from_notebook_node(new_notebook(cells=[new_markdown_cell("`x`"), new_code_cell("x = 1")]))


class WatchedEngine(NBClientEngine):
    """papermill's own engine, which also tells of each cell that starts and saves no more often than it must."""

    @classmethod
    def execute_managed_notebook(
        cls, nb_man: Any, kernel_name: str, on_cell: Callable[[int], None], **kwargs: Any
    ) -> None:
        save, last = nb_man.save, time.monotonic()

        def save_sometimes(**given: Any) -> None:
            nonlocal last
            if time.monotonic() - last > SAVE_EVERY:
                save(**given)
                last = time.monotonic()

        nb_man.save = save_sometimes
        try:
            with private_transport() as config:
                super().execute_managed_notebook(
                    nb_man,
                    kernel_name,
                    config=config,
                    shutdown_kernel="immediate",  # nothing is left to save, and a polite end takes a second
                    on_cell_start=lambda cell, cell_index: on_cell(cell_index),
                    **kwargs,
                )
        finally:
            nb_man.save = save


papermill_engines.register("watched", WatchedEngine)


def run(job: Job, events: Any) -> None:
    """Run the job, and send ("cell", number) for each code cell that starts, then ("done", facts)."""
    logging.getLogger("papermill").setLevel(logging.ERROR)
    with open(job.log, "wb") as log:  # what the kernel says of itself, for instance when it crashes
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    numbers = _numbers(read(job.notebook), bool(job.parameters))
    started, current = time.monotonic(), 0

    def on_cell(index: int) -> None:
        nonlocal current
        if index in numbers:
            current = numbers[index]
            events.send(("cell", current))

    status, error = PASSED, None
    try:
        papermill.execute_notebook(
            job.notebook,
            job.executed,
            parameters=job.parameters,
            engine_name="watched",
            kernel_name="python3",
            progress_bar=False,
            cwd=job.notebook.parent,
            on_cell=on_cell,
        )
    except PapermillExecutionError as failure:
        status = FAILED
        error = {"cell": current, "source": failure.source, "what": f"{failure.ename}: {failure.evalue}"}
    except DeadKernelError:
        status, error = DIED, {"cell": current, "what": f"the kernel died while this cell ran{last_words(job)}"}
    except CellTimeoutError as failure:
        status, error = TIMED_OUT, {"cell": current, "what": str(failure).splitlines()[0]}
    except Exception as failure:  # no kernel, a folder that cannot be written, …: it must be in the report
        status, error = FAILED, {"cell": current, "what": f"{type(failure).__name__}: {failure}"}
    facts = {"status": status, "error": error, "seconds": time.monotonic() - started}
    try:
        facts |= look_at(job, status, current)
    except Exception as failure:  # a full disk, for instance, leaves half of a copy
        what = f"its executed copy could not be kept: {type(failure).__name__}: {failure}"
        facts |= {"status": FAILED, "error": error or {"cell": current, "what": what}}
    events.send(("done", facts))


def last_words(job: Job) -> str:
    """What the kernel wrote last before it died, and a guess where that is no crash of its own."""
    lines = job.log.read_text("utf-8", "replace").strip().splitlines()
    lines = [line for line in lines if "Kernel died" not in line]  # that much we know
    crashed = any(word in line for line in lines for word in ("Fatal", "Segmentation", "terminate called"))
    return ("" if crashed else " (killed? out of memory?)") + (f": {lines[-1]}" if lines else "")


def _numbers(nb: Any, with_parameters: bool) -> dict[int, int]:
    """Index of a cell in papermill's copy -> number among our code cells, counted from 1."""
    numbers, shift = {}, 0
    for index, cell in enumerate(nb.cells):
        if cell.cell_type == "code":
            numbers[index + shift] = len(numbers) + 1
            if with_parameters and "parameters" in tags(cell):
                shift = 1  # the cell that papermill puts behind it
    return numbers


def look_at(job: Job, status: str, last: int) -> dict[str, Any]:
    """What the executed copy shows: cells run, skipped and why, verdicts, pictures; and write its HTML and pictures.

    `last` is the number of the cell that was the last to start.
    """
    if job.log.exists() and not job.log.stat().st_size:
        job.log.unlink()
    facts: dict[str, Any] = {"ran": 0, "cells": 0, "cell_seconds": 0.0}
    facts |= {"unrun": [], "skipped": [], "verdicts": [], "pictures": []}
    if not job.executed.exists():
        return facts
    nb = read(job.executed)
    nb.metadata.get("papermill", {}).pop("input_path", None)  # paths of this machine
    nb.metadata.get("papermill", {}).pop("output_path", None)
    nbformat.write(nb, job.executed)
    cells = [cell for cell in code_cells(nb) if "injected-parameters" not in tags(cell)]
    facts["cells"] = len(cells)
    for number, cell in enumerate(cells, 1):
        facts["cell_seconds"] += (cell.metadata.get("papermill") or {}).get("duration") or 0.0
        for output in cell.outputs:
            data = output.get("data", {})
            if SKIPPED_MIME in data:
                facts["skipped"].append({"cell": number, "reason": data[SKIPPED_MIME]["reason"]})
            if MACHINE_MIME in data:
                facts["machine"] = data[MACHINE_MIME]
            if VERDICT_MIME in data:
                gated = gate.asks_for_hardware(gate.directive(cell.source))
                facts["verdicts"].append(data[VERDICT_MIME] | {"gated": gated})
            if "image/png" in data:
                picture = job.executed.with_name(f"{job.executed.stem}_{len(facts['pictures']) + 1}.png")
                picture.write_bytes(base64.b64decode(data["image/png"]))
                facts["pictures"].append(picture.name)
    lost = {last} if status in (DIED, TIMED_OUT) else set()  # its count may have come before the end, or not
    unrun = [n for n, c in enumerate(cells, 1) if n in lost or (c.execution_count is None and c.source.strip())]
    facts["unrun"] = unrun
    facts["ran"] = len(cells) - len(unrun) - len(facts["skipped"])
    if status == PASSED and unrun:
        what = f"the notebook stopped before cell {unrun[0]} without an error (sys.exit?)"
        facts |= {"status": FAILED, "error": {"cell": unrun[0], "source": cells[unrun[0] - 1].source, "what": what}}
    page, _ = HTML.from_notebook_node(nb)
    job.executed.with_suffix(".html").write_text(page, "utf-8")
    return facts
