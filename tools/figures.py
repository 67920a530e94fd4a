"""Draw the figures of the docs as SVG files that follow light and dark mode: ``python tools/figures.py [NAME ...]``."""

import json
import math
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).parents[1]


def posterior():
    """Three posteriors on the sphere in three dimensions."""
    import aureole as au
    from aureole.plot import BAND, COLOURS, GREY, INK, RULE, canvas

    turn = np.linspace(0, 2 * math.pi, 361)
    mu = au.sphere.normalize(torch.tensor([0.3, -0.85, 0.4]))
    with canvas("concept-posterior", 3, height=2.9) as drawing:
        for axes, kappa, colour in zip(drawing.axes, (4.0, 40.0, 400.0), COLOURS, strict=False):
            q = au.VonMisesFisher(mu, kappa)
            z = q.sample((250,), generator=torch.Generator().manual_seed(0)).numpy()
            front = z[:, 1] < 0
            axes.fill(np.cos(turn), np.sin(turn), facecolor=BAND, edgecolor=GREY, linewidth=1)
            axes.plot(np.cos(turn), 0.25 * np.sin(turn), color=RULE, linewidth=0.8)
            axes.scatter(*z[front][:, [0, 2]].T, s=7, color=colour, linewidths=0, zorder=3)
            axes.scatter(*z[~front][:, [0, 2]].T, s=7, color=colour, alpha=0.2, linewidths=0)
            axes.plot(mu[0], mu[2], "*", color=INK, markersize=11, zorder=5)
            degrees = math.degrees(math.acos(q.credible_cosine(0.9).item()))
            axes.set_title(f"κ = {kappa:.0f}\n90 % within {degrees:.0f}°")
            axes.set(aspect="equal", xlim=(-1.05, 1.05), ylim=(-1.05, 1.05))
            axes.set_axis_off()
    return drawing.svg


def dimension():
    """The distribution of the angle between mu and z for one kappa and several dimensions."""
    from aureole.plot import COLOURS, canvas
    from aureole.sphere import cosine_log_pdf

    theta = torch.linspace(0.001, math.pi / 2 + 0.4, 600, dtype=torch.float64)
    with canvas("concept-dimension", 1, height=2.8) as drawing:
        axes = drawing.axes[0]
        for colour, dim in zip(COLOURS, (3, 16, 128, 512), strict=False):
            kappa = torch.tensor(50.0, dtype=torch.float64)
            density = torch.exp(cosine_log_pdf(torch.cos(theta), kappa, dim)) * torch.sin(theta)
            per_degree = density * math.pi / 180
            axes.plot(torch.rad2deg(theta), per_degree, color=colour, label=f"D = {dim}")
        axes.set(xlabel="angle between μ and z, degrees (κ = 50)", ylabel="density", ylim=(0, None))
        drawing.legend(columns=4)
    return drawing.svg


def positivity():
    """The expected positivity over the angle, and Monte Carlo estimates of one value of it."""
    import aureole as au
    from aureole.plot import BLUE, COLOURS, GREY, canvas

    dim, kappa_pos = 10, 20.0
    theta = torch.linspace(0, math.pi, 200, dtype=torch.float64)
    with canvas("concept-positivity", 2, height=3.5) as drawing:
        left, right = drawing.axes
        for colour, kappa in zip(COLOURS, (5.0, 20.0, math.inf), strict=False):
            k = torch.tensor(kappa, dtype=torch.float64)
            value = au.sphere.log_positivity(torch.cos(theta), k, k, kappa_pos, dim)
            name = "both κ = ∞" if math.isinf(kappa) else f"both κ = {kappa:.0f}"
            left.plot(torch.rad2deg(theta), value, color=colour, label=name)
        left.axhline(0, color=GREY, linewidth=1, linestyle=":")
        left.set(xlabel="angle between the two μ", ylabel="log S h", xticks=[0, 60, 120, 180])
        cosine = math.cos(math.radians(60))
        mu = torch.zeros(2, dim, dtype=torch.float64)
        mu[0, 0], mu[1, 0], mu[1, 1] = 1, cosine, math.sqrt(1 - cosine**2)
        q = au.VonMisesFisher(mu, 20.0)
        exact = _pair(q, kappa_pos)
        rng = torch.Generator().manual_seed(0)
        for draws in (1, 4, 16, 64, 256, 1024):
            estimates = []
            for _ in range(30):
                z = q.sample((draws,), generator=rng)
                log_ratio = au.VonMisesFisher(z[:, 0], kappa_pos).log_prob(z[:, 1])
                log_ratio = log_ratio + au.sphere.log_sphere_area(dim)
                estimates.append((log_ratio.logsumexp(0) - math.log(draws)).item())
            right.scatter([draws] * 30, estimates, s=9, color=GREY, linewidths=0, alpha=0.6)
        right.axhline(exact, color=BLUE)
        right.set(xscale="log", xlabel="samples K", ylabel="log S h, at 60°")
        right.set_title("grey: Monte Carlo, blue: exact")
        left.set_title("κ pos = 20, D = 10")
        drawing.legend(columns=3)
    return drawing.svg


