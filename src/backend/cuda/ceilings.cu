#include "backend/cuda/ceilings.h"

#include <algorithm>

#include "backend/cuda/ceilings.cuh"
#include "backend/cuda/chip.h"
#include "backend/cuda/device.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/memory.h"

namespace calla::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kLoads = 8;  // of 16 bytes, under way in a thread

__global__ void __launch_bounds__(kThreads) read_all(const uint4* from, size_t count, float* out) {
  const size_t stride = size_t(gridDim.x) * kThreads;
  uint32_t bits = 0;
  for (size_t i = size_t(blockIdx.x) * kThreads + threadIdx.x; i + (kLoads - 1) * stride < count;
       i += kLoads * stride) {
    uint4 v[kLoads];
#pragma unroll
    for (int l = 0; l < kLoads; ++l) v[l] = load_once(from + i + l * stride);
#pragma unroll
    for (const uint4& x : v) bits |= x.x | x.y | x.z | x.w;
  }
  if (bits != 0) *out = 1;  // never, the buffer is zero; so that the loads are not dropped
}

// Chains of products in registers. Values are like those of activations: zeros would need less power and give a rate
// that no work reaches.
constexpr int kChains = 8;
__global__ void __launch_bounds__(kThreads) multiply(int repeats, float* out) {
  uint32_t a[4], b[2];
  for (int i = 0; i < 4; ++i) a[i] = bits(__floats2half2_rn(0.1f + 0.01f * (threadIdx.x % 32), -0.2f - 0.03f * i));
  for (int i = 0; i < 2; ++i) b[i] = bits(__floats2half2_rn(0.7f - 0.02f * (threadIdx.x % 32), 0.4f * i - 0.3f));
  float sums[kChains][4] = {};
  for (int r = 0; r < repeats; ++r) {
#pragma unroll
    for (auto& s : sums) mma(s, a, b[0], b[1]);
  }
  float sum = 0;
  for (const auto& s : sums) sum += s[0] + s[1] + s[2] + s[3];
  if (sum == 12345.678f) *out = sum;  // never
}

double launch_mma_rounds(int multiprocessors, int repeats, float* out) {
  constexpr int kBlocks = 4;  // on a multiprocessor
  launch(multiply, dim3(kBlocks * multiprocessors), dim3(kThreads), 0, nullptr, repeats, out);
  return double(kBlocks) * multiprocessors * (kThreads / kWarp) * repeats * kChains * (16 * 8 * 16);
}

class Timer {
 public:
  Timer() {
    cudaEventCreate(&from_);
    cudaEventCreate(&to_);
  }
  ~Timer() {
    cudaEventDestroy(from_);
    cudaEventDestroy(to_);
  }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;
  // Of what `launch_it` launches on the default stream.
  template <class F>
  double seconds(const F& launch_it) {
    float ms = 0;
    cudaEventRecord(from_);
    launch_it();
    cudaEventRecord(to_);
    cudaEventSynchronize(to_);
    cudaEventElapsedTime(&ms, from_, to_);
    return ms / 1000;
  }

 private:
  cudaEvent_t from_ = nullptr, to_ = nullptr;
};

}  // namespace

Result<DeviceCeilings> measure_ceilings() {
  constexpr size_t kBuffer = size_t{2} << 30, kPiece = size_t{1} << 20;
  constexpr double kLongEnough = 0.02;
  constexpr int kPasses = 5;
  size_t free = 0, total = 0;
  if (cudaMemGetInfo(&free, &total) != cudaSuccess) return tl::unexpected<Error>(device_error("measuring the GPU"));
  const size_t bytes = std::min(kBuffer, free / 2) / kPiece * kPiece;
  CALLA_ASSIGN(const DeviceMemory buffer, DeviceMemory::allocate(bytes));
  CALLA_ASSIGN(const DeviceMemory out, DeviceMemory::allocate(sizeof(float)));
  const Chip& chip = current_chip();
  DeviceCeilings ceilings;
  Timer timer;
  constexpr int kBlocks = 8;  // on a multiprocessor
  // Whole rounds of the grid, so that no thread has less to do than another.
  const size_t round = size_t(kBlocks) * chip.multiprocessors * kThreads * kLoads, count = bytes / 16 / round * round;
  for (int pass = 0; pass < kPasses && count > 0; ++pass) {
    const double seconds = timer.seconds([&] {
      launch(read_all, dim3(kBlocks * chip.multiprocessors), dim3(kThreads), 0, nullptr, buffer.as<const uint4>(),
             count, out.as<float>());
    });
    ceilings.read = std::max(ceilings.read, double(count) * 16 / seconds);
  }
  const auto rounds = chip.has_wgmma ? launch_wgmma_rounds : launch_mma_rounds;
  int repeats = 1000;
  for (int pass = 0; pass < kPasses;) {
    double work = 0;
    const double seconds = timer.seconds([&] { work = rounds(chip.multiprocessors, repeats, out.as<float>()); });
    if (seconds < kLongEnough && repeats < (1 << 24)) {
      repeats *= 2;
      continue;
    }
    ceilings.matrix = std::max(ceilings.matrix, work / seconds);
    ++pass;
  }
  if (cudaDeviceSynchronize() != cudaSuccess) return tl::unexpected<Error>(device_error("measuring the GPU"));
  return ceilings;
}

}  // namespace calla::cuda
