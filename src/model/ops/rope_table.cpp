#include "model/ops/rope_table.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/errors.h"
#include "model/ops/graph_operation.h"

namespace longshore {
namespace {

// Llama 3 divides low frequencies by the factor, keeps high ones, and interpolates between.
at::Tensor scale_llama3(const RopeSpec& rope, const at::Tensor& frequencies) {
  const auto original = static_cast<double>(rope.original_max_positions);
  const double low_wavelength = original / rope.low_freq_factor;
  const double high_wavelength = original / rope.high_freq_factor;
  const at::Tensor wavelengths = frequencies.reciprocal() * (2.0 * std::numbers::pi);
  const at::Tensor scaled =
      at::where(wavelengths > low_wavelength, frequencies / rope.factor, frequencies);
  const at::Tensor ramp = (wavelengths.reciprocal() * original - rope.low_freq_factor) /
                          (rope.high_freq_factor - rope.low_freq_factor);
  const at::Tensor smooth = (1.0 - ramp) * scaled / rope.factor + ramp * scaled;
  const at::Tensor between =
      (wavelengths >= high_wavelength).logical_and(wavelengths <= low_wavelength);
  return at::where(between, smooth, scaled);
}

// YaRN (Peng et al., 2023) interpolates over dimensions, between those that make beta_fast and
// beta_slow turns within the original length.
at::Tensor scale_yarn(const RopeSpec& rope, int64_t dim, const at::Tensor& powers) {
  const auto turning = [&](double turns) {
    const double positions = static_cast<double>(rope.original_max_positions);
    return static_cast<double>(dim) * std::log(positions / (turns * 2.0 * std::numbers::pi)) /
           (2.0 * std::log(rope.theta));
  };
  double low = turning(rope.beta_fast), high = turning(rope.beta_slow);
  if (rope.whole_dimensions) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(dim - 1));
  if (low == high) high += 0.001;
  const at::Tensor ramp = ((at::arange(dim / 2, at::kFloat) - low) / (high - low)).clamp(0.0, 1.0);
  const at::Tensor kept = 1.0 - ramp;
  return (rope.factor * powers).reciprocal() * (1.0 - kept) + powers.reciprocal() * kept;
}

at::Tensor divided(const at::Tensor& powers, const std::vector<double>& factors) {
  return (at::tensor(factors, at::kFloat) * powers).reciprocal();
}

struct Rotate {
  at::Tensor positions;
  Rotation rotation;
  int64_t head_dim;

  at::Tensor forward(const at::Tensor& x, bool read) const {
    if (!read) return x.detach();
    return fused::rotate(x, positions, rotation, head_dim, 1);
  }
  std::vector<at::Tensor*> saved() { return {&positions, &rotation.frequencies}; }
  void backward(const std::vector<at::Tensor>& grads, InputGradients& gradients) const {
    gradients[0] = fused::rotate(grads[0], positions, rotation, head_dim, -1);
  }
};

}  // namespace

RopeTable::RopeTable(const RopeSpec& rope, int64_t head_dim)
    : scale_(rope.attention_factor), pairs_(rope.pairs) {
  const int64_t dim = rope.rotary_dim(head_dim);
  const auto exponents = at::arange(0, dim, 2, at::kFloat) / static_cast<double>(dim);
  const at::Tensor powers = at::pow(rope.theta, exponents);
  switch (rope.scaling) {
    case RopeSpec::Scaling::kNone:
      frequencies_ = powers.reciprocal();
      break;
    case RopeSpec::Scaling::kLinear:
      frequencies_ = powers.reciprocal() / rope.factor;
      break;
    case RopeSpec::Scaling::kLlama3:
      frequencies_ = scale_llama3(rope, powers.reciprocal());
      break;
    case RopeSpec::Scaling::kYarn:
      frequencies_ = scale_yarn(rope, dim, powers);
      break;
    case RopeSpec::Scaling::kLong:
      frequencies_ = divided(powers, rope.short_factors);
      of_long_ = divided(powers, rope.long_factors);
      short_positions_ = rope.original_max_positions;
      break;
  }
  frequencies_.slice(0, rope.turning_pairs(head_dim)).zero_();
}

Rotation RopeTable::rotation(const std::vector<int64_t>& document_starts,
                             const std::vector<int64_t>& lengths, const at::Device& device) const {
  LONGSHORE_CHECK(!of_long_.defined() || lengths.size() + 1 == document_starts.size())
      << "the factors of " << document_starts.size() - 1 << " documents need their texts' lengths";
  std::vector<at::Tensor> rows;
  bool any_long = false;
  for (size_t d = 0; of_long_.defined() && d + 1 < document_starts.size(); ++d) {
    const int64_t positions = document_starts[d + 1] - document_starts[d];
    const bool is_long = lengths[d] > short_positions_;
    any_long = any_long || is_long;
    rows.push_back((is_long ? of_long_ : frequencies_).expand({positions, -1}));
  }
  const at::Tensor chosen = any_long ? at::cat(rows) : frequencies_;
  // On a GPU the host does not wait: the driver buffers the few hundred bytes.
  return {chosen.to(device, /*non_blocking=*/true), scale_, pairs_};
}

at::Tensor rotate_heads(const at::Tensor& x, const at::Tensor& positions, const Rotation& rotation,
                        int64_t head_dim, bool read) {
  return run_operation(Rotate{positions, rotation, head_dim}, {x}, x, read);
}

}  // namespace longshore