def _pair(q, kappa_pos):
    """The log S h of the two posteriors of a batch."""
    from aureole.sphere import log_positivity

    cosine = (q.mu[0] * q.mu[1]).sum()
    return log_positivity(cosine, q.kappa[0], q.kappa[1], kappa_pos, q.dim).item()


def stretched(kappa, kappa_pos, stretch):
    """The kappa that hides a stretch of all angles: 2/kappa' + 1/kappa_pos = stretch^2 (2/kappa + 1/kappa_pos)."""
    return 2 / (stretch**2 * (2 / kappa + 1 / kappa_pos) - 1 / kappa_pos)


def identifiability():
    """The likelihood of pairs under an encoder that stretches all angles, and under one that tilts all means."""
    from aureole.plot import BLUE, GREEN, RULE, VERMILION, canvas
    from aureole.sphere import log_positivity

    kappa, kappa_pos = 24.0, 20.0
    k = torch.tensor(kappa, dtype=torch.float64)
    with canvas("concept-identifiability", 2, height=3.6) as drawing:
        theta = torch.linspace(0, math.pi, 300, dtype=torch.float64)
        left, right = drawing.axes
        for stretch, colour, style in ((1.0, BLUE, "-"), (0.8, GREEN, "--"), (1.2, VERMILION, ":")):
            k2 = torch.tensor(stretched(kappa, kappa_pos, stretch), dtype=torch.float64)
            value = log_positivity(torch.cos(stretch * theta), k2, k2, kappa_pos, 2)
            label = "the truth" if stretch == 1 else f"angles times {stretch:g}, κ = {k2:.0f}"
            left.plot(
                torch.rad2deg(theta), value - value[0], color=colour, linestyle=style, label=label
            )
        left.axvline(90, color=RULE, linewidth=1)
        left.set(
            xlabel="true angle of a pair",
            ylabel="log S h, minus its maximum",
            xticks=[0, 60, 120, 180],
        )
        left.set_title("D = 2: a stretch")
        cosine = torch.linspace(-0.2, 1, 200, dtype=torch.float64)
        truth = log_positivity(cosine, k, k, kappa_pos, 10)
        right.plot(cosine, truth - truth[-1], color=BLUE)
        lean = math.radians(20)
        squares = math.cos(lean) ** 2, math.sin(lean) ** 2
        tilted = k / (squares[0] - squares[1] * k / (2 * kappa_pos))
        value = log_positivity(squares[0] * cosine + squares[1], tilted, tilted, kappa_pos, 10)
        label = f"tilted by 20°, κ = {tilted:.0f}"
        right.plot(cosine, value - value[-1], color=VERMILION, linestyle="-.", label=label)
        right.set(xlabel="true cosine of a pair")
        right.set_title("D = 10: a tilt")
        drawing.legend(columns=2)
    return drawing.svg


def calibration():
    """The distributions of the latent and of a partner, and the coverage of caps from the records."""
    from aureole.plot import BLUE, GREEN, GREY, VERMILION, canvas
    from aureole.sphere import cosine_log_pdf
    from aureole.sphere._predictive import predictive_log_pdf

    dim, kappa, kappa_pos = 10, torch.tensor(24.0, dtype=torch.float64), 20.0
    theta = torch.linspace(0.001, 2.4, 400, dtype=torch.float64)
    with canvas("concept-calibration", 2, height=3.7) as drawing:
        left, right = drawing.axes
        latent = torch.exp(cosine_log_pdf(torch.cos(theta), kappa, dim)) * torch.sin(theta)
        partner = torch.exp(predictive_log_pdf(theta, kappa, kappa, kappa_pos, dim))
        left.plot(torch.rad2deg(theta), latent, color=BLUE, label="the latent")
        left.plot(torch.rad2deg(theta), partner, color=VERMILION, label="a partner's μ")
        left.set(
            xlabel="angle from μ, degrees",
            ylabel="density",
            ylim=(0, None),
            xticks=[0, 45, 90, 135],
        )
        left.set_title("D = 10, κ = 24")
        right.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle=":")
        for folder, keys, colour, marker, label in (
            ("controlled/ambiguous", ("latent_coverage",), BLUE, "o", "known truth"),
            (
                "retrieval/credible-retrieval",
                ("coverage", "votes", "model"),
                VERMILION,
                "s",
                "photos",
            ),
            (
                "retrieval/credible-retrieval",
                ("coverage", "votes", "conformal"),
                GREEN,
                "^",
                "photos, conformal",
            ),
        ):
            masses, held = _coverage(folder, keys)
            hollow = {"fillstyle": "none", "markersize": 9} if marker == "o" else {"markersize": 5}
            right.plot(masses, held, marker=marker, color=colour, label=label, zorder=2, **hollow)
        right.set(xlabel="mass of the cap", ylabel="coverage", xlim=(0, 1.02), ylim=(0, 1.02))
        right.set_title("coverage by mass")
        drawing.legend(columns=3)
    return drawing.svg


