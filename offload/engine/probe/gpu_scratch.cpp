#include "offload/engine/probe/gpu_scratch.h"

#include <algorithm>

namespace longshore {
namespace {

// Rows that the kernel adds to each document.
constexpr int64_t kPadding = 128;
// Streaming multiprocessors: 82 on an RTX 3090, 108 on an A100, 128 on an RTX 4090, 132 on an H100,
// 170 on an RTX 5090, 188 on an RTX PRO 6000.
constexpr int64_t kMostProcessors = 188;
constexpr int64_t kHeadMultiple = 32;
constexpr double kBeyondCounting = 0x1p60;

int64_t quotient_up(int64_t value, int64_t by) {
  return (value + by - 1) / by;
}

}  // namespace

Bytes flash_backward_scratch(const AttentionHeads& attention, int64_t positions, int64_t document,
                             int64_t processors) {
  if (attention.heads == 0) return 0;
  const int64_t documents = quotient_up(positions, document);
  const int64_t sets = quotient_up(processors, documents * attention.heads);
  const int64_t row = attention.heads * align_up(attention.head_dim, kHeadMultiple);
  const auto count = static_cast<double>(positions);
  const double padded = count + static_cast<double>(kPadding) * static_cast<double>(documents);
  const double sums = static_cast<double>(sets * row) * padded * 4.0;
  const double softmax = static_cast<double>(attention.heads) * padded * 4.0;
  const double keys_and_values = 2.0 * static_cast<double>(row) * count * 2.0;
  return static_cast<Bytes>(std::min(sums + softmax + keys_and_values, kBeyondCounting));
}

GpuWork gpu_work(const UnitCode& unit, DType compute) {
  return {.attention = unit.attention_heads(),
          .positions_at_once = unit.positions_at_once(DeviceKind::kCuda),
          .of_position = unit.gpu_bytes_of_position(compute)};
}

Bytes gpu_chunk_bytes(const GpuWork& work, int64_t positions) {
  return std::min(positions, work.positions_at_once) * work.of_position;
}

Bytes gpu_scratch(const AttentionHeads& attention, int64_t positions, int64_t longest_document) {
  const int64_t longest = std::min(positions, longest_document);
  const int64_t shortest = std::min(longest, kPadding);
  return std::max(flash_backward_scratch(attention, positions, longest, kMostProcessors),
                  flash_backward_scratch(attention, positions, shortest, kMostProcessors));
}

}  // namespace longshore
