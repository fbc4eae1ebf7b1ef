// StartCheck: compares the frozen values that a run reads with those that it began with, and keeps
// their identity in <run.dir>/start.json. What stays in files is read by the first pass; so the
// check comes before that pass changes anything that outlives the process. StartedRun owns it; main
// thread.
#pragma once

#include <string>

#include "comm/world/world.h"
#include "trainer/checkpoint/start_identity.h"
#include "trainer/directory/run_directory.h"
#include "trainer/model/model_source.h"

namespace longshore {

class StartCheck {
 public:
  // A start goes on from one of these.
  enum class From : uint8_t { kNothing, kCheckpoint, kDrives };

  // All must outlive this.
  StartCheck(const ModelSource* source, const RunDirectory* directory, World* world)
      : source_(*source), directory_(*directory), world_(*world) {}

  // Returns the identity that an earlier start in this directory kept; on rank 0 alone, and empty
  // if it was of another model. Throws CheckpointError if the file is damaged. Collective.
  StartIdentity recorded() const;
  // Compares all that was read so far with `start`, and adds what `start` lacks. Throws
  // CheckpointError, with the file and the tensor, if a frozen value is another one. Says what was
  // not compared, once `complete` says that the run reads no more for the first time. Collective.
  void check(StartIdentity& start, bool complete);
  // Says what this start goes on from; at first from nothing.
  void goes_on_from(From from) { from_ = from; }
  bool is_resuming() const { return from_ != From::kNothing; }
  // Writes the record, and from now on whenever `check` finds more. Rank 0 calls it, when no check
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
