"""Precision: where bfloat16 pays."""

import torch


def bfloat16_in_hardware() -> bool:
    """Whether matrix products in bfloat16 are faster than in float32: on GPUs, and on CPUs with AMX or AVX512-BF16."""
    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported()
    return torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()
