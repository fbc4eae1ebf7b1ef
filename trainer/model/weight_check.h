// WeightCheck: detects values that are not finite while a model's weights are loaded, and
// WeightComparison: detects that ranks load different ones. Readers pass everything through `take`
// on any thread; the owner requests the result after loading.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/mutex.h"
#include "comm/world/world.h"
#include "shard/shard_topology.h"

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

// WeightComparison: compares the weights that the ranks load. Each rank reads only its own shard,
// so two ranks of a shard group have no bytes in common. A rank whose files are not those of the
// rank with the next shard also reads that rank's shard, for one more read of the model; both hash
// it. Ranks with the same shard compare what they load anyway.
class WeightComparison {
 public:
  // `files` is ModelSource::weight_files(). Nothing is compared if all ranks read the same files of
  // one machine, or none. Collective; `world` must outlive this object.
  WeightComparison(const std::string& files, const ShardTopology& topology, World& world);

  // Returns whether loaded values must be passed to `take`.
  bool needed() const { return needed_; }
  // Returns the shard that this rank reads as well, for `take_other`.
  std::optional<Rank> other_shard() const { return other_shard_; }
  // These take values or packed bytes of this rank's shard, and of other_shard(), in the chunks of
  // load_parameters; `begin` is the place of a chunk in the tensor.
  void take(const std::string& tensor, int64_t begin, std::span<const std::byte> chunk);
  void take_other(const std::string& tensor, int64_t begin, std::span<const std::byte> chunk);

  // Throws ConfigError that names two ranks and the first tensor that differs, on all ranks. Errors
  // name `model`. Collective.
  void conclude(const std::string& model) const;

 private:
  // A tensor's chunks come in any order, so their hashes are added.
  using Sums = std::map<std::string, uint64_t>;
  // Two ranks that read one shard and found different values.
  struct Difference {
    int32_t owner;   // loads the shard
    int32_t reader;  // loads it too, or reads it for the comparison
    bool compared;   // the reader's values are those of take_other
  };
  int32_t next_of(int32_t rank) const;
  std::optional<Difference> find_difference(const std::string& mine) const;
  std::string name_tensor(const Difference& difference, const Sums& own, const Sums& other) const;

  ShardTopology topology_;
  World& world_;
  bool needed_ = false;
  std::optional<Rank> other_shard_;
  mutable Mutex taking_;
  Sums own_ LONGSHORE_GUARDED_BY(taking_);
  Sums other_ LONGSHORE_GUARDED_BY(taking_);
};

}  // namespace longshore
