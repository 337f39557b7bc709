"""The gate: `#| requires: cuda>=9.0` on the first line of a cell says what the cell needs.

One grammar, read by the kernel (skips the cell and says why), by pytest (marks it skipped), by the
batch report, by the index and by the refresh tool. A comma means AND. The words:

    cuda            an NVIDIA GPU; `cuda>=9.0` asks for its compute capability
    cuda_runtime    the CUDA that torch was built with, `cuda_runtime>=12.4`, and a GPU to use it
    rocm            an AMD GPU; `rocm>=7.0` asks for the ROCm that torch was built with
    xpu  mps        an Intel GPU; an Apple GPU
    macos           `macos>=15`
    accelerator     any of the GPUs above; `accelerators>=2` asks for a number of them
    amx             an x86 CPU with matrix tiles
    compile         a C++ compiler, and a Python that torch.compile supports
    torch  python   `torch>=2.15`, `python>=3.12` (a nightly or release candidate counts as its release)
    memory_gb       memory of the machine, or of its container, in GiB: `memory_gb>=8`
    module:NAME     an importable package
    symbol:A.B.C    a name that exists: `symbol:torch.linalg.polar`

An unknown word is an error, never a skip.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import re
from collections.abc import Callable
from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

from utils.hardware import Machine, probe

DIRECTIVE = re.compile(r"^#\|\s*requires\s*:(?P<spec>.*)$")
SKIPPED_MIME = "application/vnd.whatsnew.skipped+json"


class RequirementError(ValueError):
    """A requirement that the grammar does not know. The message says what was meant, if it can tell."""


@dataclass(frozen=True)
class Need:
    """One word of a requirement: `cuda>=9.0` is Need("cuda", at_least="9.0")."""

    word: str
    at_least: str | None = None
    name: str | None = None  # what follows `module:` or `symbol:`

    def __str__(self) -> str:
        return self.word + (f":{self.name}" if self.name else "") + (f">={self.at_least}" if self.at_least else "")


@dataclass(frozen=True)
class Word:
    """What a word reads off a machine: its value (None: not there), and the fact to tell if it is not met."""

    value: Callable[[Machine], str | None]
    fact: Callable[[Machine], str]
    must_compare: bool = False


#: Packages whose name is not that of their module.
PACKAGES = {
    "nvmath": "nvmath-python",
    "cutlass.operators": "nvidia-cutlass-operators",
    "cuda.bindings": "cuda-bindings",
}


def _yes(there: bool) -> str | None:
    return "1" if there else None


WORDS: dict[str, Word] = {
    "cuda": Word(lambda m: m.cuda, lambda m: m.devices),
    "cuda_runtime": Word(lambda m: m.cuda_runtime if m.cuda else None, lambda m: m.cuda_in_words),
    "rocm": Word(lambda m: m.rocm, lambda m: m.devices),
    "xpu": Word(lambda m: _yes(m.xpu), lambda m: m.devices),
    "mps": Word(lambda m: _yes(m.mps), lambda m: m.devices),
    "macos": Word(lambda m: m.macos, lambda m: m.system),
    "accelerator": Word(lambda m: _yes(m.accelerators > 0), lambda m: m.devices),
    "accelerators": Word(lambda m: str(m.accelerators), lambda m: m.devices, must_compare=True),
    "amx": Word(lambda m: _yes(m.amx), lambda m: f"{m.cpu} without AMX"),
    "compile": Word(lambda m: None if m.no_compile else "1", lambda m: m.no_compile or ""),
    "torch": Word(lambda m: m.torch, lambda m: f"torch {m.torch}" if m.torch else "no torch", must_compare=True),
    "python": Word(lambda m: m.python, lambda m: f"Python {m.python}", must_compare=True),
    "memory_gb": Word(lambda m: f"{m.memory_gb:.1f}", lambda m: f"{m.memory_gb:.1f} GiB", must_compare=True),
}
NAMED = ("module", "symbol")
#: Words that only other hardware can meet. What such a cell printed is a recording, with where and when.
HARDWARE = frozenset(["cuda", "cuda_runtime", "rocm", "xpu", "mps", "macos", "accelerator", "accelerators", "amx"])


def directive(source: str) -> str | None:
    """The requirement that a cell states, or None.

    It stands in the cell's leading comment lines; a cell magic such as `%%time` may stand above it.
    """
    for line in source.splitlines():
        if match := DIRECTIVE.match(line):
            return match["spec"].strip()
        if line.strip() and not line.startswith(("#", "%%")):
            return None
    return None


def parse(spec: str) -> tuple[Need, ...]:
    """Read `cuda>=9.0, torch>=2.15` into needs. Raises RequirementError on what the grammar does not have."""
    return tuple(_parse_word(token.strip()) for token in spec.split(","))


def _parse_word(token: str) -> Need:
    if match := re.fullmatch(r"(\w+):([A-Za-z_][\w.]*)", token):
        word, name = match.groups()
        if word not in NAMED:
            raise RequirementError(f"unknown requirement {token!r}: only module: and symbol: take a name")
        return Need(word, name=name)
    match = re.fullmatch(r"(\w+)(?:\s*>=\s*([\w.]+))?", token)
    if not match:
        raise RequirementError(f"cannot read requirement {token!r}: write a word, word>=version, or module:name")
    word, at_least = match.groups()
    if word not in WORDS:
        near = difflib.get_close_matches(word, [*WORDS, *NAMED], n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join([*WORDS, *NAMED])}"
        raise RequirementError(f"unknown requirement {word!r}: {hint}")
    if at_least is None and WORDS[word].must_compare:
        raise RequirementError(f"requirement {word!r} says nothing alone: write {word}>=…")
    if at_least is not None:
        try:
            Version(at_least)
        except InvalidVersion:
            raise RequirementError(f"{at_least!r} in requirement {token!r} is not a version") from None
    return Need(word, at_least)


def _importable(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:  # a parent package is missing
        return False


def _resolves(name: str) -> bool:
    """Does the dotted name exist? Imports the modules on the way."""
    parts = name.split(".")
    try:
        found = importlib.import_module(parts[0])
    except ImportError:
        return False
    for i, part in enumerate(parts[1:], start=2):
        if not hasattr(found, part):
            try:
                importlib.import_module(".".join(parts[:i]))
            except ImportError:
                return False
        found = getattr(found, part)
    return True


def _missing(need: Need, machine: Machine) -> str | None:
    """The fact that speaks against a need on this machine, or None if it is met."""
    if need.word == "module":
        if _importable(need.name):
            return None
        top = need.name.partition(".")[0]
        if top == "torch":  # no package to install: another release or build of torch has it
            return f"torch {machine.torch} without {need.name}" if machine.torch else "no torch"
        return f"no {need.name} (pip install {PACKAGES.get(need.name, PACKAGES.get(top, top))})"
    if need.word == "symbol":
        if need.name in machine.without or not _resolves(need.name):
            return f"torch {machine.torch} without {need.name}"
        return None
    word = WORDS[need.word]
    value = word.value(machine)
    if value is None or (need.at_least and _release(value) < _release(need.at_least)):
        return word.fact(machine)
    return None


def _release(version: str) -> Version:
    """The version without what marks a nightly, a release candidate or a build."""
    return Version(Version(version).base_version)


def unmet(spec: str | None, machine: Machine | None = None) -> str | None:
    """Why this machine does not meet `spec`, in words, or None if it does (also for an empty spec).

    >>> unmet("cuda>=9.0")                                  # doctest: +SKIP
    'needs cuda>=9.0; this machine has cpu (AVX512)'
    """
    if not spec:
        return None
    needs = parse(spec)
    machine = machine or probe()
    facts = dict.fromkeys(fact for need in needs if (fact := _missing(need, machine)))
    return f"needs {spec}; this machine has {', '.join(facts)}" if facts else None


def asks_for_hardware(spec: str | None) -> bool:
    """Does the requirement have a word that no installation can meet?"""
    return spec is not None and any(need.word in HARDWARE for need in parse(spec))


def show_skipped(reason: str) -> None:
    """Called in place of a cell's body: prints one line, with a MIME twin that the batch report counts."""
    from IPython.display import display

    display({"text/plain": f"Skipped: {reason}.", SKIPPED_MIME: {"reason": reason}}, raw=True)


class Gate:
    """IPython input transformer that puts `show_skipped` in place of a cell whose needs are not met."""

    def __init__(self, requires: str | None = None) -> None:
        self.requires = requires

    def __call__(self, lines: list[str]) -> list[str]:
        try:
            reason = unmet(self.requires) or unmet(directive("".join(lines)))
        except RequirementError as error:
            return [f"raise __import__('utils.gate').gate.RequirementError({str(error)!r})\n"]
        return [f"__import__('utils.gate').gate.show_skipped({reason!r})\n"] if reason else lines


def install(requires: str | None = None) -> None:
    """Put the gate into the running IPython kernel; a second call replaces the first. Nothing to do elsewhere.

    Args:
        requires: what every later cell of the notebook needs, in the same grammar.
    """
    from IPython import get_ipython

    unmet(requires)  # a misspelt word must fail here, where it was written
    if (shell := get_ipython()) is None:
        return
    transformers = shell.input_transformers_cleanup
    transformers[:] = [t for t in transformers if type(t).__name__ != Gate.__name__]
    transformers.insert(0, Gate(requires))
