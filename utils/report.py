"""What a batch says when it ends, and after each notebook: report.json, junit.xml, report.html."""

from __future__ import annotations

import dataclasses
import json
import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from utils.claims import platform
from utils.jobs import FAILED, KILLED, NOT_RUN, PASSED
from utils.paths import replace_file


@dataclass
class Result:
    """One run of a notebook. A fleet may run a notebook several times, each for cells that ask for other hardware."""

    name: str
    title: str = ""
    status: str = NOT_RUN
    seconds: float = 0.0  # wall time, kernel start and all
    cell_seconds: float = 0.0  # the cells' own time
    peak_mb: float = 0.0  # of the process tree
    budget_seconds: float = 0.0
    budget_mb: float = 0.0
    cells: int = 0
    ran: int = 0
    skipped: list[dict[str, Any]] = field(default_factory=list)  # {"cell": 17, "reason": "needs …"}
    verdicts: list[dict[str, Any]] = field(default_factory=list)
    pictures: list[str] = field(default_factory=list)  # file names in executed/
    error: dict[str, Any] | None = None  # {"cell": 3, "what": "ValueError: …", "source": "…"}
    machine: dict[str, Any] = field(default_factory=dict)  # {"line": "torch 2.15.0 · …", "torch": "2.15.0"}
    parameters: dict[str, Any] = field(default_factory=dict)
    sha256: str = ""  # of the notebook's file
    started: float = 0.0  # seconds after the batch began
    slot: int = 0  # which of the parallel places it ran in
    kept: bool = False  # not run this time: --resume found it passed
    unrun: list[int] = field(default_factory=list)  # cells that were not reached, or not ended
    checkout: str = ""  # of the tools and the ledger
    asks: dict[str, list[str]] = field(default_factory=dict)  # number of a cell -> what it asks for
    awaits: dict[str, str] = field(default_factory=dict)  # ledger row -> what the cell of its verdict asks for
    variant: str = ""  # tells the runs of one notebook apart: what this one is there for, "cuda"
    needs: list[str] = field(default_factory=list)  # the requirements that this run is there to meet
    where: str = ""  # the worker of a fleet that ran it
    lost_on: list[str] = field(default_factory=list)  # workers that died while they ran it

    @property
    def key(self) -> str:
        """The run's own name, also of its executed copy."""
        return f"{self.name}@{self.variant}" if self.variant else self.name

    @property
    def place(self) -> str:
        """Where it ran, for a column: the worker's name, or the device."""
        return self.where or self.device

    @property
    def device(self) -> str:
        """What it ran on, in the words of the machine's line: `cuda 9.0 (NVIDIA H200)`; empty if it did not tell."""
        parts = self.machine.get("line", "").split(" · ")
        return parts[3] if len(parts) > 3 else ""

    @property
    def over(self) -> list[str]:
        """The budgets that it broke, in words."""
        broken = []
        if self.budget_seconds and self.seconds > self.budget_seconds:
            broken.append(f"{self.seconds:.0f} s of {self.budget_seconds:.0f} s")
        if self.budget_mb and self.peak_mb > self.budget_mb:
            broken.append(f"{self.peak_mb:.0f} MB of {self.budget_mb:.0f} MB")
        return broken

    def reached(self, number: int) -> bool:
        """Did a cell run, from its start to its end or to an error of its own?"""
        return 0 < number <= self.cells and number not in self.unrun and number not in self.left_out

    @property
    def left_out(self) -> list[int]:
        """The cells that were skipped."""
        return [skipped["cell"] for skipped in self.skipped]

    @property
    def line(self) -> str:
        """The result in one line."""
        text = f"{self.status:<11} {self.key:<28}"
        if self.status == NOT_RUN:
            return text.rstrip() + (f"  {self.error['what']}" if self.error else "")
        text += f" {self.seconds:6.1f} s {self.peak_mb:6.0f} MB  {self.ran} of {self.cells} cells"
        if self.skipped:
            text += f", {len(self.skipped)} skipped"
        if self.where:
            text += f", on {self.where}"
        if self.lost_on and self.status != KILLED:
            text += f", after {_and(self.lost_on)} died"
        if self.kept:
            text += ", kept from the last run"
        if self.over:
            text += f", OVER BUDGET: {', '.join(self.over)}"
        if self.error:
            text += f"\n            {self.complaint}"
        return text

    @property
    def complaint(self) -> str:
        """What went wrong, with the cell if it is known."""
        error = self.error or {"cell": 0, "what": self.status}
        return f"cell {error['cell']}: {error['what']}" if error["cell"] else error["what"]


