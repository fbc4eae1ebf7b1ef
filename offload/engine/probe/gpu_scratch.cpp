#include "offload/engine/probe/gpu_scratch.h"

#include <algorithm>

#include "model/gpu_attention.h"

namespace longshore {
namespace {

constexpr int64_t kHeadMultiple = 32;
constexpr double kBeyondCounting = 0x1p60;

int64_t quotient_up(int64_t value, int64_t by) {
  return (value + by - 1) / by;
}

// One call of the kernel.
struct Call {
  int64_t rows = 0, documents = 0;
  bool alone = true;  // false: results are copied into the micro-batch's
};

double scratch_of(const AttentionHeads& attention, const Call& call, int64_t processors) {
  if (attention.heads == 0) return 0.0;
  const int64_t sets = quotient_up(processors, call.documents * attention.heads);
  const int64_t row = attention.heads * align_up(attention.head_dim, kHeadMultiple);
  const auto rows = static_cast<double>(call.rows);
  const double padded = rows + static_cast<double>(kFlashPadding * call.documents);
  const double sums = static_cast<double>(sets * row) * padded * 4.0;
  const double softmax = static_cast<double>(attention.heads) * padded * 4.0;
  const bool grouped = attention.kv_heads != attention.heads;
  const double keys_and_values = grouped ? 2.0 * static_cast<double>(row) * rows * 2.0 : 0.0;
  const int64_t result = (attention.heads + 2 * attention.kv_heads) * attention.head_dim;
  const double copied = call.alone ? 0.0 : static_cast<double>(result) * rows * 2.0;
  return std::min(sums + softmax + keys_and_values + copied, kBeyondCounting);
}

// Returns the largest scratch of a micro-batch whose documents have equal lengths.
double scratch_of_equal(const AttentionHeads& attention, int64_t positions, int64_t document,
                        int64_t processors) {
  const int64_t documents = quotient_up(positions, document);
  const int64_t most = flash_backward_documents(positions);
  const int64_t together = std::min(documents, most);
  return scratch_of(attention,
                    {.rows = std::min(positions, together * document),
                     .documents = together,
                     .alone = documents <= most},
                    processors);
}

// Returns the largest scratch over all splits of a micro-batch, or a smaller one, into documents.
// Fewer documents in a call need more sets of sums for the same rows, so all numbers are tried.
double most_scratch(const AttentionHeads& attention, int64_t positions, int64_t longest,
                    int64_t processors) {
  double worst = 0.0;
  const int64_t most = flash_backward_documents(positions);
  // From this number of documents on, one set suffices.
  const int64_t single = quotient_up(processors, std::max<int64_t>(1, attention.heads));
  for (int64_t documents = 1; documents <= most; ++documents) {
    if (documents > single) documents = most;
    // A call of very short documents may come before; its rows do not count.
    const Call call = {.rows = std::min(positions, documents * longest),
                       .documents = documents,
                       .alone = positions <= most};
    worst = std::max(worst, scratch_of(attention, call, processors));
  }
  return worst;
}

}  // namespace

GpuWork gpu_work(const UnitCode& unit, DType compute) {
  return {.attention = unit.attention_heads(),
          .positions_at_once = unit.positions_at_once(DeviceKind::kCuda),
          .of_position = unit.gpu_bytes_of_position(compute)};
}

Bytes gpu_chunk_bytes(const GpuWork& work, int64_t positions) {
  return std::min(positions, work.positions_at_once) * work.of_position;
}

Bytes gpu_scratch(const AttentionHeads& attention, int64_t positions, int64_t longest_document,
                  int64_t processors) {
  return static_cast<Bytes>(
      most_scratch(attention, positions, std::min(positions, longest_document), processors));
}

Bytes gpu_scratch_beyond(const AttentionHeads& attention, int64_t positions,
                         int64_t longest_document, const std::vector<int64_t>& documents,
                         int64_t processors) {
  const int64_t longest = std::min(positions, longest_document);
  double measured = 0.0;
  for (const int64_t document : documents) {
    measured = std::max(
        measured, scratch_of_equal(attention, positions, std::min(document, longest), processors));
  }
  return static_cast<Bytes>(
      std::max(0.0, most_scratch(attention, positions, longest, processors) - measured));
}

}  // namespace longshore
