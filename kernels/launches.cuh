// Kernels of one stream that overlap: the next one starts while the last blocks of this
// one still run, and waits by itself for what they write.  Compute capability 9.0.
#pragma once
#include "arithmetic.cuh"

// Lets a kernel that is launched to overlap start where there is room, once a thread of
// every block has said so.
HD void let_next_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Waits until the kernel before has ended and all that it wrote is seen.  What came
// before that one has ended, too, as it waits itself where it was launched to overlap.
// A kernel that is launched so waits in every block before it touches memory that
// another one reads or writes.
//
// A kernel that lets the next one start only when it has waited has that one find ended
// what came before both: `reconstruct_tiles` reads facts of lines before it waits for
// `residue_tiles`.
HD void wait_for_last() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
