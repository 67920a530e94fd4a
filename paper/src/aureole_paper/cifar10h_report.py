"""The report of CIFAR-10H: a summary, and a section for all that has records."""

from collections.abc import Callable, Sequence

from aureole.explorer import Report, Run, Table, format_number
from aureole_paper import curves, thumbnails
from aureole_paper.agreement_tables import (
    FOLDS_NOTE,
    LABEL_KINDS,
    LOSSES,
    PRETRAINING,
    REJECTION,
    VARIANTS,
    Row,
    agreement_table,
    foreign_ratios,
    foreign_table,
    leading,
    paper_number,
    quantile,
    rejection_table,
    variant_table,
)
from aureole_paper.plans import Plan, build_sections, fixed
from aureole_paper.records import MISSING, Groups, counted, format_summary, group, summary
from aureole_paper.tables import generic_table

_IMAGES = (
    "Images: CIFAR-10, Krizhevsky (2009), Learning Multiple Layers of Features from Tiny Images."
)
_RESULTS = ("closed-form", "closed-form-ensemble", "mcinfonce")  # whose numbers stand above all


def cifar10h_report(runs: Sequence[Run]) -> Report:
    """The report of runs on CIFAR-10H."""
    groups = group(runs)
    return Report(
        "CIFAR-10H: the paper's numbers and ours",
        _about(groups),
        tuple(main_results(groups)),
        tuple(build_sections(_PLANS, groups, _rest)),
    )


def main_results(groups: Groups) -> list[str]:
    """Plain sentences on the main results of the runs that are there, the paper's numbers beside ours."""
    rows = [row for row in LOSSES if row.setting in _RESULTS and row.setting in groups]
    results = [_result(row, groups[row.setting]) for row in rows]
    ceiling = summary(groups.get("ceiling", ()), "ceiling_rank")
    if ceiling:
        results.append(
            "The entropy of about 50 votes is itself uncertain: a perfect prediction of people's disagreement would "
            f"have a rank correlation of about {format_summary(ceiling)} with it."
        )
    return [result for result in [*results, _rejected(groups)] if result]


def _about(groups: Groups) -> str:
    count = sum(map(len, groups.values()))
    return (
        f"This page compares {counted(count, 'record')} of {counted(len(groups), 'setting')} with the paper's section "
        "5.2. An encoder learns posteriors vMF(μ, κ) of images from pairs that share a label. Nobody knows their true "
        "κ, so it is compared with signs of ambiguity: how much 50 people disagree about an image (the entropy of "
        "their votes), how much of the image a crop has left, and whether the nearest neighbour is of the same class "
        "(Recall@1). A record is a fold: 6,000 images to train on, 2,000 to select by, 2,000 to measure on."
    )


def _result(row: Row, runs: Sequence[Run]) -> str:
    """A sentence on a loss; nothing if the runs have no such metrics. Ours stands beside the paper's loss."""
    beside = row if row.paper else next(other for other in LOSSES if other.paper)
    words = {
        "entropy_rank": "rank correlation of κ with people's agreement",
        "crop_rank": "with the crop size",
        "recall_at_1": "Recall@1",
    }
    parts = [
        f"{text} {format_summary(found)} (paper, {beside.label}: {paper_number(beside, metric)})"
        for metric, text in words.items()
        if (found := summary(runs, metric))
    ]
    label = row.label[0].upper() + row.label[1:]
    return f"{label}, {counted(len(runs), 'fold')}: {', '.join(parts)}." if parts else ""


def _rejected(groups: Groups) -> str:
    """A sentence on what is gained when half of the images are rejected."""
    row = leading(groups, "rejection")
    runs = groups[row.setting] if row else ()
    kept, softmax = (curves.mean_rejection(runs, by) for by in ("kept", "softmax"))
    if kept is None:
        return ""
    half = len(kept) // 2
    other = "" if softmax is None else f" (by softmax: {format_number(softmax[half])})"
    return (
        "When the half of the images with the lowest κ is rejected, Recall@1 goes from "
        f"{format_number(kept[0])} to {format_number(kept[half])}{other}."
    )


def _losses(groups: Groups, _: Sequence[str]) -> list[Table]:
    caption = (
        "Tables 4 and 11 of the paper beside ours, on a ResNet-18 there. Entropy: rank "
        "correlation of 1/κ with the entropy of the votes. Crop: that of κ with the share of the side that a crop has "
        "left. InfoNCE trains no κ, so its uncertainty is the distance to the nearest training images, and the κ that "
        "its head gives without having been trained to stands beside it. The classifier is the pretrained one, "
        "untouched; it has an accuracy instead of Recall@1. Votes: the entropies of two halves of them against each "
        "other, and what a perfect prediction could reach, given how few they are."
    )
    return [agreement_table("Losses", caption, groups, LOSSES)]


def _ablations(groups: Groups, _: Sequence[str]) -> list[Table]:
    tables = (
        ("Labels", "Table 5 of the paper (MCInfoNCE) beside our closed form. Soft labels are all "
         "votes of an image, hard ones their majority or CIFAR-10's own label.", LABEL_KINDS),
        ("Pretraining", "Table 10 of the paper (MCInfoNCE, one run) beside our closed form. "
         "Pretraining is on the 50,000 training images of CIFAR-10.", PRETRAINING),
    )  # fmt: skip
    shown = [agreement_table(t, c, groups, rows) for t, c, rows in tables if _beyond(groups, rows)]
    caption = (
        "The closed form with another backbone, the paper's head (κ is the norm of the embedding), or crops among the "
        "training images. The paper has no such table."
    )
    if _beyond(groups, VARIANTS):
        shown.append(variant_table("Heads, backbones and crops", caption, groups, VARIANTS))
    return shown


