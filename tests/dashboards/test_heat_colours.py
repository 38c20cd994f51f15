"""The heatmap's colours are told apart without full colour vision, by a published simulation of what is then seen.

Matrices: Machado, Oliveira and Fernandes, "A Physiologically-based Model for Simulation of Color Vision Deficiency",
IEEE Transactions on Visualization and Computer Graphics 15(6), 2009, doi 10.1109/TVCG.2009.113, severity 1.0, on linear
RGB. Distances: CIE 1976 L*a*b* under D65, of which 2.3 is just noticeable (Mahy, Van Eycken and Oosterlinck 1994).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from playwright.sync_api import Browser

from megascope.dashboards.server import RunningServer
from support.page_checks import visit
from support.page_visits import open_heatmap

pytestmark = pytest.mark.timeout(120)

FloatArray = npt.NDArray[np.float64]
VISIONS = {
    "full": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
NOTICED, LEVELS = 2.3, 9
SRGB_TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)
D65 = np.array([0.95047, 1.0, 1.08883])


def lab(colours: FloatArray, vision: str) -> FloatArray:
    """L*, a*, b* [N, 3] of how sRGB colours [N, 3] of 0 to 255 look in a vision."""
    parts = colours / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    seen = np.clip(linear @ VISIONS[vision].T, 0, 1)
    x, y, z = (seen @ SRGB_TO_XYZ.T / D65).T
    fx, fy, fz = (np.where(one > (6 / 29) ** 3, np.cbrt(one), one / (3 * (6 / 29) ** 2) + 4 / 29) for one in (x, y, z))
    return np.stack([116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)], axis=1)


def nearest(colours: FloatArray, vision: str) -> float:
    """Smallest distance between any two of `LEVELS` levels of a scale of 256 colours."""
    levels = lab(colours, vision)[np.linspace(0, 255, LEVELS).round().astype(int)]
    apart = np.linalg.norm(levels[:, None] - levels[None], axis=2)
    return float(apart[~np.eye(LEVELS, dtype=bool)].min())


def sides(colours: FloatArray, vision: str) -> float:
    """Smallest distance between what is as far below the middle as above it, from a quarter of the way out on."""
    seen = lab(colours, vision)
    return min(float(np.linalg.norm(seen[127 - out] - seen[128 + out])) for out in range(32, 128))


@pytest.fixture(params=[False, True], ids=["light", "dark"])
def scale(request: pytest.FixtureRequest, browser: Browser, slow_server: RunningServer) -> Callable[[bool], FloatArray]:
    """The 256 colours that the page draws with in a theme, of the diverging scale or of the other, [256, 3]."""
    with visit(browser, slow_server.url, dark=request.param) as seen:
        page = open_heatmap(seen, "?segment=forward")
        pixels = page.evaluate("() => [true, false].map((one) => [...window.megascope.heatColours(one)])")
    parts = [np.array([[pixel >> shift & 255 for shift in (0, 8, 16)] for pixel in one], float) for one in pixels]
    return lambda is_diverging: parts[0] if is_diverging else parts[1]


def test_levels_and_sides_stay_apart_in_every_vision(scale: Callable[[bool], FloatArray]) -> None:
    for vision in VISIONS:
        for is_diverging in (True, False):
            assert nearest(scale(is_diverging), vision) >= 3 * NOTICED, (vision, is_diverging)
        assert sides(scale(True), vision) >= 14 * NOTICED, vision
        lightness = lab(scale(False), vision)[np.linspace(0, 255, LEVELS).round().astype(int), 0]
        assert (np.diff(lightness) >= NOTICED).all(), f"{vision}: more is not lighter"


def test_the_simulation_finds_what_is_confused() -> None:
    red, yellow, green = (np.array(one, float) for one in ((215, 25, 28), (255, 255, 191), (26, 150, 65)))
    up, down = np.linspace(0, 1, 128)[:, None], np.linspace(0, 1, 128)[:, None]
    traffic_light = np.concatenate([green + (yellow - green) * up, yellow + (red - yellow) * down])
    assert sides(traffic_light, "full") >= 14 * NOTICED
    assert sides(traffic_light, "deuteranopia") < 14 * NOTICED


def test_lab_is_the_standards() -> None:
    known = {(255, 255, 255): (100, 0, 0), (255, 0, 0): (53.24, 80.09, 67.20), (0, 0, 255): (32.30, 79.19, -107.86)}
    found = lab(np.array(list(known), float), "full")
    np.testing.assert_allclose(found, list(known.values()), atol=0.02)
    grey = np.array([[128.0, 128, 128]])
    for vision in VISIONS:
        np.testing.assert_allclose(lab(grey, vision), lab(grey, "full"), atol=0.01)
