"""NVRTC compiles every kernel for every architecture, and no FP64 unit is asked for.

No GPU takes part: NVRTC comes as a package of the extra `test`.
"""

import ast
import re
from pathlib import Path

import np_ozaki._kernels
import pytest
from np_ozaki._kernels.render import (
    HOPPER_STAGES,
    OVERLAPPING_STAGES,
    STAGES,
    Digits,
    Entries,
    Sums,
    Variant,
    is_wide,
    source,
)

import np_ozaki

nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings is missing")

ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a")
DISTINCT = ("sm_75", "sm_90a", "sm_120a")
"""Those for which the texts say the least and the most, and the newest."""

ORDINARY = Variant(15, "norm", True)
OTHERS = (
    Variant(14, "norm", False),
    Variant(20, "norm", True),
    Variant(15, "accurate", False),
    Variant(15, "legacy", False),
    Variant(2, "norm", False),
    Variant(49, "norm", True),
    # Operands that gain bits.
    Variant(9, "norm", True, 64),
    Variant(49, "norm", False, 192),
)
RECONSTRUCTIONS = [
    Variant(n, "norm", False, with_low=low, with_check=check)
    for n in (2, 15, 49)
    for low, check in ((True, False), (False, True), (True, True))
]
TILES = [
    *RECONSTRUCTIONS,
    *(
        Variant(n, "norm", False, with_low=more, with_check=more, **kind)
        for n in (2, 15, 20)
        for more in (False, True)
        for kind in ({"products": 7}, {"symmetric": True})
    ),
]
# Two residues for a modulus: narrow integers and wide ones.
OF_PAIRS = (
    Variant(16, "norm", True, family="complex", parts=2),
    Variant(22, "norm", True, family="complex", parts=2),
    Variant(15, "legacy", False, family="complex", parts=2),
    Variant(9, "norm", False, 64, family="complex", parts=2),
)
OF_MODULI = ("residues", "reduce", "reconstruct", "reconstruct_tiles")
"""Stages that the engine asks for with a variant."""

IN_CLUSTERS = ("lines_in_clusters", "winograd_planes", "winograd_in_clusters")
"""Likewise, on GPUs with clusters of blocks."""

WITH_CLUSTERS = ("sm_90a", "sm_100a", "sm_120a")

OF_SLICES = ("slices", "recombine")
"""Stages with variants of their own."""

DIAGONALS = tuple(range(7, 15))
SLICED = [
    *(("slices", Digits(s, b)) for s, b in ((8, 8), (16, 8), (9, 7), (1, 2), (13, 5))),
    ("recombine", Sums(8, DIAGONALS, False, "exact")),
    ("recombine", Sums(8, DIAGONALS, False, "exact", True)),
    ("recombine", Sums(8, (*DIAGONALS, 14), False, "exact")),
    ("recombine", Sums(8, DIAGONALS, True, "exact", True)),
    ("recombine", Sums(8, tuple(range(31)), True, "exact")),
    ("recombine", Sums(2, (0,), False, "exact")),
]
ADDED = [Sums(8, DIAGONALS, wide, "float64") for wide in (False, True)]  # by FP64 units

SINGLE = Variant(7, "norm", True, single=True, single_result=True)
OF_ENTRIES = (
    "scaling_exponents",
    "accurate",
    "checksum",
    "second_look",
    "rebalance",
    "samples",
    "slice_exponents",
)
OF_SINGLE = [
    *((stage, SINGLE) for stage in OF_MODULI + IN_CLUSTERS),
    *((stage, SINGLE._replace(num_moduli=8)) for stage in IN_CLUSTERS),
    ("lines_in_clusters", SINGLE._replace(num_moduli=20)),
    ("reconstruct_tiles", SINGLE._replace(products=7)),
    ("reconstruct_tiles", SINGLE._replace(symmetric=True, with_check=True)),
    *((stage, Entries(single=True)) for stage in OF_ENTRIES),
    ("slices", Digits(4, 8, single=True)),
    (
        "recombine",
        Sums(8, DIAGONALS, False, "exact", single=True, single_result=True),
    ),
]

