"""laplace-torch and torch-uncertainty next to our heads, on the same frozen features of images.

``python -m benchmarks.uncertainty_libraries --data-dir DATA --cache DIR [--seeds 5]``, in an environment that also has
laplace-torch and torch-uncertainty. They need a torchvision that fits torch; with torch's CPU build, two of its
operators are declared before the import, and nothing that uses them is called.

All methods learn from 10,000 training images of CIFAR-10 and their labels, by the features of a MobileNetV2 that was
trained on ImageNet. CIFAR-10H and crops of the test images only judge. The classifiers are those of the study of frozen
images; nothing was chosen here.
"""

import argparse
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from aureole.evaluation import nearest_label_matches, r_auroc, spearman
from aureole.records import Record, write_record
from aureole.training import FrozenHead
from aureole_paper import uncertainty_baselines as baselines
from aureole_paper.class_head import fit_class_head
from aureole_paper.features import cache_folder
from aureole_paper.frozen_images import FrozenImages, FrozenImagesSetting, hashes
from aureole_paper.uncertainty_baselines import Probe

IMAGES, MEMBERS, PASSES = 10_000, 5, 20
Uncertainty = Callable[[Tensor], Tensor]
SETTING = FrozenImagesSetting(name="libraries", crops=False, images=IMAGES)


def declare_operators() -> None:
    """Let torchvision's CUDA build be imported with torch's CPU build."""
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    globals()["_library"] = library  # it ends with the object


def laplace(probe: Probe, data: FrozenImages) -> Uncertainty:
    """laplace-torch: the entropy of a linear classifier with a Kronecker-factored posterior of its weights.

    The prior precision maximises the marginal likelihood, and the probit approximation integrates the logits.
    """
    from laplace import Laplace

    inputs = (data.train - probe.centre) / probe.scale
    last = probe.last.requires_grad_(True)
    fitted = Laplace(last, "classification", subset_of_weights="all", hessian_structure="kron")
    fitted.fit(DataLoader(TensorDataset(inputs, data.labels), batch_size=500))
    fitted.optimize_prior_precision(method="marglik")

    def uncertainty(rows: Tensor) -> Tensor:
        parts = ((rows - probe.centre) / probe.scale).split(500)
        chances = torch.cat([fitted(part, link_approx="probit").detach() for part in parts])
        return torch.special.entr(chances).sum(-1)

    return uncertainty


def dropout(probe: Probe, seed: int) -> Uncertainty:
    """torch-uncertainty: MC dropout, the entropy of the mean over the passes."""
    from torch_uncertainty.methods import mc_dropout

    model = mc_dropout(probe, num_estimators=PASSES).eval()

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
    for part in rows.split(500):
        chances = model(part).softmax(-1).reshape(members, len(part), -1).mean(0)
        values.append(torch.special.entr(chances).sum(-1))
    return torch.cat(values)


def methods(data: FrozenImages, seed: int) -> Iterator[tuple[str, Uncertainty]]:
    """(Name, uncertainty of features) of each method, fitted on demand."""
    train, labels = data.train, data.labels
    head = fit_class_head(train, labels, SETTING.head, sources=data.sources, seed=seed)
    yield "aureole, class head", lambda rows: -head(rows).kappa
    plain = FrozenHead(
        SETTING.plain_dim, steps=SETTING.plain_steps, items=SETTING.plain_items, seed=seed
    )
    plain.fit(train, labels)
    yield "aureole, FrozenHead", lambda rows: -plain.predict(rows).kappa
    linear = baselines.fit_probe(train, labels, SETTING.linear, seed=seed)
    yield "softmax entropy", lambda rows: baselines.entropy_of_mean([linear], rows)
    yield "laplace-torch, Kronecker-factored", laplace(linear, data)
    seeds = [seed + 1000 * member for member in range(MEMBERS)]
    probes = [baselines.fit_probe(train, labels, SETTING.probe, seed=each) for each in seeds]
    yield "torch-uncertainty, MC dropout", dropout(probes[0], seed)
    yield "torch-uncertainty, ensemble of five", ensemble(probes)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--cache", type=Path, help="folder of cached features")
    parser.add_argument("--seeds", type=int, default=5)
    out = Path("results/benchmarks/uncertainty_libraries.json")
    parser.add_argument("--out", type=Path, default=out)
    given = parser.parse_args()
    declare_operators()
    data = FrozenImages.load(SETTING, given.data_dir, cache_folder(given.cache))
    correct = nearest_label_matches(data.test, data.test_labels)
    found: dict[str, dict[str, list[float]]] = {}
    for seed in range(given.seeds):
        for name, uncertainty in methods(data, seed):
            on_test, on_crops = uncertainty(data.test), uncertainty(data.crops)
            values = {
                "entropy_rank": spearman(on_test, data.entropy),
                "crop_rank": -spearman(on_crops, data.crop_sizes),
                "r_auroc": r_auroc(on_test, correct),
            }
            print(seed, name, {key: round(value, 3) for key, value in values.items()}, flush=True)
            for key, value in values.items():
                found.setdefault(name, {}).setdefault(key, []).append(value)
    metrics: dict[str, Any] = {
        name: {key: _summary(values) for key, values in each.items()}
        for name, each in found.items()
    }
    packages = {name: version(name) for name in ("laplace-torch", "torch-uncertainty")}
    command = f"python -m benchmarks.uncertainty_libraries --seeds {given.seeds}"
    settings = {"images": IMAGES, "seeds": given.seeds, **packages}
    record = Record(
        "uncertainty-libraries", metrics, command, settings=settings, data=hashes(given.data_dir)
    )
    write_record(record, given.out)


def _summary(values: list[float]) -> dict[str, float]:
    """The mean and its standard error."""
    each = torch.tensor(values, dtype=torch.float64)
    error = each.std().item() / len(values) ** 0.5 if len(values) > 1 else 0.0
    return {"mean": each.mean().item(), "error": error}


if __name__ == "__main__":
    main()
