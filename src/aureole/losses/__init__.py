"""Contrastive losses over posteriors, all with the signature ``loss(anchor, positive, negative=None)``.

Each module holds its loss as a pure function and the class that stores the options.
"""

from aureole.losses._closed_form import (
    ClosedFormInfoNCE,
    closed_form_infonce,
)
from aureole.losses._contrastive import (
    ContrastiveLoss,
    PositivityLoss,
    TemperatureLoss,
    check_posteriors,
    profile_kappa_pos,
)
from aureole.losses._elk import (
    ELK,
)
from aureole.losses._hedged import (
    HedgedInstance,
)
from aureole.losses._infonce import (
    InfoNCE,
)
from aureole.losses._mcinfonce import (
    MCInfoNCE,
    log_fraction,
)
from aureole.losses._negatives import (
    Negatives,
    gather_posteriors,
    n_ranks,
    rank,
    resolve_negatives,
)
from aureole.losses._self_pairs import (
    log_self_match,
)

__all__ = [
    "ELK",
    "ClosedFormInfoNCE",
    "ContrastiveLoss",
    "HedgedInstance",
    "InfoNCE",
    "MCInfoNCE",
    "Negatives",
    "PositivityLoss",
    "TemperatureLoss",
    "gather_posteriors",
    "log_self_match",
    "profile_kappa_pos",
    "resolve_negatives",
]
