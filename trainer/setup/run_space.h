// RunSpace: the free space of the file system of run.dir, and how much a run will write there. Read
// once before the run starts; the texts are pure functions. Main thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/bytes.h"
#include "config/run_config.h"
#include "offload/plan/tier_plan.h"
#include "shard/unit_spec.h"

namespace longshore {

struct RunSpace {
  std::string directory;  // run.dir
  Bytes free = 0;         // free now, with what leftovers of a killed process take
  Bytes checkpoint = 0;   // one
  Bytes exported = 0;     // at the run's end; 0: none
  int64_t keep = 1;       // checkpoint.keep, or the checkpoints of the whole run if fewer
  bool one_more = false;  // another one is written while these are kept
  bool best = false;      // eval.keep_best
  Bytes held = 0;         // by the run's checkpoints
  Bytes drives = 0;       // that files of offload.nvme will take there
  Bytes cache = 0;        // that data.cache may take there
  bool done = false;      // the run has ended, so that nothing more is saved

  // Returns by how much the run's use of the file system grows at most.
  Bytes most() const;
};

// Reads the space of the run, whose export takes `exported` bytes (0: it has none). `drives` is the
// plan's part on drives, with the ranks of a machine; null: not planned yet. Empty if the file
// system cannot be queried.
std::optional<RunSpace> read_run_space(const RunConfig& config, const ModelSpec& model,
                                       Bytes exported, const DrivePlan* drives = nullptr,
                                       int32_t ranks_per_node = 1);

// Returns the reason why the run must not start, that not even one checkpoint fits; empty if one
// fits.
std::string space_refusal(const RunSpace& space);
// Returns a warning if checkpoint.keep and the export need more than is free; else empty.
std::string space_warning(const RunSpace& space);

}  // namespace longshore
