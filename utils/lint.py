"""What a notebook of this collection must keep to: `python -m utils.lint [06 polar …]`.

Each rule is a function of a notebook that yields what is wrong, in words that say what to do. Each has a broken
notebook in tests/test_lint.py that it must reject.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import copy
import importlib
import inspect
import re
import statistics
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from utils import gate
from utils.catalog import (
    SelectionError,
    all_notebooks,
    code_cells,
    parameters,
    parse_cell,
    read,
    select,
    source_sha256,
    tags,
)
from utils.claims import DIFFERS, HOLDS, PLANNED, VERDICT_MIME, ledger, verdict_calls, verdict_text
from utils.new import FILL
from utils.paths import NOTEBOOKS
from utils.refresh import TIMING, normalise, not_recorded

Rule = Callable[[Any], Iterator[str]]
RULES: dict[str, Rule] = {}

SECTIONS = (
    "What you will learn",
    "Setup",
    "The problem",
    "The smallest example",
    "How it works",
    "What goes wrong",
    "On your hardware",
    "Exercises",
    "Announced and shipped",
    "Summary",
)
LEAKS = {
    "an address": r"\b0x[0-9a-fA-F]{6,}\b",
    "a path": r"(?:^|[\s'\"(=:])(?:/(?:root|home|tmp|work|usr|opt|Users|private|var)/|[A-Z]:\\)",
    "a warning": r"\b[A-Z]\w*Warning\b",
    "a skip notice": r"^Skipped: needs ",
}
BANNED = {
    r"^\s*[%!]\s*pip": "the environment comes from requirements.txt",
    r"%timeit|%%timeit": "print a ratio measured side by side",
    r"^\s*!": "shell commands differ between systems",
    r"\btime\.sleep\(": "a notebook that waits is slow for everybody",
    r"\bsys\.path\b": "utils is installed by requirements.txt",
    r"\binput\(": "nobody answers in a batch",
    r"(?m)[)\w\]];\s*$": "write `_ = …` or end with plt.show()",
    r"NBVAL_|nbval-skip|PYTEST_VALIDATE": "use the gate, or make the output comparable",
}
IGNORED, MACHINE = "nbval-ignore-output", "machine"
#: nbval, papermill and JupyterLab give meanings to others: with some of those a cell would not be checked.
KNOWN_TAGS = frozenset({"parameters", "exercise", "solution", TIMING, MACHINE, IGNORED})
COMPARED_SHARE = 0.85
PNG_BYTES, FILE_BYTES = 100_000, 900_000
MOST_LINES, MEDIAN_LINES, MOST_CELLS, FEWEST_CELLS = 30, 10, 30, 15
MOST_WORDS = 130


def rule(function: Rule) -> Rule:
    """Register a rule under its function's name."""
    RULES[function.__name__.removeprefix("_")] = function
    return function


def is_tutorial(nb: Any) -> bool:
    """A notebook about a feature keeps to the anatomy; the start page, which says `since: ""`, need not."""
    return bool(nb.metadata.get("tutorial", {}).get("since"))


def numbered(nb: Any) -> Iterator[tuple[int, Any]]:
    return enumerate(code_cells(nb), 1)


def code_lines(source: str) -> int:
    """Lines that are not blank."""
    return sum(bool(line.strip()) for line in source.splitlines())


def draws(cell: Any) -> bool:
    """Does the cell show a picture?"""
    return any("image/png" in output.get("data", {}) for output in cell.outputs)


def printed(cell: Any) -> list[str]:
    """The texts that a cell shows."""
    texts = []
    for output in cell.outputs:
        data = output.get("data", {})
        texts += [output.get("text", ""), *(v for k, v in data.items() if k.startswith("text/") and isinstance(v, str))]
    return [t for t in texts if t]


