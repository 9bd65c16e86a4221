# SPDX-License-Identifier: Apache-2.0
"""Pictures by hand, so that they need no further package: a page, its words and its lines; the file that it goes to.

Apart from the pictures, which know what they draw. Refuses to style: one size of words, one ink, one grid, and
colours that the colour-blind can tell apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from foresee._schema import files

__all__ = [
    "COLOURS",
    "GRID",
    "INK",
    "check",
    "curve",
    "dot",
    "frame",
    "label",
    "page",
    "stroke",
    "upright",
    "write",
]

INK, GRID = "#333333", "#dddddd"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Of lines, in turn."""


def check(option: str, path: str | None) -> list[str]:
    """What is wrong with a file that ``option`` names; nothing if there is none."""
    return [] if path is None or path.endswith(".svg") else [f"{option} {path!r}: only .svg is written"]


def write(path: str, picture: str) -> None:
    """Write a picture.

    Raises:
        OSError: it cannot be written.
    """
    files.write(path, picture)


def page(
    size: tuple[int, int],
    left: int,
    title: str,
    lines: Iterable[str],
    parts: Sequence[str],
    *,
    font: int = 12,
) -> str:
    """A page of its own: a title, ``lines`` below it from ``left`` on, ``parts``; ``size`` in pixels."""
    width, height = size
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'font-family="Helvetica, Arial, sans-serif" font-size="{font}" fill="{INK}">'
    )
    return "\n".join(
        [
            head,
            f"<title>{escape(title)}</title>",
            f'<rect width="{width}" height="{height}" fill="white"/>',
            label(left, 26, title, size=16),
            *(label(left, 48 + 18 * i, line) for i, line in enumerate(lines)),
            *parts,
            "</svg>\n",
        ]
    )


def label(
    x: float, y: float, words: str, *, anchor: str = "start", size: int | None = None, ink: str | None = None
) -> str:
    """Words on a line; of the page's size and ink unless told."""
    rest = "" if size is None else f' font-size="{size}"'
    rest += "" if ink is None else f' fill="{ink}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{rest}>{escape(words)}</text>'


def upright(x: float, y: float, words: str) -> str:
    """Words that run upwards, centred: the name of a vertical axis."""
    return f'<text transform="translate({x:g} {y:g}) rotate(-90)" text-anchor="middle">{escape(words)}</text>'


def stroke(
    x1: float, y1: float, x2: float, y2: float, colour: str, *, width: float | None = None, dash: str = ""
) -> str:
    """A straight line; ``dash`` as SVG has it, empty for a solid one."""
    rest = "" if width is None else f' stroke-width="{width:g}"'
    rest += f' stroke-dasharray="{dash}"' if dash else ""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"{rest}/>'


def dot(x: float, y: float, colour: str, words: str) -> str:
    """A point, which tells ``words`` under the pointer."""
    told = f"<title>{escape(words)}</title>"
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}">{told}</circle>'


def frame(left: float, top: float, width: float, height: float) -> str:
    """The box around a plot."""
    return (
        f'<rect x="{left:g}" y="{top:g}" width="{width:g}" height="{height:g}" fill="none" stroke="{INK}"/>'
    )


def curve(
    points: Iterable[tuple[float, float]],
    colour: str,
    name: str,
    *,
    width: float = 2,
    dash: str = "",
    clip: str = "",
) -> str:
    """A line through points, which tells its name under the pointer; ``clip`` is the id of what it stays inside."""
    rest = f' stroke-dasharray="{dash}"' if dash else ""
    rest += f' clip-path="url(#{clip})"' if clip else ""
    told = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return (
        f'<polyline points="{told}" fill="none" stroke="{colour}" stroke-width="{width:g}"{rest}>'
        f"<title>{escape(name)}</title></polyline>"
    )
