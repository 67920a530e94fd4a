"""Comparison with other libraries, from ``python -m benchmarks.peers``: ``.. peer-table:: RECORD``."""

from record_tables import RstDirective, load, table

LABELS = {
    "aureole": "aureole",
    "scipy": "scipy",
    "TFP": "TensorFlow Probability",
    "geomstats": "geomstats",
    "S-VAE": "S-VAE code",
    "mcinfonce": "the paper's code",
}

SAMPLER = (
    "settings",
    "drawn",
    "within four standard errors",
    "worst miss of the mean cosine",
    "seconds at D = 512, kappa = 100",
)


def cell(result):
    """The worst error of a dimension, and how many values were missing."""
    if result["worst error"] is None:
        return "none finite"
    missing = result["of"] - result["finite"]
    error = "exact" if result["worst error"] == 0 else f"{result['worst error']:.0e}"
    return f"{error}, {missing} of {result['of']} missing" if missing else error


class PeerTable(RstDirective):
    """Two tables: errors of the log normaliser by dimension, and results of the samplers."""

    def lines(self, metrics):
        """Libraries in the order of LABELS; those that were not installed are listed below."""
        settings = load(self.arguments[0])["settings"]
        known = [name for name in LABELS if name in metrics]
        dims = [str(d) for d in settings["dims"]]
        rows = [
            [
                f"D = {dim}",
                *(
                    cell(metrics[n]["log normaliser"][dim])
                    for n in known
                    if "log normaliser" in metrics[n]
                ),
            ]
            for dim in dims
        ]
        header = [LABELS[n] for n in known if "log normaliser" in metrics[n]]
        first, *rest = table(["worst error of log C", *header], rows)
        lines = [first, "   :class: report", *rest, ""]
        rows = [
            [LABELS[n], *(self.shown(metrics[n]["sampler"][name]) for name in SAMPLER)]
            for n in known
        ]
        lines += table(["samples", *SAMPLER], rows)
        versions = ", ".join(f"{LABELS[n]} {settings['versions'][n]}" for n in known)
        missing = [
            f"{LABELS[n]} ({v})" for n, v in settings["versions"].items() if n not in metrics
        ]
        return [
            *lines,
            "",
            f"Versions: {versions}."
            + (f" Not installed: {'; '.join(missing)}." if missing else ""),
        ]

    @staticmethod
    def shown(value):
        """One result of a sampler."""
        if value is None:
            return "none"
        return f"{value:.2g}" if isinstance(value, float) else str(value)


def setup(app):
    app.add_directive("peer-table", PeerTable)
    return {"parallel_read_safe": True}
