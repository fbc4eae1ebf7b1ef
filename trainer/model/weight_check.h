// WeightCheck: detects values that are not finite while a model's weights are loaded. Readers pass
// everything through `take` on any thread; the owner requests the result after loading.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "comm/world/world.h"

namespace longshore {

class WeightCheck {
 public:
  void take(const std::string& tensor, std::span<const float> values);

  // Returns one sentence naming tensors with non-finite values on any rank, or "". It starts with
  // `model`. DataError if a tensor has no finite value, as every loss would be NaN. Collective.
  std::string conclude(const std::string& model, World& world) const;
  // Returns the same sentence for a single process that does not train; never throws.
  std::string describe(const std::string& model) const;

 private:
  struct Seen {
    int64_t finite = 0;
    int64_t other = 0;
  };
  mutable Mutex taking_;
  std::map<std::string, Seen> seen_ LONGSHORE_GUARDED_BY(taking_);
};

}  // namespace longshore