@rule
def normal_form(nb: Any) -> Iterator[str]:
    """A notebook is committed as `make refresh` leaves it."""
    want = copy.deepcopy(nb)
    normalise(want)
    if want.metadata != nb.metadata or (nb.nbformat, nb.nbformat_minor) != (4, 5):
        yield "its metadata is not in normal form: run make refresh"
    for (number, cell), other in zip(numbered(nb), code_cells(want), strict=True):
        if cell.execution_count != number:
            yield f"cell {number} has count {cell.execution_count}: nbval checks nothing in a cell that never ran"
        if cell.metadata != other.metadata or cell.outputs != other.outputs:
            yield f"cell {number} is not in normal form: run make refresh"
    ids = [cell.get("id") for cell in nb.cells]
    if None in ids or len(set(ids)) < len(ids):
        yield "cells need ids, each its own"


@rule
def tutorial_metadata(nb: Any) -> Iterator[str]:
    """The index, the batch and the tests read `tutorial` in the notebook's metadata."""
    told = nb.metadata.get("tutorial")
    known = {"summary", "since", "topics", "budget_seconds", "budget_mb", "variations"}
    if not told or not told.get("summary"):
        yield "notebook metadata needs tutorial.summary, one sentence for the index"
    elif unknown := set(told) - known:
        yield f"unknown tutorial metadata: {', '.join(sorted(unknown))}"


@rule
def filled(nb: Any) -> Iterator[str]:
    """Nothing is left of the skeleton's notes to its author."""
    told = nb.metadata.get("tutorial", {})
    for name in ("summary", "since", "topics"):
        if FILL in str(told.get(name, "")):
            yield f"tutorial.{name} is still to be filled"
    for cell in nb.cells:
        for line in cell.source.splitlines():
            if re.search(rf"\b{FILL}\b", line):
                yield f"still to be filled: {line.strip()[:80]!r}"


@rule
def leaks(nb: Any) -> Iterator[str]:
    """What is stored must be the same on every machine, and must not look like a fault."""
    for number, cell in numbered(nb):
        for output in cell.outputs:
            if output.output_type == "error":
                yield f"cell {number} stores a traceback: show an error with expect_error"
            if output.get("name") == "stderr":
                yield f"cell {number} stores stderr"
        for name, pattern in LEAKS.items():
            if any(re.search(pattern, text, re.MULTILINE) for text in printed(cell)):
                yield f"cell {number} stores {name}"


@rule
def banned(nb: Any) -> Iterator[str]:
    """Code that does not belong in a notebook that others run."""
    for number, cell in numbered(nb):
        for pattern, why in BANNED.items():
            if re.search(pattern, cell.source, re.MULTILINE):
                yield f"cell {number} matches {pattern!r}: {why}"


@rule
def known_tags(nb: Any) -> Iterator[str]:
    """No tag that keeps a cell from being run or compared."""
    for cell in nb.cells:
        if unknown := sorted(set(tags(cell)) - KNOWN_TAGS):
            yield f"{cell.source[:40]!r} is tagged {', '.join(unknown)}; there are {', '.join(sorted(KNOWN_TAGS))}"


@rule
def syntax(nb: Any) -> Iterator[str]:
    """Each cell can be read as Python."""
    for number, cell in numbered(nb):
        try:
            parse_cell(cell.source)
        except SyntaxError as error:
            yield f"cell {number}, line {error.lineno}: {error.msg}"


@rule
def requirements(nb: Any) -> Iterator[str]:
    """The gate's grammar."""
    for number, cell in numbered(nb):
        if (spec := gate.directive(cell.source)) is not None:
            try:
                gate.parse(spec)
            except gate.RequirementError as error:
                yield f"cell {number}: {error}"
        elif re.search(r"^\s*#\s*\|?\s*requires\b", cell.source, re.MULTILINE):
            yield f"cell {number}: `#| requires: …` must be the first line, written just so"


