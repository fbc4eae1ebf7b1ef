#include "trainer/run/start_check.h"

#include "base/errors.h"
#include "base/file.h"
#include "base/log.h"
#include "trainer/model/base_identity.h"
#include "trainer/model/frozen_check.h"

namespace longshore {

StartIdentity StartCheck::recorded() const {
  StartIdentity start;
  std::string problem;
  if (world_.ranks().rank == 0) {
    try {
      start = read_start_identity(directory_.path());
    } catch (const CheckpointError& error) {
      problem = error.what();
    }
  }
  problem = world_.exchange("the record of the start", problem).front();
  if (!problem.empty()) throw CheckpointError(problem);
  return start.model == source_.fingerprint() ? start : StartIdentity();
}

void StartCheck::check(StartIdentity& start, bool complete) {
  if (known_) return;
  const StartIdentity found = read_identity(source_, &world_);
  // Rank 0 alone has the record of a run without a checkpoint.
  std::string problem = frozen_difference(start, found, source_, "when this run began");
  problem = world_.exchange("the frozen model", problem).front();
  if (!problem.empty()) throw CheckpointError(problem);
  if (!is_resuming()) {
    problem = world_.exchange("the adapter's model", base_difference(source_, found)).front();
    if (!problem.empty()) throw ConfigError(problem);
  }
  known_ = read_all_frozen(found, source_);
  const bool first = world_.ranks().rank == 0;
  if (first && is_resuming() && (known_ || complete)) {
    const std::string note =
        not_compared(start, found, source_,
                     from_ == From::kDrives ? "the run uses its own copy on the drives"
                                            : "it did not read them");
    if (!note.empty()) log_info(note);
  }
  const StartIdentity before = start;
  start.model = found.model;
  start.frozen.insert(found.frozen.begin(), found.frozen.end());
  if (!is_resuming()) start.values = found.values;
  if (!first || !recorded_ || start == before) return;
  try {
    write_start_identity(directory_.path(), start);
  } catch (const IoError& error) {
    log_warning(std::string("the sums of the frozen model are kept in checkpoints alone: ") +
                error.what());
  }
}

void StartCheck::begin_record(const StartIdentity& start) {
  // Earlier versions kept the checksums of frozen models there.
  remove_tree(directory_.file("frozen"));
  write_start_identity(directory_.path(), start);
  recorded_ = true;
}

}  // namespace longshore
