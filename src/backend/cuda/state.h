#pragma once

// The state of one sequence in the memory of a GPU. What HostState is on the host, with two differences of layout: the
// convolution's window is a ring of four inputs (types.h), and the numbers of the pages lie on the device as well, for
// kernels that replay a captured step.

#include <vector>

#include "backend/cuda/memory.h"
#include "backend/cuda/types.h"
#include "base/bf16.h"
#include "base/result.h"
#include "model/state.h"

namespace calla::cuda {

// Memory that is taken and given back in the order of a stream, so that a sequence costs no waiting.
class StreamMemory {
 public:
  StreamMemory() = default;
  StreamMemory(StreamMemory&& o) noexcept;
  StreamMemory& operator=(StreamMemory&& o) noexcept;
  ~StreamMemory();
  static Result<StreamMemory> allocate(size_t bytes, Stream stream);  // undefined content
  float* floats() const { return static_cast<float*>(data_); }
  int32_t* ints() const { return static_cast<int32_t*>(data_); }
  size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
  Stream stream_ = nullptr;
};

// All pages, in one allocation: page p at data + p·page_size, [attention layers][2][kv_heads][64][256] bf16.
class DevicePages : public PageCounts {
 public:
  static Result<DevicePages> allocate(size_t page_size, int limit);
  uint16_t* data() const { return memory_.as<uint16_t>(); }
  size_t page_size() const { return page_size_; }

 private:
  DevicePages(DeviceMemory memory, size_t page_size, int limit)
      : PageCounts(limit), memory_(std::move(memory)), page_size_(page_size) {}
  DeviceMemory memory_;
  size_t page_size_;
};

class CudaState {
 public:
  // Everything happens in the order of `stream`; shape and pages must outlive the state. most: pages of a sequence.
  static Result<CudaState> make(const StateShape& shape, DevicePages& pages, int most, Stream stream);
  CudaState(CudaState&&) noexcept;
  CudaState& operator=(CudaState&&) = delete;
  ~CudaState();
  // Bytes of one state besides pages.
  static size_t bytes(const StateShape& shape);

  // As HostState.
  bool reserve(int begin, int end);
  void truncate(int end);
  Result<CudaState> fork() const;
  Result<void> assign(const CudaState& o);
  using Kept = StreamMemory;
  Result<Kept> keep() const;
  void restore(const Kept& kept);
  void clear();

  // What kernels are told of rows [row, row+count) at `position`.
  DeviceRun run(int row, int count, int position) const;

  // To and from the host's form, for files: blocking, on a stream of their own. `count`: positions that are held.
  // download() may run on another thread, as long as the state is neither changed nor destroyed and what made it, a
  // pass or a copy, has ended.
  Result<void> download(int count, HostState<bf16, float>& to) const;
  Result<void> upload(int count, const HostState<bf16, float>& from);

 private:
  CudaState(const StateShape& shape, DevicePages& pages, int most, Stream stream, StreamMemory recurrent,
            StreamMemory table);
  void drop_pages(int keep);
  void send_table(int first);
  float* window() const { return recurrent_.floats() + shape_->recurrent_size(); }
  size_t window_row() const { return shape_->channels; }

  const StateShape* shape_;
  DevicePages* pool_;
  int most_;
  Stream stream_;
  std::vector<int32_t> pages_;
  StreamMemory recurrent_;  // the matrices, then the windows
  StreamMemory table_;      // pages_ on the device
};

}  // namespace calla::cuda