@rule
def sizes(nb: Any) -> Iterator[str]:
    """Cells that are read, pictures that load, files that GitHub shows."""
    for number, cell in numbered(nb):
        if (lines := code_lines(cell.source)) > MOST_LINES:
            yield f"cell {number} has {lines} lines; above {MOST_LINES} nobody reads it"
        for output in cell.outputs:
            if len(output.get("data", {}).get("image/png", "")) * 3 / 4 > PNG_BYTES:
                yield f"cell {number} stores a picture above {PNG_BYTES // 1000} KB"
    for cell in nb.cells:
        if (
            cell.cell_type == "markdown"
            and len(re.sub(r"```.*?```", "", cell.source, flags=re.DOTALL).split()) > MOST_WORDS
        ):
            yield f"a text of more than {MOST_WORDS} words: {cell.source[:40]!r}"


@rule
def anatomy(nb: Any) -> Iterator[str]:
    """The order in which a reader finds things, the same in each notebook."""
    heads = [(len(m[1]), m[2].strip()) for c in nb.cells if c.cell_type == "markdown" for m in _headings(c.source)]
    if [level for level, _ in heads].count(1) != 1 or heads[0][0] != 1:
        yield "a notebook starts with its one `# heading`"
    names = [name for level, name in heads if level == 2]
    for name in {name for name in names if names.count(name) > 1}:
        yield f"two sections are called {name!r}: the table of contents needs unique names"
    if not any(map(draws, code_cells(nb))):
        yield "no picture at all"
    if not is_tutorial(nb):
        return
    if missing := [name for name in SECTIONS if name not in names]:
        yield f"sections missing: {', '.join(missing)}"
    elif [name for name in names if name in SECTIONS] != list(SECTIONS):
        yield f"sections stand in another order than {', '.join(SECTIONS)}"
    count = len(code_cells(nb))
    if not FEWEST_CELLS <= count <= MOST_CELLS:
        yield f"{count} code cells; {FEWEST_CELLS} to {MOST_CELLS} are read to the end"
    # a figure's cell is mostly its look, which a reader skips
    read_closely = [code_lines(c.source) for c in code_cells(nb) if not draws(c)]
    if read_closely and (median := statistics.median(read_closely)) > MEDIAN_LINES:
        yield f"the median code cell (figures apart) has {median:.0f} lines; aim for 5 to 8"


def _headings(source: str) -> Iterator[re.Match[str]]:
    return re.finditer(r"(?m)^(#{1,6}) (.+)$", re.sub(r"```.*?```", "", source, flags=re.DOTALL))


def sections(nb: Any) -> dict[str, list[Any]]:
    """Code cells by their H2 section."""
    found: dict[str, list[Any]] = {"": []}
    name = ""
    for cell in nb.cells:
        if cell.cell_type == "markdown":
            for head in _headings(cell.source):
                if len(head[1]) == 2:
                    name = head[2].strip()
                    found.setdefault(name, [])
        elif cell.cell_type == "code":
            found[name].append(cell)
    return found


def names(source: str) -> tuple[set[str], set[str]]:
    """(names that a cell takes from elsewhere, names that it gives at its top level)."""
    tree = parse_cell(source)
    loaded, stored = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (loaded if isinstance(node.ctx, ast.Load) else stored).add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            stored.add(node.name)
        elif isinstance(node, ast.arg):
            stored.add(node.arg)
        elif isinstance(node, ast.alias):
            stored.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, ast.ExceptHandler) and node.name:
            stored.add(node.name)
    return loaded - stored, stored


