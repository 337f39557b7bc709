"""Notebooks over several machines, by dask: `python -m utils.fleet tcp://scheduler:8786 --name cudabox` on each.

That starts a worker whose resources carry the words of the gate that hold on its machine (`cuda`, `mps`, `compile`, …).
`python -m utils.batch --scheduler tcp://scheduler:8786` then sends each notebook to workers that can run its cells.
dask finds the workers, carries notebooks and results, and sees a worker die. Which notebook goes where, and when, is
decided here, one notebook at a time for a worker: dask's own queues blame every task that waits on a worker that
dies, and the notebook that killed it must be told from its neighbours. docs/fleet.md says how to use it.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import concurrent.futures
import contextlib
import copy
import dataclasses
import logging
import platform
import signal
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from utils import gate
from utils.catalog import asking, read
from utils.hardware import Machine, probe
from utils.jobs import FAILED, KILLED, NOT_RUN, BadInput, Job, Running, clear_executed, processes
from utils.paths import checkout, keep_compiled

TOPIC = "whatsnew"  # of the messages from workers
NOTEBOOK = "notebook"  # the resource of which a worker has one: it runs one notebook at a time
DEATHS = 2  # so many workers may die of one notebook
NO_DASK = "needs dask: pip install distributed"


# ---- on a worker


def look(specs: list[str]) -> tuple[Machine, dict[str, str | None]]:
    """This machine, and for each requirement why it is not met here, or None. A misspelt one fails in its cell."""

    def reason(spec: str) -> str | None:
        with contextlib.suppress(gate.RequirementError):
            return gate.unmet(spec)
        return None

    return probe(), {spec: reason(spec) for spec in specs}


def look_aside(specs: list[str]) -> tuple[Machine, dict[str, str | None]]:
    """`look` in a process that ends: it imports torch, which a worker need not hold."""
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=processes()) as pool:
        return pool.submit(look, specs).result()


def words(machine: Machine) -> list[str]:
    """The gate's words that hold on the machine without a comparison: what a worker's resources carry."""
    return [name for name, word in gate.WORDS.items() if not word.must_compare and gate.unmet(name, machine) is None]


async def introduce(specs: list[str]) -> dict[str, Any]:
    """What a worker says of itself when a batch asks."""
    machine, reasons = await asyncio.to_thread(look_aside, specs)
    return {"line": machine.line, "torch": machine.torch, "reasons": reasons, "checkout": checkout()}


def run_here(key: str, content: bytes, parameters: dict[str, Any], limit: float) -> tuple[dict, dict[str, bytes]]:
    """Run a notebook on this worker, in a folder of its own: what was found, and the files by name.

    It is ended when nobody wants it any more: the batch was interrupted or is gone, or the worker closes.
    """
    from distributed import get_worker

    worker = get_worker()
    task = worker.get_current_task()

    def unwanted() -> bool:
        state = worker.state.tasks.get(task)
        return state is None or state.state == "cancelled" or worker.status.name != "running"

    def tell(what: str, **more: Any) -> None:
        worker.log_event(TOPIC, {"task": task, "what": what, **more})

    with tempfile.TemporaryDirectory(prefix="wn-", ignore_cleanup_errors=True) as name:
        folder = Path(name).resolve()
        notebook, executed = folder / f"{key}.ipynb", folder / "executed" / f"{key}.ipynb"
        notebook.write_bytes(content)
        executed.parent.mkdir()
        tell("started")
        running, told = Running(Job(notebook, executed, parameters), limit), 0
        try:
            while not running.look() and not unwanted():
                if running.cell != told:
                    told = running.cell
                    tell("cell", cell=told, peak_mb=running.facts["peak_mb"])
                time.sleep(0.05)
        finally:
            running.end()
        return running.facts, {path.name: path.read_bytes() for path in executed.parent.iterdir()}


async def serve(address: str, name: str, host: str | None, port: int, wait: float) -> bool:
    """Be a worker until a signal comes (then True) or the scheduler is gone."""
    from distributed import Worker
    from distributed.comm import get_address_host_port

    quiet(logging.ERROR)
    get_address_host_port(address, strict=True)
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: loop.call_soon_threadsafe(stop.set))
    machine, _ = await asyncio.to_thread(look_aside, [])
    carried = words(machine)
    with tempfile.TemporaryDirectory(prefix="wn-", ignore_cleanup_errors=True) as folder:
        worker = Worker(
            address,
            name=name,
            nthreads=1,
            resources={NOTEBOOK: 1} | dict.fromkeys(carried, 1),
            memory_limit=0,  # notebooks have processes and a limit of their own
            host=host,
            port=port,
            local_directory=folder,
            death_timeout=wait,
        )
        async with worker:
            print(f"{name}: {machine.line}\n{name}: takes cells that need {', '.join(carried) or 'a CPU'}", flush=True)
            ends = [asyncio.ensure_future(worker.finished()), asyncio.ensure_future(stop.wait())]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if stop.is_set():  # told to stop: its notebook is not to blame
                worker.log_event(TOPIC, {"what": "leaves", "worker": worker.address})
            for end in ends:
                end.cancel()
    return stop.is_set()


def quiet(level: int) -> None:
    """Let dask log from this level on: each of its loggers has a level of its own."""
    for name in ["distributed", *(n for n in logging.root.manager.loggerDict if n.startswith("distributed."))]:
        logging.getLogger(name).setLevel(level)


def main(argv: list[str] | None = None) -> int:
    """Command line of a worker; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m utils.fleet", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("scheduler", help="address of the dask scheduler: tcp://host:8786")
    add("--name", default=platform.node(), help="what reports call this worker (%(default)s)")
    add("--host", help="listen on this address (127.0.0.1 where the scheduler is there, else dask's choice)")
    add("--port", type=int, default=0, help="listen on this port, for instance one that a tunnel brings (any)")
    add("--wait", type=float, default=30, metavar="SECONDS", help="for the scheduler (%(default)s)")
    options = parser.parse_args(argv)
    keep_compiled()
    local = any(name in options.scheduler for name in ("//127.0.0.1", "//localhost", "//[::1]"))
    host = options.host or ("127.0.0.1" if local else None)
    try:
        if asyncio.run(serve(options.scheduler, options.name, host, options.port, options.wait)):
            return 0
        print("fleet: the scheduler is gone", file=sys.stderr)
    except ImportError:
        print(f"fleet: {NO_DASK}", file=sys.stderr)
        return 2
    except (OSError, ValueError, RuntimeError) as error:
        what = str(error.__cause__ or error) or type(error).__name__
        if "name taken" in what:
            what = f"there is one named {options.name} already; choose another --name"
        print(f"fleet: no worker at {options.scheduler}: {what}", file=sys.stderr)
        return 2
    return 1


