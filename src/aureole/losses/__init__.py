"""Contrastive losses over posteriors, all with the signature ``loss(anchor, positive, negative=None)``.

Each module holds its loss as a pure function and the class that stores the options.
"""

from aureole.losses.closed_form import ClosedFormInfoNCE
from aureole.losses.contrastive import ContrastiveLoss, profile_kappa_pos
from aureole.losses.elk import ELK
from aureole.losses.hedged import HedgedInstance
from aureole.losses.infonce import InfoNCE
from aureole.losses.mcinfonce import MCInfoNCE
from aureole.losses.negatives import Negatives, gather_posteriors, resolve_negatives

__all__ = [
    "ELK",
    "ClosedFormInfoNCE",
    "ContrastiveLoss",
    "HedgedInstance",
    "InfoNCE",
    "MCInfoNCE",
    "Negatives",
    "gather_posteriors",
    "profile_kappa_pos",
    "resolve_negatives",
]