def _first_use(source: str) -> set[str]:
    """Names that a cell reads before it writes them itself, at its top level: `x = x + 1` needs x from elsewhere."""
    needed, given = set(), set(dir(builtins))
    for statement in parse_cell(source).body:
        loaded, stored = names(ast.unparse(statement))
        if isinstance(statement, ast.Assign | ast.AugAssign):
            targets = {n.id for t in _targets(statement) for n in ast.walk(t) if isinstance(n, ast.Name)}
            local = stored - targets
            read = {n.id for n in ast.walk(statement.value) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
            loaded |= (read & targets) - local
            if isinstance(statement, ast.AugAssign):
                loaded |= targets
        needed |= loaded - given
        given |= stored
    return needed


def _targets(statement: ast.Assign | ast.AugAssign) -> list[ast.expr]:
    return statement.targets if isinstance(statement, ast.Assign) else [statement.target]


@rule
def gated_names(nb: Any) -> Iterator[str]:
    """A cell that always runs may not use what only a gated cell defines."""
    always, maybe = set(dir(builtins)), {}
    for number, cell in numbered(nb):
        spec, stored = gate.directive(cell.source), names(cell.source)[1]
        if spec is None:
            for name in sorted(_first_use(cell.source) - always):
                if name in maybe:
                    yield f"cell {number} uses {name}, which is defined only where {maybe[name]} is met"
            always |= stored
        else:
            maybe |= {name: spec for name in stored - always}


@rule
def sections_stand_alone(nb: Any) -> Iterator[str]:
    """Each section runs after Setup alone, so a reader can jump into it."""
    parts = sections(nb)
    base = set(dir(builtins)) | {"get_ipython", "display"}
    for title in ("", "Setup"):
        for cell in parts.get(title, []):
            base |= names(cell.source)[1]
    number = {id(cell): n for n, cell in numbered(nb)}
    for title, cells in parts.items():
        known = set(base)
        for cell in cells:
            if unknown := sorted(_first_use(cell.source) - known):
                yield f"cell {number[id(cell)]} uses {', '.join(unknown)}, which section {title!r} does not define"
            known |= names(cell.source)[1]


@rule
def ignored_outputs(nb: Any) -> Iterator[str]:
    """Outputs are made comparable, not ignored; only the machine's line and timings are excused."""
    printing = [(n, c) for n, c in numbered(nb) if c.outputs and gate.directive(c.source) is None]
    for number, cell in printing:
        excuse = TIMING if is_tutorial(nb) else MACHINE  # the start page is about the machine
        if IGNORED in tags(cell) and "setup(" not in cell.source and excuse not in tags(cell):
            yield f"cell {number} is tagged {IGNORED} but not {excuse}: make its output comparable"
    share = compared_share(nb)
    if is_tutorial(nb) and share < COMPARED_SHARE:
        yield f"{share:.0%} of the cells that print are compared; at least {COMPARED_SHARE:.0%} must be"


def compared_share(nb: Any) -> float:
    """The share of cells with an output that nbval compares here: not tagged away, not only a picture, not skipped."""
    printing = [
        c for c in code_cells(nb) if c.outputs and gate.directive(c.source) is None and "setup(" not in c.source
    ]
    compared = [c for c in printing if IGNORED not in tags(c)]
    return len(compared) / len(printing) if printing else 0.0


@rule
def recordings(nb: Any) -> Iterator[str]:
    """A gated cell stores what it printed on its hardware, with where and when, or says that it never ran."""
    fields = {"device", "torch", "platform", "date", "source_sha256"}
    for number, cell in numbered(nb):
        spec, recorded = gate.directive(cell.source), cell.metadata.get("recorded")
        if not gate.asks_for_hardware(spec):
            if recorded:
                yield f"cell {number} is recorded but asks for no hardware"
            if any(re.fullmatch(not_recorded(".*"), text) for text in printed(cell)):
                yield f"cell {number} says that it needs hardware, and asks for none: was its gate lost?"
        elif recorded is None:
            if [o.get("text") for o in cell.outputs] != [not_recorded(spec)]:
                yield f"cell {number} has no recording, and an output other than {not_recorded(spec).strip()!r}"
        elif set(recorded) != fields:
            yield f"cell {number}: recorded needs {', '.join(sorted(fields))}"
        elif recorded["source_sha256"] != source_sha256(cell):
            yield f"cell {number} was changed after it was recorded on {recorded['device']}: run it there again"


@rule
def parameters_cell(nb: Any) -> Iterator[str]:
    """One cell of plain literals, each explained, each used, each with another value to try."""
    cells = [(n, c) for n, c in numbered(nb) if "parameters" in tags(c)]
    if len(cells) != 1:
        if is_tutorial(nb) or cells:
            yield f"{len(cells)} cells are tagged parameters; one must be"
        return
    number, cell = cells[0]
    for line in filter(str.strip, cell.source.splitlines()):
        if not re.fullmatch(r"[A-Z][A-Z0-9_]* = [^=#]+  # \S.*", line):
            yield f"cell {number}: {line!r} is not `NAME = literal  # what it is`"
            return
    try:
        found = parameters(nb)
    except ValueError:
        yield f"cell {number}: a parameter's default must be a plain literal"
        return
    used = set().union(*(names(c.source)[0] for n, c in numbered(nb) if n != number), set())
    variations = nb.metadata.get("tutorial", {}).get("variations", {})
    for name, default in found.items():
        if name not in used:
            yield f"parameter {name} is used nowhere"
        if name not in variations or variations[name] == default:
            yield f"tutorial.variations needs another value for {name}: a test proves that it changes something"
    if unknown := set(variations) - set(found):
        yield f"tutorial.variations has {', '.join(sorted(unknown))}, which is no parameter"


@rule
def exercises(nb: Any) -> Iterator[str]:
    """A stub, a check, a solution folded away."""
    stubs, solutions = 0, 0
    for cell, following, third in zip(nb.cells, [*nb.cells[1:], None], [*nb.cells[2:], None, None], strict=True):
        if cell.cell_type == "code" and "exercise" in tags(cell):
            stubs += 1
            if "raise NotImplementedError" not in cell.source:
                yield f"the stub {cell.source.splitlines()[0]!r} must raise NotImplementedError"
            if following is None or following.cell_type != "code" or "check(" not in following.source:
                yield f"behind the stub {cell.source.splitlines()[0]!r} comes a cell with check(…)"
            elif third is None or "solution" not in tags(third):
                yield f"behind the check of {cell.source.splitlines()[0]!r} comes a text tagged solution"
        if "solution" in tags(cell):
            solutions += 1
            if solution_code(cell) is None or "<details>" not in cell.source:
                yield "a solution is a ```python block inside <details>"
    if stubs != solutions:
        yield f"{stubs} exercises and {solutions} solutions"
    if is_tutorial(nb) and not 2 <= stubs <= 3:
        yield f"{stubs} exercises; two or three belong there"


def solution_code(cell: Any) -> str | None:
    """The code in a solution's text."""
    match = re.search(r"```python\n(.*?)```", cell.source, re.DOTALL)
    return match[1] if match else None


def verdict_rows(nb: Any) -> dict[str, Any]:
    """The ledger rows that a notebook gives verdicts on, with the cells."""
    return {row: cell for cell in code_cells(nb) for row in verdict_calls(cell.source)}


@rule
def verdicts(nb: Any) -> Iterator[str]:
    """A verdict is about a row of the ledger, and computed; what is stored of it is what `verdict` shows."""
    rows = ledger()
    for number, cell in numbered(nb):
        stored = [o.data for o in cell.outputs if VERDICT_MIME in o.get("data", {})]
        for row, call in verdict_calls(cell.source).items():
            if row not in rows:
                yield f"verdict on {row!r}, which is no row of announced.toml"
                continue
            holds = next((k.value for k in call.keywords if k.arg == "holds"), None)
            if holds is None or not computed(holds, cell.source):
                yield f"the verdict on {row} is typed in; compute it in the cell"
            asked = gate.asks_for_hardware(gate.directive(cell.source)) and "recorded" not in cell.metadata
            if not asked and row not in [data[VERDICT_MIME].get("row") for data in stored]:
                yield f"cell {number} stores no verdict on {row}; run make refresh"
        for data in stored:
            told = data[VERDICT_MIME]
            if (row := rows.get(told.get("row"))) is None or told.get("verdict") not in (HOLDS, DIFFERS):
                yield f"cell {number} stores a verdict that `verdict` does not give: {told}"
            elif data.get("text/plain") != verdict_text(row, told["verdict"], told.get("note", "")):
                yield f"cell {number}: the text and the data of the verdict on {row.id} differ; run make refresh"


def computed(expression: ast.expr, source: str) -> bool:
    """Does the value come from something outside the cell's own constants?"""
    given: dict[str, list[ast.AST]] = {}
    nodes = list(ast.walk(parse_cell(source)))
    for node in nodes:
        if isinstance(node, (ast.Assign, ast.AugAssign)):
            for name in (n for target in _targets(node) for n in ast.walk(target) if isinstance(n, ast.Name)):
                given.setdefault(name.id, []).append(node.value)
    for node in nodes:  # held.append(…)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            given.get(getattr(node.func.value, "id", ""), []).extend(node.args)
    waiting, seen = [expression], set()
    while waiting:
        for node in ast.walk(waiting.pop()):
            if isinstance(node, ast.Name) and node.id not in seen and not hasattr(builtins, node.id):
                if node.id not in given:
                    return True  # an import, a function, a loop's variable, or what a cell above computed
                seen.add(node.id)
                waiting += given[node.id]
    return False


@rule
def gated_api(nb: Any) -> Iterator[str]:
    """Names and keywords of torch in cells that cannot run here exist in the torch that is installed."""
    env = _imports(nb)
    for number, cell in numbered(nb):
        if gate.asks_for_hardware(gate.directive(cell.source)):
            source = re.sub(r"\A%%script .*", "#", cell.source)  # a program of its own is Python as well; lines stay
            for line, problem in check_api(source, dict(env)):
                yield f"cell {number}, line {line}: {problem}"


def _imports(nb: Any) -> dict[str, Any]:
    """What the import lines of the ungated cells bring in, for real."""
    env: dict[str, Any] = {}
    for _, cell in numbered(nb):
        if gate.directive(cell.source) is None:
            for node in ast.walk(parse_cell(cell.source)):
                if isinstance(node, ast.Import | ast.ImportFrom):
                    list(_bind(node, env))
    return env


def _bind(node: ast.Import | ast.ImportFrom, env: dict[str, Any]) -> Iterator[tuple[int, str]]:
    for alias in node.names:
        try:
            if isinstance(node, ast.Import):
                module = importlib.import_module(alias.name)
                name = alias.asname or alias.name.split(".")[0]
                env[name] = module if alias.asname else sys.modules[alias.name.split(".")[0]]
            else:
                module = importlib.import_module(node.module or "")
                if not hasattr(module, alias.name):  # a module of a package, as Python takes it
                    importlib.import_module(f"{node.module}.{alias.name}")
                env[alias.asname or alias.name] = getattr(module, alias.name)
        except (ImportError, AttributeError) as error:
            root = (node.module or "") if isinstance(node, ast.ImportFrom) else alias.name
            if root.split(".")[0] in ("torch", "utils", "matplotlib", "numpy"):  # others come with the hardware
                yield node.lineno, f"cannot import {alias.name}: {error}"


def check_api(source: str, env: dict[str, Any]) -> Iterator[tuple[int, str]]:
    """(line, problem) for each dotted name that does not exist and each call that its function would not take."""
    tree = parse_cell(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from _bind(node, env)
    given_here = names(source)[1] - set(env)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute | ast.Call):
            continue
        path = _dotted(node.func if isinstance(node, ast.Call) else node)
        if path is None or path[0] not in env or path[0] in given_here:
            continue
        found = env[path[0]]
        for i, part in enumerate(path[1:], 1):
            if not hasattr(found, part):
                if isinstance(found, types.ModuleType) and isinstance(node, ast.Attribute):
                    yield node.lineno, f"there is no {'.'.join(path[: i + 1])}"
                break
            found = getattr(found, part)
        else:
            if isinstance(node, ast.Call) and (problem := _call_problem(found, node)):
                yield node.lineno, f"{'.'.join(path)}: {problem}"


def _dotted(node: ast.expr) -> list[str] | None:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return [node.id, *reversed(parts)] if isinstance(node, ast.Name) else None


def _call_problem(function: Any, call: ast.Call) -> str | None:
    """Why a call does not fit a function's signature, or its operator's schemas; None if it fits or nobody can tell."""
    keywords = [k.arg for k in call.keywords]
    if None in keywords or any(isinstance(a, ast.Starred) for a in call.args):
        return None
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):
        known = _schema_arguments(function)
        wrong = [k for k in keywords if known and k not in known]
        return f"no such argument: {', '.join(wrong)}" if wrong else None
    try:
        signature.bind(*call.args, **dict.fromkeys(keywords))
    except TypeError as error:
        return str(error)
    return None


