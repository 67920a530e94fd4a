"""Synthetic data whose truth is known: processes with known posteriors, and pictures with known label distributions."""

from aureole.synthetic._image_transforms import blur_pictures, deteriorate
from aureole.synthetic._processes import ControlledProcess, draw_generator
from aureole.synthetic._shapes import KINDS, DrawnShapes, drawn_shapes

__all__ = [
    "KINDS",
    "ControlledProcess",
    "DrawnShapes",
    "blur_pictures",
    "deteriorate",
    "draw_generator",
    "drawn_shapes",
]