@dataclass
class Report:
    """A whole batch."""

    date: str
    jobs: int
    results: list[Result]
    wall: float = 0.0
    finished: bool = False
    workers: list[dict[str, str]] = field(default_factory=list)  # of a fleet: {"name": …, "line": …, "state": …}
    unmet: list[dict[str, Any]] = field(default_factory=list)  # {"notebook": …, "spec": …, "cells": [4], "why": …}
    notes: list[str] = field(default_factory=list)  # what a reader of the results must know
    complaints: list[str] = field(default_factory=list)  # what makes the batch fail although its notebooks passed

    @property
    def counts(self) -> dict[str, int]:
        """Number of runs by status."""
        found = [r.status for r in self.results]
        return {status: found.count(status) for status in dict.fromkeys([PASSED, FAILED, *found])}

    @property
    def machines(self) -> list[str]:
        """The machines that the notebooks ran on, as their setup cells told, or those of the fleet."""
        if self.workers:
            return [f"{w['name']}: {w['line']}" + (f" ({w['state']})" if w["state"] else "") for w in self.workers]
        return list(dict.fromkeys(r.machine["line"] for r in self.results if r.machine))

    @property
    def overhead(self) -> float | None:
        """Wall time over the cells' own time, spread evenly over the parallel places; 1.0 is no overhead."""
        now = [r for r in self.results if not r.kept]
        own = sum(r.cell_seconds for r in now)
        return self.wall * min(self.jobs, len(now)) / own if own else None

    @property
    def ok(self) -> bool:
        """Something ran, everything passed, and there is no complaint."""
        return bool(self.results) and all(r.status == PASSED for r in self.results) and not self.complaints

    @property
    def closing(self) -> str:
        """The last line of a batch: `3 passed, 1 failed`."""
        passed = self.counts[PASSED]
        more = f"; {len(self.complaints)} complaint{'s' * (len(self.complaints) > 1)}" if self.complaints else ""
        return f"{passed} passed, {len(self.results) - passed} failed{more}"

    @property
    def ledger(self) -> list[dict[str, Any]]:
        """One entry a ledger row that a notebook of this run is about: its verdicts, and what they come to.

        {"row": …, "merged": "holds on cpu, cuda; differs on mps", "verdicts": [{"verdict", "device", "on", "note"}]}
        """
        found: dict[str, dict[str, Any]] = {}
        for r in self.results:
            for row, spec in r.awaits.items():
                found.setdefault(row, {"row": row, "needs": spec, "verdicts": []})
            for v in r.verdicts:
                entry = found.setdefault(v["row"], {"row": v["row"], "needs": "", "verdicts": []})
                # a cell that asks for no hardware speaks of the CPU, wherever it ran
                device = r.device if v.get("gated", True) or platform(r.device) == "cpu" else "cpu"
                told = {"verdict": v["verdict"], "device": device, "on": r.place, "note": v.get("note", "")}
                entry["verdicts"].append(told)
        return [entry | {"merged": merge(entry["needs"], entry["verdicts"])} for _, entry in sorted(found.items())]

    @property
    def gated(self) -> list[dict[str, Any]]:
        """One entry a cell that was skipped somewhere: where it ran, and where not and why."""
        cells: dict[tuple[str, int], dict[str, Any]] = {}
        for r in self.results:
            for s in r.skipped:
                cells.setdefault(
                    (r.name, s["cell"]), {"notebook": r.name, "cell": s["cell"], "ran": [], "skipped": {}}
                )["skipped"][r.place] = s["reason"]
        for (name, number), cell in cells.items():
            for r in self.results:
                if r.name == name and r.reached(number):
                    cell["ran"].append(r.place)
        return [cell for _, cell in sorted(cells.items())]

    def to_json(self) -> dict[str, Any]:
        data = dataclasses.asdict(self)
        more = {"counts": self.counts, "overhead": self.overhead, "ok": self.ok}
        return data | more | {"ledger": self.ledger, "cells": self.gated}

    def write(self, folder: Path, junit: Path | None = None) -> None:
        """Write the three files, each whole or not at all: a reader never sees half of one."""
        replace_file(folder / "report.json", json.dumps(self.to_json(), indent=1, ensure_ascii=False))
        replace_file(folder / "report.html", self.to_html())
        for path in dict.fromkeys(filter(None, [folder / "junit.xml", junit])):
            replace_file(path, self.to_junit())

    def to_junit(self) -> str:
        """JUnit XML: a test suite a notebook and machine, a test case for the run and one for each skipped cell."""
        suites = ET.Element("testsuites", name="torch-whatsnew")
        for r in self.results:
            failed = r.status not in (PASSED, NOT_RUN) or (r.status == NOT_RUN and r.error is not None)
            left = r.status == NOT_RUN and not failed
            name = f"{r.key} on {r.where}" if r.where else r.key
            suite = ET.SubElement(
                suites,
                "testsuite",
                name=name,
                tests=str(1 + len(r.skipped)),
                failures=str(int(failed)),
                skipped=str(len(r.skipped) + int(left)),
                time=f"{r.seconds:.3f}",
            )
            case = ET.SubElement(suite, "testcase", classname=name, name="notebook", time=f"{r.seconds:.3f}")
            if failed:
                source = (r.error or {}).get("source", "")
                ET.SubElement(case, "failure", type=r.status, message=_xml(r.complaint)).text = _xml(source)
            elif left:
                ET.SubElement(case, "skipped", message="not run")
            for cell in r.skipped:
                skipped = ET.SubElement(suite, "testcase", classname=name, name=f"cell {cell['cell']}")
                ET.SubElement(skipped, "skipped", message=_xml(cell["reason"]))
        if found := self.complaints:
            suite = ET.SubElement(suites, "testsuite", name="batch", tests=str(len(found)), failures=str(len(found)))
            for complaint in found:
                case = ET.SubElement(suite, "testcase", classname="batch", name="complaint")
                ET.SubElement(case, "failure", type="complaint", message=_xml(complaint))
        ET.indent(suites)
        return ET.tostring(suites, encoding="unicode", xml_declaration=True)

    def to_html(self) -> str:
        """The page for a person. It links to the executed copies in `executed/` beside it."""
        import jinja2

        here = Path(__file__).parent
        environment = jinja2.Environment(loader=jinja2.FileSystemLoader(here), autoescape=True)
        return environment.get_template("report.html.jinja").render(report=self)


