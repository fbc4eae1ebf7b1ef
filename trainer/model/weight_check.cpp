#include "trainer/model/weight_check.h"

#include <algorithm>
#include <bit>
#include <set>
#include <sstream>

#include "base/errors.h"
#include "base/mutex.h"

namespace longshore {
namespace {

constexpr uint32_t kExponent = 0x7f800000;
constexpr size_t kNamed = 5;

std::set<std::string> union_of(const std::vector<std::string>& texts) {
  std::set<std::string> names;
  for (const std::string& text : texts) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) names.insert(line);
  }
  return names;
}

std::string sentence(const std::string& model, const std::set<std::string>& names) {
  if (names.empty()) return "";
  std::string text = model + ": values that are not finite (NaN or infinite) in " +
                     std::to_string(names.size()) + (names.size() == 1 ? " tensor" : " tensors");
  size_t named = 0;
  for (const std::string& name : names) {
    if (named == kNamed) return text + ", ...";
    text += (named++ == 0 ? ": '" : ", '") + name + "'";
  }
  return text;
}

}  // namespace

void WeightCheck::take(const std::string& tensor, std::span<const float> values) {
  const auto other = std::ranges::count_if(values, [](float value) {
    return (std::bit_cast<uint32_t>(value) & kExponent) == kExponent;
  });
  const MutexLock lock(taking_);
  Seen& seen = seen_[tensor];
  seen.other += other;
  seen.finite += static_cast<int64_t>(values.size()) - other;
}

std::string WeightCheck::conclude(const std::string& model, World& world) const {
  const MutexLock lock(taking_);
  std::string mine;
  for (const auto& [name, seen] : seen_) mine += seen.other > 0 ? name + "\n" : "";
  const std::set<std::string> bad = union_of(world.exchange("the check of the weights", mine));
  if (bad.empty()) return "";
  // The names of these that have a finite value on this rank.
  std::string finite;
  for (const std::string& name : bad) {
    const auto found = seen_.find(name);
    if (found != seen_.end() && found->second.finite > 0) finite += name + "\n";
  }
  const std::set<std::string> partly = union_of(world.exchange("the finite weights", finite));
  std::set<std::string> wholly;
  std::ranges::set_difference(bad, partly, std::inserter(wholly, wholly.end()));
  if (!wholly.empty()) {
    throw DataError(sentence(model, wholly) +
                    ", without a finite one: every step would be skipped; copy the weights again "
                    "from an intact source");
  }
  return sentence(model, bad);
}

std::string WeightCheck::describe(const std::string& model) const {
  const MutexLock lock(taking_);
  std::set<std::string> bad;
  for (const auto& [name, seen] : seen_) {
    if (seen.other > 0) bad.insert(name);
  }
  return sentence(model, bad);
}

}  // namespace longshore
