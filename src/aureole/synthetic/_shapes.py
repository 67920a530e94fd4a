"""Synthetic shapes: images generated from a seed whose label distributions are known."""

from dataclasses import dataclass
from functools import cache
from itertools import cycle, pairwise

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from aureole.errors import InvalidInputError
from aureole.synthetic._image_transforms import blur_batch

SHAPES = ("circle", "square", "triangle", "star", "flower", "heart", "cross", "drop")
KINDS = ("clear", "morph", "faded")
_SHARES = (0.5, 0.8)  # half of the pictures are clear, three in ten are morphs, the others fade
_ANGLES = 720
_TURN = 0.45  # largest rotation in radians: a square must not become a diamond
_SOFTEST = 0.75  # the widest blur, as a fraction of the shape's radius
_BATCH = 128


@dataclass(frozen=True)
class DrawnShapes:
    """Pictures [n, 3, side, side] with their label distributions and votes, both [n, classes].

    ``probabilities`` is the true distribution from which the votes were sampled, ``labels`` the class with most votes
    (the first one in a tie), and ``kinds`` the index in ``KINDS`` of how each picture was made.
    """

    pictures: UInt8[Tensor, "n 3 side side"]
    probabilities: Float[Tensor, "n classes"]
    votes: Int[Tensor, "n classes"]
    labels: Int[Tensor, " n"]
    kinds: Int[Tensor, " n"]
    names: tuple[str, ...] = SHAPES

    @property
    def entropy(self) -> Float[Tensor, " n"]:
        """The entropy of each picture's label distribution, in nats."""
        return torch.special.entr(self.probabilities).sum(-1)

    def __len__(self) -> int:
        return len(self.pictures)

    def __repr__(self) -> str:
        side = self.pictures.shape[-1]
        return f"DrawnShapes({len(self)} pictures of {side} x {side} pixels, names={self.names})"


def drawn_shapes(count: int, *, side: int = 32, seed: int = 0, annotators: int = 20) -> DrawnShapes:
    r"""``count`` pictures of one shape each, with their label distributions and votes sampled from them.

    Colour, size, position and rotation are random and independent of the shape. The label distribution is defined as
    follows:

    - clear (half of them): a sharp outline. Every annotator names the shape: its probability is 1.
    - morph (three in ten): an outline between two shapes, :math:`(1 - w) r_a + w r_b` for their radii as functions of
      the angle. An annotator votes b with probability w and a otherwise.
    - faded (the others): a blur of width s (a fraction of the shape's radius, up to 0.75), and less contrast. Similar
      shapes become indistinguishable first: an annotator votes c with a probability proportional to
      :math:`\exp(-d_{ac}^2 / 2 (s / 3)^2)`, where d is the root mean square difference of two outlines' radii.

    The probabilities are a model: people may judge a morph differently. The votes are independent samples from them.
    The first pictures of a longer set equal those of a shorter one with the same seed.

    Examples
    --------
    >>> shapes = drawn_shapes(6, seed=1)
    >>> shapes.pictures.shape
    torch.Size([6, 3, 32, 32])
    >>> [shapes.names[label] for label in shapes.labels]
    ['square', 'drop', 'flower', 'square', 'square', 'heart']
    >>> shapes.votes.sum(-1)
    tensor([20, 20, 20, 20, 20, 20])
    """
    _check(count=count, side=side, seed=seed, annotators=annotators)
    drawing, voting = np.random.default_rng(seed).spawn(2)
    plan = _Plan.of(drawing.random((count, _Plan.NUMBERS)))
    probabilities = plan.probabilities()
    votes = torch.from_numpy(voting.multinomial(annotators, probabilities.numpy()))
    pictures = torch.empty(count, 3, side, side, dtype=torch.uint8)
    for start in range(0, count, _BATCH):
        part = slice(start, start + _BATCH)
        pictures[part] = _paint(plan, part, side)
    return DrawnShapes(pictures, probabilities, votes, votes.argmax(-1), plan.kind)


def _check(**numbers: object) -> None:
    for name, value in numbers.items():
        least = {"side": 8, "seed": 0}.get(name, 1)
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
            raise InvalidInputError(
                f"{name} must be a whole number of at least {least}, but is {value!r}."
            )


