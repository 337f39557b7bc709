"""Run notebooks again in place and store what they print: `python -m utils.refresh [06 polar …]`.

A cell whose needs are not met here keeps the output it had where they were (its recording), or says that there is
none. What is stored is normalised, so that a second run on the same machine changes nothing. If a cell fails, the
file stays as it was.
"""

from __future__ import annotations

import argparse
import datetime
import re
import sys
from pathlib import Path
from typing import Any

from utils import gate
from utils.catalog import SelectionError, away, cell_requires, code_cells, read, select, source_sha256, tags
from utils.hardware import Machine, probe
from utils.kernels import private_transport
from utils.notebook import NOTICE_MIME
from utils.paths import replace_file

KERNELSPEC = {"display_name": "Python 3", "language": "python", "name": "python3"}
LANGUAGE = {  # without the version, which differs from machine to machine
    "file_extension": ".py",
    "mimetype": "text/x-python",
    "name": "python",
    "nbconvert_exporter": "python",
    "pygments_lexer": "ipython3",
}
TIMING = "timing"  # tag of a cell that shows measured times
KEPT_NOTEBOOK_METADATA = ("kernelspec", "language_info", "tutorial")
KEPT_CELL_METADATA = ("tags", "recorded", "timed", "jupyter")


def not_recorded(spec: str) -> str:
    """What a gated cell shows where it never ran: the same line on every machine."""
    return f"Needs {spec}: not recorded yet.\n"


def _stdout(text: str) -> Any:
    from nbformat.v4 import new_output

    return new_output("stream", name="stdout", text=text)


def merge_streams(outputs: list[Any]) -> list[Any]:
    """Outputs with neighbouring pieces of one stream joined, and of overwritten progress lines only the last."""
    merged: list[Any] = []
    for output in outputs:
        if output.output_type == "stream" and merged and merged[-1].get("name") == output.name:
            merged[-1].text += output.text
        else:
            merged.append(output)
    for output in merged:
        if output.output_type == "stream":
            output.text = re.sub(r"(?m)^.*\r(?=[^\n])", "", output.text)
        elif "data" in output:
            output.data.pop("application/vnd.jupyter.widget-view+json", None)
            output.metadata = {}
    return merged


def normalise(nb: Any) -> None:
    """Bring a notebook into the one form that is committed: counts 1..n, white-listed metadata, merged streams."""
    nb.metadata = {k: v for k, v in nb.metadata.items() if k in KEPT_NOTEBOOK_METADATA}
    nb.metadata |= {"kernelspec": KERNELSPEC, "language_info": LANGUAGE}
    nb.nbformat, nb.nbformat_minor = 4, 5
    for cell in nb.cells:
        cell.metadata = {k: v for k, v in cell.metadata.items() if k in KEPT_CELL_METADATA and v}
    for count, cell in enumerate(code_cells(nb), 1):
        cell.execution_count = count
        kept = [output for output in cell.outputs if NOTICE_MIME not in output.get("data", {})]
        cell.outputs = merge_streams(kept)
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = count


def provenance(cell: Any, machine: Machine) -> dict[str, str]:
    """Where and when a gated cell ran."""
    return {
        "device": machine.devices,
        "torch": machine.torch or "",
        "platform": machine.system,
        "date": datetime.date.today().isoformat(),
        "source_sha256": source_sha256(cell),
    }


def execute(nb: Any, folder: Path, *, timeout: float = 300) -> None:
    """Run a notebook's cells in a fresh kernel, except those tagged `skip-execution`, which keep their outputs.

    Raises nbclient's CellExecutionError, CellTimeoutError or DeadKernelError.
    """
    from nbclient import NotebookClient

    with private_transport() as config:
        NotebookClient(
            nb,
            timeout=timeout,
            kernel_name="python3",
            record_timing=False,
            coalesce_streams=True,
            resources={"metadata": {"path": str(folder)}},
            config=config,
        ).execute()


def refresh(path: Path, machine: Machine | None = None) -> list[str]:
    """Run one notebook in place; returns what to tell: cells that kept their recording, or have none.

    Raises ValueError on a pretended machine (a recording must come from real hardware), and what `execute` raises.
    """
    machine = machine or probe()
    if machine.pretended:
        raise ValueError("refresh records what hardware printed: unset WHATSNEW_MACHINE first")
    import nbformat

    nb = read(path)
    told, absent, ran = [], [], []
    timed = {cell.id: [*cell.outputs] for cell in code_cells(nb) if cell.metadata.get("timed") == source_sha256(cell)}
    for number, (cell, specs) in enumerate(cell_requires(nb), 1):
        own, reason = specs[1], away(specs, machine)
        if reason:
            absent.append(cell)
            cell.metadata["tags"] = [*tags(cell), "skip-execution"]
        if not gate.asks_for_hardware(own):
            cell.metadata.pop("recorded", None)
        elif reason is None:
            ran.append((cell, _comparable(merge_streams([*cell.outputs]))))
        elif (recorded := cell.metadata.get("recorded")) is None:
            cell.outputs = [_stdout(not_recorded(own))]
            told.append(f"cell {number}: not recorded yet ({own})")
        elif recorded["source_sha256"] != source_sha256(cell):
            told.append(f"cell {number}: STALE, its recording on {recorded['device']} is older than its source")
        else:
            told.append(f"cell {number}: kept its recording on {recorded['device']}")
    execute(nb, path.parent)
    for cell in absent:
        cell.metadata["tags"] = [t for t in tags(cell) if t != "skip-execution"]
    normalise(nb)
    for cell in code_cells(nb):  # timings differ from run to run: those of the first run stay until the cell changes
        cell.metadata.pop("timed", None)
        if TIMING in tags(cell):
            cell.outputs = timed.get(cell.id, cell.outputs)
            cell.metadata["timed"] = source_sha256(cell)
    for cell, before in ran:
        old = cell.metadata.get("recorded")
        if not (old and old["source_sha256"] == source_sha256(cell) and _comparable(cell.outputs) == before):
            cell.metadata["recorded"] = provenance(cell, machine)
    nbformat.validate(nb)
    replace_file(path, nbformat.writes(nb).rstrip("\n") + "\n")
    return told


def _comparable(outputs: list[Any]) -> list[Any]:
    """Outputs without pictures and counts, which may change without the content doing so."""
    kept = []
    for output in outputs:
        data = {k: v for k, v in output.get("data", {}).items() if not k.startswith("image/")}
        kept.append((output["output_type"], output.get("text"), data))
    return kept


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit status: 0, 1 if a notebook failed, 2 for bad input."""
    parser = argparse.ArgumentParser(prog="python -m utils.refresh", description=__doc__.splitlines()[0])
    parser.add_argument("notebooks", nargs="*", help="numbers, names or parts of names; all if none is given")
    names = parser.parse_args(argv).notebooks
    try:
        paths = select(names)
    except SelectionError as error:
        print(f"refresh: {error}", file=sys.stderr)
        return 2
    failed = 0
    for path in paths:
        try:
            told = refresh(path)
        except Exception as error:  # whatever went wrong: the file is untouched, and the next notebook goes on
            failed += 1
            print(f"{path.name}: not stored: {type(error).__name__}\n{error}", file=sys.stderr)
        else:
            print("\n  ".join([f"{path.name}: stored", *told]))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
