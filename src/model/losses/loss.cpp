#include "model/losses/loss.h"

#include "base/errors.h"
#include "device/gpu_tensors.h"

namespace longshore {

const double* figure_of(const FigureValues& figures, std::string_view key) {
  for (const auto& [name, value] : figures) {
    if (name == key) return &value;
  }
  return nullptr;
}

at::Tensor Loss::apply(const ScoredPositions& positions, LossResult& result) const {
  const std::span<const int64_t> starts = positions.document_starts;
  const RowCounts counts{.tokens = starts.empty() ? 0 : starts.back(),
                         .trained = positions.losses.numel(),
                         .documents = std::ssize(starts) - 1};
  for (const ColumnId column : columns_) {
    const auto rows = static_cast<size_t>(counts.of(kColumnTable[column].axis));
    const size_t values = positions.columns.size_of(column);
    LONGSHORE_CHECK(values == rows * positions.columns.width_of(column))
        << kColumnTable[column].name << ": " << values << " values of " << rows;
  }
  return score(positions, result);
}

FigureValues Loss::figures(const LossSum&) const {
  return {};
}

at::Tensor Loss::score(const ScoredPositions& positions, LossResult& result) const {
  result.trained = positions.losses.numel();
  result.loss = ordered_sum(positions.losses, positions.columns[kWeightColumn]);
  at::Tensor factors = at::ones({positions.losses.numel()}, at::kFloat);
  if (const at::Tensor weights = weights_of(positions.columns); weights.defined()) {
    factors.copy_(weights);
  }
  return factors;
}

std::vector<size_t> documents_of(const at::Tensor& places,
                                 std::span<const int64_t> document_starts) {
  const at::Tensor host = places.to(at::kCPU).contiguous();
  const auto* const place = host.const_data_ptr<int64_t>();
  std::vector<size_t> documents(static_cast<size_t>(host.numel()));
  size_t document = 0;
  for (size_t i = 0; i < documents.size(); ++i) {
    while (place[i] >= document_starts[document + 1]) ++document;
    documents[i] = document;
  }
  return documents;
}

double ordered_sum(const at::Tensor& values, std::span<const float> weights) {
  const at::Tensor host = values.to(at::kCPU).contiguous();
  const std::span<const float> data(host.const_data_ptr<float>(),
                                    static_cast<size_t>(host.numel()));
  LONGSHORE_CHECK(weights.empty() || weights.size() == data.size()) << weights.size() << " weights";
  double sum = 0.0;
  for (size_t i = 0; i < data.size(); ++i) {
    const double weight = weights.empty() ? 1.0 : static_cast<double>(weights[i]);
    sum += weight * static_cast<double>(data[i]);
  }
  return sum;
}

at::Tensor weights_of(const ColumnValues& columns) {
  const std::vector<float>& weights = columns[kWeightColumn];
  if (weights.empty()) return {};
  return tensor_over(const_cast<float*>(weights.data()), {static_cast<int64_t>(weights.size())},
                     at::kFloat, at::kCPU);
}

}  // namespace longshore
