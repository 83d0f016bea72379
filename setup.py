"""What pyproject.toml cannot say: the optional extension and a clean build."""

import atexit
import glob
import shutil
import sys
import sysconfig
import tempfile

from setuptools import Extension, setup

# setuptools copies into build/ and never removes anything there: a kernel deleted
# from the sources, or an extension of another day, would still get into the wheel.
build_base = tempfile.mkdtemp(prefix="np_ozaki-build-")
atexit.register(shutil.rmtree, build_base, ignore_errors=True)

options: dict[str, dict[str, str]] = {"build": {"build_base": build_base}}
extensions: list[Extension] = []

# The stable ABI exists on CPython with a GIL only; elsewhere the hooks are never
# installed, so a pure wheel has all that is of use.
if sys.implementation.name == "cpython" and not sysconfig.get_config_var(
    "Py_GIL_DISABLED"
):
    extensions.append(
        Extension(
            "np_ozaki._hooks",
            sources=sorted(glob.glob("np_ozaki/hooks/*.c")),
            depends=["np_ozaki/hooks/hooks.h"],
            define_macros=[("Py_LIMITED_API", "0x030B0000")],
            py_limited_api=True,
            optional=True,
        )
    )
    options["bdist_wheel"] = {"py_limited_api": "cp311"}

setup(ext_modules=extensions, options=options)
