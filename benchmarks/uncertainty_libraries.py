"""laplace-torch and torch-uncertainty next to our heads, on the same frozen features of images.

``python -m benchmarks.uncertainty_libraries --data-dir DATA --cache DIR``, in a separate environment:
``pip install laplace-torch torch-uncertainty lightning`` and ``pip install --no-deps torchvision==0.28.0``. That
torchvision is built for CUDA; with torch's CPU build, two of its operators are declared before the import, and nothing
that uses them is called.

All methods learn from 10,000 training images of CIFAR-10 and their labels, by the features of a MobileNetV2 that was
trained on ImageNet. CIFAR-10H and crops of the test images only judge. All methods of the libraries use the classifier
with a hidden layer of the study of frozen images, with their default options or those of their documentation. Nothing
was chosen here. The settings of the heads and of the classifier are those of that study, which were chosen on training
images; the options of the libraries were not searched. ``mc-dropout-ours`` and ``ensemble-ours`` are the
implementations of that study, on the same classifiers.
"""

import argparse
import copy
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from aureole.evaluation import r_auroc, spearman
from aureole.evaluation._retrieval_metrics import nearest_label_matches
from aureole.records import Record, write_record
from aureole.training import FrozenHead
from aureole_paper import uncertainty_baselines as baselines
from aureole_paper.class_head import fit_class_head
from aureole_paper.features import cache_folder
from aureole_paper.frozen_images import FrozenImages, FrozenImagesSetting, hashes
from aureole_paper.uncertainty_baselines import Probe

IMAGES, MEMBERS, PASSES, BATCH = 10_000, 5, 20, 500
FOLDS = 10  # one of them is held out for the grid search
Uncertainty = Callable[[Tensor], Tensor]
SETTING = FrozenImagesSetting(name="libraries", crops=False, images=IMAGES)


def declare_operators() -> None:
    """Let torchvision's CUDA build be imported with torch's CPU build."""
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    globals()["_library"] = library  # it ends with the object


def laplace(probe: Probe, train: DataLoader, validation: DataLoader | None = None) -> Uncertainty:
    """laplace-torch: the entropy of its predictive distribution, with the probit approximation.

    The posterior is its default, Kronecker-factored over the last layer's weights. The prior precision maximises the
    marginal likelihood, or with ``validation`` the likelihood of those rows, over the library's grid of 100 values.
    """
    from laplace import Laplace

    probe = copy.deepcopy(probe)
    probe.last.requires_grad_(True)
    fitted: Any = Laplace(probe, "classification")
    fitted.fit(train)
    method = "marglik" if validation is None else "gridsearch"
    fitted.optimize_prior_precision(
        pred_type="glm", method=method, link_approx="probit", val_loader=validation
    )

    def uncertainty(rows: Tensor) -> Tensor:
        chances = [
            fitted(part, pred_type="glm", link_approx="probit").detach()
            for part in rows.split(BATCH)
        ]
        return torch.special.entr(torch.cat(chances)).sum(-1)

    return uncertainty


def dropout(probe: Probe, seed: int) -> Uncertainty:
    """torch-uncertainty: MC dropout, the entropy of the mean over as many passes as in the study of frozen images."""
    from torch_uncertainty.methods import mc_dropout

    model = mc_dropout(copy.deepcopy(probe), num_estimators=PASSES).eval()  # its dropout stays on

    def uncertainty(rows: Tensor) -> Tensor:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(seed)
            return _entropy(model, rows, PASSES)

    return uncertainty


def ensemble(probes: list[Probe]) -> Uncertainty:
    """torch-uncertainty: an ensemble, the entropy of the mean of its members."""
    from torch_uncertainty.methods import deep_ensembles

    model = deep_ensembles(list(probes), reset_model_parameters=False).eval()
    return torch.no_grad()(lambda rows: _entropy(model, rows, len(probes)))