@dataclass(frozen=True)
class _Plan:
    """The random choices of each picture, one row per picture."""

    NUMBERS = 17

    kind: Int[Tensor, " n"]
    first: Int[Tensor, " n"]
    second: Int[Tensor, " n"]
    weight: Float[Tensor, " n"]  # of the second shape
    softness: Float[Tensor, " n"]  # of the blur, as a fraction of the radius
    size: Float[Tensor, " n"]  # the radius, as a fraction of the side
    place: Float[Tensor, "n 2"]
    turn: Float[Tensor, " n"]
    looks: Float[Tensor, "n 8"]

    @classmethod
    def of(cls, numbers: np.ndarray) -> "_Plan":
        """The plan of random numbers uniform in [0, 1)."""
        u = torch.from_numpy(numbers)
        kind = torch.bucketize(u[:, 0].contiguous(), torch.tensor(_SHARES).double(), right=True)
        first = (u[:, 1] * len(SHAPES)).long()
        second = (first + 1 + (u[:, 2] * (len(SHAPES) - 1)).long()) % len(SHAPES)
        softness = torch.where(kind == 2, _SOFTEST * (0.15 + 0.85 * u[:, 3]), 0.0)
        size = 0.21 + 0.1 * u[:, 4]
        place = 0.5 + (u[:, 5:7] - 0.5) * (1 - 3.15 * size[:, None])
        turn = _TURN * (2 * u[:, 7] - 1)
        weight = torch.where(kind == 1, u[:, 8], 0.0)
        return cls(kind, first, second, weight, softness, size, place, turn, u[:, 9:17])

    def probabilities(self) -> Float[Tensor, "n classes"]:
        """The label distribution of each picture."""
        outlines = _outlines()
        squares = (outlines[:, None] - outlines).square().mean(-1)[self.first]
        width = torch.where(self.kind == 2, self.softness / 3, 1.0)
        melted = torch.softmax(-squares / (2 * width.square()[:, None]), -1)
        rows = torch.arange(len(self.kind))
        mixed = torch.zeros_like(melted)
        mixed[rows, self.second] = self.weight
        mixed[rows, self.first] = 1 - self.weight
        return torch.where((self.kind == 2)[:, None], melted, mixed)


