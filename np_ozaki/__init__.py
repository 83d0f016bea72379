"""FP64 matrix products on INT8 arithmetic by Ozaki scheme II, with the same bits.

`OzArray` wraps an array, `enabled` wraps code, `matmul` is the function itself.
"""

from np_ozaki.array import OzArray, strict
from np_ozaki.context import last_call
from np_ozaki.errors import (
    CheckError,
    ConversionError,
    EngineUnavailableError,
    HookUnavailableError,
    MissingPackageError,
    OperandTypeError,
    OptionError,
    OzakiError,
    OzakiWarning,
    PerformanceWarning,
    PrecisionError,
    RouteWarning,
    ShapeError,
    WorkspaceError,
)
from np_ozaki.functions import error_bound, matmul, prepare
from np_ozaki.gemm import DoubleDouble
from np_ozaki.planning import Plan, plan
from np_ozaki.report import info, reset_stats, stats
from np_ozaki.scope import disable, disabled, enable, enabled
from np_ozaki.stats import (
    ArrayStats,
    CallInfo,
    PreparedStats,
    RouteStats,
    Stats,
    TransferStats,
)

__version__ = "0.1.0"

__all__ = [
    "ArrayStats",
    "CallInfo",
    "CheckError",
    "ConversionError",
    "DoubleDouble",
    "EngineUnavailableError",
    "HookUnavailableError",
    "MissingPackageError",
    "OperandTypeError",
    "OptionError",
    "OzArray",
    "OzakiError",
    "OzakiWarning",
    "PerformanceWarning",
    "Plan",
    "PrecisionError",
    "PreparedStats",
    "RouteStats",
    "RouteWarning",
    "ShapeError",
    "Stats",
    "TransferStats",
    "WorkspaceError",
    "disable",
    "disabled",
    "enable",
    "enabled",
    "error_bound",
    "info",
    "last_call",
    "matmul",
    "plan",
    "prepare",
    "reset_stats",
    "stats",
    "strict",
]
