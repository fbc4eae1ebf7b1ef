#include "model/units/router_load.h"

#include <algorithm>
#include <numeric>

#include "base/errors.h"
#include "model/parameters/model_spec.h"

namespace longshore {
namespace {

size_t size_of(int64_t count) {
  return static_cast<size_t>(count);
}

// The three parts of RouterLoad::sums().
struct Parts {
  std::span<const double> pairs, entropies, probabilities;
  Parts(const RouterShape& shape, std::span<const double> sums)
      : pairs(sums.first(size_of(shape.layers * shape.experts))),
        entropies(sums.subspan(pairs.size(), size_of(shape.layers))),
        probabilities(sums.last(size_of(shape.experts))) {}
};

std::vector<double> pooled_pairs(const RouterShape& shape, std::span<const double> pairs) {
  std::vector<double> pooled(size_of(shape.experts), 0.0);
  for (size_t i = 0; i < pairs.size(); ++i) pooled[i % pooled.size()] += pairs[i];
  return pooled;
}

double sum_of(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

}  // namespace

void RouterLoad::begin() {
  sums_.assign(size_of(shape_.layers * shape_.experts + shape_.layers + shape_.experts), 0.0);
  gradient_ = at::Tensor();
  counting_ = false;
}

void RouterLoad::note(int64_t layer, std::span<const int64_t> starts,
                      const at::Tensor& probabilities) {
  if (!counting_) return;
  const int64_t experts = shape_.experts;
  LONGSHORE_CHECK(layer < shape_.layers && std::ssize(starts) == experts + 1) << layer;
  for (int64_t expert = 0; expert < experts; ++expert) {
    sums_[size_of(layer * experts + expert)] +=
        static_cast<double>(starts[size_of(expert) + 1] - starts[size_of(expert)]);
  }
  if (!probabilities.defined()) return;
  // HOST WAIT, on a GPU: dispatch() just waited for the counts, so only this sum is still running.
  const at::Tensor sums = probabilities.sum(0, /*keepdim=*/false, at::kDouble).to(at::kCPU);
  double* const totals = &sums_[sums_.size() - size_of(experts)];
  for (int64_t expert = 0; expert < experts; ++expert) {
    totals[expert] += sums.const_data_ptr<double>()[expert];
  }
  if (!shape_.watched) return;
  const at::Tensor rows = at::special_entr(probabilities).sum(1);
  sums_[size_of(shape_.layers * experts + layer)] += rows.sum(at::kDouble).item<double>();
}

void RouterLoad::set_corrections(std::vector<float> corrections) {
  LONGSHORE_CHECK(corrections.empty() ||
                  corrections.size() == size_of(shape_.layers * shape_.experts))
      << corrections.size();
  corrections_ = std::move(corrections);
}

at::Tensor RouterLoad::correction(int64_t layer) const {
  if (corrections_.empty()) return {};
  const auto first = corrections_.begin() + layer * shape_.experts;
  return at::tensor(std::vector<float>(first, first + shape_.experts), at::kFloat).to(device_);
}

std::vector<double> RouterLoad::pooled() const {
  return pooled_pairs(shape_, Parts(shape_, sums_).pairs);
}

void RouterLoad::balance(std::span<const double> pairs) {
  const double positions = sum_of(pairs) / static_cast<double>(shape_.top_k);  // over all layers
  std::vector<float> gradient;
  for (const double own : pairs) {
    const double load = positions > 0.0 ? own / positions : 0.0;
    gradient.push_back(
        positions > 0.0 ? static_cast<float>(shape_.balance * static_cast<double>(shape_.experts) *
                                             load / positions)
                        : 0.0F);
  }
  gradient_ = at::tensor(gradient, at::kFloat).to(device_);
}

RouterStatistics router_statistics(const RouterShape& shape, std::span<const double> sums) {
  const Parts parts(shape, sums);
  RouterStatistics figures;
  double positions = 0.0;
  for (int64_t layer = 0; layer < shape.layers; ++layer) {
    const auto pairs = parts.pairs.subspan(size_of(layer * shape.experts), size_of(shape.experts));
    const double all = sum_of(pairs);
    if (all == 0.0) continue;  // a dense layer
    figures.load.emplace_back(pairs.begin(), pairs.end());
    positions += all / static_cast<double>(shape.top_k);
    const double mean = all / static_cast<double>(shape.experts);
    figures.most = std::max(figures.most, *std::ranges::max_element(pairs) / mean);
    figures.idle += std::ranges::count(pairs, 0.0);
  }
  if (positions == 0.0) return figures;
  figures.entropy = sum_of(parts.entropies) / positions;
  const std::vector<double> pooled = pooled_pairs(shape, parts.pairs);
  for (size_t expert = 0; expert < pooled.size(); ++expert) {
    figures.balance_loss += static_cast<double>(shape.experts) * pooled[expert] / positions *
                            parts.probabilities[expert] / positions;
  }
  return figures;
}

// ---- Corrections ----

std::map<std::string, int64_t> correction_places(const ArchSpec& arch, const ModelSpec& whole) {
  std::map<std::string, int64_t> places;
  for (int64_t layer = 0; layer < arch.layer_count(); ++layer) {
    const std::vector<ModuleParameter> modules = block_parameters(arch, {}, layer);
    const auto found =
        std::ranges::find(modules, Module::kRouterCorrection, &ModuleParameter::module);
    if (found == modules.end()) continue;
    const UnitSpec& block = whole.units.at(static_cast<size_t>(layer) + 1);
    const auto index = static_cast<size_t>(found - modules.begin());
    places.emplace(block.parameters.at(index).name, layer * arch.moe.experts);
  }
  return places;
}

void move_corrections(const RouterShape& shape, std::span<const double> sums,
                      std::span<float> corrections) {
  LONGSHORE_CHECK(std::ssize(corrections) == shape.layers * shape.experts &&
                  sums.size() >= corrections.size())
      << corrections.size();
  const auto experts = static_cast<size_t>(shape.experts);
  const auto rate = static_cast<float>(shape.correction_rate);
  for (size_t first = 0; first < corrections.size(); first += experts) {
    const std::span<const double> loads = sums.subspan(first, experts);
    const double all = std::accumulate(loads.begin(), loads.end(), 0.0);
    for (size_t expert = 0; expert < experts; ++expert) {
      const double load = loads[expert] * static_cast<double>(shape.experts);
      if (load < all) corrections[first + expert] += rate;
      if (load > all) corrections[first + expert] -= rate;
    }
  }
}

}  // namespace longshore
