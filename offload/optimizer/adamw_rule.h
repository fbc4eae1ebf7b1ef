// AdamWRule: AdamW with parameter groups. Owned by the pipeline; see UpdateRule for threads.
#pragma once

#include <vector>

#include "offload/optimizer/adamw.h"
#include "offload/optimizer/update_rule.h"

namespace longshore {

class AdamWRule final : public UpdateRule {
 public:
  explicit AdamWRule(AdamWOptions options);

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
