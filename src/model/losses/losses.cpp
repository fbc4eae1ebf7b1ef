#include "model/losses/losses.h"

namespace longshore {

std::shared_ptr<const Loss> make_loss(const PreferenceOptions& options) {
  if (is_preference(options.loss)) return std::make_shared<PreferenceLoss>(options);
  if (options.loss == LossKind::kPolicy) return std::make_shared<PolicyLoss>(options);
  if (options.loss == LossKind::kDistill) return std::make_shared<DistillLoss>();
  return std::make_shared<Loss>();
}

}  // namespace longshore
