#include "offload/staging/gradient_sums.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "device/copy_engine.h"
#include "device/cuda_runtime.h"
#include "device/cuda_stream.h"
#include "device/device_memory.h"
#include "kernels/gradient.h"
#include "offload/staging/gradient_kernels.h"

namespace longshore {
namespace {

using internal::kNormBlockElements;

// The number of norm blocks of one task.
constexpr int64_t kTaskBlocks = 16;

class CpuGradientSums final : public GradientSums {
 public:
  explicit CpuGradientSums(WorkerPool* pool)
      : pool_(pool), block_squares_(kMostElements / kNormBlockElements) {}

  void add(std::span<const float> values, std::span<uint16_t> bf16, int32_t) override {
    const auto elements = static_cast<int64_t>(values.size());
    LONGSHORE_CHECK(elements <= kMostElements) << elements;
    const int64_t blocks = (elements + kNormBlockElements - 1) / kNormBlockElements;
    pool_->for_each_block((blocks + kTaskBlocks - 1) / kTaskBlocks, [&](int64_t task) {
      for (int64_t block = task * kTaskBlocks; block < std::min((task + 1) * kTaskBlocks, blocks);
           ++block) {
        const auto begin = static_cast<size_t>(block * kNormBlockElements);
        const size_t count =
            std::min(static_cast<size_t>(kNormBlockElements), values.size() - begin);
        const std::span<const float> part = values.subspan(begin, count);
        block_squares_[static_cast<size_t>(block)] =
            bf16.empty() ? internal::sum_squares(simd_, part)
                         : internal::cast_and_sum_squares(simd_, part, bf16.subspan(begin, count));
      }
    });
    double sum = 0.0;
    for (int64_t block = 0; block < blocks; ++block) {
      sum += block_squares_[static_cast<size_t>(block)];
    }
    sum_ += sum;
  }

  void copied(int32_t) override {}
  void end_piece() override { total_ += std::exchange(sum_, 0.0); }
  double take() override {
    end_piece();
    return std::exchange(total_, 0.0);
  }

 private:
  static constexpr int64_t kMostElements = chunks_on(DeviceKind::kCpu).elements;

  WorkerPool* pool_;
  SimdLevel simd_ = best_simd_level();
  std::vector<double> block_squares_;
  double sum_ = 0.0;    // of the current piece
  double total_ = 0.0;  // of earlier pieces
};

// The chunks' sums stay on the GPU, so the host waits once per unit.
class CudaGradientSums final : public GradientSums {
 public:
  explicit CudaGradientSums(int device)
      : device_(device),
        arena_(make_cuda_arena(
            align_up((kBlocks + kMostChunks) * static_cast<Bytes>(sizeof(double)), 256), device)),
        copies_(make_cuda_copy_engine(device)),
        casts_(device, kBuffers + 1),
        sums_(kMostChunks),
        ends_(kMostChunks) {}

  void add(std::span<const float> values, std::span<uint16_t> bf16, int32_t buffer) override {
    LONGSHORE_CHECK(static_cast<int64_t>(values.size()) <= kMostElements) << values.size();
    LONGSHORE_CHECK(buffer >= 0 && buffer < kBuffers) << buffer;
    if (chunks_ == kMostChunks) fetch();
    if (chunks_ == 0) {  // waits for the kernels that wrote the values
      casts_.mark(kBuffers);
      casts_.wait_for(kBuffers);
    }
    if (!bf16.empty()) casts_.wait_for(buffer);
    kernels::cast_and_square_cuda(values.data(), static_cast<int64_t>(values.size()),
                                  bf16.empty() ? nullptr : bf16.data(), blocks(),
                                  results() + chunks_, casts_.handle());
    casts_.join();
    ends_[static_cast<size_t>(chunks_)] = false;
    chunks_ += 1;
  }

  void copied(int32_t buffer) override { casts_.mark(buffer); }

  void end_piece() override {
    if (chunks_ > 0) {
      ends_[static_cast<size_t>(chunks_) - 1] = true;
    } else {
      fold();
    }
  }

  double take() override {
    fetch();
    fold();
    return std::exchange(total_, 0.0);
  }

 private:
  static constexpr int64_t kMostElements = chunks_on(DeviceKind::kCuda).elements;
  static constexpr int32_t kBuffers = chunks_on(DeviceKind::kCuda).buffers;
  static constexpr int64_t kBlocks = kernels::square_blocks(kMostElements);
  static constexpr int64_t kMostChunks = 1024;

  double* blocks() const { return reinterpret_cast<double*>(arena_->bytes().data()); }
  double* results() const { return blocks() + kBlocks; }

  void fetch() {
    if (chunks_ == 0) return;
    const auto count = static_cast<size_t>(std::exchange(chunks_, 0));
    copies_->to_host(std::as_writable_bytes(std::span(sums_).first(count)),
                     std::as_bytes(std::span(results(), count)));
    finish_cuda_work(device_, "the sum of a gradient's squares");
    for (size_t i = 0; i < count; ++i) {
      sum_ += sums_[i];
      if (ends_[i]) fold();
    }
  }
  void fold() { total_ += std::exchange(sum_, 0.0); }

  int device_;
  std::unique_ptr<DeviceArena> arena_;
  std::unique_ptr<CopyEngine> copies_;  // separate: 8 bytes per chunk are no payload
  CudaSideStream casts_;                // marks: one per buffer's copy, one for the first chunk
  std::vector<double> sums_;
  std::vector<bool> ends_;  // by chunk: whether it ends its piece
  int64_t chunks_ = 0;
  double sum_ = 0.0;    // of the current piece
  double total_ = 0.0;  // of earlier pieces
};

}  // namespace

std::unique_ptr<GradientSums> make_cpu_gradient_sums(WorkerPool* pool) {
  return std::make_unique<CpuGradientSums>(pool);
}

std::unique_ptr<GradientSums> make_cuda_gradient_sums(int device) {
  require_gpu(device);
  return std::make_unique<CudaGradientSums>(device);
}

}  // namespace longshore