def _entropy(model: Callable[[Tensor], Tensor], rows: Tensor, members: int) -> Tensor:
    """The entropy of the mean of the members' probabilities; the model stacks the members' logits."""
    values = []
    for part in rows.split(BATCH):
        chances = model(part).softmax(-1).reshape(members, len(part), -1).mean(0)
        values.append(torch.special.entr(chances).sum(-1))
    return torch.cat(values)


def methods(data: FrozenImages, seed: int) -> Iterator[tuple[str, Uncertainty]]:
    """(Name, uncertainty of features) of each method, fitted on demand."""
    train, labels = data.train, data.labels
    head = fit_class_head(train, labels, SETTING.head, sources=data.sources, seed=seed)
    yield "class-head", lambda rows: -head(rows).kappa
    plain = FrozenHead(
        SETTING.plain_dim, steps=SETTING.plain_steps, items=SETTING.plain_items, seed=seed
    )
    plain.fit(train, labels)
    yield "frozen-head", lambda rows: -plain.predict(rows).kappa
    seeds = [seed + 1000 * member for member in range(MEMBERS)]
    probes = [baselines.fit_probe(train, labels, SETTING.probe, seed=each) for each in seeds]
    yield "softmax", lambda rows: baselines.entropy_of_mean(probes[:1], rows)
    yield "laplace", laplace(probes[0], _loader(train, labels))
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))
    held, kept = order[: len(order) // FOLDS], order[len(order) // FOLDS :]
    part = baselines.fit_probe(train[kept], labels[kept], SETTING.probe, seed=seed)
    loaders = (_loader(train[rows], labels[rows]) for rows in (kept, held))
    yield "laplace-grid", laplace(part, *loaders)
    yield "mc-dropout", dropout(probes[0], seed)
    yield "ensemble", ensemble(probes)
    yield (
        "mc-dropout-ours",
        lambda rows: baselines.mc_dropout(probes[0], rows, passes=PASSES, seed=seed),
    )
    yield "ensemble-ours", lambda rows: baselines.entropy_of_mean(probes, rows)


def _loader(features: Tensor, labels: Tensor) -> DataLoader:
    return DataLoader(TensorDataset(features, labels), batch_size=BATCH)


def judge(uncertainty: Uncertainty, data: FrozenImages, correct: Tensor) -> dict[str, float]:
    """The rank correlations with people's votes and with crops, and the R-AUROC."""
    on_test, on_crops = uncertainty(data.test), uncertainty(data.crops)
    return {
        "entropy_rank": spearman(on_test, data.entropy),
        "crop_rank": -spearman(on_crops, data.crop_sizes),
        "r_auroc": r_auroc(on_test, correct),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--cache", type=Path, help="folder of cached features")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    out = Path("results/benchmarks/uncertainty_libraries")
    parser.add_argument("--out", type=Path, default=out, help="folder; one record per seed")
    given = parser.parse_args()
    declare_operators()
    data = FrozenImages.load(SETTING, given.data_dir, cache_folder(given.cache))
    correct = nearest_label_matches(data.test, data.test_labels)
    packages = {name: version(name) for name in ("laplace-torch", "torch-uncertainty")}
    settings = {"images": IMAGES, "members": MEMBERS, "passes": PASSES, **packages}
    given.out.mkdir(parents=True, exist_ok=True)
    for seed in given.seeds:
        metrics: dict[str, dict[str, float]] = {}
        for name, uncertainty in methods(data, seed):
            metrics[name] = judge(uncertainty, data, correct)
            rounded = {key: round(value, 3) for key, value in metrics[name].items()}
            print(seed, name, rounded, flush=True)
        record = Record(
            "uncertainty-libraries",
            metrics,
            f"python -m benchmarks.uncertainty_libraries --seeds {seed}",
            seed=seed,
            settings=settings,
            data=hashes(given.data_dir),
        )
        write_record(record, given.out / f"seed-{seed}.json")


if __name__ == "__main__":
    main()