# ---- in the batch


@dataclass
class Box:
    """A worker, as the batch knows it."""

    address: str
    name: str
    words: frozenset[str]
    line: str = ""
    torch: str = ""
    reasons: dict[str, str | None] = field(default_factory=dict)
    leaves: bool = False  # it was told to stop

    def meets(self, needs: list[str]) -> bool:
        """Its resources carry the words, and it said itself that every comparison, module and symbol is there."""
        return words_of(needs) <= self.words and all(self.reasons.get(spec, spec) is None for spec in needs)


def words_of(needs: list[str]) -> set[str]:
    """The words that a worker's resources must carry."""
    found = set()
    for spec in needs:
        with contextlib.suppress(gate.RequirementError):
            found |= {n.word for n in gate.parse(spec) if n.word in gate.WORDS and not gate.WORDS[n.word].must_compare}
    return found


@dataclass
class Run:
    """A notebook that waits for a worker, or is on one."""

    result: Any
    content: bytes
    path: Path
    box: Box | None = None
    future: Any = None
    started: bool = False  # on this box: only then is it to blame if the box dies
    cell: int = 0
    taken: Any = None  # its result, on the way from the worker


def all_needs(paths: list[Path]) -> list[str]:
    """What the cells of these notebooks ask for, each once. What cannot be read asks for nothing."""
    found: dict[str, None] = {}
    for path in paths:
        with contextlib.suppress(Exception):
            found |= dict.fromkeys(spec for needs in asking(read(path)).values() for spec in needs)
    return list(found)


