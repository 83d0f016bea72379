"""dask: importing this module lets OzArray be the chunks of dask arrays.

`EnablePlugin` needs `distributed` and is loaded when it is asked for.
"""

from typing import TYPE_CHECKING, Any

from np_ozaki.errors import MissingPackageError

try:
    import dask.array  # noqa: F401 - said here, or the next line's error is ours
except ImportError as _error:
    raise MissingPackageError(
        f"np_ozaki.dask: needs dask ({_error}); pip install 'np_ozaki[dask]'"
    ) from _error

from np_ozaki.dask.chunks import register

if TYPE_CHECKING:
    from np_ozaki.dask.plugin import EnablePlugin

__all__ = ["EnablePlugin", "register"]

register()


def __getattr__(name: str) -> Any:
    if name != "EnablePlugin":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import distributed  # noqa: F401 - said here, or the next line's error is ours
    except ImportError as error:
        raise MissingPackageError(
            f"EnablePlugin: needs distributed ({error}); pip install 'np_ozaki[dask]'"
        ) from error
    from np_ozaki.dask.plugin import EnablePlugin

    return EnablePlugin
