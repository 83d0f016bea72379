"""Microseconds of Python around the engine: what a product costs before it begins.

    python tests/bench/bench_host.py [--profile NAME]

An engine that returns at once stands in for the CUDA engine, and arrays that hold no
data for CuPy's, so that no GPU is needed: what is left is the way from `matmul` to
`Engine.matmul` and back, or, by a shortcut, to a recording of three kernels that are
queued at once.  Each figure is the least of many rounds, since other
processes can only add; parts are nested, each holds the ones below it.
"""

from __future__ import annotations

import argparse
import cProfile
import functools
import itertools
import math
import pstats
import time
import types

import numpy as np

import np_ozaki
from np_ozaki import OzArray, context
from np_ozaki.config import Options
from np_ozaki.engines import choice
from np_ozaki.engines.base import Outcome, Scheme
from np_ozaki.engines.cuda_replay import Recording
from np_ozaki.engines.cuda_shortcuts import Shortcuts
from np_ozaki.gemm import matmul_arrays, product
from np_ozaki.precision import multiply
from np_ozaki.stats import CallInfo

ROUNDS, CALLS = 400, 20
N = 1024
FLOAT64 = np.dtype(np.float64)


@functools.cache
def facts(shape, dtype):
    """Return number of axes, size, bytes and strides of a C-contiguous array."""
    dtype = np.dtype(dtype)
    size = math.prod(shape)
    strides = tuple(
        dtype.itemsize * math.prod(shape[i + 1 :]) for i in range(len(shape))
    )
    return len(shape), size, size * dtype.itemsize, strides


class Array:
    """Shape, strides and address of an array of a device, as CuPy's; C-contiguous."""

    __array_priority__ = 100.0
    __slots__ = (
        "dtype",
        "nbytes",
        "ndim",
        "pointer",
        "reshaped",
        "shape",
        "size",
        "strides",
    )

    def __init__(self, shape, dtype=FLOAT64, pointer=0):
        self.shape = shape
        self.dtype = dtype
        self.pointer = pointer
        self.ndim, self.size, self.nbytes, self.strides = facts(shape, dtype)
        self.reshaped = {}

    @property
    def __cuda_array_interface__(self):
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "descr": self.dtype.descr,
            "data": (self.pointer, False),
            "strides": None,
            "version": 3,
        }

    def reshape(self, *shape):
        # Made once: to make one takes CuPy less than Python.
        found = self.reshaped.get(shape)
        if found is None:
            new = shape[0] if isinstance(shape[0], tuple) else shape
            found = self.reshaped[shape] = Array(new, self.dtype, self.pointer)
        return found

    def astype(self, dtype, copy=True):
        return self

    def __array_function__(self, func, kinds, args, kwargs):
        if func is np.may_share_memory:
            return may_share_memory(*args)
        if func is np.empty_like:
            return Array(kwargs["shape"])
        raise NotImplementedError(func)


def may_share_memory(x, y):
    return x.pointer < y.pointer + y.nbytes and y.pointer < x.pointer + x.nbytes


class Memory:
    """`np_ozaki.engines.memory.DeviceMemory` of these arrays."""

    def device(self):
        return 0

    def extent(self, x):
        return Array((x.nbytes,), np.dtype(np.uint8), x.pointer), 0

    def view(self, buffer, offset, shape, strides, dtype):
        return Array(shape, dtype, buffer.pointer + offset)

    def device_of(self, buffer):
        return 0

    def mark(self):
        return None

    def wait(self, mark):
        return False

    def synchronize(self, device):
        pass


class Device:
    """What shortcuts and recordings ask of a device."""

    stream = 0

    def is_timed(self):
        return False

    def addresses(self, arrays):
        return (0, *[x.pointer for x in arrays])

    def pointer(self, x):
        return x.pointer

    def empty(self, shape, dtype):
        return Array(shape, dtype, 1 << 40)

    def is_out_of_memory(self, error):
        return False

    def queue_again(self, launches):
        stream = self.stream
        for launch in launches:
            launch(stream)


def recording():
    """Return one whose kernels, with some sixty words, are queued at once."""
    step = (lambda stream: None), None
    words = list(range(60))
    spaces = [x % 5 for x in words]
    return Recording(words, spaces, [lambda _: step] * 3, 1 << 20, None, None)


class Engine:
    """An engine that has multiplied already."""

    name = "cuda"
    device = Device()
    shortcuts = Shortcuts(device)
    plain = Outcome(overflow=False, invalid=False, workspace_bytes=1 << 20, tiles=1)
    certified = Outcome(False, False, 1 << 20, 1, np.zeros(1, np.int64))
    long = np.random.default_rng(1).standard_normal((1, 64))

    def matmul(self, a, b, out, scheme, **how):
        return self.plain if how["certify"] is None else self.certified

    def samples(self, *operands):
        return [self.long for _ in operands]


def install():
    """Let this process have the device."""
    engine, memory = Engine(), Memory()
    choice.cuda_unavailable = lambda: None
    choice.cuda_engine = lambda: engine
    choice.device_memory = lambda: memory
    choice.as_device_array = lambda x, *, copy=True: x
    choice._cupy = types.SimpleNamespace(
        ndarray=Array, may_share_memory=may_share_memory
    )
    return engine


