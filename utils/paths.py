"""Where things lie in a checkout."""

import hashlib
import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "notebooks"
LEDGER = NOTEBOOKS / "announced.toml"
BUILD = ROOT / "build"
#: What torch.compile generated, kept between runs; `make clean` removes it with the rest of build/.
INDUCTOR_CACHE = BUILD / "inductor"


def checkout() -> str:
    """A hash over the support package and the ledger: two checkouts with the same one gate and report alike."""
    total = hashlib.sha256()
    for path in [*sorted((ROOT / "utils").rglob("*.py")), LEDGER]:
        total.update(path.relative_to(ROOT).as_posix().encode() + path.read_text("utf-8").encode())
    return total.hexdigest()


def keep_compiled(cache: Path = INDUCTOR_CACHE) -> None:
    """Let torch.compile keep its results in one known folder, unless the user chose one or it cannot be used.

    And let it compile in the kernel's own process: its pool of workers would import torch once a core, which is more
    memory than a small machine has, and our kernels are few and small.
    """
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    if any(c.isspace() for c in str(cache)):
        return  # torch gives paths to the compiler unquoted: its default, in the temporary folder, has no space
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError:
        return  # a read-only checkout: torch's own default, in the temporary folder, still works
    if os.access(cache, os.W_OK):
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache))


def nothing_compiled() -> bool:
    """Is the folder empty in which torch.compile keeps what it made? False where torch chooses the folder itself."""
    folder = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    return folder is not None and not any(Path(folder).glob("*"))


def replace_file(path: Path, text: str) -> None:
    """Write a file whole or not at all: a reader never sees half of one."""
    part = path.with_name(path.name + ".part")
    part.write_text(text, "utf-8")
    os.replace(part, path)