def merge(needs: str, verdicts: list[dict[str, Any]]) -> str:
    """What the verdicts on one row come to, in words: `holds on cpu, cuda; differs on mps`.

    A device is told by its kind, or in full where two of a kind disagree.
    """
    if not verdicts:
        return f"needs {needs}: nowhere" if needs else "no verdict"
    said: dict[str, dict[str, set[str]]] = {}  # kind of device -> verdict -> the devices in full
    for v in verdicts:
        kind = re.sub(r"^\d+ x ", "", v["device"]).split(" ")[0] or "this machine"
        said.setdefault(kind, {}).setdefault(v["verdict"], set()).add(v["device"] or kind)
    parts = []
    for word in dict.fromkeys(["holds", *(v["verdict"] for v in verdicts)]):
        devices = [
            d for kind, by in sorted(said.items()) if word in by for d in ([kind] if len(by) == 1 else sorted(by[word]))
        ]
        if devices:
            parts.append(f"{word} on {', '.join(devices)}")
    return "; ".join(parts)


def read_results(path: Path) -> dict[str, Result]:
    """The results of an earlier report by key; none if there is no report, or none that can be read."""
    try:
        data = json.loads(path.read_text("utf-8"))
        return {r.key: r for r in (Result(**entry) for entry in data["results"])}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _and(names: list[str]) -> str:
    return " and ".join(names)


def _xml(text: str) -> str:
    """Text without the control characters (colours of a traceback) that XML cannot hold."""
    return "".join(c for c in text if c in "\t\n" or c >= " ")
