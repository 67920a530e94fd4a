"""Contrastive losses over posteriors, all with the signature ``loss(anchor, positive, negative=None)``.

Each module holds its loss as a pure function and the class that stores the options.
"""

from aureole.losses._closed_form import ClosedFormInfoNCE
from aureole.losses._contrastive import ContrastiveLoss, PositivityLoss, profile_kappa_pos
from aureole.losses._elk import ELK
from aureole.losses._hedged import HedgedInstance
from aureole.losses._infonce import InfoNCE
from aureole.losses._mcinfonce import MCInfoNCE
from aureole.losses._negatives import Negatives

__all__ = [
    "ELK",
    "ClosedFormInfoNCE",
    "ContrastiveLoss",
    "HedgedInstance",
    "InfoNCE",
    "MCInfoNCE",
    "Negatives",
    "PositivityLoss",
    "profile_kappa_pos",
]
