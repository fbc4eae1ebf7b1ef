// UnitProbe: runs one unit of a model, forward and backward, on the device under its meter, and
// reports LibTorch's memory. It uses UnitRunner over slots, accumulators and activation checkpoints
// of real sizes; all values are zero, which does not change memory. Made and used by one thread,
// one at a time per process, because LibTorch's CPU memory is counted for the process. Results are
// kept on disk by SampleCache.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device/device_kind.h"
#include "offload/engine/probe/probe_inputs.h"

namespace longshore {

struct ProbeDevice {
  DeviceKind kind = DeviceKind::kCpu;
  int gpu = 0;
  DType compute = DType::kF32;
};

// Returns the probe's own buffer bytes, at most those of a run for the unit.
Bytes probe_bytes(const OneUnitModel& model, DType compute, int64_t most_positions);

class UnitProbe {
 public:
  // Probes micro-batches of at most `most_positions`. Both pointers must outlive the probe.
  UnitProbe(const OneUnitModel* model, const ProbeDevice& device, int64_t most_positions);
  UnitProbe(const UnitProbe&) = delete;
  UnitProbe& operator=(const UnitProbe&) = delete;
  ~UnitProbe();

  // Runs a micro-batch of documents of these lengths; `trained` positions have a target. The first
  // run on a GPU is made twice, because libraries allocate workspaces that they keep.
  ProbeTrace run(const std::vector<int64_t>& documents, int64_t trained);
  ProbeTrace run(const ProbeInput& input);

 private:
  class Bench;
  std::unique_ptr<Bench> bench_;
  bool keeps_workspaces_;  // of libraries: nothing more is allocated for good
};

// SampleCache: probe results on disk, shared by processes. One JSON file for each key; a file that
// is unreadable or of another key counts as absent. Processes may use it concurrently, because
// files are replaced atomically. It never throws; if it cannot write, it caches nothing.

// Convert samples to text and back; nullopt if the text is not of samples of this key.
std::string samples_to_text(const std::string& key, const std::vector<ProbeSample>& samples);
std::optional<std::vector<ProbeSample>> samples_of_text(const std::string& text,
                                                        const std::string& key);

class SampleCache {
 public:
  // An empty directory disables the cache.
  explicit SampleCache(std::string directory) : directory_(std::move(directory)) {}
  // `key` contains everything that the samples depend on.
  std::optional<std::vector<ProbeSample>> find(const std::string& key) const;
  void keep(const std::string& key, const std::vector<ProbeSample>& samples) const;

 private:
  std::string path_of(const std::string& key) const;
  std::string directory_;
};

}  // namespace longshore
