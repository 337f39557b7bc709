"""Run notebooks through papermill, several at once, and report: `python -m utils.batch [06 polar …]`.

Each runs in a process of its own, in its own folder, with a wall-clock limit. build/ holds report.html, report.json
and junit.xml, rewritten after each notebook, and the executed copies. The exit status is 0 if at least one notebook
was chosen and all passed, 1 if one did not, 2 for input that makes no sense, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import datetime
import hashlib
import importlib.metadata
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from packaging.version import Version

from utils import gate
from utils.catalog import SelectionError, asking, cell_requires, describe, parameters, read, select
from utils.claims import verdict_calls
from utils.hardware import cores
from utils.jobs import FAILED, NOT_RUN, PASSED, BadInput, Job, Running, clear_executed
from utils.paths import BUILD, checkout, keep_compiled
from utils.progress import Progress
from utils.report import Report, Result, read_results


def plan(names: list[str], given: dict[str, str], earlier: dict[str, Result]) -> tuple[list[Path], list[Result]]:
    """The chosen notebooks, longest first as far as an earlier run tells, with their parameters.

    A parameter goes to the notebooks that have it. Raises BadInput for one that none of them has, or whose value is
    of another kind than the default.
    """
    try:
        paths = select(names)
    except SelectionError as error:
        raise BadInput(str(error)) from None
    if not paths:
        raise BadInput("there is no notebook to run")
    took = {old.name: old.seconds for old in sorted(earlier.values(), key=lambda old: old.seconds)}
    results, known, tools = [], {}, checkout()
    for path in paths:
        result = Result(path.stem, sha256=hashlib.sha256(path.read_bytes()).hexdigest(), checkout=tools)
        try:
            told, nb = describe(path), read(path)
            defaults, awaits, asks = parameters(nb), verdict_needs(nb), asking(nb)
        except Exception as error:
            result.status = FAILED
            what = (str(error).splitlines() or [type(error).__name__])[0]
            result.error = {"cell": 0, "what": f"this is not a notebook that can be read: {what[:200]}"}
        else:
            result.title, result.budget_seconds, result.budget_mb = told.title, told.budget_seconds, told.budget_mb
            result.awaits, result.asks = awaits, {str(number): specs for number, specs in asks.items()}
            known |= defaults
            result.parameters = {n: _value(n, v, defaults[n]) for n, v in given.items() if n in defaults}
        results.append(result)
    if unknown := sorted(set(given) - set(known)):
        there = ", ".join(f"{name} = {value!r}" for name, value in known.items()) or "none"
        raise BadInput(f"no chosen notebook has a parameter {', '.join(unknown)}; there are: {there}")
    if len({p.stem for p in paths}) < len(paths):
        raise BadInput(
            "two of the chosen notebooks have the same name; their executed copies would overwrite each other"
        )
    order = sorted(range(len(paths)), key=lambda i: -took.get(results[i].name, 1e9))
    return [paths[i] for i in order], [results[i] for i in order]


def verdict_needs(nb: Any) -> dict[str, str]:
    """The ledger rows that a notebook is about, each with the hardware, or else all, that its verdict's cell needs."""
    found = {}
    for cell, specs in cell_requires(nb):
        if rows := verdict_calls(cell.source) if "verdict(" in cell.source else {}:
            with contextlib.suppress(gate.RequirementError):  # a misspelt one fails in its cell
                needs = list(dict.fromkeys(need for spec in filter(None, specs) for need in gate.parse(spec)))
                hardware = [need for need in needs if need.word in gate.HARDWARE]
                found |= dict.fromkeys(rows, ", ".join(map(str, hardware or needs)))
    return found