def cover(cells: dict[int, list[str]], boxes: list[Box]) -> tuple[list[list[str]], dict[int, list[str]]]:
    """Few runs of a notebook that together run every cell that some box can run, each as what it needs of a box.

    At least one run, and the cells that no box can run. A greedy cover of the set of cells.
    """
    able = [{n for n, needs in cells.items() if box.meets(needs)} for box in boxes]
    left = set().union(*able)
    nowhere = {n: needs for n, needs in cells.items() if n not in left}
    runs: list[list[str]] = []
    while left or not runs:
        best = max(able, key=lambda found: (len(found & left), len(found)))
        runs.append(list(dict.fromkeys(spec for n in sorted(best & left) for spec in cells[n])))
        left -= best
    return runs, nowhere


def spread(paths: list[Path], results: list[Any], boxes: list[Box]) -> tuple[list[Any], list[dict[str, Any]]]:
    """The planned results, one for each run that a notebook gets in this fleet, and the needs that no worker meets."""
    planned, unmet = [], []
    for path, result in zip(paths, results, strict=True):
        if result.status != NOT_RUN:  # it cannot be read
            planned.append(result)
            continue
        runs, nowhere = cover(asking(read(path)), boxes)
        labels = ["+".join(sorted(words_of(needs))) for needs in runs] if len(runs) > 1 else [""]
        for i, (needs, label) in enumerate(zip(runs, labels, strict=True)):
            label += str(i + 1) if labels.count(label) > 1 or (len(runs) > 1 and not label) else ""
            planned.append(dataclasses.replace(copy.deepcopy(result), variant=label, needs=needs))
        lacking: dict[str, list[int]] = {}
        for number, needs in nowhere.items():
            spec = ", ".join(s for s in needs if not all(box.meets([s]) for box in boxes))
            lacking.setdefault(spec, []).append(number)
        for spec, cells in lacking.items():
            why = {box.name: box.reasons[s] for s in nowhere[cells[0]] for box in boxes if box.reasons.get(s)}
            unmet.append({"notebook": path.stem, "spec": spec, "cells": cells, "why": why})
    return planned, unmet