def _beyond(groups: Groups, rows: Sequence[Row]) -> bool:
    """Whether there are runs of another row than the first, with which the others are compared."""
    return any(row.setting in groups for row in rows[1:])


def _rejection(groups: Groups, _: Sequence[str]) -> list[Table]:
    caption = (
        "Area: the mean Recall@1 of what is kept, over all shares that could be rejected; at random it is Recall@1, "
        "in the best order all wrong images go first. R-AUROC: how well the uncertainty tells wrong from right ones. "
        "AURC and AUGRC: areas under the risk and the generalised risk. Softmax is the doubt of the pretrained "
        "classifier about the same images. The paper has a figure but no numbers."
    )
    rows = [row for row in REJECTION if summary(groups.get(row.setting, ()), "rejection_area")]
    return [rejection_table("Rejection", caption, groups, rows)]


def _foreign(groups: Groups, _: Sequence[str]) -> list[Table]:
    row = leading(groups, "foreign")
    caption = (
        f"Quantiles of κ on 1,000 images of each kind, {row.label if row else ''}, and their medians relative to that "
        "of the test images. Upside down, negative, blurred and shuffled ones are made of test images; one grey is a "
        "single image. The paper has no such table. Mean ± standard error over folds."
    )
    return [foreign_table("Out of domain", caption, groups, [row] if row else [])]


def _foreign_text(groups: Groups) -> str:
    """What κ is and is not, and what the numbers say of it."""
    row = leading(groups, "foreign")
    ratios = foreign_ratios(groups, row) if row else {}
    text = (
        "κ is aleatoric: it says how ambiguous an image is among what was seen in training, not whether the image is "
        "of this world. "
    )
    if row is None or not ratios:
        return text.strip()
    runs = groups[row.setting]
    lower = [kind for kind in ratios if ratios[kind].mean < 1]
    text += f"The median κ is lower than on test images for {_listed(lower)}"
    higher = [kind for kind in ratios if kind not in lower]
    text += f", and not lower for {_listed(higher)}. " if higher else ". "
    limit = quantile(runs, "test images", 0)
    medians = {kind: quantile(runs, kind, 1) for kind in ratios}
    kept = [kind for kind, found in medians.items() if limit and found and found.mean > limit.mean]
    return text + (
        "A threshold on κ that keeps 95 % of the test images would keep more than half of the images of these kinds: "
        f"{_listed(kept)}."
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _rest(groups: Groups, names: Sequence[str]) -> Table:
    metrics = ("entropy_rank", "crop_rank", "recall_at_1", "rejection_area", "r_auroc")
    return generic_table("Other runs", FOLDS_NOTE, groups, names, metrics=metrics)


def _showing(metric: str) -> Callable[[Groups], list[str]]:
    """The setting that stands for all in what is shown of a metric."""

    def names(groups: Groups) -> list[str]:
        row = leading(groups, metric)
        return [row.setting] if row else []

    return names


def _pictured(caption: str) -> Callable[[Groups], str]:
    """The caption, and whose pictures these are."""

    def text(groups: Groups) -> str:
        run = thumbnails.pictured(groups)
        name = f"setting {run.setting}, fold {run.record.seed}" if run else MISSING
        return f"{caption} Unseen test images, {name}. {_IMAGES}"

    return text


def _settings(*lists: Sequence[Row]) -> Callable[[Groups], list[str]]:
    return fixed(*dict.fromkeys(row.setting for rows in lists for row in rows))


_PLANS = (
    Plan(
        "losses",
        "Losses",
        "Does κ agree with people, and does it know what a crop has lost?",
        _settings(LOSSES),
        _losses,
    ),
    Plan(
        "labels",
        "Labels, pretraining and variants",
        "What is needed for it: votes, or one label; a pretrained network, or none.",
        _settings(LABEL_KINDS, PRETRAINING, VARIANTS),
        _ablations,
        beside=("closed-form",),
    ),
    Plan(
        "rejection",
        "Rejection",
        "Does Recall@1 rise when the least certain images are rejected?",
        _settings(REJECTION),
        _rejection,
        figures=(
            (
                curves.rejection_figure,
                "Recall@1 of what is kept against the share of images that is rejected, the least certain first. By κ, "
                "by the pretrained classifier's softmax, in the best order and at random; mean over folds.",
            ),
            (
                curves.loss_rejection_figure,
                "Recall@1 of what is kept against the share of images that each loss's κ rejects. Mean over folds.",
            ),
        ),
        owns=False,
    ),
    Plan(
        "gallery",
        "Least and most certain images",
        "",
        _showing("pictures"),
        figures=(
            (
                thumbnails.gallery_figure,
                _pictured(
                    "The five images of lowest κ and the five of highest κ in each class, as in a figure of the paper."
                ),
            ),
        ),
        owns=False,
    ),
    Plan(
        "retrieval",
        "Credible retrieval",
        "A query's 95 % credible cap decides how many images to retrieve: those whose μ lies in it.",
        _showing("pictures"),
        figures=(
            (
                thumbnails.retrieval_figure,
                _pictured(
                    "Queries from certain to uncertain, and what lies in the 95 % credible cap of each. How many of "
                    "the other test images it holds, of which classes, and up to twelve of them, from the nearest to "
                    "the farthest."
                ),
            ),
        ),
        owns=False,
    ),
    Plan("foreign", "Out of domain", _foreign_text, _showing("foreign"), _foreign, owns=False),
    Plan(
        "learning",
        "Learning curves",
        "",
        _settings(REJECTION),
        figures=(
            (
                curves.learning_figure,
                "Rank correlation of κ with the crop size during training, on validation images. The best model of a "
                "run by this curve is the one that is measured; mean over folds.",
            ),
        ),
        owns=False,
    ),
)
