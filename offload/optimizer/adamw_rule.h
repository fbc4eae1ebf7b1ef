// AdamWRule: AdamW with parameter groups. Owned by the pipeline; see UpdateRule for threads.
#pragma once

#include <vector>

#include "offload/optimizer/adamw.h"
#include "offload/optimizer/update_rule.h"

namespace longshore {

class AdamWRule final : public UpdateRule {
 public:
  explicit AdamWRule(AdamWOptions options);

  // Twice the place of the first of `options.groups` that names the parameter, or of the rest,
  // plus 1 when it decays.
  int32_t group_of(const ParamSpec& parameter) const override;
  void stage(const StepUpdate& update) override;
  void apply(int32_t group, const UpdateSlice& slice) const override;

 private:
  AdamWOptions options_;
  std::vector<AdamWScalars> scalars_;  // of the staged step, by group
};

// Throws ConfigError where a group names no trainable parameter of the model.
void check_groups(const AdamWOptions& options, const ModelSpec& model);

}  // namespace longshore