class Fleet:
    """A batch over a dask cluster: like Batch, with workers in place of slots."""

    def __init__(self, client: Any, specs: list[str], wait: float, limit: float) -> None:
        self.client, self.specs, self.wait, self.limit = client, specs, wait, limit
        self.boxes: dict[str, Box] = {}
        self.all_boxes: list[Box] = []
        self.notes: list[str] = []
        self.heard: collections.deque[dict[str, Any]] = collections.deque()
        self.joining: set[str] = set()  # addresses that dask told of
        self.asking: dict[str, str] = {}  # name by address, of those who have not answered what they are
        self.told: collections.deque[tuple[str, dict[str, Any], Any]] = collections.deque()
        self.waiting: list[Run] = []
        self.flying: dict[str, Run] = {}  # by task
        self.aside = concurrent.futures.ThreadPoolExecutor()
        self.changed = self.began = time.monotonic()
        for topic in (TOPIC, "all"):
            client.subscribe_topic(topic, lambda event: self.heard.append(event[1]))

    def gather(self) -> None:
        """Ask all workers what they are. Raises BadInput if there is none within the wait, or none of this checkout."""
        until = time.monotonic() + self.wait
        self.joining |= set(self.client.scheduler_info(n_workers=-1)["workers"])
        self.meet()
        while self.asking or not self.boxes:
            if time.monotonic() > until:
                silent = [f"{name} has not said yet what it is" for name in self.asking.values()]
                if self.boxes:  # the others need not wait for these, which may still join
                    self.notes += silent
                    return
                seen = "; ".join([*self.notes, *silent]) or f"no worker came within {self.wait:.0f} s"
                raise BadInput(f"{seen}; on each machine run: python -m utils.fleet {self.client.scheduler.address}")
            time.sleep(0.1)
            self.hear()
            self.meet()

    def ask(self, address: str, worker: dict[str, Any]) -> None:
        """Ask a worker what it is and what it can run, aside: it may hang."""

        def ask() -> None:
            try:
                said = self.client.run(introduce, self.specs, workers=[address], on_error="return")[address]
            except Exception as error:
                said = error
            self.told.append((address, worker, said))

        self.asking[address] = str(worker["name"])
        threading.Thread(target=ask, daemon=True).start()

    def meet(self) -> None:
        """Ask those who joined, and take in those who answered."""
        there = self.client.scheduler_info(n_workers=-1)["workers"] if self.joining else {}
        for address in sorted(self.joining & set(there)):
            if NOTEBOOK in there[address]["resources"]:
                self.ask(address, there[address])
        self.joining -= set(there)
        while self.told:
            address, worker, said = self.told.popleft()
            if self.asking.pop(address, None) is None:
                continue  # it is gone
            box = Box(address, str(worker["name"]), frozenset(worker["resources"]) - {NOTEBOOK})
            if isinstance(said, BaseException):
                self.notes.append(f"{box.name} is left out: asking it ended in {type(said).__name__}: {said}")
            elif said.pop("checkout") != checkout():
                self.notes.append(f"{box.name} is left out: utils/ or announced.toml differs from this checkout")
            else:
                self.boxes[address] = dataclasses.replace(box, **said)
                self.all_boxes.append(self.boxes[address])
                self.changed = time.monotonic()

    def attach(self, report: Any, paths: list[Path], folder: Path, junit: Path | None) -> None:
        """What to run, and where the report goes."""
        self.report, self.folder, self.junit = report, folder, junit
        by_name = {path.stem: path for path in paths}
        todo = [r for r in report.results if r.status == NOT_RUN]
        self.waiting = [Run(r, by_name[r.name].read_bytes(), by_name[r.name]) for r in todo]

    def run(self, progress: Any) -> None:
        """Run all that waits. On KeyboardInterrupt the report is written; what is on its way ends with the client."""
        self.progress, self.began = progress, time.monotonic()
        try:
            for result in self.report.results:
                if result.status != NOT_RUN:
                    self.progress.end(result)
            while self.waiting or self.flying:
                if self.client.status != "running":
                    raise BadInput("the scheduler is gone; what ended before is in the report (--resume goes on)")
                self.hear()
                self.meet()
                self.dispatch()
                for run in list(self.flying.values()):
                    self.collect(run)
                self.give_up()
                time.sleep(0.05)
            self.report.finished = True
        finally:
            self.aside.shutdown(wait=False, cancel_futures=True)
            self.save()

    def hear(self) -> None:
        """What workers told of their notebooks, and dask of workers that came and went."""
        while self.heard:
            said = self.heard.popleft()
            if said.get("action") == "remove-worker":
                self.joining.discard(said["worker"])
                self.asking.pop(said["worker"], None)
            run, box = self.flying.get(said.get("task")), self.boxes.get(said.get("worker"))
            match said.get("what") or said.get("action"):
                case "started" if run:
                    run.started = True
                case "cell" if run:
                    run.cell, run.result.peak_mb = said["cell"], said["peak_mb"]
                    self.progress.tell(run.result, run.cell)
                case "leaves" if box:
                    box.leaves = True
                case "add-worker":
                    self.joining.add(said["worker"])
                case "remove-worker" if box:
                    self.lose(box)

    def able(self, run: Run) -> list[Box]:
        """The workers that can run it, busy or not."""
        return [box for box in self.boxes.values() if box.meets(run.result.needs)]

    def dispatch(self) -> None:
        """Give waiting notebooks to free workers: first those that few can run, the least able worker that will do."""
        taken = {run.box.address for run in self.flying.values()}
        for run in sorted(self.waiting, key=lambda run: (bool(run.result.lost_on), len(self.able(run)))):
            free = [box for box in self.able(run) if box.address not in taken]
            if free:
                box = min(free, key=lambda box: (len(box.words), box.name))
                taken.add(box.address)
                self.start(run, box)

    def start(self, run: Run, box: Box) -> None:
        result = run.result
        clear_executed(self.folder, result.key)
        task = f"{result.key}-{uuid.uuid4().hex}"
        run.box, run.started, run.cell, run.taken = box, False, 0, None
        run.future = self.client.submit(
            run_here,
            result.key,
            run.content,
            result.parameters,
            self.limit,
            key=task,
            pure=False,
            workers=[box.address],
            resources={NOTEBOOK: 1} | dict.fromkeys(words_of(result.needs), 1),
        )
        result.where, result.slot = box.name, self.all_boxes.index(box)
        result.machine = {"line": box.line, "torch": box.torch}
        result.started = time.monotonic() - self.began
        self.waiting.remove(run)
        self.flying[task] = run
        self.progress.start(result, run.path)

    def collect(self, run: Run) -> None:
        """Take the result of a notebook that ended, aside: it may be long on its way, and others must not wait."""
        if run.future.done() and run.taken is None:
            run.taken = self.aside.submit(run.future.result, 60)
        if run.taken is None or not run.taken.done():
            return
        error = run.taken.exception()
        if run.future.status in ("error", "cancelled"):
            what = f"{run.box.name} could not run it: {type(error).__name__}: {error}"
            facts, files = {"status": FAILED, "error": {"cell": 0, "what": what}}, {}
        elif error:
            run.taken = None  # the connection broke: if its worker is dying, `lose` will see to it
            return
        else:
            facts, files = run.taken.result()
        for name, content in files.items():
            (self.folder / "executed" / name).write_bytes(content)
        for name, value in facts.items():
            setattr(run.result, name, value)
        self.end(run)

    def end(self, run: Run) -> None:
        self.flying.pop(run.future.key, None)
        run.future.release()
        self.save()
        self.progress.end(run.result)

    def lose(self, box: Box) -> None:
        """A worker is gone. Its notebook waits for another, unless it has killed enough of them."""
        del self.boxes[box.address]
        self.changed = time.monotonic()
        for run in [run for run in self.flying.values() if run.box is box]:
            result = run.result
            run.future.cancel(force=True)
            result.seconds = self.changed - self.began - result.started
            if run.started and not box.leaves:
                result.lost_on.append(box.name)
            if len(result.lost_on) >= DEATHS:
                what = f"{' and '.join(result.lost_on)} died while they ran it; it is not tried a third time"
                result.status, result.error = KILLED, {"cell": run.cell, "what": what}
                self.end(run)
            else:
                del self.flying[run.future.key]
                result.where, result.machine, result.seconds, result.peak_mb = "", {}, 0.0, 0.0
                self.waiting.append(run)

    def give_up(self) -> None:
        """Do not wait for ever for a worker that is gone: what those that are left cannot run is not run."""
        if self.flying or time.monotonic() - self.changed < self.wait:
            return
        for run in [run for run in self.waiting if not self.able(run)]:
            needs = ", ".join(run.result.needs) or "anything"
            died = f" after {' and '.join(run.result.lost_on)} died" * bool(run.result.lost_on)
            run.result.error = {"cell": 0, "what": f"no worker is left that can run {needs}{died}"}
            self.waiting.remove(run)
            self.progress.end(run.result)

    def save(self) -> None:
        self.report.wall = time.monotonic() - self.began
        self.report.jobs = len(self.all_boxes)
        self.report.notes = list(self.notes)
        self.report.workers = [
            {"name": box.name, "line": box.line, "state": "" if self.boxes.get(box.address) is box else "left"}
            for box in self.all_boxes
        ]
        self.report.write(self.folder, self.junit)


@contextlib.contextmanager
def connect(address: str, wait: float) -> Iterator[Any]:
    """A dask client. Raises BadInput if dask is missing, or no scheduler answers there."""
    try:
        from distributed import Client
        from distributed.comm import get_address_host_port
    except ImportError:
        raise BadInput(f"--scheduler {NO_DASK}") from None
    quiet(logging.CRITICAL)  # what it has to say is in the report
    try:
        get_address_host_port(address, strict=True)  # half a client would complain when it is thrown away
        client = Client(address, timeout=wait, set_as_default=False, name="whatsnew")
    except (OSError, ValueError) as error:
        raise BadInput(
            f"no dask scheduler answers at {address} ({str(error) or type(error).__name__}); start one with "
            "`dask scheduler --host 127.0.0.1`"
        ) from None
    try:
        yield client
    finally:
        client.close(timeout=5)


if __name__ == "__main__":
    sys.exit(main())
