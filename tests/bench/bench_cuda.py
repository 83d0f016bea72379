"""Figures of the CUDA engine that `python -m np_ozaki bench` does not show.

Stages against the time of the bytes they must move, products of host arrays against
the time of their copies, where host products pay, and what a first call costs.  Needs
a GPU; prints tables.
"""

import os
import subprocess
import sys
import tempfile
import time

import numpy as np

import np_ozaki
from np_ozaki.engines import choice
from np_ozaki.engines.base import Scheme

REPEATS = 9
FIRST = """
import time
start = time.perf_counter()
import numpy as np, np_ozaki
import cupy
a = np.ones((512, 512))
imported = time.perf_counter()
np_ozaki.matmul(a, a, engine="cuda")
print(imported - start, time.perf_counter() - imported)
"""


def spread(times):
    """Return median, least and most in milliseconds as text."""
    times = 1e3 * np.array(times)
    return f"{np.median(times):9.3f} ({times.min():.3f} to {times.max():.3f})"


def on_device(cupy, work):
    """Return seconds of queued work, by events, REPEATS times."""
    times = []
    for turn in range(REPEATS + 2):
        start, stop = cupy.cuda.Event(), cupy.cuda.Event()
        start.record()
        work()
        stop.record()
        stop.synchronize()
        if turn > 1:
            times.append(cupy.cuda.get_elapsed_time(start, stop) / 1e3)
    return times


def random(cupy, n):
    """Return n x n numbers with phi = 0.5."""
    x = cupy.random.standard_normal((n, n))
    return (cupy.random.random((n, n)) - 0.5) * cupy.exp(0.5 * x)


def stages(cupy, n, num_moduli):
    """Print the stages of one product and the time of their bytes."""
    engine = choice.cuda_engine()
    a, b, out = random(cupy, n), random(cupy, n), cupy.empty((1, n, n))

    def product():
        engine.matmul(
            a[np.newaxis],
            b[np.newaxis],
            out,
            Scheme(num_moduli),
        )

    product()
    copy = on_device(cupy, lambda: cupy.copyto(out[0], a))
    rate = 16 * n * n / np.median(copy)
    parts = []
    for _ in range(REPEATS):
        with engine.device.timeline() as times:
            product()
        parts.append(times)
    median = {name: np.median([p[name] for p in parts]) for name in parts[0]}
    # Each operand is read once and its residues are written; int32 products are read.
    scaling = 2 * (8 + num_moduli) * n * n / 4e12 * 1e3
    rebuilt = (4 * num_moduli + 8) * n * n / 4e12 * 1e3
    ours = median["scaling_exponents"] + median["residues"]
    print(f"n={n} N={num_moduli}, copy {rate / 1e12:.2f} TB/s, ms:")
    print("  " + ", ".join(f"{name} {ms:.3f}" for name, ms in median.items()))
    print(f"  exponents and residues: {ours / scaling:.2f} times their bytes at 4 TB/s")
    print(f"  reconstruct: {median['reconstruct'] / rebuilt:.2f} times its bytes")


def end_to_end(cupy, n):
    """Print products of host arrays beside the time of three pinned copies."""
    import cupyx

    rng = np.random.default_rng(0)
    pageable = [rng.standard_normal((n, n)) for _ in range(3)]
    pinned = [cupyx.empty_pinned((n, n)) for _ in range(3)]
    for x, y in zip(pinned, pageable, strict=True):
        x[...] = y
    device = cupy.empty((n, n))
    one = on_device(cupy, lambda: device.set(pinned[0]))
    floor = 3 * np.median(one)
    print(f"n={n}: three pinned copies {1e3 * floor:.1f} ms")
    for name, (a, b, out) in (("pinned", pinned), ("pageable", pageable)):
        times = []
        for turn in range(REPEATS + 1):
            start = time.perf_counter()
            np_ozaki.matmul(a, b, out, precision=15, engine="cuda")
            if turn:
                times.append(time.perf_counter() - start)
        ratio = np.median(times) / floor
        print(f"  {name:9} {spread(times)} ms, {ratio:.2f} times the copies")


def crossover():
    """Print host products on the GPU beside NumPy's."""
    rng = np.random.default_rng(0)
    for n in (128, 256, 384, 512, 768, 1024, 2048):
        a, b = rng.standard_normal((n, n)), rng.standard_normal((n, n))
        native, ours = [], []
        for turn in range(REPEATS + 1):
            start = time.perf_counter()
            a @ b
            middle = time.perf_counter()
            np_ozaki.matmul(a, b, engine="cuda")
            if turn:
                native.append(middle - start)
                ours.append(time.perf_counter() - middle)
        print(f"n={n:5} NumPy {spread(native)} ms, GPU {spread(ours)} ms")


def first_call():
    """Print what the first product of a process costs, with and without a cache."""
    with tempfile.TemporaryDirectory() as folder:
        for cache in ("empty", "full"):
            done = subprocess.run(
                [sys.executable, "-c", FIRST],
                env={**os.environ, "CUPY_CACHE_DIR": folder},
                capture_output=True,
                text=True,
                check=True,
            )
            imported, called = map(float, done.stdout.split())
            print(f"{cache} cache: imports {imported:.2f} s, first call {called:.2f} s")


def main():
    """Print everything."""
    import cupy

    print(np_ozaki.info())
    for n in (4096, 8192, 16384):
        for num_moduli in (14, 15):
            stages(cupy, n, num_moduli)
        cupy.get_default_memory_pool().free_all_blocks()
    end_to_end(cupy, 8192)
    crossover()
    first_call()


if __name__ == "__main__":
    main()
