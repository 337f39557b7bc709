"""What a batch says when it ends, and after each notebook: report.json, junit.xml, report.html."""

from __future__ import annotations

import dataclasses
import json
import os
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PASSED, FAILED, TIMED_OUT, DIED, NOT_RUN = "passed", "failed", "timed out", "kernel died", "not run"


@dataclass(frozen=True)
class Job:
    """What a worker is to do. Paths are absolute."""

    notebook: Path
    executed: Path  # where the executed copy goes; its HTML and pictures stand beside it
    parameters: dict[str, Any] = field(default_factory=dict)

    @property
    def log(self) -> Path:
        """What the worker and the kernel wrote that is in no cell."""
        return self.executed.with_suffix(".log")


@dataclass
class Result:
    """One notebook of a batch."""

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

    @property
    def over(self) -> list[str]:
        """The budgets that it broke, in words."""
        broken = []
        if self.budget_seconds and self.seconds > self.budget_seconds:
            broken.append(f"{self.seconds:.0f} s of {self.budget_seconds:.0f} s")
        if self.budget_mb and self.peak_mb > self.budget_mb:
            broken.append(f"{self.peak_mb:.0f} MB of {self.budget_mb:.0f} MB")
        return broken

    @property
    def line(self) -> str:
        """The result in one line."""
        text = f"{self.status:<11} {self.name:<28}"
        if self.status == NOT_RUN:
            return text.rstrip()
        text += f" {self.seconds:6.1f} s {self.peak_mb:6.0f} MB  {self.ran} of {self.cells} cells"
        if self.skipped:
            text += f", {len(self.skipped)} skipped"
        if self.kept:
            text += ", kept from the last run"
        if self.over:
            text += f", OVER BUDGET: {', '.join(self.over)}"
        if self.error:
            text += f"\n            cell {self.error['cell']}: {self.error['what']}"
        return text


@dataclass
class Report:
    """A whole batch."""

    date: str
    jobs: int
    results: list[Result]
    wall: float = 0.0
    finished: bool = False

    @property
    def counts(self) -> dict[str, int]:
        """Number of notebooks by status."""
        found = [r.status for r in self.results]
        return {status: found.count(status) for status in dict.fromkeys([PASSED, FAILED, *found])}

    @property
    def machines(self) -> list[str]:
        """The machines that the notebooks ran on, as their setup cells told."""
        return list(dict.fromkeys(r.machine["line"] for r in self.results if r.machine))

    @property
    def overhead(self) -> float | None:
        """Wall time over the cells' own time, spread evenly over the parallel places; 1.0 is no overhead."""
        now = [r for r in self.results if not r.kept]
        own = sum(r.cell_seconds for r in now)
        return self.wall * min(self.jobs, len(now)) / own if own else None

    @property
    def ok(self) -> bool:
        """Something ran, and everything passed."""
        return bool(self.results) and all(r.status == PASSED for r in self.results)

    @property
    def closing(self) -> str:
        """The last line of a batch: `3 passed, 1 failed`."""
        passed = self.counts[PASSED]
        return f"{passed} passed, {len(self.results) - passed} failed"

    def to_json(self) -> dict[str, Any]:
        data = dataclasses.asdict(self)
        return data | {"counts": self.counts, "overhead": self.overhead, "ok": self.ok}

    def write(self, folder: Path, junit: Path | None = None) -> None:
        """Write the three files, each whole or not at all: a reader never sees half of one."""
        _replace(folder / "report.json", json.dumps(self.to_json(), indent=1, ensure_ascii=False))
        _replace(folder / "report.html", self.to_html())
        for path in dict.fromkeys(filter(None, [folder / "junit.xml", junit])):
            _replace(path, self.to_junit())

    def to_junit(self) -> str:
        """JUnit XML: a test suite a notebook, a test case for the notebook and one for each skipped cell."""
        suites = ET.Element("testsuites", name="torch-whatsnew")
        for r in self.results:
            failed = r.status not in (PASSED, NOT_RUN)
            suite = ET.SubElement(
                suites,
                "testsuite",
                name=r.name,
                tests=str(1 + len(r.skipped)),
                failures=str(int(failed)),
                skipped=str(len(r.skipped) + int(r.status == NOT_RUN)),
                time=f"{r.seconds:.3f}",
            )
            case = ET.SubElement(suite, "testcase", classname=r.name, name="notebook", time=f"{r.seconds:.3f}")
            if failed:
                error = r.error or {"cell": 0, "what": r.status}
                message = f"cell {error['cell']}: {error['what']}"
                ET.SubElement(case, "failure", type=r.status, message=_xml(message)).text = _xml(
                    error.get("source", "")
                )
            elif r.status == NOT_RUN:
                ET.SubElement(case, "skipped", message="not run")
            for cell in r.skipped:
                skipped = ET.SubElement(suite, "testcase", classname=r.name, name=f"cell {cell['cell']}")
                ET.SubElement(skipped, "skipped", message=_xml(cell["reason"]))
        ET.indent(suites)
        return ET.tostring(suites, encoding="unicode", xml_declaration=True)

    def to_html(self) -> str:
        """The page for a person. It links to the executed copies in `executed/` beside it."""
        import jinja2

        here = Path(__file__).parent
        environment = jinja2.Environment(loader=jinja2.FileSystemLoader(here), autoescape=True)
        return environment.get_template("report.html.jinja").render(report=self)


def read_results(path: Path) -> dict[str, Result]:
    """The results of an earlier report by name; none if there is no report, or none that can be read."""
    try:
        data = json.loads(path.read_text("utf-8"))
        return {entry["name"]: Result(**entry) for entry in data["results"]}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _xml(text: str) -> str:
    """Text without the control characters (colours of a traceback) that XML cannot hold."""
    return "".join(c for c in text if c in "\t\n" or c >= " ")


def _replace(path: Path, text: str) -> None:
    part = path.with_name(path.name + ".part")
    part.write_text(text, "utf-8")
    os.replace(part, path)