def _coverage(folder, keys):
    """Masses and the mean coverage over the seeds of a folder of records."""
    rows = []
    for path in sorted((ROOT / "paper/results" / folder).glob("seed-*.json")):
        by_mass = json.loads(path.read_text())["metrics"]
        for key in keys:
            by_mass = by_mass[key]
        rows.append({float(m): v["all"] if isinstance(v, dict) else v for m, v in by_mass.items()})
    masses = sorted(rows[0])
    return masses, [sum(row[m] for row in rows) / len(rows) for m in masses]


def _simulated():
    """Posteriors, whether each is right, and partners, as on the page of plots."""
    import aureole as au

    rng = torch.Generator().manual_seed(0)
    mu = au.sphere.normalize(torch.randn(2000, 16, generator=rng))
    q = au.VonMisesFisher(mu, torch.rand(2000, generator=rng) * 300 + 20)
    correct = torch.rand(2000, generator=rng) < q.kappa / 320
    near = au.VonMisesFisher(q.sample(generator=rng), 200.0).sample(generator=rng)
    partner = au.VonMisesFisher(near, 100.0).sample(generator=rng)
    return q, correct, au.VonMisesFisher(partner, 100.0)


def plotted(name):
    """A function that draws one plot of ``au.plot``."""

    def draw():
        import aureole as au
        from aureole.plot import canvas

        q, correct, partner = _simulated()
        height = 4.0 if name == "caps" else 3.4
        with canvas(f"plot-{name}", 1, height=height) as drawing:
            (ax,) = drawing.axes
            if name == "histogram":
                au.plot.kappa_histogram(q, ax=ax)
            elif name == "rejection":
                au.plot.rejection(q, correct, ax=ax)
            elif name == "coverage":
                au.plot.coverage(q, partner, kappa_pos=200.0, ax=ax)
            else:
                mu = torch.tensor([[0.9, 0.1, 0.4], [0.4, 0.9, 0.2], [0.6, 0.3, -0.7]])
                kappa = torch.tensor([10.0, 40.0, 160.0])
                au.plot.caps(au.VonMisesFisher(au.sphere.normalize(mu), kappa), ax=ax)
        return drawing.svg

    return draw


def quickstart(name: str) -> str:
    """Draw a figure of the quickstart from the record of its first seed."""
    from aureole.explorer import _quickstart_page

    record = json.loads((ROOT / "results/quickstart/seed-0.json").read_text())
    return getattr(_quickstart_page, f"{name}_figure")(record["metrics"])


def caps(mass: float = 0.9, rows: int = 400) -> str:
    """Two queries with one mu and different kappa, their caps of ``mass``, and the search results, as SVG."""
    import aureole as au
    from aureole.plot import canvas

    kappas = {"a confident query": 60.0, "a vague query": 8.0}
    rng = torch.Generator().manual_seed(0)
    mu = au.sphere.normalize(torch.randn(rows, 3, generator=rng))
    names = [str(i) for i in range(rows)]
    centre = au.sphere.normalize(torch.tensor([0.3, -0.8, 0.5]))
    with (
        au.CredibleIndex.create("faiss://", au.VonMisesFisher(mu, 40.0), names) as index,
        canvas("caps", len(kappas), height=3.7) as drawing,
    ):
        for axes, (title, kappa) in zip(drawing.axes, kappas.items(), strict=True):
            hits = index.search(au.VonMisesFisher(centre, kappa), mass)
            degrees = math.degrees(math.acos(float(hits.threshold[0])))
            _draw_caps(axes, mu.numpy(), centre.numpy(), hits)
            axes.set_title(f"{title}, κ = {kappa:g}\ncap of {degrees:.0f}°: {len(hits)} items")
        drawing.legend(columns=2)
    return drawing.svg


