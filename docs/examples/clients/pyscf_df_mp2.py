"""Density-fitted MP2 of a few water molecules, in NumPy.

PySCF solves the Hartree-Fock equations and evaluates the three- and two-centre
integrals; the fit, the transformation to orbitals and the energy are NumPy.
"""

import argparse

import numpy as np
from pyscf import df, gto, scf

WATER = (("O", 0.0, 0.0, 0.0), ("H", 0.0, 0.757, 0.587), ("H", 0.0, -0.757, 0.587))


def waters(count: int) -> list[tuple[str, tuple[float, float, float]]]:
    """Return a row of molecules, 3 Angstrom apart."""
    return [(s, (x + 3.0 * i, y, z)) for i in range(count) for s, x, y, z in WATER]


def fitted_integrals(mol: gto.Mole) -> np.ndarray:
    """Return B with (pq|rs) = sum over P of B[P, p, q] B[P, r, s]."""
    auxiliary = df.addons.make_auxmol(mol, "cc-pvdz-ri")
    three = df.incore.aux_e2(mol, auxiliary, "int3c2e", aosym="s1")
    values, vectors = np.linalg.eigh(auxiliary.intor("int2c2e"))
    root = np.dot(vectors / np.sqrt(values), vectors.T)
    return np.tensordot(root, three, axes=(1, 2))


def main(small: bool = False) -> dict[str, float]:
    """Compute the correlation energy, print and return its two parts."""
    mol = gto.M(atom=waters(1 if small else 2), basis="cc-pvdz", verbose=0)
    hf = scf.RHF(mol)
    hf.conv_tol = 1e-12
    # MP2 feels errors of the orbitals in first order, the energy only in second: by
    # default the last bits of a product could decide about one more cycle.
    hf.conv_tol_grad = 1e-10
    hf.kernel()
    occupied = mol.nelectron // 2
    c_occ, c_vir = hf.mo_coeff[:, :occupied], hf.mo_coeff[:, occupied:]
    e_occ, e_vir = hf.mo_energy[:occupied], hf.mo_energy[occupied:]

    fitted = fitted_integrals(mol)
    half = np.einsum("Ppq,pi->Piq", fitted, c_occ, optimize=True)
    ia = np.einsum("Piq,qa->Pia", half, c_vir, optimize=True)

    opposite = same = 0.0
    for i in range(occupied):
        for j in range(occupied):
            integrals = np.dot(ia[:, i].T, ia[:, j])
            gaps = e_occ[i] + e_occ[j] - e_vir[:, None] - e_vir
            amplitudes = integrals / gaps
            opposite += np.einsum("ab,ab->", amplitudes, integrals)
            same += np.einsum("ab,ab->", amplitudes, integrals - integrals.T)

    results = {
        "Hartree-Fock energy": float(hf.e_tot),
        "MP2 opposite spin": float(opposite),
        "MP2 same spin": float(same),
        "MP2 correlation energy": float(opposite + same),
    }
    for name, value in results.items():
        print(f"{name:24} {value:.12f}")
    return results


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="one molecule")
    main(parser.parse_args().small)
