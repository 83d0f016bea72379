// What kernels find on a CPU instead of a GPU; how their threads run is in simt.cpp.
#pragma once
#include <cstddef>
#include <utility>

struct Index {
  unsigned x, y, z;
};

extern Index threadIdx, blockIdx, blockDim, gridDim;

namespace simt {

extern char* dynamic_shared;
extern size_t shared_stride;

void barrier();
unsigned long long exchanged(unsigned long long value, int mask);
void multiply_bytes(int* sum, const unsigned* table, unsigned low, unsigned high);
int cluster_rank();
void cluster_arrive();
void cluster_wait();
void wait_for(const volatile unsigned long long* count, int bytes);
void launch(void (*kernel)(void**), unsigned cluster_size, const unsigned* grid,
            unsigned block, size_t shared, void** args);

template <class T>
const T* of_block(const T* place, int rank) {
  return (const T*)((const char*)place + shared_stride * (rank - cluster_rank()));
}

inline void* my_shared() { return dynamic_shared + shared_stride * cluster_rank(); }

template <class... Types, size_t... I>
void call(void (*kernel)(Types...), void** args, std::index_sequence<I...>) {
  kernel(*(Types*)args[I]...);
}

template <class... Types>
void call(void (*kernel)(Types...), void** args) {
  call(kernel, args, std::index_sequence_for<Types...>());
}

}  // namespace simt

#define DEVICE inline
#define KERNEL static
#define __shared__ static
#define __grid_constant__
#define DYNAMIC_SHARED(type, name) type* name = (type*)simt::my_shared()
// What simt.py reads from the text is the size.
#define CLUSTERS(size, blocks, name, type)

inline void __syncthreads() { simt::barrier(); }

// The threads of a warp run to as many barriers each, so that one of all serves.
inline void __syncwarp() { simt::barrier(); }

template <class T>
T max(T x, T y) {
  return x < y ? y : x;
}

template <class T>
T min(T x, T y) {
  return y < x ? y : x;
}

template <class T>
T atomicMax(T* address, T value) {
  T old = *address;
  *address = max(old, value);
  return old;
}

template <class T>
T atomicAdd(T* address, T value) {
  T old = *address;
  *address += value;
  return old;
}

template <class T>
T atomicOr(T* address, T value) {
  T old = *address;
  *address |= value;
  return old;
}