def _draw_caps(axes: Any, mu: np.ndarray, centre: np.ndarray, hits: Any) -> None:
    """Draw the sphere seen along its second axis; points on the far side are pale."""
    from aureole.plot import BAND, BLUE, GREY, RULE, VERMILION

    turn = np.linspace(0, 2 * math.pi, 361)
    axes.fill(np.cos(turn), np.sin(turn), facecolor=BAND, edgecolor=GREY, linewidth=1)
    axes.plot(np.cos(turn), 0.25 * np.sin(turn), color=RULE, linewidth=0.8)
    inside = np.zeros(len(mu), bool)
    inside[[int(name) for name in hits.ids]] = True
    front = mu[:, 1] < 0
    for chosen, colour, size, label in (
        (~inside, GREY, 7, "outside the cap"),
        (inside, VERMILION, 16, "in the set"),
    ):
        x, z = mu[chosen & front][:, [0, 2]].T
        axes.scatter(x, z, s=size, color=colour, linewidths=0, label=label, zorder=3)
        x, z = mu[chosen & ~front][:, [0, 2]].T
        axes.scatter(x, z, s=size, color=colour, linewidths=0, alpha=0.18, zorder=2)
    rim = _rim(centre, float(hits.threshold[0]))
    for visible, style in ((rim[:, 1] < 0, "-"), (rim[:, 1] >= 0, ":")):
        x, z = np.where(visible[:, None], rim, np.nan)[:, [0, 2]].T
        label = "the cap" if style == "-" else None
        axes.plot(x, z, style, color=BLUE, linewidth=1.8, zorder=4, label=label)
    x, z = centre[[0, 2]]
    axes.plot(x, z, "*", color=BLUE, markersize=13, zorder=5, label="μ of the query")
    axes.set(aspect="equal", xlim=(-1.05, 1.05), ylim=(-1.05, 1.05))
    axes.set_axis_off()


def _rim(centre: np.ndarray, cosine: float) -> np.ndarray:
    """The circle of all directions with this cosine to the centre."""
    turn = np.linspace(0, 2 * math.pi, 361)
    across = np.linalg.svd(centre[None])[2][1:]
    sine = math.sqrt(max(0.0, 1 - cosine**2))
    around = np.cos(turn)[:, None] * across[0] + np.sin(turn)[:, None] * across[1]
    return cosine * centre + sine * around


def reported(folder: str, anchor: str, number: int) -> str:
    """Draw a figure of the report on a folder of the paper's records."""
    from aureole_paper.report import read_report

    sections = {s.anchor: s for s in read_report(ROOT / "paper/results" / folder).sections}
    return sections[anchor].figures[number].svg


FIGURES: dict[str, Callable[[], str]] = {
    "plot-histogram": plotted("histogram"),
    "plot-rejection": plotted("rejection"),
    "plot-coverage": plotted("coverage"),
    "plot-caps": plotted("caps"),
    "posterior": posterior,
    "dimension": dimension,
    "positivity": positivity,
    "identifiability": identifiability,
    "calibration": calibration,
    "quickstart-fading": partial(quickstart, "fading"),
    "quickstart-rejection": partial(quickstart, "rejection"),
    "caps-sphere": caps,
}
# from the report on a folder of records: folder, anchor of the section, number of the figure
REPORTS = {
    "controlled-recovery": ("controlled", "recovery", 0),
    "controlled-coverage": ("controlled", "coverage", 0),
    "controlled-high-dim": ("controlled", "high-dim", 0),
    "controlled-self-pairs": ("controlled", "self-pairs", 0),
    "controlled-mc-samples": ("controlled", "mc-samples", 0),
    "controlled-bimodal": ("controlled", "bimodal", 0),
    "thresholds-rules": ("adaptive", "rules", 0),
    "cifar10h-rejection": ("cifar10h", "rejection", 0),
    "cifar10h-gallery": ("cifar10h", "gallery", 0),
    "cifar10h-retrieval": ("cifar10h", "retrieval", 0),
    "frozen-captions": ("frozen", "captions", 0),
    "frozen-fifths": ("frozen", "captions", 1),
    "frozen-coverage": ("frozen", "coverage", 0),
    "retrieval-coverage": ("retrieval", "coverage", 0),
}


def main() -> None:
    """Draw the figures named on the command line, or all of them."""
    from aureole.plot import as_file

    known = {**FIGURES, **{name: partial(reported, *place) for name, place in REPORTS.items()}}
    for name in sys.argv[1:] or known:
        path = ROOT / "docs" / "pictures" / f"{name}.svg"
        path.write_text(as_file(known[name]()), encoding="utf-8")
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
