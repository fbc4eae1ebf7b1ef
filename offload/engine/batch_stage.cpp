#include "offload/engine/batch_stage.h"

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
                       CopyEngine* copies, at::Device device)
    : memory_(memory),
      micro_batches_(micro_batches),
      positions_(positions),
      copies_(copies),
      device_(device) {
  LONGSHORE_CHECK(static_cast<Bytes>(memory.size()) >=
                  bytes_for(micro_batches, positions, /*dropout=*/false));
}

std::span<const MicroBatch> BatchStage::load(std::span<const HostBatch> batches) {
  LONGSHORE_CHECK(static_cast<int64_t>(batches.size()) <= micro_batches_)
      << batches.size() << " micro-batches, planned " << micro_batches_;
  loaded_.clear();
  size_t row = 0;
  for (const HostBatch& batch : batches) {
    LONGSHORE_CHECK(static_cast<int64_t>(batch.tokens.size()) <= positions_)
        << batch.tokens.size() << " positions, planned " << positions_;
    MicroBatch loaded;
    loaded.tokens = copy_row(row++, batch.tokens);
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

at::Tensor BatchStage::copy_row(size_t row, std::span<const int64_t> values) {
  const std::span<const std::byte> bytes = std::as_bytes(values);
  const size_t row_bytes = static_cast<size_t>(positions_) * sizeof(int64_t);
  LONGSHORE_CHECK((row + 1) * row_bytes <= memory_.size()) << "no memory planned for row " << row;
  std::byte* place = memory_.data() + row * row_bytes;
  copies_->to_device({place, bytes.size()}, bytes);
  return tensor_over(place, {static_cast<int64_t>(values.size())}, at::kLong, device_);
}

}  // namespace longshore