def _value(name: str, text: str, default: Any) -> Any:
    """A parameter's value from the command line: a Python literal, or the text itself."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        value = text
    if isinstance(default, str):
        value = text
    if isinstance(default, float) and type(value) is int:
        value = float(value)
    if default is not None and type(value) is not type(default):
        raise BadInput(f"parameter {name} is a {type(default).__name__} (default {default!r}), and {text!r} is not")
    return value


class Batch:
    """A batch on its way: starts notebooks while there are places, listens, writes the report."""

    def __init__(self, paths: list[Path], report: Report, folder: Path, limit: float, junit: Path | None) -> None:
        self.report, self.folder, self.limit, self.junit = report, folder, limit, junit
        self.waiting = [(p, r) for p, r in zip(paths, report.results, strict=True) if r.status == NOT_RUN]
        self.running: dict[int, tuple[Result, Running]] = {}  # by the slot that they run in
        self.began = time.monotonic()

    def run(self, progress: Progress) -> None:
        """Run all that waits. On KeyboardInterrupt everything started is ended, and the report is written."""
        try:
            for result in self.report.results:
                if result.status != NOT_RUN:
                    progress.end(result)
            while self.waiting or self.running:
                while self.waiting and len(self.running) < self.report.jobs:
                    self.start(*self.waiting.pop(0), progress)
                for slot in list(self.running):
                    self.listen(slot, progress)
                time.sleep(0.02)
            self.report.finished = True
        finally:
            for _, running in self.running.values():
                running.end()
            self.save()

    def start(self, path: Path, result: Result, progress: Progress) -> None:
        result.slot = min(set(range(self.report.jobs)) - set(self.running))
        executed = clear_executed(self.folder, path.stem) / path.name
        running = Running(Job(notebook=path, executed=executed, parameters=result.parameters), self.limit)
        result.started = running.began - self.began
        self.running[result.slot] = result, running
        progress.start(result, path)

    def listen(self, slot: int, progress: Progress) -> None:
        """See how far a notebook is, and to its end."""
        result, running = self.running[slot]
        ended = running.look()
        for name, value in running.facts.items():
            setattr(result, name, value)
        progress.tell(result, running.cell)
        if ended:
            del self.running[slot]
            self.save()
            progress.end(result)

    def save(self) -> None:
        self.report.wall = time.monotonic() - self.began
        self.report.write(self.folder, self.junit)


@contextlib.contextmanager
def build_folder(folder: Path) -> Iterator[None]:
    """Hold the build folder: made if it is missing, refused if it cannot be written or another batch holds it."""
    from filelock import FileLock, Timeout

    try:
        (folder / "executed").mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".batch.lock", timeout=0)
        lock.acquire()
    except Timeout:
        raise BadInput(f"another batch is running in {folder}; wait for it, or choose another with --build") from None
    except OSError as error:
        raise BadInput(f"cannot write in {folder} ({error.strerror}); choose another folder with --build") from None
    try:
        yield
    finally:
        lock.release()


SAME = ("name", "sha256", "checkout", "parameters", "needs")  # fields of a result that need not be found again


def keep_finished(report: Report, earlier: dict[str, Result], torches: Callable[[Result], set[str]]) -> None:
    """For --resume: what passed before, from the same file, tools, parameters, needs and torch, need not run again.

    `torches` gives the versions of torch that a result may have been made with.
    """
    for i, result in enumerate(report.results):
        wanted = {Version(torch).public for torch in torches(result)}
        for old in earlier.values():
            same = all(getattr(old, f) == getattr(result, f) for f in SAME)
            if same and old.status == PASSED and old.machine and Version(old.machine["torch"]).public in wanted:
                old.kept = True
                report.results[i] = old


def complaints(report: Report, device: str | None, enforce_budget: bool) -> list[str]:
    """What makes a batch fail although its notebooks passed."""
    found = []
    if enforce_budget:
        found += [f"{r.name} is over its budget: {', '.join(r.over)}" for r in report.results if r.over]
    if device:
        words = _words([device])
        asks = [(r, int(number)) for r in report.results for number, specs in r.asks.items() if words & _words(specs)]
        if not asks:
            found.append(f"no chosen notebook has a cell that asks for {device}: nothing was tried on it")
        elif not any(r.reached(number) for r, number in asks):
            reasons = dict.fromkeys(s["reason"] for r, number in asks for s in r.skipped if s["cell"] == number)
            told = f" ({'; '.join(reasons)})" if reasons else ""
            found.append(f"no cell that asks for {device} ran: nothing was tried on it{told}")
    return found


def _words(specs: list[str]) -> set[str]:
    found = set()
    for spec in specs:
        with contextlib.suppress(gate.RequirementError):  # a misspelt one fails in its cell
            found |= {need.word for need in gate.parse(spec)}
    return found


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m utils.batch", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("notebooks", nargs="*", help="numbers, names, parts of names or paths (all if none is given)")
    add("--all", action="store_true", help="all notebooks, said out loud")
    add("-p", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"), help="a parameter, as in papermill")
    add(
        "--device",
        metavar="WORDS",
        help="refuse to start unless this machine has it, as in `#| requires:`: 'cuda>=9.0'",
    )
    add("-j", "--jobs", type=int, default=min(cores(), 8), help="how many at once (%(default)s)")
    add("--limit", type=float, default=600, metavar="SECONDS", help="wall-clock limit for a notebook (%(default)s)")
    add("--scheduler", metavar="ADDRESS", help="over the workers of a dask scheduler, tcp://host:8786: docs/fleet.md")
    add(
        "--wait-for-workers",
        type=float,
        default=30,
        metavar="SECONDS",
        help="for the scheduler, a first worker, or one in place of the last that could run a notebook (%(default)s)",
    )
    add("--resume", action="store_true", help="leave out what passed before and has not changed")
    add("--cold", action="store_true", help="with an empty torch.compile cache")
    add("--enforce-budget", action="store_true", help="fail if a notebook takes more time or memory than it may")
    add("--junit", type=Path, metavar="FILE", help="a second copy of junit.xml")
    add("--build", type=Path, default=BUILD, metavar="FOLDER", help="where the report goes (%(default)s)")
    add("--list", action="store_true", help="show the notebooks, what they need and their parameters, and run nothing")
    return parser.parse_args(argv)


def show_list(names: list[str]) -> None:
    """Print what there is to run."""
    for path in select(names):
        try:
            told, found = describe(path), parameters(read(path))
        except Exception as error:
            raise BadInput(f"{path.name} is not a notebook that can be read: {error}") from None
        print(f"{told.name}: {told.title}")
        for name, value in found.items():
            print(f"    -p {name} {value!r}")
        for spec in told.needs:
            reason = gate.unmet(spec)
            print(f"    {spec}: {'here' if reason is None else reason}")


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    options = arguments(argv)
    try:
        return _main(options)
    except (BadInput, SelectionError, gate.RequirementError) as error:
        print(f"batch: {error}", file=sys.stderr)
        return 2


def _main(options: argparse.Namespace) -> int:
    if options.all and options.notebooks:
        raise BadInput("--all and names of notebooks: say one of them")
    if options.jobs < 1 or options.limit <= 0:
        raise BadInput("--jobs and --limit must be above zero")
    if options.list:
        show_list(options.notebooks)
        return 0
    if options.scheduler and options.cold:
        raise BadInput("--cold empties the torch.compile cache of this machine, and --scheduler runs on others")
    if options.device and not options.scheduler and (reason := gate.unmet(options.device)):
        raise BadInput(reason)
    folder = options.build.resolve()
    with build_folder(folder), contextlib.ExitStack() as stack:
        if options.cold:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = stack.enter_context(tempfile.TemporaryDirectory(prefix="cold-"))
        else:
            keep_compiled()
        earlier = read_results(folder / "report.json")
        paths, results = plan(options.notebooks, dict(options.p), earlier)
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
        report = Report(date=now, jobs=min(options.jobs, len(paths)), results=results)
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        prepare = over_fleet if options.scheduler else on_this_machine
        batch = prepare(options, paths, report, earlier, folder, stack)
        status = 0
        with Progress(len(report.results)) as progress:
            try:
                batch.run(progress)
                report.complaints = complaints(report, options.device, options.enforce_budget)
                batch.save()
            except KeyboardInterrupt:
                status = 130
            except BadInput as error:  # in the middle: the report is written
                print(f"batch: {error}", file=sys.stderr)
                status = 1
            except OSError as error:  # what was written before is whole
                if error.errno is None:
                    raise
                what = f"cannot write in {folder} ({error.strerror}); make room, or choose another folder with --build"
                raise BadInput(f"{what}; --resume goes on") from None
        for complaint in report.complaints:
            print(f"batch: {complaint}", file=sys.stderr)
        print(f"\n{folder / 'report.html'}" + (" (interrupted: --resume goes on)" if status == 130 else ""))
        print(report.closing)
        return status or (0 if report.ok else 1)


def on_this_machine(
    options: argparse.Namespace,
    paths: list[Path],
    report: Report,
    earlier: dict[str, Result],
    folder: Path,
    stack: contextlib.ExitStack,
) -> Batch:
    """The batch in processes of this machine."""
    # notebooks that run at once share the cores instead of fighting for them
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores() // report.jobs)))
    if options.resume:
        keep_finished(report, earlier, lambda result: {importlib.metadata.version("torch")})
    return Batch(paths, report, folder, options.limit, options.junit)


def over_fleet(
    options: argparse.Namespace,
    paths: list[Path],
    report: Report,
    earlier: dict[str, Result],
    folder: Path,
    stack: contextlib.ExitStack,
) -> Any:
    """The batch over the workers of a dask scheduler. Tells on the terminal what no worker can run."""
    from utils import fleet

    client = stack.enter_context(fleet.connect(options.scheduler, options.wait_for_workers))
    specs = [options.device] if options.device else []
    batch = fleet.Fleet(client, [*specs, *fleet.all_needs(paths)], options.wait_for_workers, options.limit)
    batch.gather()
    boxes = list(batch.boxes.values())
    if options.device and not any(box.meets([options.device]) for box in boxes):
        told = "; ".join(f"{box.name}: {box.reasons[options.device]}" for box in boxes)
        raise BadInput(f"no worker meets --device {options.device} ({told})")
    report.results, report.unmet = fleet.spread(paths, report.results, boxes)
    if options.resume:
        keep_finished(report, earlier, lambda result: {box.torch for box in boxes if box.meets(result.needs)})
    for note in batch.notes:
        print(f"batch: {note}", file=sys.stderr)
    for need in report.unmet:
        cells = ", ".join(map(str, need["cells"]))
        print(f"batch: no worker meets {need['spec']}: {need['notebook']} leaves out cells {cells}", file=sys.stderr)
    batch.attach(report, paths, folder, options.junit)
    return batch


if __name__ == "__main__":
    sys.exit(main())
