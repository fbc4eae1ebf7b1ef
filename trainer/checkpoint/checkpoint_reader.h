// Checkpoint: a portable checkpoint opened for reading. The run may use other ranks, units or
// another state format than the writer. `open` checks the manifest, sizes and headers; `verify`
// checks every byte, and restoring checks it again. Errors are CheckpointError "<path>: <file>:
// <what is wrong>". Movable; one thread.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hf/safetensors_reader.h"
#include "shard/shard_store.h"
#include "trainer/checkpoint/checkpoint_manifest.h"
#include "trainer/checkpoint/sharded_model.h"

namespace longshore {

class Checkpoint {
 public:
  static Checkpoint open(const std::string& path);

  const std::string& path() const { return path_; }
  const CheckpointManifest& manifest() const { return manifest_; }

  // Reads every `parts`-th file, starting with file `part`, once and compares all checksums.
  void verify(int32_t part = 0, int32_t parts = 1) const;

  // Returns one line per difference between the checkpoint's and the model's trained parameters.
  std::vector<std::string> mismatches(const ModelSpec& spec) const;

  // Fills the rank's state: masters, their derived copies, and moments. Gradients and padding
  // become zero; frozen segments stay unchanged. It checks `mismatches` first. Call `verify` first,
  // because damage that is found here leaves the store partly filled.
  void restore(const ShardedModel& model, const StateSweep& sweep) const;

  // Reads a parameter's masters, or its part of the region `kind`, from element `begin` on, for
  // exports of a verified checkpoint.
  void read(const std::string& parameter, const std::string& kind, int64_t begin,
            std::span<float> values) const;

 private:
  // Part is a stored piece of a parameter's state.
  struct Part {
    ElementRange range;
    const SafetensorsFile* file = nullptr;
    const TensorInfo* tensor = nullptr;
    uint64_t hash = 0;
  };
  // Sorted by first element; the parts cover the parameter without gaps.
  using Parts = std::vector<Part>;
  using PartsKey = std::pair<std::string, std::string>;  // parameter and kind

  Checkpoint() = default;
  void open_file(const CheckpointFile& file);
  std::vector<int64_t> stored_shape(const CheckpointTensor& tensor, MomentFormat format) const;
  void add_part(const CheckpointFile& file, const SafetensorsFile& opened, size_t tensor);
  void check_coverage() const;
  void verify_file(const CheckpointFile& file, const SafetensorsFile& opened) const;
  void check_regions(std::span<const StateRegion> regions) const;
  // Compares which parameters are updated as whole matrices.
  void check_matrices(const ModelSpec& spec) const;
  void restore_unit(const ShardedModel& model, const UnitSpec& unit,
                    ShardStore::StateLease& lease) const;
  // Without `region` the part holds masters.
  void restore_part(const Part& part, std::optional<size_t> region, const ShardPiece& piece,
                    const StateSpans& state) const;
  void restore_elements(const Part& part, std::optional<size_t> region, ElementRange stored,
                        std::span<const std::byte> bytes, ElementRange wanted,
                        const ShardPiece& piece, const StateSpans& state) const;
  static void read_part(const Part& part, Moment moment, int64_t begin, std::span<float> values);
  const Parts& parts(const std::string& parameter, const std::string& kind) const;
  [[noreturn]] void fail(const std::string& file, const std::string& what) const;

  std::string path_;
  CheckpointManifest manifest_;
  std::map<std::string, std::vector<int64_t>> shapes_;   // parameter shapes
  std::vector<std::unique_ptr<SafetensorsFile>> files_;  // in the manifest's order
  std::map<PartsKey, Parts> parts_;
};

}  // namespace longshore
