#include "backend/cuda/state.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/progress.h"

namespace calla::cuda {
namespace {

constexpr int kRing = kConvTaps;

size_t window_size(const StateShape& s) {
  return size_t(s.delta_layers) * kRing * s.channels;
}

// These fail only where something before them has, which the next wait reports.
void copy(void* to, const void* from, size_t bytes, Stream stream) {
  cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream);
}

}  // namespace

StreamMemory::StreamMemory(StreamMemory&& o) noexcept
    : data_(std::exchange(o.data_, nullptr)), bytes_(o.bytes_), stream_(o.stream_) {}
StreamMemory& StreamMemory::operator=(StreamMemory&& o) noexcept {
  std::swap(data_, o.data_);
  std::swap(bytes_, o.bytes_);
  std::swap(stream_, o.stream_);
  return *this;
}
StreamMemory::~StreamMemory() {
  if (data_ != nullptr) cudaFreeAsync(data_, stream_);
}
Result<StreamMemory> StreamMemory::allocate(size_t bytes, Stream stream) {
  StreamMemory memory;
  memory.bytes_ = bytes;
  memory.stream_ = stream;
  if (cudaMallocAsync(&memory.data_, bytes, stream) != cudaSuccess) {
    cudaGetLastError();
    memory.data_ = nullptr;
    return fail(Error::Code::kMemory,
                fmt::format("{} for a sequence do not fit in the GPU's memory", format_bytes(bytes)));
  }
  return memory;
}

Result<DevicePages> DevicePages::allocate(size_t page_size, int limit) {
  CALLA_ASSIGN(DeviceMemory memory, DeviceMemory::allocate(page_size * limit * sizeof(uint16_t)));
  return DevicePages(std::move(memory), page_size, limit);
}

size_t CudaState::bytes(const StateShape& shape) {
  return sizeof(float) * (shape.recurrent_size() + window_size(shape));
}

Result<CudaState> CudaState::make(const StateShape& shape, DevicePages& pages, int most, Stream stream) {
  CALLA_ASSIGN(StreamMemory recurrent, StreamMemory::allocate(bytes(shape), stream));
  CALLA_ASSIGN(StreamMemory table, StreamMemory::allocate(sizeof(int32_t) * most, stream));
  CudaState state(shape, pages, most, stream, std::move(recurrent), std::move(table));
  state.clear();
  return state;
}

CudaState::CudaState(const StateShape& shape, DevicePages& pages, int most, Stream stream, StreamMemory recurrent,
                     StreamMemory table)
    : shape_(&shape),
      pool_(&pages),
      most_(most),
      stream_(stream),
      recurrent_(std::move(recurrent)),
      table_(std::move(table)) {}

CudaState::CudaState(CudaState&& o) noexcept
    : shape_(o.shape_),
      pool_(o.pool_),
      most_(o.most_),
      stream_(o.stream_),
      pages_(std::exchange(o.pages_, {})),
      recurrent_(std::move(o.recurrent_)),
      table_(std::move(o.table_)) {}

CudaState::~CudaState() {
  drop_pages(0);
}

void CudaState::drop_pages(int keep) {
  while (static_cast<int>(pages_.size()) > keep) {
    pool_->release(pages_.back());
    pages_.pop_back();
  }
}

// From pageable memory: the call has read it when it returns.
void CudaState::send_table(int first) {
  const int count = static_cast<int>(pages_.size()) - first;
  if (count > 0) copy(table_.ints() + first, pages_.data() + first, sizeof(int32_t) * count, stream_);
}

bool CudaState::reserve(int begin, int end) {
  int changed = static_cast<int>(pages_.size());
  const auto done = [&](bool enough) {
    send_table(changed);
    return enough;
  };
  for (int p = begin / kPage; p < static_cast<int>(pages_.size()) && p * kPage < end; ++p) {
    if (!pool_->shared(pages_[p])) continue;
    const int to = pool_->take();
    if (to < 0) return done(false);
    const size_t size = pool_->page_size();
    copy(pool_->data() + to * size, pool_->data() + pages_[p] * size, size * sizeof(uint16_t), stream_);
    pool_->release(std::exchange(pages_[p], to));
    changed = std::min(changed, p);
  }
  while (static_cast<int>(pages_.size()) * kPage < end) {
    CHECK(static_cast<int>(pages_.size()) < most_, "a sequence longer than the context");
    const int page = pool_->take();
    if (page < 0) return done(false);
    pages_.push_back(page);
  }
  return done(true);
}

void CudaState::truncate(int end) {
  drop_pages((end + kPage - 1) / kPage);
}

Result<CudaState> CudaState::fork() const {
  CALLA_ASSIGN(CudaState copy, make(*shape_, *pool_, most_, stream_));
  CALLA_TRY(copy.assign(*this));
  return copy;
}

