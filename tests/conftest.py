"""Shapes and types of every annotated function are checked while the tests run; global state is guarded."""

import pytest
from jaxtyping import install_import_hook

with install_import_hook("aureole", "beartype.beartype"):
    import aureole
    import aureole.records

import torch

assert aureole


@pytest.fixture(autouse=True)
def _global_state_stays():
    """Fail a test that changes torch's global state, and start each from the same seed."""
    torch.manual_seed(0)
    before = (torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled())
    validate = torch.distributions.Distribution._validate_args
    yield
    assert before == (torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled())
    assert validate == torch.distributions.Distribution._validate_args
