// StartCheck: compares the frozen values that a run reads with those that it began with, and keeps
// their identity in <run.dir>/start.json. Frozen parameters that stay in files are read by the
// first pass; so the check precedes any change of that pass that outlives the process. StartedRun
// owns it; main thread.
#pragma once

#include <string>

#include "comm/world/world.h"
#include "trainer/checkpoint/start_identity.h"
#include "trainer/directory/run_directory.h"
#include "trainer/model/model_source.h"

namespace longshore {

class StartCheck {
 public:
  // The state from which a start resumes.
  enum class From : uint8_t { kNothing, kCheckpoint, kDrives };

  // All arguments must outlive this.
  StartCheck(const ModelSource* source, const RunDirectory* directory, World* world)
      : source_(*source), directory_(*directory), world_(*world) {}

  // Returns on rank 0 the identity that an earlier start in this directory kept; empty on other
  // ranks, without an earlier start, and if that had another model. Throws CheckpointError if the
  // file is damaged. Collective.
  StartIdentity recorded() const;
  // Compares all values that were read so far with `start`, and adds those that `start` lacks.
  // Throws CheckpointError, with the file and the tensor, if a frozen value differs, and
  // ConfigError if a new run's adapter was trained over another model (base_identity.h). `complete`
  // says that all values have been read; values that could not be compared are then logged.
  // Collective.
  void check(StartIdentity& start, bool complete);
  // Sets what this start resumes from; kNothing until it is called.
  void resumes_from(From from) { from_ = from; }
  bool is_resuming() const { return from_ != From::kNothing; }
  // Writes the record now, and later whenever `check` adds values. Rank 0 calls it when no check
  // can fail any more. Throws IoError.
  void begin_record(const StartIdentity& start);

 private:
  const ModelSource& source_;
  const RunDirectory& directory_;
  World& world_;
  From from_ = From::kNothing;
  bool known_ = false;     // every frozen value was read and compared
  bool recorded_ = false;  // the directory has the record of this start
};

}  // namespace longshore
