"""The generalised risk-coverage curve, by the trapezoid rule and by its identity with the AUROC."""

import numpy as np
import pytest
import torch

from aureole.evaluation import r_auroc
from aureole_paper.selective import augrc


def test_it_is_the_area_between_thresholds_and_a_function_of_the_auroc():
    correct = torch.rand(500) < 0.6
    uncertainty = (torch.randn(500) + ~correct).round(decimals=1)
    coverage, risk = [0.0], [0.0]
    for threshold in uncertainty.unique().tolist():
        kept = uncertainty <= threshold
        coverage.append(kept.double().mean().item())
        risk.append((kept & ~correct).double().mean().item())
    assert augrc(uncertainty, correct) == pytest.approx(np.trapezoid(risk, coverage), abs=1e-12)
    right, auroc = correct.double().mean().item(), r_auroc(uncertainty, correct)
    identity = (1 - auroc) * right * (1 - right) + (1 - right) ** 2 / 2
    assert augrc(uncertainty, correct) == pytest.approx(identity, abs=1e-12)
