// WeightCheck: looks for values that are not finite while a model's weights are loaded. A reader of
// weights passes everything it read through `take`, on any thread; the owner asks what was found
// when all is read.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "comm/world/world.h"

namespace longshore {

class WeightCheck {
 public:
  void take(const std::string& tensor, std::span<const float> values);

  // One sentence that names tensors with values that are not finite, on any rank; empty where all
  // are finite. DataError where a tensor has no finite value at all: with it every loss is NaN.
  // `model` leads the sentence. Collective.
  std::string conclude(const std::string& model, World& world) const;
  // conclude() for a process of its own, that does not train: it never throws.
  std::string describe(const std::string& model) const;

 private:
  struct Seen {
    int64_t finite = 0;
    int64_t other = 0;
  };
  std::mutex taking_;  // of `seen_`, while weights are read
  std::map<std::string, Seen> seen_;
};

}  // namespace longshore
