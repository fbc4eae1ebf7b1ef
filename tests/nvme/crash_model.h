// Crash enumeration of the commit protocol. Lives of a run on simulated drives are recorded, and
// every moment of them is a crash: each rank has advanced some way, and a subset of its unflushed
// sectors survives. The rest must recover to a whole version, acknowledged or newer, the same on
// all ranks. From some crashes the next life begins. One thread, deterministic.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nvme/commit/versioned_chunks.h"
#include "tests/nvme/sim_disk.h"

namespace longshore {

// Mutation: one deliberate mistake that the enumeration must find.
enum class Mutation : uint8_t {
  kNone,
  kNoFlushAfterManifest,
  kSingleManifest,
  kInPlaceSlot,
  kAcknowledgeEarly,
  kNoChecksum,      // nor a flush before the manifest
  kNoFirstFlush,    // checksums only
  kNoFlushAtStart,  // a killed process's writes stay unflushed
  kNoIncarnation,   // nor voids newer manifests
  kOnlyNoIncarnation,
  kOnlyNoVoid,
};

struct CrashOptions {
  int ranks = 1;
  int drives = 1;
  int commits = 5;           // of the first life; later ones have two
  int depth = 2;             // lives after the first
  int subsets = 40;          // per moment with too many unflushed sectors to enumerate
  int next_life_every = 60;  // one in this many crash states begins a new life
  uint64_t seed = 1;
  Mutation mutation = Mutation::kNone;
};

struct CrashReport {
  int64_t states = 0;
  int64_t lives = 0;
  int64_t lost = 0;     // cases where an acknowledged version is gone
  int64_t corrupt = 0;  // cases where mixed bytes were accepted as one version
  std::string first;    // the first failure
};

CrashReport enumerate_crashes(const CrashOptions& options);

}  // namespace longshore
