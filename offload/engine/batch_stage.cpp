#include "offload/engine/batch_stage.h"

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "base/errors.h"
#include "device/gpu_tensors.h"

namespace longshore {
namespace {

// The columns that are copied to the device, with their tensors there; the others stay in host
// memory. Only batches with dropout have keys.
constexpr std::array kDeviceColumns = {std::pair{kTokenIdColumn, &MicroBatch::tokens},
                                       std::pair{kPositionColumn, &MicroBatch::positions},
                                       std::pair{kTargetColumn, &MicroBatch::targets},
                                       std::pair{kDropoutKeyColumn, &MicroBatch::dropout_keys}};
constexpr int64_t kWithoutDropout = std::ssize(kDeviceColumns) - 1;

// Checks that each column has a value for each row of its axis, or none.
void check_rows(const Batch& batch) {
  const RowCounts counts{batch.token_count(), batch.trained_tokens,
                         std::ssize(batch.document_starts) - 1};
  for (size_t c = 0; c < kColumns; ++c) {
    const size_t values = batch.columns.size_of(c);
    const int64_t rows = counts.of(kColumnTable[c].axis);
    LONGSHORE_CHECK(values == 0 || values == static_cast<size_t>(rows) * batch.columns.width_of(c))
        << kColumnTable[c].name << ": " << values << " values, " << rows << " rows";
  }
}

// Returns the columns that stay in host memory.
std::shared_ptr<const ColumnValues> host_columns(const ColumnValues& columns) {
  auto kept = std::make_shared<ColumnValues>();
  kept->teacher_tokens = columns.teacher_tokens;
  for (size_t c = 0; c < kColumns; ++c) {
    const bool copied =
        std::ranges::any_of(kDeviceColumns, [c](const auto& column) { return column.first == c; });
    if (!copied) kept->take(c, columns);
  }
  return kept;
}

}  // namespace

Bytes BatchStage::bytes_for(int32_t micro_batches, int64_t positions, bool dropout) {
  return (kWithoutDropout + (dropout ? 1 : 0)) * micro_batches * positions *
         static_cast<Bytes>(sizeof(int64_t));
}

BatchStage::BatchStage(std::span<std::byte> memory, int32_t micro_batches, int64_t positions,
                       std::map<int64_t, int64_t> read_as, CopyEngine* copies, at::Device device)
    : memory_(memory),
      micro_batches_(micro_batches),
      positions_(positions),
      read_as_(std::move(read_as)),
      copies_(copies),
      device_(device) {
  LONGSHORE_CHECK(static_cast<Bytes>(memory.size()) >=
                  bytes_for(micro_batches, positions, /*dropout=*/false));
}

std::span<const MicroBatch> BatchStage::load(std::span<const Batch> batches,
                                             const std::shared_ptr<const Loss>& loss) {
  LONGSHORE_CHECK(static_cast<int64_t>(batches.size()) <= micro_batches_)
      << batches.size() << " micro-batches, planned " << micro_batches_;
  loaded_.clear();
  replaced_.clear();
  size_t row = 0;
  for (const Batch& batch : batches) {
    loaded_.push_back(loaded(batch, row));
    loaded_.back().loss = loss;
  }
  return loaded_;
}

MicroBatch BatchStage::loaded(const Batch& batch, size_t& row) {
  LONGSHORE_CHECK(batch.token_count() <= positions_)
      << batch.token_count() << " positions, planned " << positions_;
  check_rows(batch);
  MicroBatch loaded;
  for (const auto& [column, tensor] : kDeviceColumns) {
    const std::vector<int64_t>& values = batch.columns.integers(column);
    if (values.empty()) continue;
    loaded.*tensor = copy_row(row++, column == kTokenIdColumn ? replaced(values) : values);
  }
  loaded.document_starts = batch.document_starts;
  loaded.columns = host_columns(batch.columns);
  return loaded;
}

std::span<const int64_t> BatchStage::replaced(std::span<const int64_t> tokens) {
  const auto is_other = [this](int64_t token) { return read_as_.contains(token); };
  if (read_as_.empty() || std::ranges::none_of(tokens, is_other)) return tokens;
  std::vector<int64_t>& row = replaced_.emplace_back(tokens.begin(), tokens.end());
  for (int64_t& token : row) {
    const auto found = read_as_.find(token);
    if (found != read_as_.end()) token = found->second;
  }
  return row;
}

at::Tensor BatchStage::copy_row(size_t row, std::span<const int64_t> values) {
  const std::span<const std::byte> bytes = std::as_bytes(values);
  const size_t row_bytes = static_cast<size_t>(positions_) * sizeof(int64_t);
  LONGSHORE_CHECK((row + 1) * row_bytes <= memory_.size()) << "no memory planned for row " << row;
  std::byte* place = memory_.data() + row * row_bytes;
  copies_->to_device({place, bytes.size()}, bytes);
  return tensor_over(place, {static_cast<int64_t>(values.size())}, at::kLong, device_);
}

}  // namespace longshore
