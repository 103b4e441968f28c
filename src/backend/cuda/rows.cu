#include "backend/cuda/rows.h"

#include <algorithm>

#include "backend/cuda/device.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/tiles.h"

namespace calla::cuda {
namespace {

constexpr int kThreads = 256;

unsigned blocks_for(size_t n) {
  return static_cast<unsigned>((n + kThreads - 1) / kThreads);
}

__global__ void tile_kernel(int out, int in, const uint16_t* rows, const uint16_t* scales, const uint16_t* biases,
                            int first, int step, uint32_t* tile_codes, uint32_t* tile_scales) {
  wait_for_previous();
  launch_next();
  const int groups = in / kGroup, row_tiles = (out + kTileRows - 1) / kTileRows;
  constexpr int kWords = kTileCodeBytes / 4;
  const size_t index = size_t(blockIdx.x) * blockDim.x + threadIdx.x;  // a word of codes
  const size_t tile = index / kWords;
  if (tile >= size_t(row_tiles) * groups) return;
  const int r = static_cast<int>(tile / groups), g = static_cast<int>(tile % groups);
  const int word = index % kWords, lane = word / 4, s = word % 4, i = lane / 4, t = lane % 4;
  // Four columns of a row are two bytes.
  const auto four = [&](int row) -> uint32_t {
    return row < out ? rows[size_t(row) * in / 4 + g * (kGroup / 4) + 4 * t + s] : 0;
  };
  const uint32_t a = four(r * kTileRows + i), b = four(r * kTileRows + i + 8);
  const auto nibble = [](uint32_t v, int n) { return v >> 4 * n & 15; };
  const size_t to = size_t(first + r * step) * groups + g;
  tile_codes[to * kWords + word] = nibble(a, 0) | nibble(b, 0) << 4 | nibble(a, 2) << 8 | nibble(b, 2) << 12 |
                                   nibble(a, 1) << 16 | nibble(b, 1) << 20 | nibble(a, 3) << 24 | nibble(b, 3) << 28;
  if (word < kTileScaleWords) {
    const int row = r * kTileRows + word / 2 + word % 2 * 8;
    const size_t at = size_t(row) * groups + g;
    tile_scales[to * kTileScaleWords + word] = row < out ? uint32_t(scales[at]) | uint32_t(biases[at]) << 16 : 0;
  }
}

__global__ void pair_kernel(size_t count, const uint16_t* scales, const uint16_t* biases, uint32_t* words) {
  wait_for_previous();
  launch_next();
  const size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) words[i] = uint32_t(scales[i]) | uint32_t(biases[i]) << 16;
}

__global__ void embed_kernel(const uint8_t* codes, const uint32_t* scales, int width, const int32_t* ids, float* x) {
  wait_for_previous();
  launch_next();
  const size_t row = ids[blockIdx.x];
  float* const y = x + size_t(blockIdx.x) * width;
  for (int c = 2 * threadIdx.x; c < width; c += 2 * blockDim.x) {
    const uint32_t two = codes[(row * width + c) / 2], s = scales[row * (width / kGroup) + c / kGroup];
    *reinterpret_cast<float2*>(y + c) = {scale_of(s) * (two & 15) + bias_of(s), scale_of(s) * (two >> 4) + bias_of(s)};
  }
}

// A block a row. x stays in the cache between the two sweeps.
__global__ void norm_kernel(const float* x, const float* gamma, float eps, int width, float* h, Half* half) {
  __shared__ float partial[kThreads / kWarp];
  wait_for_previous();
  launch_next();
  const size_t row = size_t(blockIdx.x) * width;
  float sum = 0;
  for (int c = 4 * threadIdx.x; c < width; c += 4 * kThreads) {
    const float4 v = *reinterpret_cast<const float4*>(x + row + c);
    sum += (v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w);
  }
  sum = warp_sum(sum);
  if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = sum;
  __syncthreads();
  float total = 0;
#pragma unroll
  for (int w = 0; w < kThreads / kWarp; ++w) total += partial[w];
  const float scale = rsqrtf(total / width + eps);
  for (int c = 4 * threadIdx.x; c < width; c += 4 * kThreads) {
    const float4 v = *reinterpret_cast<const float4*>(x + row + c), g = *reinterpret_cast<const float4*>(gamma + c);
    const float4 n = {v.x * scale * g.x, v.y * scale * g.y, v.z * scale * g.z, v.w * scale * g.w};
    *reinterpret_cast<float4*>(h + row + c) = n;
    const __half2 a = __halves2half2(to_half(n.x), to_half(n.y)), b = __halves2half2(to_half(n.z), to_half(n.w));
    *reinterpret_cast<uint2*>(half + row + c) = make_uint2(bits(a), bits(b));
  }
}

__global__ void add_kernel(float* x, const float* y, size_t n) {
  wait_for_previous();
  launch_next();
  const size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) x[i] += y[i];
}

__global__ void gather_kernel(const float* x, const int32_t* rows, int width, float* y) {
  wait_for_previous();
  launch_next();
  for (int c = threadIdx.x; c < width; c += blockDim.x) {
    y[size_t(blockIdx.x) * width + c] = x[size_t(rows[blockIdx.x]) * width + c];
  }
}

}  // namespace

void tile_matrix(Stream stream, int out, int in, const void* rows, const void* scales, const void* biases, int first,
                 int step, void* tile_codes, uint32_t* tile_scales) {
  const size_t words = tile_sizes(out, in).code_bytes / 4;
  launch(tile_kernel, blocks_for(words), kThreads, 0, stream, out, in, static_cast<const uint16_t*>(rows),
         static_cast<const uint16_t*>(scales), static_cast<const uint16_t*>(biases), first, step,
         static_cast<uint32_t*>(tile_codes), tile_scales);
}

void pair_scales(Stream stream, size_t count, const void* scales, const void* biases, uint32_t* words) {
  launch(pair_kernel, blocks_for(count), kThreads, 0, stream, count, static_cast<const uint16_t*>(scales),
         static_cast<const uint16_t*>(biases), words);
}

void embed(Stream stream, const DeviceLinear& w, const int32_t* ids, int m, float* x) {
  launch(embed_kernel, m, kThreads, 0, stream, static_cast<const uint8_t*>(w.weight), w.scales, w.in, ids, x);
}

void rmsnorm(Stream stream, const float* x, const float* gamma, float eps, int m, int width, float* h, Half* half) {
  launch(norm_kernel, m, kThreads, 0, stream, x, gamma, eps, width, h, half);
}

void add(Stream stream, float* x, const float* y, size_t n) {
  launch(add_kernel, blocks_for(n), kThreads, 0, stream, x, y, n);
}

void gather(Stream stream, const float* x, const int32_t* rows, int count, int width, float* y) {
  launch(gather_kernel, count, kThreads, 0, stream, x, rows, width, y);
}

}  // namespace calla::cuda
