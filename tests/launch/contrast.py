"""Can it be read? Contrast of text and of figures on a page's background, after WCAG 2.2, success criterion 1.4.3."""

from __future__ import annotations

import io
from typing import Any

TEXT = 4.5  # WCAG's least contrast of text, level AA
GRAPHIC = 3.0  # of graphics and large text
LOST = 0.05  # share of a figure's ink that may fall below; anti-aliased edges do, on any background


def luminance(rgb: Any) -> Any:
    """Relative luminance of sRGB colours, 0 to 255, in the last axis."""
    import numpy as np

    c = np.asarray(rgb, dtype=float)[..., :3] / 255
    linear = np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)
    return linear @ np.array([0.2126, 0.7152, 0.0722])


def contrast(one: Any, other: Any) -> Any:
    """WCAG's contrast ratio of two sRGB colours (or arrays of them), from 1 to 21."""
    import numpy as np

    a, b = luminance(one), luminance(other)
    return (np.maximum(a, b) + 0.05) / (np.minimum(a, b) + 0.05)


def over(rgba: Any, background: Any) -> Any:
    """Colours with alpha (0 to 255) on an opaque background."""
    import numpy as np

    rgba = np.asarray(rgba, dtype=float)
    alpha = rgba[..., 3:] / 255
    return rgba[..., :3] * alpha + np.asarray(background, dtype=float)[..., :3] * (1 - alpha)


def ink_contrast(rgba: Any, page: Any) -> Any:
    """For each pixel, its contrast against the figure's own ground on this page: the colour that most pixels have."""
    import numpy as np

    shown = np.rint(over(rgba, page)).astype(int).reshape(-1, 3)
    _, first, counts = np.unique(shown @ [1 << 16, 1 << 8, 1], return_index=True, return_counts=True)
    return contrast(shown, shown[first[counts.argmax()]])


def figure_complaint(png: bytes, page: Any, other_page: Any) -> str | None:
    """Why a figure cannot be read on a page of this colour, or None.

    Ink is what stands out clearly on one of the two themes' pages: there its author saw it. It must stand out on this
    one too. An opaque figure keeps all of it; black text on a transparent ground loses it on a dark page.

    Args:
        png: the picture.
        page: colour of the page behind it, in this theme.
        other_page: the same in the other theme.
    """
    import numpy as np
    from PIL import Image

    rgba = np.asarray(Image.open(io.BytesIO(png)).convert("RGBA"))
    here, there = ink_contrast(rgba, page), ink_contrast(rgba, other_page)
    ink = np.maximum(here, there) >= TEXT
    if ink.mean() < 0.001:
        return "there is nothing in it that can be read on either theme"
    lost = float((here[ink] < GRAPHIC).mean())
    return f"{lost:.0%} of its ink cannot be told from the page" if lost > LOST else None