FOLDER = Path(np_ozaki._kernels.__file__).parent


def options():
    """Return the engine's own flags; its module cannot be imported without CuPy."""
    path = Path(np_ozaki.__file__).parent / "engines" / "cuda_device.py"
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "OPTIONS":
            return ast.literal_eval(node.value)
    raise AssertionError(f"{path.name} defines no OPTIONS")


def text_of(status, read_size, read, program):
    assert status == nvrtc.nvrtcResult.NVRTC_SUCCESS
    _, size = read_size(program)
    buffer = b" " * size
    read(program, buffer)
    return buffer.decode().rstrip("\0")


def compiled(text, architecture, *, to_ptx=False):
    """Return PTX and the compiler's log; unless told, machine code is made, too."""
    ok = nvrtc.nvrtcResult.NVRTC_SUCCESS
    status, program = nvrtc.nvrtcCreateProgram(text.encode(), b"text.cu", 0, None, None)
    assert status == ok
    # CuPy adds the last one by itself.
    target = architecture.replace("sm_", "compute_") if to_ptx else architecture
    flags = [*options(), f"--gpu-architecture={target}", "-ftz=true"]
    encoded = [flag.encode() for flag in flags]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)
    log = text_of(ok, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
    assert status == ok, log
    ptx = text_of(ok, nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program)
    status, size = nvrtc.nvrtcGetCUBINSize(program)
    assert status == ok
    assert (size == 0) == to_ptx
    nvrtc.nvrtcDestroyProgram(program)
    return ptx, log


def double_instructions(ptx):
    """Return the instructions of a PTX text that touch FP64 numbers."""
    code = re.sub(r"//.*", "", ptx)
    return sorted(set(re.findall(r"^\s*(?:@\S+\s+)?([a-z][\w.]*\.f64\S*)", code, re.M)))


def of_tables(ptx):
    """Return the registers that hold addresses in tables of numbers."""
    found = set()
    for target, sources in re.findall(r"\b[a-z.0-9]+\s+(%rd\d+), ([^;]*);", ptx):
        parts = re.findall(r"%rd\d+|[A-Za-z_]\w{3,}", sources)
        if any(x in found or not x.startswith("%") for x in parts):
            found.add(target)
    return found


def check_waits(stage, ptx):
    """Kernels that overlap wait before they touch what others do."""
    bodies = re.split(r"\.entry \w+\(", ptx)[1:]
    assert bodies
    for body in bodies:
        before, waits, after = body.partition("griddepcontrol.wait;")
        assert waits
        if stage == "residue_tiles":
            # A thread waits and feeds; others wait for its copies.  As it lets the next
            # kernel start only then, reconstruct_tiles finds facts that are done.
            assert "cp.async" not in before
            assert waits not in after
            assert "launch_dependents" not in before
            assert "launch_dependents" in after
            continue
        # No jump over it; and read are tables of numbers only, which nobody writes.
        assert not re.search(r"\b(st|red|atom)\.global|cp\.async|\bret;", before)
        jumps = re.findall(r"\bbra(?:\.uni)?\s+([$\w]+);", before)
        assert set(jumps) <= set(re.findall(r"^([$\w]+):", before, re.MULTILINE))
        read = re.findall(r"\bld\.global[.\w]*\s+[^\[]*\[(%rd\d+)", before)
        # Facts of lines were there before this kernel could start: see launches.cuh.
        assert stage == "reconstruct_tiles" or set(read) <= of_tables(before)
        assert re.search(r"\b(st|red)\.global", after)


def check(stage, variant, architecture, double=frozenset(), *, to_ptx=False):
    known = OF_MODULI + IN_CLUSTERS + OF_SLICES
    if stage not in known and not isinstance(variant, Entries):
        # Real lines have no plane of a certificate by itself.
        variant = Entries(2) if stage == "cut_planes" else None
    text = source(stage, variant)
    ptx, log = compiled(text, architecture, to_ptx=to_ptx)
    assert f".target {architecture}" in ptx
    kernels = re.findall(r"^KERNEL void (\w+)\(", text, re.MULTILINE)
    assert sorted(re.findall(r"\.entry (\w+)\(", ptx)) == sorted(kernels)
    assert {*double_instructions(ptx)} - {"mov.f64"} == double
    # A constant of a header that one stage does not use is no fault.
    assert set(re.findall(r"warning #(\d+)", log)) <= {"177"}, log
    if stage in OVERLAPPING_STAGES and architecture in WITH_CLUSTERS:
        check_waits(stage, ptx)


def slow_unless(quick, *values):
    return pytest.param(*values, marks=() if quick else pytest.mark.slow)


@pytest.mark.parametrize(
    "architecture", [slow_unless(x in DISTINCT, x) for x in ARCHITECTURES]
)
@pytest.mark.parametrize(
    "stage",
    [x for x in STAGES if x not in IN_CLUSTERS + HOPPER_STAGES + OF_SLICES],
)
def test_every_stage_for_every_architecture(stage, architecture):
    check(stage, ORDINARY, architecture)


@pytest.mark.parametrize("stage", HOPPER_STAGES)
def test_stages_on_hopper(stage):
    check(stage, None, "sm_90a")


@pytest.mark.parametrize(
    "architecture", [slow_unless(x == "sm_90a", x) for x in WITH_CLUSTERS]
)
@pytest.mark.parametrize("stage", IN_CLUSTERS)
def test_stages_in_clusters(stage, architecture):
    check(stage, ORDINARY, architecture)


@pytest.mark.parametrize(
    ("stage", "variant"),
    [
        # Quick: few moduli, and wide ones.
        slow_unless(variant[0] in {2, 20}, stage, variant)
        for stage in IN_CLUSTERS
        for variant in OTHERS
        # Sums of wide integers are not made.
        if "winograd" not in stage or not is_wide(*variant[:2], variant.lent_bits)
    ],
)
def test_every_kind_of_variant_in_clusters(stage, variant):
    # Machine code takes as long again, and is made of the ordinary variant.
    check(stage, variant, "sm_90a", to_ptx=variant[0] < 49)


@pytest.mark.parametrize(
    ("variant", "architecture"),
    [
        slow_unless(
            architecture == "sm_90a" or (architecture == "sm_75" and i < 2),
            variant,
            architecture,
        )
        for i, variant in enumerate(OTHERS)
        for architecture in ARCHITECTURES
    ],
)
@pytest.mark.parametrize("stage", OF_MODULI)
def test_every_kind_of_variant(stage, variant, architecture):
    # The longest tables take the most memory, which machine code must find.
    check(stage, variant, architecture, to_ptx=variant[0] < 49)


@pytest.mark.parametrize(
    ("stage", "variant", "architecture"),
    [
        slow_unless(
            (stage, i, architecture)
            in {
                ("lines_in_clusters", 0, "sm_90a"),
                ("residues", 1, "sm_75"),
                ("reconstruct", 0, "sm_75"),
                ("reconstruct_tiles", 1, "sm_90a"),
            },
            stage,
            variant,
            architecture,
        )
        for stage in (*OF_MODULI, "lines_in_clusters")
        for i, variant in enumerate(OF_PAIRS)
        for architecture in ARCHITECTURES
        if stage in OF_MODULI or architecture in WITH_CLUSTERS
    ],
)
def test_two_residues_for_a_modulus(stage, variant, architecture):
    check(stage, variant, architecture)
    if "reconstruct" in stage:
        check(stage, variant._replace(with_low=True), architecture)


def test_facts_of_complex_lines():
    check("scaling_exponents", Entries(2), "sm_75")


@pytest.mark.parametrize(
    ("stage", "variant", "architecture"),
    [
        slow_unless(
            architecture == "sm_90a" or (architecture == "sm_75" and i in {0, 6}),
            *each,
            architecture,
        )
        for i, each in enumerate(SLICED)
        for architecture in ARCHITECTURES
    ],
)
def test_stages_of_slices(stage, variant, architecture):
    check(stage, variant, architecture)


@pytest.mark.parametrize(
    ("stage", "variant", "architecture"),
    [
        slow_unless(
            architecture == "sm_90a" and stage in {"lines_in_clusters", "residues"},
            stage,
            variant,
            architecture,
        )
        for stage, variant in OF_SINGLE
        for architecture in ("sm_75", "sm_90a", "sm_120a")
        if stage not in IN_CLUSTERS or architecture in WITH_CLUSTERS
    ],
)
def test_stages_of_single_precision(stage, variant, architecture):
    check(stage, variant, architecture, to_ptx=True)


@pytest.mark.parametrize("architecture", ["sm_90a"])
@pytest.mark.parametrize("variant", ADDED)
def test_sums_added_in_float64_take_one_instruction_each(variant, architecture):
    check("recombine", variant, architecture, {"cvt.rn.f64.s64", "fma.rn.f64"})


@pytest.mark.parametrize("variant", RECONSTRUCTIONS)
def test_every_way_to_reconstruct(variant):
    check("reconstruct", variant, "sm_90a", to_ptx=variant[0] < 49)


@pytest.mark.parametrize("variant", TILES)
def test_every_way_to_reconstruct_tiles(variant):
    check("reconstruct_tiles", variant, "sm_90a", to_ptx=variant[0] < 49)


@pytest.mark.slow
@pytest.mark.parametrize("variant", [*OTHERS, *TILES])
@pytest.mark.parametrize("stage", OF_MODULI)
def test_machine_code_of_every_kind_of_variant(stage, variant):
    check(stage, variant, "sm_90a")


@pytest.mark.slow
@pytest.mark.parametrize("n", range(2, 50))
@pytest.mark.parametrize("stage", OF_MODULI)
def test_every_number_of_moduli(stage, n):
    check(stage, Variant(n, "norm", True), "sm_90a")


def test_every_source_file_is_compiled():
    files = {path.stem for path in FOLDER.glob("*.cu")}
    assert files == set(STAGES)
    assert {*OF_MODULI, *IN_CLUSTERS, *OF_SLICES} < set(STAGES)


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("x[0] * x[1]", "mul.f64"),
        ("x[0] > x[1]", "setp"),
        ("(double)(int)threadIdx.x", "cvt"),
        ("fma(x[0], x[1], x[2])", "fma"),
    ],
)
def test_fp64_arithmetic_is_noticed(code, found):
    text = f'extern "C" __global__ void f(double* x) {{ x[3] = {code}; }}'
    ptx, _ = compiled(text, "sm_90a", to_ptx=True)
    assert any(found.split(".")[0] in x for x in double_instructions(ptx))


@pytest.mark.parametrize(
    "code",
    [
        "*x = 1;",
        "*x = 1; WAIT",
        "if (*x) return; WAIT *x = 1;",
    ],
)
def test_what_does_not_wait_is_noticed(code):
    wait = 'asm volatile("griddepcontrol.wait;" ::: "memory");'
    text = f'extern "C" __global__ void f(int* x) {{ {code} }}'
    ptx, _ = compiled(text.replace("WAIT", wait), "sm_90a", to_ptx=True)
    with pytest.raises(AssertionError):
        check_waits("lines_in_clusters", ptx)


@pytest.mark.parametrize(
    "wrong", ["let_next_start();\n  wait_for_last();", "wait_for_last();", ""]
)
def test_what_would_let_facts_be_read_too_early_is_noticed(wrong):
    right = "wait_for_last();\n  let_next_start();"
    text = source("residue_tiles", None)
    assert right in text
    ptx, _ = compiled(text.replace(right, wrong), "sm_90a")
    with pytest.raises(AssertionError):
        check_waits("residue_tiles", ptx)


def test_faulty_text_is_refused_with_its_log():
    with pytest.raises(AssertionError, match="undefined"):
        compiled("__global__ void f() { nothing(); }", "sm_75")
