"""Credible retrieval: a query's posterior decides how many results it gets, on real vector engines."""

from aureole.retrieval._address import (
    is_local,
    shown_address,
)
from aureole.retrieval._conformal import (
    ConformalMass,
)
from aureole.retrieval._credible import (
    cap_cosine,
    too_wide,
    union_cosines,
)
from aureole.retrieval._explanation import (
    Explanation,
    describe_cap,
    explain_hits,
)
from aureole.retrieval._filters import (
    Condition,
    parse_filter,
)
from aureole.retrieval._hits import (
    Hits,
    pick_hits,
)
from aureole.retrieval._index import (
    CredibleIndex,
    Recall,
)
from aureole.retrieval._lance import (
    LanceStore,
)
from aureole.retrieval._lance_tables import (
    SCHEMA_KEY,
    lance_package,
    locked,
    table_exists,
    to_arrow,
)
from aureole.retrieval._origin import (
    Origin,
)
from aureole.retrieval._rows import (
    MAX_ID_BYTES,
    Rows,
    Schema,
    check_ids,
    text_of,
)
from aureole.retrieval._scores import (
    class_entropy,
    exact_cosines,
    latent_in_cap,
    log_hit_positivity,
    positive_probability,
    stored_direction,
)
from aureole.retrieval._statements import (
    settings,
)
from aureole.retrieval._store import (
    adapter_of,
    check_build,
    default_lists,
)

__all__ = [
    "Condition",
    "ConformalMass",
    "CredibleIndex",
    "Explanation",
    "Hits",
    "Recall",
    "cap_cosine",
    "class_entropy",
    "explain_hits",
    "latent_in_cap",
    "parse_filter",
    "positive_probability",
    "too_wide",
    "union_cosines",
]