def _schema_arguments(function: Any) -> set[str]:
    """Argument names of a built-in torch function, over all overloads of its operator; empty if there is none."""
    import torch

    name = getattr(function, "__name__", "")
    schemas = torch._C._jit_get_schemas_for_operator(f"aten::{name}")
    known = {argument.name for schema in schemas for argument in schema.arguments}
    return (
        known | {"out", "dtype", "device", "requires_grad", "layout", "pin_memory", "dim", "axis"} if known else known
    )


def lint(path: Path) -> list[str]:
    """What is wrong with a notebook, as `rule: what to do`; empty if nothing is."""
    try:
        nb = read(path)
    except Exception as error:  # nbformat's, json's, the system's: the kind differs
        return [f"it is not a notebook that can be read: {error}"]
    # a cell or a need that cannot be read stops the rules that look into it: it is told alone
    unread = next((name for name in ("syntax", "requirements") if any(RULES[name](nb))), None)
    rules = {unread: RULES[unread]} if unread else RULES
    found = [f"{name}: {problem}" for name, check in rules.items() for problem in check(nb)]
    if path.stat().st_size > FILE_BYTES:
        found.append(f"sizes: the file is above {FILE_BYTES // 1000} KB; GitHub would not show it")
    return found


def _readable(path: Path) -> bool:
    try:
        return not any(RULES["syntax"](read(path)))
    except Exception:
        return False


