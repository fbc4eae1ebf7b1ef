#include "offload/engine/batch_stage.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "device/gpu_tensors.h"

namespace longshore {
namespace {

constexpr int64_t kRowsPerBatch = 3;  // tokens, positions, targets; keys of dropout are one more

}  // namespace

Bytes BatchStage::bytes_for(int32_t micro_batches, int64_t positions, bool dropout) {
  return (kRowsPerBatch + (dropout ? 1 : 0)) * micro_batches * positions *
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

std::span<const MicroBatch> BatchStage::load(std::span<const HostBatch> batches) {
  LONGSHORE_CHECK(static_cast<int64_t>(batches.size()) <= micro_batches_)
      << batches.size() << " micro-batches, planned " << micro_batches_;
  loaded_.clear();
  replaced_.clear();
  size_t row = 0;
  for (const HostBatch& batch : batches) {
    LONGSHORE_CHECK(static_cast<int64_t>(batch.tokens.size()) <= positions_)
        << batch.tokens.size() << " positions, planned " << positions_;
    MicroBatch loaded;
    loaded.tokens = copy_row(row++, replaced(batch.tokens));
    loaded.positions = copy_row(row++, batch.positions);
    loaded.targets = copy_row(row++, batch.targets);
    if (!batch.dropout_keys.empty()) loaded.dropout_keys = copy_row(row++, batch.dropout_keys);
    loaded.document_starts.assign(batch.document_starts.begin(), batch.document_starts.end());
    loaded.preference = batch.preference;
    loaded.reference_logps = batch.reference_logps;
    loaded.desirable.assign(batch.desirable.begin(), batch.desirable.end());
    loaded.kl = batch.kl;
    if (batch.columns != nullptr) {
      loaded.columns = std::make_shared<const TokenColumns>(*batch.columns);
    }
    loaded_.push_back(std::move(loaded));
  }
  return loaded_;
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
