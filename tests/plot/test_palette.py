"""The colours: contrast by WCAG, colour blindness, and one palette in all places."""

import re

import numpy as np
import pytest
from tools.palette import files

from aureole.plot import CATEGORIES, DARK, LIGHT, STYLE, adaptive, as_file

MODES = pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
# Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB
BLINDNESS = {
    "none": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritanopia": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}


def linear(colour):
    """Linear RGB of "#rrggbb"."""
    c = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def contrast(one, other):
    """WCAG 2.2, relative luminance and contrast ratio."""
    low, high = sorted(float(linear(c) @ [0.2126, 0.7152, 0.0722]) for c in (one, other))
    return (high + 0.05) / (low + 0.05)


def oklab(rgb):
    """OKLab (Ottosson 2020) of linear RGB."""
    lms = np.array(
        [
            [0.4122214708, 0.5363325363, 0.0514459929],
            [0.2119034982, 0.6806995451, 0.1073969566],
            [0.0883024619, 0.2817188376, 0.6299787005],
        ]
    )
    lab = np.array(
        [
            [0.2104542553, 0.7936177850, -0.0040720468],
            [1.9779984951, -2.4285922050, 0.4505937099],
            [0.0259040371, 0.7827717662, -0.8086757660],
        ]
    )
    return np.cbrt(np.clip(rgb, 0, 1) @ lms.T) @ lab.T


def test_the_contrast_of_black_and_white_is_that_of_the_standard():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.01)


@MODES
def test_text_has_the_contrast_of_aa(colours):
    for text in ("ink", "soft", "accent"):
        for ground in ("paper", "sheet", "band", "glow"):
            assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    assert contrast(colours["on-accent"], colours["accent"]) >= 4.5


@MODES
def test_marks_have_the_contrast_of_graphics(colours):
    for name in [f"c{i}" for i in range(10)] + [f"s{i}" for i in range(5)]:
        for ground in ("paper", "sheet"):
            assert contrast(colours[name], colours[ground]) >= 3, (name, ground)


@MODES
@pytest.mark.parametrize("kind", BLINDNESS)
def test_categories_can_be_told_apart(colours, kind):
    rgb = np.array([linear(colours[f"c{i}"]) for i in range(10)])
    lab = oklab(rgb @ BLINDNESS[kind].T)
    apart = np.linalg.norm(lab[:, None] - lab[None], axis=-1) + 9 * np.eye(10)
    assert apart[:6, :6].min() > 0.09  # the palette of Okabe and Ito: 0.076 for its six
    assert apart.min() > 0.06


@MODES
@pytest.mark.parametrize("kind", BLINDNESS)
def test_the_lightness_of_kappa_falls_evenly(colours, kind):
    rgb = np.array([linear(colours[f"s{i}"]) for i in range(5)]) @ BLINDNESS[kind].T
    steps = -np.diff(oklab(rgb)[:, 0])
    assert (steps > 0.01).all()


def test_the_files_for_page_and_docs_are_those_of_the_palette():
    for path, content in files().items():
        assert path.read_text("utf-8") == content, f"{path}: run python tools/palette.py"


def test_the_style_file_has_the_colours_of_the_palette():
    text = STYLE.read_text()
    (cycle,) = re.findall(r"axes.prop_cycle: (.*)", text)
    assert tuple(f"#{c}" for c in re.findall(r'"([0-9a-f]{6})"', cycle)) == CATEGORIES[:6]
    named = {f"#{c}" for c in re.findall(r": ([0-9a-f]{6})$", text, re.MULTILINE)}
    assert named <= set(LIGHT.values())


def test_colours_of_a_figure_follow_the_mode_alone_and_in_a_page():
    svg = adaptive('<svg viewBox="0 0 1 1"><path style="fill: none; stroke: #1f66b0"/></svg>')
    assert "stroke: var(--c0, #1f66b0)" in svg
    alone = as_file(svg)
    assert f"--c0: {DARK['c0']};" in alone
    assert "prefers-color-scheme: dark" in alone