Result<void> CudaState::assign(const CudaState& o) {
  for (int page : o.pages_) pool_->retain(page);
  drop_pages(0);
  pages_ = o.pages_;
  send_table(0);
  copy(recurrent_.floats(), o.recurrent_.floats(), recurrent_.bytes(), stream_);
  // download() may come from another thread, and must not wait for the stream: a step may be under capture there.
  if (cudaStreamSynchronize(stream_) != cudaSuccess) return tl::unexpected<Error>(device_error("copying a sequence"));
  return {};
}

Result<CudaState::Kept> CudaState::keep() const {
  CALLA_ASSIGN(StreamMemory kept, StreamMemory::allocate(recurrent_.bytes(), stream_));
  copy(kept.floats(), recurrent_.floats(), recurrent_.bytes(), stream_);
  return kept;
}

void CudaState::restore(const Kept& kept) {
  copy(recurrent_.floats(), kept.floats(), recurrent_.bytes(), stream_);
}

void CudaState::clear() {
  cudaMemsetAsync(recurrent_.floats(), 0, recurrent_.bytes(), stream_);
}

DeviceRun CudaState::run(int row, int count, int position) const {
  return {row, count, position, 0, table_.ints(), recurrent_.floats(), window()};
}

namespace {

// f copies on a stream of its own, on the device that has `memory`, whatever thread this is.
template <class F>
Result<void> apart(const void* memory, const char* doing, const F& f) {
  cudaStream_t own = nullptr;
  cudaPointerAttributes where{};
  bool fine = cudaPointerGetAttributes(&where, memory) == cudaSuccess && cudaSetDevice(where.device) == cudaSuccess &&
              cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking) == cudaSuccess;
  if (fine) {
    f(own);
    fine = cudaStreamSynchronize(own) == cudaSuccess;
    cudaStreamDestroy(own);
  }
  if (!fine) return tl::unexpected<Error>(device_error(doing));
  return {};
}

// f(host block, device block, bytes) for keys and values of the first `count` positions.
template <class Host, class F>
void for_blocks(const StateShape& s, const Host& host, const std::vector<int32_t>& pages, const DevicePages& pool,
                int count, const F& f) {
  for (size_t layer = 0; layer < s.slot.size(); ++layer) {
    if (!s.attends[layer]) continue;
    for (int page = 0; page * kPage < count; ++page) {
      for (int which = 0; which < 2; ++which) {
        for (int head = 0; head < s.kv_heads; ++head) {
          const size_t at = ((size_t(s.slot[layer]) * 2 + which) * s.kv_heads + head) * kPage * kHeadDim;
          f(host.kv(static_cast<int>(layer), page, which, head), pool.data() + pages[page] * pool.page_size() + at,
            sizeof(bf16) * std::min(kPage, count - page * kPage) * kHeadDim);
        }
      }
    }
  }
}

// f(host row, device row) for the inputs of the last three positions: oldest first there, by position here.
template <class F>
void for_windows(const StateShape& s, float* host, float* device, int count, const F& f) {
  for (int layer = 0; layer < s.delta_layers; ++layer) {
    for (int j = 0; j < kConvTaps - 1; ++j) {
      const int position = count - (kConvTaps - 1) + j;
      f(host + (size_t(layer) * (kConvTaps - 1) + j) * s.channels,
        device + (size_t(layer) * kRing + (position & (kRing - 1))) * s.channels);
    }
  }
}

}  // namespace

Result<void> CudaState::download(int count, HostState<bf16, float>& to) const {
  return apart(recurrent_.floats(), "reading a sequence", [&](Stream own) {
    copy(to.recurrent_all().data(), recurrent_.floats(), to.recurrent_all().bytes(), own);
    for_windows(*shape_, to.window_all().data(), window(), count,
                [&](float* host, float* device) { copy(host, device, sizeof(float) * shape_->channels, own); });
    for_blocks(*shape_, to, pages_, *pool_, count,
               [&](bf16* host, uint16_t* device, size_t bytes) { copy(host, device, bytes, own); });
  });
}

Result<void> CudaState::upload(int count, const HostState<bf16, float>& from) {
  // The state was cleared in the order of the stream.
  if (cudaStreamSynchronize(stream_) != cudaSuccess) return tl::unexpected<Error>(device_error("writing a sequence"));
  return apart(recurrent_.floats(), "writing a sequence", [&](Stream own) {
    copy(recurrent_.floats(), from.recurrent_all().data(), from.recurrent_all().bytes(), own);
    for_windows(*shape_, from.window_all().data(), window(), count,
                [&](float* host, float* device) { copy(device, host, sizeof(float) * shape_->channels, own); });
    for_blocks(*shape_, from, pages_, *pool_, count,
               [&](bf16* host, uint16_t* device, size_t bytes) { copy(device, host, bytes, own); });
  });
}

}  // namespace calla::cuda
