#pragma once

// What the kernels share. Only .cu files include this.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "quant/affine.h"

namespace calla::cuda {

inline constexpr int kWarp = 32;

// Programmatic dependent launch: a kernel may start while the one before it in the stream still runs. Before
// wait_for_previous() it may read only what no kernel before it writes, or what kernels wrote that its predecessor had
// itself waited for; so launch_next() comes after the wait. Nothing happens before sm_90.
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void launch_next() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// d += a·b with a: 16×16 (rows × k), b: 16×8, both f16, d: 16×8 f32.
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// The same with bf16 operands.
__device__ __forceinline__ void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ uint32_t bits(__half2 v) {
  return *reinterpret_cast<uint32_t*>(&v);
}
__device__ __forceinline__ __half2 as_half2(uint32_t v) {
  return *reinterpret_cast<__half2*>(&v);
}

// The eight codes of one word of a tile (tiles.h) as an A operand: exact f16 0..15. A code under the exponent of 1024
// is 1024 + code; one four bits higher is 1024 + 16·code.
__device__ __forceinline__ void unpack_codes(uint32_t word, uint32_t (&a)[4]) {
  constexpr uint32_t kLow = 0x000f000f, kHigh = 0x00f000f0, kExponent = 0x64006400;
  const __half2 k1024 = as_half2(0x64006400), k16th = as_half2(0x2c002c00),
                k64 = as_half2(0xd400d400);  // 1024, 1/16, −64
  const uint32_t next = word >> 8;
  a[0] = bits(__hsub2(as_half2((word & kLow) | kExponent), k1024));
  a[1] = bits(__hfma2(as_half2((word & kHigh) | kExponent), k16th, k64));
  a[2] = bits(__hsub2(as_half2((next & kLow) | kExponent), k1024));
  a[3] = bits(__hfma2(as_half2((next & kHigh) | kExponent), k16th, k64));
}

// The same without the arithmetic: rows i as 1024 + code, rows i+8 as 1024 + 16·code.
__device__ __forceinline__ void lift_codes(uint32_t word, uint32_t (&a)[4]) {
  constexpr uint32_t kLow = 0x000f000f, kHigh = 0x00f000f0, kExponent = 0x64006400;
  const uint32_t next = word >> 8;
  a[0] = (word & kLow) | kExponent;
  a[1] = (word & kHigh) | kExponent;
  a[2] = (next & kLow) | kExponent;
  a[3] = (next & kHigh) | kExponent;
}

// bf16 scale in the low half of a word, bf16 bias in the high one.
__device__ __forceinline__ float scale_of(uint32_t word) {
  return __uint_as_float(word << 16);
}
__device__ __forceinline__ float bias_of(uint32_t word) {
  return __uint_as_float(word & 0xffff0000u);
}

// Largest finite f16 instead of infinity: activations have outliers.
__device__ __forceinline__ __half to_half(float x) {
  return __float2half_rn(fminf(fmaxf(x, -65504.0f), 65504.0f));
}

__device__ __forceinline__ __half2 to_half2(float low, float high) {
  uint32_t v;
  asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
  return as_half2(v);
}

__device__ __forceinline__ float sigmoid(float x) {
  return __fdividef(1.0f, 1.0f + __expf(-x));
}
__device__ __forceinline__ float silu(float x) {
  return __fdividef(x, 1.0f + __expf(-x));  // 0 where x is below −88
}

// 2^x, with 2^-∞ = 0; relative error 2^-22, results below 2^-126 are 0.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Weights are read once a step: they may go from the caches first.
__device__ __forceinline__ uint4 load_once(const uint4* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}
__device__ __forceinline__ uint2 load_once(const uint2* p) {
  uint2 v;
  asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
  return v;
}

// Sums over a warp, the same bits in every lane.
__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) v += __shfl_xor_sync(0xffffffff, v, offset);
  return v;
}
__device__ __forceinline__ float warp_max(float v) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffff, v, offset));
  return v;
}

}  // namespace calla::cuda
