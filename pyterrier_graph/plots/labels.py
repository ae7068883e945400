"""Labels that stay inside of the axes and do not overlap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from pyterrier_graph.plots.style import halo

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZE = 8
GAP = 6  # points between a position and its text
# Possible offsets of a label from its point, in points: near before far, right and left first.
ANGLES = np.radians([0, 180, 90, 270, 45, 135, 315, 225, 22, 158, 338, 202, 68, 112, 292, 248])
AROUND = np.round(np.stack([np.cos(ANGLES), np.sin(ANGLES)], axis=1), 2)
DISTANCES = (GAP, 12, 18, 26, 34, 44, 56, 70, 90)


def write_beside(ax: Axes, x: np.ndarray, y: np.ndarray, texts: Sequence[str]) -> None:
    """Writes a text to the right of each position, and widens the axes until all texts fit."""
    written = [
        ax.annotate(
            text,
            (across, down),
            xytext=(GAP, 0),
            textcoords="offset points",
            va="center",
            fontsize=SIZE,
            parse_math=False,
            in_layout=False,
        )
        for across, down, text in zip(x, y, texts, strict=True)
    ]
    ax.figure.canvas.figure.draw_without_rendering()  # sets the positions in pixels
    lowest, highest = ax.get_xlim()
    width = ax.get_window_extent().width
    free = width - np.array([text.get_window_extent().width for text in written]) - 2 * GAP * _pixels(ax)
    needed = (x - lowest) * width / np.maximum(free, width / 4)
    ax.set_xlim(lowest, max(highest, lowest + needed.max()))


def place_labels(ax: Axes, x: np.ndarray, y: np.ndarray, texts: Sequence[str]) -> None:
    """Writes a text near each point, where it covers no other text and no point; a line joins distant texts.

    Args:
        ax: The axes, with their final limits and scales.
        x: Horizontal positions, shape (points,).
        y: Vertical positions, shape (points,).
        texts: The texts.
    """
    ax.figure.canvas.figure.draw_without_rendering()
    scale = _pixels(ax)
    points = ax.transData.transform(np.stack([x, y], axis=1))
    frame = ax.get_window_extent()
    marker = 4 * scale
    taken = np.concatenate([points - marker, points + marker], axis=1)
    options = np.concatenate([AROUND * distance for distance in DISTANCES])
    for point, place, text in zip(points, zip(x, y, strict=True), texts, strict=True):
        label = ax.annotate(
            text,
            place,
            xytext=(0, 0),
            textcoords="offset points",
            fontsize=SIZE,
            parse_math=False,
            in_layout=False,
            path_effects=halo(),
            arrowprops={"arrowstyle": "-", "linewidth": 0.5, "alpha": 0.6, "shrinkA": 1, "shrinkB": 3},
        )
        extent = label.get_window_extent()
        size = np.array([extent.width, extent.height])
        center = point + options * scale + np.sign(options) * size / 2
        boxes = np.concatenate([center - size / 2, center + size / 2], axis=1)
        corners = np.minimum(boxes[:, None, 2:], taken[:, 2:]) - np.maximum(boxes[:, None, :2], taken[:, :2])
        covered = np.prod(np.maximum(corners, 0), axis=2).sum(1)
        inside = (boxes >= [frame.x0, frame.y0, 0, 0]) & (boxes <= [np.inf, np.inf, frame.x1, frame.y1])
        best = int(np.argmin(covered + np.prod(size) * 4 * ~inside.all(1)))  # the nearest of the best
        label.set_position(options[best])
        # aligned at the end next to the point, since the length of a text depends on the resolution
        label.set_horizontalalignment(("center", "left", "right")[int(np.sign(options[best, 0]))])
        label.set_verticalalignment(("center", "bottom", "top")[int(np.sign(options[best, 1]))])
        taken = np.concatenate([taken, boxes[best : best + 1]])
        if label.arrow_patch is not None and best < len(AROUND):
            label.arrow_patch.set_visible(False)


def _pixels(ax: Axes) -> float:
    """Pixels per point."""
    return ax.figure.canvas.figure.dpi / 72
