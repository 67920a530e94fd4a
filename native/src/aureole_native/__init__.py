"""The compiled library of ``aureole-native``; ``aureole`` calls it, you need not."""

import ctypes
from pathlib import Path

ABI = 2  # of the functions below; a library of another ABI is not used

_FILE = next(iter(Path(__file__).parent.glob("aureole_native.*")), None)
if _FILE is None:
    raise ImportError("aureole_native was installed without its compiled library.")
library = ctypes.CDLL(str(_FILE))
if library.aureole_abi() != ABI:
    raise ImportError(f"{_FILE} has ABI {library.aureole_abi()}, but {ABI} is expected.")

_pointer, _size = ctypes.c_void_p, ctypes.c_int64
for _name in ("aureole_rows_f32", "aureole_rows_f64"):
    getattr(library, _name).argtypes = (
        [_pointer] * 4 + [_size] * 4 + [ctypes.c_int] + [_pointer] * 2
    )
for _name in ("aureole_rows_backward_f32", "aureole_rows_backward_f64"):
    getattr(library, _name).argtypes = (
        [_pointer] * 5 + [_size] * 4 + [ctypes.c_int] + [_pointer] * 2
    )
library.aureole_log_ratios.argtypes = (
    [_pointer] * 3 + [_size, ctypes.c_double] + [_size] * 2 + [_pointer] * 2
)
library.aureole_series.argtypes = [_pointer] * 2 + [_size] * 3 + [_pointer] * 5
library.aureole_instructions.restype = ctypes.c_char_p