def lint_ledger(folder: Path = NOTEBOOKS) -> list[str]:
    """Rows whose notebook is missing or gives no verdict on them, and verdicts of another notebook than the row's."""
    found, rows = [], ledger()
    said = {path.stem: verdict_rows(read(path)) for path in all_notebooks(folder) if _readable(path)}
    for row in rows.values():
        if row.notebook == PLANNED:
            continue
        if row.notebook not in said and (folder / f"{row.notebook}.ipynb").exists():
            continue  # what is wrong with it stands in its own line
        if row.notebook not in said:
            found.append(f"ledger: row {row.id} names {row.notebook}, and there is no such notebook")
        elif row.id not in said[row.notebook]:
            found.append(f"ledger: {row.notebook} gives no verdict on {row.id}")
    for name, cells in said.items():
        for row_id in cells:
            if row_id in rows and rows[row_id].notebook != name:
                found.append(f"ledger: {name} gives a verdict on {row_id}, whose row names {rows[row_id].notebook}")
    return found


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m utils.lint", description=__doc__.splitlines()[0])
    parser.add_argument("notebooks", nargs="*", help="numbers, names or parts of names; all if none is given")
    chosen = parser.parse_args(argv).notebooks
    try:
        problems = [f"{path.name}: {p}" for path in select(chosen) for p in lint(path)]
    except SelectionError as error:
        print(f"lint: {error}", file=sys.stderr)
        return 2
    problems += lint_ledger()
    print("\n".join(problems) or "nothing to mend")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
