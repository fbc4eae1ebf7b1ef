// AdamW over spans: one formula for every state format, in one pass over memory. Pure functions,
// any thread. All SIMD levels give equal bits, for any length and any cut that the format allows.
//
//   g = float(gradient) * clip_scale
//   m = fma(beta1, m, (1 - beta1) * g)
//   v = fma(beta2, v, (1 - beta2) * g * g)
//   p = p * (1 - lr * weight_decay)                        decoupled; 1 without decay
//   p = p - (lr / c1) * m / (sqrt(v) * inv_sqrt_c2 + eps)  c = 1 - beta^t
//
// The computation is in fp32, in this order, fused only where fma is written. Denormals are kept.
// Stored moments are m and v rounded as in shard/moments.h; p uses them before rounding. 8-bit
// moments decode with units times beta: m = fma(1 - beta1, g, m), v = fma((1 - beta2) * g, g, v).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "offload/optimizer/update_rule.h"
#include "offload/simd_level.h"
#include "shard/policy.h"

namespace longshore {

// Parameters with their own learning rate or decay.
struct AdamWGroup {
  std::vector<std::string> parameters;  // globs of names; the first matching group applies
  double lr_ratio = 1.0;                // relative to the learning rate of the step
  std::optional<double> weight_decay = {};
};

// The `optimizer` section of the run file.
struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.0;
  DecayRule decay = DecayRule::kMatrices;  // ParamSpec::is_matrix, or all
  std::vector<AdamWGroup> groups = {};
  uint64_t seed = 0;  // of the moments' stochastic rounding
};

// The scalars of one step, computed in double and rounded once.
struct AdamWScalars {
  float clip_scale = 1.0f;
  float beta1 = 0.0f;
  float one_minus_beta1 = 1.0f;
  float beta2 = 0.0f;
  float one_minus_beta2 = 1.0f;
  float keep = 1.0f;       // 1 - lr * weight_decay
  float step_size = 0.0f;  // lr / c1
  float inv_sqrt_c2 = 1.0f;
  float eps = 0.0f;
};

// `update` counts applied updates from 1. `decays` says whether the parameter is decayed.
AdamWScalars make_adamw_scalars(const AdamWOptions& options, int64_t update, double lr,
                                double clip_scale, bool decays);

// Updates the slice in place at the CPU's best level.
void adamw_step(const UpdateSlice& slice, const AdamWScalars& scalars);
// Runs adamw_step at the given level.
void adamw_step_at(SimdLevel level, const UpdateSlice& slice, const AdamWScalars& scalars);
// Runs adamw_step one element at a time, as the reference for the vectorised loops.
void adamw_step_reference(const UpdateSlice& slice, const AdamWScalars& scalars);

// Returns the two regions of AdamW's state.
inline const MomentSpan& exp_avg(const UpdateSlice& slice) {
  return slice.regions[0];
}
inline const MomentSpan& exp_avg_sq(const UpdateSlice& slice) {
  return slice.regions[1];
}

// AdamWRule: AdamW with parameter groups. Owned by the pipeline; see UpdateRule for threads.

class AdamWRule final : public UpdateRule {
 public:
  explicit AdamWRule(AdamWOptions options);

  std::span<const StateRegion> regions() const override { return kAdamWRegions; }
  uint64_t seed() const override { return options_.seed; }
  // Returns 2 * index + decays: the index of the first of `options.groups` that matches the
  // parameter (their number if none does), and 1 if it is decayed.
  int32_t group_of(const ParamSpec& parameter) const override;
  void stage(const StepUpdate& update) override;
  void apply(int32_t group, const UpdateSlice& slice) const override;

 private:
  AdamWOptions options_;
  std::vector<AdamWScalars> scalars_;  // of the staged step, by group
};

// Throws ConfigError if a group matches no trainable parameter of the model.
void check_groups(const AdamWOptions& options, const ModelSpec& model);

}  // namespace longshore
