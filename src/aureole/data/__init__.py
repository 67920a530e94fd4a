"""Data: batches of pairs, and processes and drawn shapes whose truth is known."""

from aureole.data._arrays import (
    ARRAYS,
)
from aureole.data._arrow import (
    PARQUET,
    compute_package,
    listed,
    pyarrow_package,
    short,
)
from aureole.data._bimodal import (
    BimodalProcess,
)
from aureole.data._blur import (
    blur_pictures,
)
from aureole.data._crops import (
    augment,
    deteriorate,
)
from aureole.data._drawn import (
    KINDS,
    DrawnShapes,
    drawn_shapes,
)
from aureole.data._families import (
    VMF,
    Dirac,
    Family,
    Gaussian,
    Laplace,
)
from aureole.data._generators import (
    Generator,
    Kind,
    draw_generator,
)
from aureole.data._groups import (
    Groups,
)
from aureole.data._labelled import (
    list_pictures,
    read_pictures,
)
from aureole.data._links import (
    Links,
)
from aureole.data._pairs import (
    PairBatch,
    Triplets,
    disjoint_pairs,
    label_rates,
    partner_chances,
    poisson_pairs,
)
from aureole.data._picture_folder import (
    find_picture,
)
from aureole.data._pictures import (
    ENDINGS,
    read_picture,
    read_square,
    read_thumbnail,
    write_picture,
)
from aureole.data._process import (
    ControlledProcess,
    Rule,
)
from aureole.data._ranges import (
    RangeReader,
    columns_of,
    count_rows,
    fitting,
    read_schema,
    values_of,
)
from aureole.data._tables import (
    ColumnWriter,
    as_vectors,
    pick_rows,
    pick_vector,
    read_column,
    read_groups,
    read_pairs,
    read_vectors,
    scan_column,
    table_files,
    write_columns,
)

__all__ = [
    "VMF",
    "BimodalProcess",
    "ControlledProcess",
    "Dirac",
    "DrawnShapes",
    "Family",
    "Gaussian",
    "Generator",
    "Groups",
    "Laplace",
    "PairBatch",
    "Rule",
    "Triplets",
    "disjoint_pairs",
    "draw_generator",
    "drawn_shapes",
    "label_rates",
    "partner_chances",
    "poisson_pairs",
    "read_column",
    "read_groups",
    "read_pairs",
    "read_vectors",
    "write_columns",
]
