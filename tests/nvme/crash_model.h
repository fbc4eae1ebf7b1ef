// Crash enumeration of the commit protocol: lives of a run on simulated drives are recorded, and
// every moment of them is a crash: each rank has got some way, its unflushed sectors survive as a
// subset. Whatever is left must recover to a version that was acknowledged or newer, whole, and the
// same on all ranks. From some crashes the next life begins. One thread, deterministic.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nvme/commit/versioned_chunks.h"
#include "tests/nvme/sim_disk.h"

namespace longshore {

// One thing done wrong on purpose: the enumeration must notice.
enum class Mutation : uint8_t {
  kNone,
  kNoFlushAfterManifest,
  kSingleManifest,
  kInPlaceSlot,
  kAcknowledgeEarly,
  kNoChecksum,      // and no flush before the manifest
  kNoFirstFlush,    // checksums alone
  kNoFlushAtStart,  // what a killed process left unflushed stays so
  kNoIncarnation,   // and newer manifests are not voided
  kOnlyNoIncarnation,
  kOnlyNoVoid,
};

struct CrashOptions {
  int ranks = 1;
  int drives = 1;
  int commits = 5;   // of the first life; later ones have two
  int depth = 2;     // lives after the first
  int subsets = 40;  // tried for each moment with more unflushed sectors than can be enumerated
  int next_life_every = 60;  // crash states of which one is lived on from
  uint64_t seed = 1;
  Mutation mutation = Mutation::kNone;
};

struct CrashReport {
  int64_t states = 0;
  int64_t lives = 0;
  int64_t lost = 0;     // an acknowledged version is gone
  int64_t corrupt = 0;  // bytes were accepted that are not one version's
  std::string first;    // of the failures
};

CrashReport enumerate_crashes(const CrashOptions& options);

}  // namespace longshore
