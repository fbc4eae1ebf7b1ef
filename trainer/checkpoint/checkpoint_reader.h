// Checkpoint: a portable checkpoint that is opened for reading, by any run: other ranks, units or
// state format than its writer's. Movable; one thread. Nothing is believed: the manifest, sizes and
// headers are checked when it is opened, every byte by `verify` and again while it is applied.
//
// Errors are CheckpointError "<path>: <file>: <what is wrong>".
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "hf/safetensors_reader.h"
#include "shard/state_sweep.h"
#include "trainer/checkpoint/checkpoint_manifest.h"
#include "trainer/checkpoint/sharded_model.h"

namespace longshore {

class Checkpoint {
 public:
  static Checkpoint open(const std::string& path);

  const std::string& path() const { return path_; }
  const CheckpointManifest& manifest() const { return manifest_; }

  // Reads every `parts`-th file once, from `part` on, and compares all checksums.
  void verify(int32_t part = 0, int32_t parts = 1) const;

  // Every difference between the checkpoint's trainable parameters and the model's, one line each.
  std::vector<std::string> mismatches(const ModelSpec& spec) const;

  // Fills the rank's state: masters and what the format derives from them, and moments. Gradients
  // and padding become zero; frozen segments are left alone. Checks `mismatches` first. Call
  // `verify` before: damage found here leaves the store half filled.
  void restore(const ShardedModel& model, const StateSweep& walk) const;

  // Elements of a parameter's state, from element `begin` on; for exports of a verified checkpoint.
  void read(const std::string& parameter, StateKind kind, int64_t begin,
            std::span<float> values) const;

 private:
  // A stored piece of a parameter's state.
  struct Part {
    ElementRange range;
    const SafetensorsFile* file = nullptr;
    const TensorInfo* tensor = nullptr;
    uint64_t hash = 0;
  };
  // By the first element; they tile the parameter.
  using Parts = std::vector<Part>;
  using PartsKey = std::pair<std::string, StateKind>;

  Checkpoint() = default;
  void open_file(const CheckpointFile& file);
  std::vector<int64_t> stored_shape(const CheckpointTensor& tensor, MomentFormat format) const;
  void add_part(const CheckpointFile& file, const SafetensorsFile& opened, size_t tensor);
  void check_coverage() const;
  void verify_file(const CheckpointFile& file, const SafetensorsFile& opened) const;
  void restore_unit(const ShardedModel& model, const UnitSpec& unit,
                    ShardStore::StateLease& lease) const;
  void restore_part(const Part& part, StateKind kind, const ShardPiece& piece,
                    const StateSpans& state) const;
  static void restore_elements(const Part& part, StateKind kind, ElementRange stored,
                               std::span<const std::byte> bytes, ElementRange wanted,
                               const ShardPiece& piece, const StateSpans& state);
  static void read_part(const Part& part, StateKind kind, int64_t begin, std::span<float> values);
  const Parts& parts(const std::string& parameter, StateKind kind) const;
  [[noreturn]] void fail(const std::string& file, const std::string& what) const;

  std::string path_;
  CheckpointManifest manifest_;
  std::map<std::string, std::vector<int64_t>> shapes_;   // of the parameters
  std::vector<std::unique_ptr<SafetensorsFile>> files_;  // as in the manifest
  std::map<PartsKey, Parts> parts_;
};

}  // namespace longshore
