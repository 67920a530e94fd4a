"""The test of ``benchmarks.own_loop`` inside the training loops of other libraries, with the default head.

pytorch-metric-learning trains with its ``MetricLossOnly`` and ``MPerClassSampler``, on the design
"added". The trainer of sentence-transformers fits a head
to MiniLM on captions of Multi30k, where two captions of a photo are a pair; there kappa is compared with the number of
the caption (the first is the longest and the fifth the shortest on average).
"""

import os
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import aureole as au
from aureole.evaluation import spearman
from aureole.training import (
    MetricLearningLoss,
    SentencePairLoss,
    SentencePosterior,
    encode_posterior,
)
from aureole.training._sentence_transformers import pooling_pipeline
from benchmarks.own_loop import DIM, KAPPA_POS, PAIRS, RATE, STEPS, kappa_rank, things, view


def metric_learning(seed: int, steps: int = STEPS) -> float:
    """The rank of kappa with noise after training with pytorch-metric-learning."""
    from pytorch_metric_learning import samplers, trainers

    torch.manual_seed(seed)
    rng, n = torch.Generator().manual_seed(seed), PAIRS * steps
    seen = things("added", n, rng)
    inputs = torch.cat([view("added", seen, rng)[0] for _ in range(2)])
    labels = torch.arange(n).repeat(2)
    trunk = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, 32))
    loss = MetricLearningLoss(au.ClosedFormInfoNCE(KAPPA_POS), au.PosteriorHead(32, DIM))
    trainer = trainers.MetricLossOnly(
        models={"trunk": trunk, "embedder": nn.Identity()},
        optimizers={
            "trunk_optimizer": torch.optim.Adam(trunk.parameters(), RATE),
            "metric_loss_optimizer": torch.optim.Adam(loss.parameters(), RATE),
        },
        batch_size=2 * PAIRS,
        loss_funcs={"metric_loss": loss},
        dataset=TensorDataset(inputs, labels),
        sampler=samplers.MPerClassSampler(labels, 2, 2 * PAIRS, length_before_new_iter=2 * n),
        dataloader_num_workers=0,
        data_device="cpu",
    )
    trainer.train(num_epochs=1)
    assert isinstance(loss.head, nn.Module)
    return kappa_rank(nn.Sequential(trunk, loss.head).eval(), "added")


def sentences(
    seed: int, data: Path, *, photos: int = 12_800, steps: int = 100
) -> dict[str, object]:
    """Kappa by caption number after training a head with the trainer of sentence-transformers."""
    import datasets
    from sentence_transformers import (
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )

    from aureole.training._sentence_transformers import minilm_folder
    from aureole_paper.text_data import load_captions

    torch.manual_seed(seed)
    rng = torch.Generator().manual_seed(seed)
    captions = load_captions(data, "train")[:photos]
    chosen = torch.rand(len(captions), 5, generator=rng).argsort(1)[:, :2].tolist()
    pairs = [(photo[i], photo[j]) for photo, (i, j) in zip(captions, chosen, strict=True)]
    columns = dict(zip(("anchor", "positive"), map(list, zip(*pairs, strict=True)), strict=True))
    model = pooling_pipeline(minilm_folder()).requires_grad_(False)  # the head alone learns
    model.append(SentencePosterior(au.PosteriorHead(384, 32)))
    loss = SentencePairLoss(model, au.ClosedFormInfoNCE(64.0))
    with tempfile.TemporaryDirectory() as folder:
        arguments = SentenceTransformerTrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=PAIRS,
            max_steps=steps,
            learning_rate=RATE,
            lr_scheduler_type="constant",
            seed=seed,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
        )
        train = datasets.Dataset.from_dict(columns)
        SentenceTransformerTrainer(
            model=model, args=arguments, train_dataset=train, loss=loss
        ).train()
    test = load_captions(data, "test_2016")[:500]
    flat = [caption for photo in test for caption in photo]
    posterior = encode_posterior(model, flat, batch_size=128)
    number = torch.arange(5.0).repeat(len(test))
    groups = torch.arange(len(test)).repeat_interleave(5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        found = au.diagnose(posterior, groups, kappa_pos=64.0)
    return {
        "kappa_by_caption": posterior.kappa.view(-1, 5).median(0).values.tolist(),
        "rank": spearman(posterior.kappa, number),
        "words_rank": spearman(
            posterior.kappa, torch.tensor([float(len(c.split())) for c in flat])
        ),
        "information": found.information,
        "gain": found.gain,
        "agreement": found.agreement,
    }


def library_ranks(seeds: Sequence[int]) -> dict[str, object]:
    """Ranks by library and seed, of those that are installed."""
    results: dict[str, object] = {}
    for name, run in (("pytorch-metric-learning", metric_learning),):
        try:
            values = [round(run(seed), 3) for seed in seeds]
        except ImportError as error:
            print(f"{name} is left out: {error}")
            continue
        print(f"{name}: {values}", flush=True)
        results[name] = {"ranks": values, "highest": max(values)}
    if folder := os.environ.get("AUREOLE_DATA"):
        results["sentence-transformers"] = sentences(seeds[0], Path(folder))
        print(f"sentence-transformers: {results['sentence-transformers']}", flush=True)
    return results