def idle(*args, **kwargs):
    """Stand in for the CPU engine's product."""
    return Engine.plain if kwargs["certify"] is None else Engine.certified


def jobs():
    """Return what is timed, by name."""
    engine = install()
    choice.cpu_engine().matmul = idle
    choice.cpu_engine().samples = engine.samples
    nbytes = 8 * N * N
    a, b, out, other = (Array((N, N), pointer=i * nbytes) for i in range(1, 5))
    stacks = [x.reshape(1, N, N) for x in (a, b, out)]
    options, auto = Options(precision=14), Options()
    x, y, z = (OzArray._on_device(each) for each in (a, b, out))
    host = [np.ones((N, N)) for _ in range(3)]
    scope = Options(precision=14, engine="cpu")
    matmul = np_ozaki.matmul
    info = CallInfo("matmul", "cuda", 1, N, N, N, num_moduli=14, scaling="norm")
    scheme = Scheme(14)

    def inside(calls):
        # np.matmul(a, b, out) as the hook of a scope sees it.
        return lambda: product(*(h[None] for h in host), route="matmul", options=calls)

    # The very object that `matmul` finds.
    names = ("scaling", "engine", "workspace_bytes", "check")
    short = context.default_options().with_changes(precision=13, **dict.fromkeys(names))
    info13 = CallInfo("matmul", "cuda", 1, N, N, N, num_moduli=13, scaling="norm")
    for with_out in (False, True):
        # Kept is what was looked for.
        engine.shortcuts.matmul(a, b, out if with_out else None, short)
        engine.shortcuts.keep(
            (a, b, out),
            (a, b, out),
            short,
            info13,
            recording(),
            with_out=with_out,
        )
    outs = itertools.cycle((out, other))
    return {
        "shortcut: matmul(a, b, precision=13)": lambda: matmul(a, b, precision=13),
        "shortcut: matmul(a, b, out, precision=13)": lambda: matmul(
            a, b, out, precision=13
        ),
        "shortcut: another out": lambda: matmul(a, b, next(outs), precision=13),
        "matmul(a, b, precision=14)": lambda: matmul(a, b, precision=14),
        "matmul(a, b, out, precision=14)": lambda: matmul(a, b, out, precision=14),
        "  options": lambda: context.default_options().with_changes(precision=14),
        "  matmul_arrays(a, b)": lambda: matmul_arrays(
            a, b, None, route="matmul", options=options
        ),
        "  matmul_arrays(a, b, out)": lambda: matmul_arrays(
            a, b, out, route="matmul", options=options
        ),
        "    product": lambda: product(*stacks, route="matmul", options=options),
        "      precision": lambda: multiply(engine, *stacks, options),
        "      CallInfo": lambda: CallInfo(
            "matmul",
            "cuda",
            1,
            N,
            N,
            N,
            num_moduli=14,
            scaling="norm",
            shift=0,
            rebalanced=False,
            workspace_bytes=1 << 20,
            tiles=1,
            checked=False,
            recomputed=False,
        ),
        "      stats": lambda: context.record(info),
        "      engine (nothing)": lambda: engine.matmul(
            *stacks, scheme, workspace_bytes=None, certify=None
        ),
        'matmul(a, b, precision="auto")': lambda: matmul(a, b, precision="auto"),
        "    product, auto": lambda: product(*stacks, route="matmul", options=auto),
        "      precision, auto": lambda: multiply(engine, *stacks, auto),
        "oz @ oz": lambda: x @ y,
        "oz @ oz, precision 14 of a scope": (options, lambda: x @ y),
        "matmul(oz, oz, out, precision=14)": lambda: matmul(x, y, z, precision=14),
        "matmul(oz, oz, precision=14)": lambda: matmul(x, y, precision=14),
        "host: matmul(a, b, precision=14)": lambda: matmul(
            *host[:2], precision=14, engine="cpu"
        ),
        "host: matmul(a, b, out, precision=14)": lambda: matmul(
            *host, precision=14, engine="cpu"
        ),
        "host: matmul(a, b)": lambda: matmul(*host[:2], engine="cpu"),
        "host: np.matmul in a scope": inside(scope),
    }


def microseconds(job):
    """Return the least time of one call, inside a scope where options come along."""
    if isinstance(job, tuple):
        scope = context.LiveScope(job[0], local=True)
        context.enter(scope)
        least = microseconds(job[1])
        context.leave(scope)
        return least
    least = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(CALLS):
            job()
        least = min(least, (time.perf_counter() - start) / CALLS)
    return 1e6 * least


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--profile", metavar="NAME", help="list where one job's goes")
    parser.add_argument("--sort", default="tottime")
    arguments = parser.parse_args()
    for name, job in jobs().items():
        if arguments.profile is None:
            print(f"{name:42} {microseconds(job):8.2f} us", flush=True)
        elif arguments.profile == name.strip():
            if isinstance(job, tuple):
                context.enter(context.LiveScope(job[0], local=True))
                job = job[1]
            with cProfile.Profile() as profile:
                for _ in range(20_000):
                    job()
            pstats.Stats(profile).sort_stats(arguments.sort).print_stats(30)


if __name__ == "__main__":
    main()
