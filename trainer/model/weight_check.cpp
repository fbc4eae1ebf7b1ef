#include "trainer/model/weight_check.h"

#include <algorithm>
#include <array>
#include <bit>
#include <fstream>
#include <set>
#include <sstream>

#include "base/errors.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/mutex.h"
#include "base/texts.h"

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

// Returns a text that is equal for two ranks if they read the same files of one machine.
std::string identity_of(const std::string& files, int32_t rank) {
  if (files.empty()) return {};
  std::string machine = first_line("/proc/sys/kernel/random/boot_id").value_or("");
  // Without its own name the machine may be any other.
  if (machine.empty()) machine = "rank " + std::to_string(rank);
  return hash_text(hash64(machine + "\n" + files));
}

uint64_t hash_of_chunk(int64_t begin, std::span<const std::byte> chunk) {
  const std::array<int64_t, 1> place = {begin};
  Hasher hasher;
  hasher.update(bytes_of(std::span<const int64_t>(place))).update(chunk);
  return hasher.digest();
}

using HashSums = std::map<std::string, uint64_t>;

std::string total_of(const HashSums& sums) {
  Hasher hasher;
  for (const auto& [tensor, sum] : sums) hasher.update(tensor).update(hash_text(sum));
  return hash_text(hasher.digest());
}

// Eight digits of each tensor's hash, in the order of names. These name the tensor that differs,
// and keep the text of the largest models below the limit of World::exchange.
constexpr size_t kDigits = 8;
std::string digits_of(const HashSums& sums) {
  std::string text;
  for (const auto& [tensor, sum] : sums) text += hash_text(sum).substr(kDigits);
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

WeightComparison::WeightComparison(const std::string& files, const ShardTopology& topology,
                                   World& world)
    : topology_(topology), world_(world) {
  if (topology.ranks == 1) return;
  const int32_t rank = world.ranks().rank;
  const std::vector<std::string> all =
      world.exchange("the identity of the weights", identity_of(files, rank));
  needed_ = std::ranges::any_of(all, [&all](const std::string& one) { return one != all[0]; });
  const int32_t next = next_of(rank);
  if (all[static_cast<size_t>(next)] == all[static_cast<size_t>(rank)]) return;
  other_shard_ = topology.shard_of(Rank(next));
}

// Returns the rank with the next shard of the same model copy.
int32_t WeightComparison::next_of(int32_t rank) const {
  const int32_t shard = (topology_.shard_of(Rank(rank)).value + 1) % topology_.shard_ranks;
  return topology_.replica_of(Rank(rank)) * topology_.shard_ranks + shard;
}

void WeightComparison::take(const std::string& tensor, int64_t begin,
                            std::span<const std::byte> chunk) {
  const uint64_t hash = hash_of_chunk(begin, chunk);
  const MutexLock lock(taking_);
  own_[tensor] += hash;
}

void WeightComparison::take_other(const std::string& tensor, int64_t begin,
                                  std::span<const std::byte> chunk) {
  const uint64_t hash = hash_of_chunk(begin, chunk);
  const MutexLock lock(taking_);
  other_[tensor] += hash;
}

// The text of a rank is the hash of what it loads, and that of what it also read or nothing.
std::optional<WeightComparison::Difference> WeightComparison::find_difference(
    const std::string& mine) const {
  const std::vector<std::string> texts = world_.exchange("the hashes of the weights", mine);
  const size_t digits = hash_text(0).size();
  const auto own = [&](int32_t rank) { return texts[static_cast<size_t>(rank)].substr(0, digits); };
  for (int32_t rank = 0; rank < topology_.ranks; ++rank) {
    const int32_t first = topology_.shard_of(Rank(rank)).value;
    if (own(rank) != own(first)) return Difference{first, rank, false};
    const std::string other = texts[static_cast<size_t>(rank)].substr(digits);
    if (!other.empty() && other != own(next_of(rank))) return Difference{next_of(rank), rank, true};
  }
  return std::nullopt;
}

std::string WeightComparison::name_tensor(const Difference& difference, const Sums& own,
                                          const Sums& other) const {
  const int32_t rank = world_.ranks().rank;
  std::string mine;
  if (rank == difference.owner) mine = digits_of(own);
  if (rank == difference.reader) mine = digits_of(difference.compared ? other : own);
  const std::vector<std::string> texts = world_.exchange("the hashes of the tensors", mine);
  const std::string& there = texts[static_cast<size_t>(difference.owner)];
  const std::string& here = texts[static_cast<size_t>(difference.reader)];
  const auto at = std::mismatch(there.begin(), there.end(), here.begin(), here.end()).first;
  std::string name;
  if (rank == difference.owner && at != there.end()) {
    const auto index = (at - there.begin()) / static_cast<std::ptrdiff_t>(kDigits);
    name = std::next(own.begin(), index)->first;
  }
  return world_.exchange("the name of a tensor", name).at(static_cast<size_t>(difference.owner));
}

void WeightComparison::conclude(const std::string& model) const {
  if (!needed_) return;
  const MutexLock lock(taking_);
  const std::string mine = total_of(own_) + (other_shard_ ? total_of(other_) : "");
  const std::optional<Difference> found = find_difference(mine);
  if (!found) return;
  const std::string tensor = name_tensor(*found, own_, other_);
  const auto [low, high] = std::minmax(found->owner, found->reader);
  throw ConfigError("rank " + std::to_string(high) + " differs from rank " + std::to_string(low) +
                    " in the weights: tensor '" + printable(tensor) + "' has other values in " +
                    model + "; give all ranks copies of the same files");
}

}  // namespace longshore