def _paint(plan: _Plan, part: slice, side: int) -> UInt8[Tensor, "n 3 side side"]:
    """The pictures of a slice of the plan."""
    looks = plan.looks[part].float()
    cover = _cover(plan, part, side)[:, None]
    low, right = max(side // 24, 1), max(side // 32, 1)
    shadow = torch.nn.functional.pad(cover, (right, -right, low, -low))
    down, towards = torch.linspace(-1, 1, side)[:, None], 6.3 * looks[:, 7, None, None]
    tilt = torch.cos(towards) * down + torch.sin(towards) * down.T
    ground = _colour(looks[:, 0], 0.08 + 0.2 * looks[:, 1], 0.9 + 0.1 * looks[:, 2])
    ground = ground[..., None, None] * (1 + 0.05 * tilt[:, None])
    ink = _colour(looks[:, 3], 0.6 + 0.35 * looks[:, 4], 0.6 + 0.35 * looks[:, 5])
    light = (ink * torch.tensor([0.299, 0.587, 0.114])).sum(-1, keepdim=True)
    ink = (ink * (0.55 / light).clamp(max=1))[..., None, None] * (1 - 0.12 * down)
    softness = plan.softness[part].float()
    fade = (1 - 0.6 * (softness / _SOFTEST) * looks[:, 6])[:, None, None, None]
    picture = ground * (1 - 0.18 * fade * shadow)
    picture = picture + fade * cover * (ink - picture)
    soft = softness > 0
    width = (softness * plan.size[part].float() * side)[soft]
    picture[soft] = blur_batch(picture[soft], width)
    return (255 * picture.clamp(0, 1)).round().to(torch.uint8)


def _cover(plan: _Plan, part: slice, side: int) -> Float[Tensor, "n side side"]:
    """The fraction of each pixel inside the shape, from the distances of four points in it to the outline."""
    outlines = _outlines().float()
    weight = plan.weight[part].float()[:, None]
    radius = (1 - weight) * outlines[plan.first[part]] + weight * outlines[plan.second[part]]
    # a ray from the centre does not meet the outline at a right angle: its slope shortens the distance
    slope = (radius.roll(-1, 1) - radius.roll(1, 1)) * (_ANGLES / (4 * torch.pi))
    steep = torch.rsqrt(1 + (slope / radius).square())
    at = (torch.arange(2 * side) + 0.5) / (2 * side)
    size, place = plan.size[part].float()[:, None], plan.place[part].float()
    x = ((at - place[:, :1]) / size)[:, None, :]
    y = ((place[:, 1:] - at) / size)[:, :, None]
    angle = torch.atan2(y, x) - plan.turn[part].float()[:, None, None]
    step = (angle * (_ANGLES / (2 * torch.pi))).round().long().remainder(_ANGLES).flatten(1)
    distance = (radius.gather(1, step) - torch.hypot(x, y).flatten(1)) * steep.gather(1, step)
    cover = (distance * (size * 2 * side) + 0.5).clamp(0, 1).unflatten(1, (2 * side, 2 * side))
    return torch.nn.functional.avg_pool2d(cover, 2)


def _colour(
    hue: Float[Tensor, " n"], saturation: Float[Tensor, " n"], value: Float[Tensor, " n"]
) -> Float[Tensor, "n 3"]:
    """RGB of hue, saturation and value, all in [0, 1]."""
    wheel = (hue[:, None] * 6 + torch.tensor([5.0, 3.0, 1.0])) % 6
    return value[:, None] * (1 - saturation[:, None] * torch.minimum(wheel, 4 - wheel).clamp(0, 1))


@cache
def _outlines() -> Float[Tensor, "classes angles"]:
    """The radius of each shape as a function of the angle, scaled to the area of the unit circle."""
    angle = np.arange(_ANGLES) * (2 * np.pi / _ANGLES)
    t = np.linspace(0, 2 * np.pi, 4001)[:-1]
    heart = np.stack(
        [16 * np.sin(t) ** 3,
         13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t) + 1]
    )  # fmt: skip
    drop = np.stack([np.sin(t) * np.sin(t / 2) ** 1.6, np.cos(t) + 0.15])
    arm = 1.12 / 3  # half the width of a cross's arm
    half = [(arm, 1.0), (arm, arm), (1.0, arm), (1.0, -arm), (arm, -arm), (arm, -1.0)]
    radii = {
        "circle": np.ones(_ANGLES),
        "square": _polygon([(1.0, 1.0), (-1.0, 1.0), (-1.0, -1.0), (1.0, -1.0)], angle),
        "triangle": _polygon(_ring(3, [1.0]), angle),
        "star": _polygon(_ring(10, [1.0, 0.45]), angle),
        "flower": 1 + 0.5 * np.abs(np.cos(3 * angle)),
        "heart": _radius(heart, angle),
        "cross": _polygon(half + [(-x, -y) for x, y in half], angle),
        "drop": _radius(drop, angle),
    }  # fmt: skip
    radius = np.stack([radii[name] for name in SHAPES])
    radius /= np.sqrt((radius**2).mean(-1, keepdims=True))
    return torch.from_numpy(radius)


def _ring(corners: int, radii: list[float]) -> list[tuple[float, float]]:
    """Evenly spaced corners around the centre, starting at the top, with alternating radii."""
    angles = np.pi / 2 + np.arange(corners) * (2 * np.pi / corners)
    around = zip(angles, cycle(radii), strict=False)
    return [(float(radius * np.cos(a)), float(radius * np.sin(a))) for a, radius in around]


def _polygon(corners: list[tuple[float, float]], angle: np.ndarray) -> np.ndarray:
    """The radius of a polygon around the origin at these angles."""
    ends = np.array(corners + corners[:1], dtype=float)
    along = np.linspace(0, 1, 400, endpoint=False)[:, None]
    points = [a + along * (b - a) for a, b in pairwise(ends)]
    return _radius(np.concatenate(points).T, angle)


def _radius(points: np.ndarray, angle: np.ndarray) -> np.ndarray:
    """The radius at these angles of an outline given by points around the origin."""
    around = np.arctan2(points[1], points[0]) % (2 * np.pi)
    order = np.argsort(around)
    return np.interp(angle, around[order], np.hypot(*points)[order], period=2 * np.pi)
