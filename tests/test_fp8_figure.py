"""The error figure of 05_fp8_on_mps: three of its points, recomputed by other means from the cells that a reader sees.

The notebook casts to FP8 and packs FP4 with torch. Here the same roundings are written out in float64, from the
formats' definitions, and share no code with the notebook.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from utils.catalog import parse_cell, read
from utils.lint import sections
from utils.paths import NOTEBOOKS

SECTION = "What outliers do to each recipe"


@pytest.fixture(scope="module")
def figure() -> dict[str, Any]:
    """The names that the notebook's set-up and the cell that fills the figure's table define."""
    parts = sections(read(NOTEBOOKS / "05_fp8_on_mps.ipynb"))
    start, *definitions = parts["Setup"]
    imports = [n for n in parse_cell(start.source).body if isinstance(n, ast.Import | ast.ImportFrom)]
    found: dict[str, Any] = {}
    exec(compile(ast.Module(imports, []), "setup", "exec"), found)
    for cell in [*definitions, parts[SECTION][0]]:
        exec(compile(cell.source, "05_fp8_on_mps", "exec"), found)
    return found


def to_float(values: np.ndarray, mantissa: int, lowest: int, largest: float) -> np.ndarray:
    """Nearest value of a small floating-point format, ties to even, saturating.

    Args:
        values: float64.
        mantissa: explicit bits: 3 for e4m3, 1 for e2m1.
        lowest: exponent of the smallest normal number; the spacing below it is that of its octave.
        largest: the largest value of the format.
    """
    exponent = np.maximum(np.floor(np.log2(np.maximum(np.abs(values), 1e-300))), lowest)
    step = 2.0 ** (exponent - mantissa)
    return np.clip(np.round(values / step) * step, -largest, largest)


def e4m3(values: np.ndarray) -> np.ndarray:
    return to_float(values, mantissa=3, lowest=-6, largest=448)


def e2m1(values: np.ndarray) -> np.ndarray:
    return to_float(values, mantissa=1, lowest=0, largest=6)


def int8_row(x: np.ndarray) -> np.ndarray:
    scale = np.abs(x).max(1, keepdims=True) / 127
    return np.round(x / scale) * scale


def e4m3_row(x: np.ndarray) -> np.ndarray:
    scale = np.abs(x).max(1, keepdims=True) / 448
    return e4m3(x / scale) * scale


def mx(x: np.ndarray, values: Callable[[np.ndarray], np.ndarray], exponent: int) -> np.ndarray:
    """OCP MX: blocks of 32 share 2**(floor(log2(largest)) - exponent of the format's largest value)."""
    blocks = x.reshape(-1, 32)
    scale = 2.0 ** (np.floor(np.log2(np.abs(blocks).max(1, keepdims=True))) - exponent)
    return (values(blocks / scale) * scale).reshape(x.shape)


def mxfp4(x: np.ndarray) -> np.ndarray:
    return mx(x, e2m1, 2)


#: (row of the figure, decade of the outliers, the same recipe in float64)
POINTS = [
    ("int8, per row", 2, int8_row),
    ("e4m3, per row", 5, e4m3_row),
    ("mxfp4", 3, mxfp4),
]


def recomputed(found: dict[str, Any], decade: int, recipe: Callable[[np.ndarray], np.ndarray]) -> tuple[float, float]:
    """(error of the product, error of the ordinary values), all in float64."""
    X, W = found["X0"].numpy().astype(np.float64), found["W"].numpy().astype(np.float64)
    outliers = found["is_outlier"].numpy()
    X = np.where(outliers, (X * 10.0**decade).astype(np.float32), X)  # the figure's inputs are float32
    X8 = recipe(X)
    product = np.linalg.norm(X8 @ recipe(W).T - X @ W.T) / np.linalg.norm(X @ W.T)
    ordinary = np.linalg.norm((X8 - X)[:, ~outliers]) / np.linalg.norm(X[:, ~outliers])
    return product, ordinary


@pytest.mark.parametrize(("row", "decade", "recipe"), POINTS, ids=[row for row, _, _ in POINTS])
def test_a_point_of_the_figure(figure: dict[str, Any], row: str, decade: int, recipe: Callable) -> None:
    drawn = figure["table"][list(figure["RECIPES"]).index(row), decade].tolist()
    assert drawn == pytest.approx(recomputed(figure, decade, recipe), rel=0.02)  # a code that lies on a tie may differ


def test_the_errors_at_no_outlier_follow_from_the_formats(figure: dict[str, Any]) -> None:
    """Without outliers, rounding errs like noise, uniform within a step: int8's step is largest / 127."""
    ordinary = dict(zip(figure["RECIPES"], figure["table"][:, 0, 1].tolist(), strict=True))
    X = figure["X0"].double()
    step = X.abs().amax(1).square().mean().sqrt().item() / 127
    assert ordinary["int8, per row"] == pytest.approx(step / math.sqrt(12), rel=0.05)
    # a mantissa bit fewer doubles every step
    assert ordinary["e5m2, per tensor"] / ordinary["e4m3, per tensor"] == pytest.approx(2, rel=0.05)


def test_bits_are_counted_from_what_is_stored(figure: dict[str, Any]) -> None:
    columns = figure["W"].shape[1]
    expected = {"e4m3, per row": 8 + 32 / columns, "mxfp8": 8 + 8 / 32, "mxfp4": 4 + 8 / 32}
    assert {name: figure["bits"][name] for name in expected} == pytest.approx(expected)


BROKEN = {
    "int8, per row": lambda f: lambda x: f["quantize"](x, f["torch"].int8),  # one scale for the tensor
    "e4m3, per row": lambda f: lambda x: f["quantize"](x),
    "mxfp4": lambda f: lambda x: (f["mxfp4"](x)[0].roll(1, 0), f["mxfp4"](x)[1]),  # codes beside their scales
}


@pytest.mark.parametrize(("row", "decade", "recipe"), POINTS, ids=[row for row, _, _ in POINTS])
def test_a_broken_recipe_is_found(figure: dict[str, Any], row: str, decade: int, recipe: Callable) -> None:
    drawn = figure["errors"](BROKEN[row](figure))[decade]
    assert drawn != pytest.approx(recomputed(figure, decade, recipe), rel=0.02)
