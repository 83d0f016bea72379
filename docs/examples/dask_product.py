"""Multiply a matrix that is larger than a worker's memory, on a cluster of two workers.

C = A B with a square A that exists one panel of rows at a time, where a worker makes
it, and a thin B.  Chunks are OzArrays and np_ozaki is enabled on the workers, so that
an engine multiplies every panel.  As no panel is cut along the inner axis, each entry
of C has the bits that one product of the whole matrices would give it.  Checked are a
random combination of columns, and some rows bit by bit.
"""

import argparse
import sys
import time

import dask
import dask.array as da
import numpy as np
from dask.utils import format_bytes, parse_bytes
from distributed import Client, LocalCluster, progress, wait

import np_ozaki
from np_ozaki import OzArray
from np_ozaki.dask import EnablePlugin

# A fixed number of moduli: an entry then depends on its row and its column alone.
OPTIONS = {"precision": 15, "min_flops": 0, "workspace_bytes": 48 << 20}


def panel(block_info: dict) -> OzArray:
    """Return a chunk of A: random numbers, the same ones whenever it is made."""
    place = block_info[None]
    rng = np.random.default_rng(place["chunk-location"])
    return OzArray(rng.standard_normal(place["chunk-shape"]))


def state() -> tuple[dict[str, int], int]:
    """Return calls by engine on a worker, and the most memory it has had, in bytes."""
    import resource

    stats = np_ozaki.stats()
    calls = {name: stats.calls(name) for name in ("cuda", "cpu", "native")}
    unit = 1 if sys.platform == "darwin" else 1024
    return calls, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def main() -> None:
    """Multiply, check, and print what was done."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", type=int, default=7168, help="rows of A")
    parser.add_argument("--columns", type=int, default=128, help="columns of B")
    parser.add_argument("--rows", type=int, default=128, help="rows of a panel")
    parser.add_argument("--memory", default="300 MiB", help="limit of each worker")
    parser.add_argument("--engine", default="cpu", choices=["auto", "cpu", "cuda"])
    args = parser.parse_args()
    options = {**OPTIONS, "engine": args.engine}

    n = args.size
    chunks = da.core.normalize_chunks((args.rows, n), (n, n), dtype=float)
    a = da.map_blocks(panel, chunks=chunks, meta=OzArray(np.empty((0, 0))))
    right = np.random.default_rng(1).standard_normal((n, args.columns))
    b = da.from_array(right, chunks=-1).map_blocks(OzArray)
    vector = np.random.default_rng(2).standard_normal(args.columns)

    with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            memory_limit=parse_bytes(args.memory),
            dashboard_address=":0",
        ) as cluster,
        Client(cluster) as client,
    ):
        client.register_plugin(EnablePlugin(**options))
        print(
            f"A: {n} x {n}, {format_bytes(a.nbytes)} in {a.npartitions} panels; B: {n} "
            f"x {args.columns}; 2 workers of {format_bytes(parse_bytes(args.memory))}"
        )
        start = time.perf_counter()
        # One pass over A for the product and for its check.
        parts = dask.persist(a @ b, a @ (b @ vector))
        progress(parts, notebook=False)
        wait(parts)
        seconds = time.perf_counter() - start
        c, combined = (np.asarray(part.compute()) for part in parts)
        sample = np.linspace(0, n - 1, 5).astype(int)
        rows = np.asarray(a[sample].compute())
        workers = client.run(state)

    print(f"\n{seconds:.1f} s, {2 * n * n * args.columns / seconds / 1e9:.1f} GFLOP/s")
    error = np.abs(c @ vector - combined).max() / np.abs(combined).max()
    same = np.array_equal(c[sample], np_ozaki.matmul(rows, right, precision=15))
    print(f"C v against A (B v): {error:.1e}; sampled rows have the same bits: {same}")
    for address, (calls, peak) in workers.items():
        print(f"{address}: products {calls}, peak memory {format_bytes(peak)}")
    if error > 1e-10 or not same:
        sys.exit("the product is wrong")


if __name__ == "__main__":
    main()
