"""Run all notebooks under each torch that this machine can install: `python -m utils.versions [2.13.0 2.14.1 …]`.

Each torch has a virtual environment of its own, `.venvs/torch-<version>`, which is kept; the installed torch uses the
environment that runs this. A notebook *runs* under a torch, *says what is missing* (the gate names what that release
lacks, and the rest runs), or *fails*. The table goes to build/versions/index.html, and to notebooks/versions.json,
which README and the start page show. The exit status is 1 if a notebook fails under some torch.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version

from utils.catalog import SelectionError, select
from utils.paths import BUILD, NOTEBOOKS, ROOT, replace_file
from utils.report import PASSED, Result, read_results

RUNS, LACKS, FAILS = "runs", "says what is missing", "fails"
DEFAULT = ("2.13.0", "2.14.1")
TABLE = NOTEBOOKS / "versions.json"
VENVS = ROOT / ".venvs"
NOT_NEEDED = {"torch", "jupyterlab"}  # the one is chosen here; a batch does without the other


@dataclass(frozen=True)
class Outcome:
    """How a notebook fares under one torch."""

    state: str  # RUNS, LACKS or FAILS
    detail: list[str]  # what the torch lacks, or the error
    seconds: float
    mb: float


@dataclass(frozen=True)
class Under:
    """All notebooks under one torch."""

    torch: str  # "2.13.0+cpu"
    date: str
    machine: str
    notebooks: dict[str, Outcome]


def outcome(result: Result) -> Outcome:
    """What a batch's result says of a release: hardware that is missing here does not count against it."""
    seconds, mb = round(result.seconds), round(result.peak_mb)
    if result.status != PASSED:
        return Outcome(FAILS, [result.complaint], seconds, mb)
    lacking: dict[str, None] = {}
    for cell in result.skipped:
        needs, _, facts = cell["reason"].partition("; this machine has ")
        for fact in facts.split(", "):
            if fact.startswith("torch "):
                lacking[fact if " without " in fact else f"{fact}, and a cell {needs}"] = None
    return Outcome(LACKS if lacking else RUNS, list(lacking), seconds, mb)


def under(results: Mapping[str, Result], date: str) -> Under:
    """The results of a batch as a column of the table. Raises ValueError if no notebook told which torch it had."""
    machines = [r.machine for r in results.values() if r.machine]
    if not machines:
        raise ValueError("no notebook came as far as its setup cell")
    machine = machines[0]["line"].partition(" · ")[2]
    return Under(machines[0]["torch"], date, machine, {name: outcome(results[name]) for name in sorted(results)})


def packages(requirements: str) -> list[str]:
    """The lines of requirements.txt that a batch needs beside torch."""
    lines = [line.partition("#")[0].strip() for line in requirements.splitlines()]
    return [line for line in lines if line and line[0] != "-" and Requirement(line).name not in NOT_NEEDED]


def python_with(torch: str, folder: Path = VENVS) -> Path:
    """The Python of an environment that has this torch, made if it is not there.

    Raises subprocess.CalledProcessError if pip cannot install it. What broke off is done again.
    """
    if Version(importlib.metadata.version("torch")).public == torch:
        return Path(sys.executable)
    home = folder / f"torch-{torch}"
    python = home / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    wanted = [f"torch=={torch}", *packages((ROOT / "requirements.txt").read_text("utf-8"))]
    stamp = home / "installed"
    if not stamp.exists() or stamp.read_text("utf-8").splitlines() != wanted:
        if not python.exists():
            venv.create(home, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-qq", "--disable-pip-version-check", *wanted], check=True)
        stamp.write_text("\n".join(wanted) + "\n", "utf-8")
    return python


def run(torch: str, names: Sequence[str], folder: Path) -> Under:
    """Run the notebooks under one torch with the batch runner. Raises CalledProcessError, ValueError."""
    python, build = python_with(torch), folder / torch
    (build / "report.json").unlink(missing_ok=True)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [python, "-m", "utils.batch", *names, "--build", str(build)]
    done = subprocess.run(command, cwd=ROOT, env=environment, check=False)
    if done.returncode not in (0, 1):
        raise subprocess.CalledProcessError(done.returncode, command)
    return under(read_results(build / "report.json"), datetime.date.today().isoformat())


def load(path: Path = TABLE) -> list[Under]:
    """The last results, oldest torch first; empty if there are none. Raises ValueError if the file is damaged."""
    if not path.exists():
        return []
    try:
        entries = json.loads(path.read_text("utf-8"))
        found = [
            Under(**e | {"notebooks": {name: Outcome(**o) for name, o in e["notebooks"].items()}}) for e in entries
        ]
        return sorted(found, key=lambda u: Version(u.torch))
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path.name} is damaged ({error}): run make versions") from None


def merged(old: Sequence[Under], new: Sequence[Under]) -> list[Under]:
    """The table with new columns in place of those of the same release; a column that knows fewer notebooks adds."""
    columns = {Version(u.torch).public: u for u in old}
    for u in new:
        before = columns.get(Version(u.torch).public)
        known = {**(before.notebooks if before else {}), **u.notebooks}
        columns[Version(u.torch).public] = Under(u.torch, u.date, u.machine, dict(sorted(known.items())))
    return sorted(columns.values(), key=lambda u: Version(u.torch))


def save(table: Sequence[Under], path: Path = TABLE) -> None:
    """Write the table, whole or not at all."""
    replace_file(path, json.dumps([asdict(u) for u in table], indent=1, ensure_ascii=False) + "\n")


def page(table: Sequence[Under]) -> str:
    """The table for a person, with links to the reports of each release."""
    import jinja2

    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    template = jinja2.Environment(loader=loader, autoescape=True).get_template("versions.html.jinja")
    names = sorted({name for u in table for name in u.notebooks})
    return template.render(table=table, names=names, public=lambda u: Version(u.torch).public)


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit status: 0, 1 if a notebook fails under some torch, 2 for bad input."""
    parser = argparse.ArgumentParser(prog="python -m utils.versions", description=__doc__.splitlines()[0])
    here = Version(importlib.metadata.version("torch")).public
    parser.add_argument("torch", nargs="*", help=f"releases of torch (default: {' '.join([*DEFAULT, here])})")
    parser.add_argument("--notebooks", nargs="+", default=[], help="numbers, names or parts of names; all if not given")
    options = parser.parse_args(argv)
    chosen = options.torch or [*DEFAULT, here]
    try:
        wrong = [v for v in chosen if len(Version(v).release) < 3]
        select(options.notebooks)
    except (InvalidVersion, SelectionError) as error:
        print(f"versions: {error}", file=sys.stderr)
        return 2
    if wrong:
        print(f"versions: {wrong[0]!r} is not a release of torch; write three numbers, as 2.13.0", file=sys.stderr)
        return 2
    folder, status = BUILD / "versions", 0
    for torch in dict.fromkeys(chosen):
        print(f"\ntorch {torch}", flush=True)
        try:
            column = run(torch, options.notebooks, folder)
        except (subprocess.CalledProcessError, ValueError) as error:
            print(f"versions: torch {torch}: {error}; its column stays as it was", file=sys.stderr)
            status = 1
            continue
        table = merged(load(), [column])
        save(table)
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / "index.html", page(table))
        for name, o in column.notebooks.items():
            print(f"{o.state:<20} {name}" + "".join(f"\n    {line}" for line in o.detail))
            status = max(status, int(o.state == FAILS))
    print(f"\n{folder / 'index.html'}")
    return status


if __name__ == "__main__":
    sys.exit(main())
