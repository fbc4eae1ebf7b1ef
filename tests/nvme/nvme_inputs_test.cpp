// Activation checkpoints on simulated drives: loads return the saved bytes whatever the drives do,
// and the planned bytes move.
#include "nvme/store/nvme_inputs.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <thread>

#include "tests/nvme/store_fixture.h"

namespace longshore {
namespace {

// Returns options for the inputs of five units, of two sizes; the last two stay in their slots.
NvmeInputOptions five_units(int drives) {
  NvmeInputOptions options;
  for (const int32_t unit : {1, 2, 3, 5, 6}) {
    options.saved.push_back({UnitId(unit), 3 * (unit % 3 == 0 ? 40000 : 9000)});
  }
  options.written = {UnitId(1), UnitId(2), UnitId(3)};
  options.micro_batches = 3;
  options.geometry.chunk_bytes = 4 * kBlockBytes;
  options.geometry.weights = {2, 1, 3};
  options.drives = drives;
  return options;
}

std::byte value_of(int32_t step, int32_t unit, size_t micro_batch, size_t at) {
  return static_cast<std::byte>(static_cast<size_t>(step * 7 + unit * 31) + micro_batch * 57 +
                                at % 251);
}

void fill(NvmeInputs& inputs, int32_t step, int32_t unit, StagingSlot slot, int32_t micro_batches) {
  const auto places = inputs.places(UnitId(unit), slot);
  for (size_t i = 0; i < static_cast<size_t>(micro_batches); ++i) {
    for (size_t at = 0; at < places[i].size(); ++at) places[i][at] = value_of(step, unit, i, at);
  }
}

// Returns the number of wrong bytes.
int64_t count_wrong(NvmeInputs& inputs, int32_t step, int32_t unit, StagingSlot slot,
                    int32_t micro_batches) {
  int64_t wrong = 0;
  const auto places = inputs.places(UnitId(unit), slot);
  for (size_t i = 0; i < static_cast<size_t>(micro_batches); ++i) {
    for (size_t at = 0; at < places[i].size(); ++at) {
      wrong += places[i][at] != value_of(step, unit, i, at);
    }
  }
  return wrong;
}

// Runs forward and backward of one step in schedule order; returns the number of wrong bytes.
int64_t run_step(NvmeInputs& inputs, int32_t step, int32_t micro_batches) {
  int64_t wrong = 0;
  for (const int32_t unit : {1, 2, 3}) {
    const StagingSlot slot(unit == 2 ? 1 : 0);
    fill(inputs, step, unit, slot, micro_batches);
    inputs.write(UnitId(unit), slot, micro_batches);
  }
  fill(inputs, step, 5, StagingSlot(1), micro_batches);
  fill(inputs, step, 6, StagingSlot(0), micro_batches);
  wrong += count_wrong(inputs, step, 6, StagingSlot(0), micro_batches);
  inputs.read(UnitId(3), StagingSlot(0), micro_batches);
  wrong += count_wrong(inputs, step, 5, StagingSlot(1), micro_batches);
  inputs.read(UnitId(2), StagingSlot(1), micro_batches);
  wrong += count_wrong(inputs, step, 3, StagingSlot(0), micro_batches);
  inputs.read(UnitId(1), StagingSlot(0), micro_batches);
  wrong += count_wrong(inputs, step, 2, StagingSlot(1), micro_batches);
  wrong += count_wrong(inputs, step, 1, StagingSlot(0), micro_batches);
  return wrong;
}

// Loads return the saved bytes over several steps and drives.
TEST(NvmeInputs, GiveBackWhatWasSaved) {
  WorkerPool pool(2);
  for (const int drives : {1, 3}) {
    SimDrives sim;
    for (int i = 0; i < drives; ++i) {
      sim.injectors.push_back(harmless_faults(static_cast<uint64_t>(i), 0.3));
    }
    const NvmeInputOptions options = five_units(drives);
    NvmeInputs inputs(options, sim.maker(), &pool);
    EXPECT_EQ(inputs.host_bytes(), NvmeInputs::planned_bytes(options));
    // The host memory is two slots of three inputs of the largest unit, in whole blocks.
    EXPECT_EQ(inputs.host_bytes(), 2 * 3 * 10 * kBlockBytes);
    for (int32_t step = 0; step < 4; ++step) EXPECT_EQ(run_step(inputs, step, 3), 0);
    const Bytes planned = 3 * (3 + 3 + 10) * kBlockBytes;
    EXPECT_EQ(inputs.traffic().written, 4 * planned);
    EXPECT_EQ(inputs.traffic().read, 4 * planned);
    // Steps with fewer micro-batches, or none, move fewer bytes.
    EXPECT_EQ(run_step(inputs, 4, 1), 0);
    EXPECT_EQ(run_step(inputs, 5, 0), 0);
    EXPECT_EQ(run_step(inputs, 6, 3), 0);
    EXPECT_EQ(inputs.traffic().written, 5 * planned + planned / 3);
  }
}

// Goal: several units are in flight concurrently, and none waits for another one's bytes.
TEST(NvmeInputs, AreWrittenAndReadSideBySide) {
  WorkerPool pool(2);
  SimDrives sim;
  sim.injectors = {harmless_faults(1, 0.3)};
  NvmeInputs inputs(five_units(1), sim.maker(SimDrives::Work::kThreads), &pool);
  const auto both = [&](auto&& first, auto&& second) {
    std::thread other(second);
    first();
    other.join();
  };
  fill(inputs, 0, 1, StagingSlot(0), 3);
  fill(inputs, 0, 3, StagingSlot(1), 3);
  both([&] { inputs.write(UnitId(1), StagingSlot(0), 3); },
       [&] { inputs.write(UnitId(3), StagingSlot(1), 3); });
  both([&] { inputs.read(UnitId(3), StagingSlot(0), 3); },
       [&] { inputs.read(UnitId(1), StagingSlot(1), 3); });
  EXPECT_EQ(
      count_wrong(inputs, 0, 3, StagingSlot(0), 3) + count_wrong(inputs, 0, 1, StagingSlot(1), 3),
      0);
}

// Any fault at any operation gives the same bytes or an error, never other bytes.
TEST(NvmeInputs, SurviveOrReportAFaultAtEveryOperation) {
  const SimFault faults[] = {{.error_number = EIO},
                             {.error_number = ENOSPC},
                             {.error_number = EAGAIN},
                             {.kind = SimFault::Kind::kShort, .bytes = 512},
                             {.kind = SimFault::Kind::kBitFlip},
                             {.kind = SimFault::Kind::kStale},
                             {.kind = SimFault::Kind::kMisdirect, .shift = kBlockBytes},
                             {.kind = SimFault::Kind::kLost}};
  WorkerPool pool(1);
  int64_t operations = 0;
  int64_t reported = 0;
  int64_t survived = 0;
  for (const SimFault& fault : faults) {
    for (int64_t n = 0;; ++n) {
      SimDrives sim;
      int64_t seen = 0;
      sim.injectors = {[&](int64_t index, const BlockOp&) -> std::optional<SimFault> {
        seen = index + 1;
        return index == n ? std::optional(fault) : std::nullopt;
      }};
      NvmeInputs inputs(five_units(1), sim.maker(), &pool);
      try {
        int64_t wrong = 0;
        for (int32_t step = 0; step < 2; ++step) wrong += run_step(inputs, step, 3);
        EXPECT_EQ(wrong, 0) << "operation " << n;
        ++survived;
      } catch (const CorruptStateError& error) {
        EXPECT_NE(std::string(error.what()).find("sim0"), std::string::npos) << error.what();
        ++reported;
      } catch (const IoError& error) {
        EXPECT_NE(std::string(error.what()).find("sim0"), std::string::npos) << error.what();
        ++reported;
      }
      operations += 1;
      if (n >= seen) break;
    }
  }
  EXPECT_GT(operations, 8 * 50);
  EXPECT_GT(reported, 50);
  EXPECT_GT(survived, 100);
}

// Operations that no schedule contains are refused.
TEST(NvmeInputs, RefuseWhatTheScheduleNeverAsks) {
  WorkerPool pool(1);
  SimDrives sim;
  NvmeInputs inputs(five_units(1), sim.maker(), &pool);
  EXPECT_THROW(inputs.read(UnitId(5), StagingSlot(0), 3), CheckFailure) << "never written";
  EXPECT_THROW(inputs.write(UnitId(4), StagingSlot(0), 3), CheckFailure) << "never saved";
  EXPECT_THROW(inputs.write(UnitId(1), StagingSlot(0), 4), CheckFailure) << "a fourth micro-batch";
}

}  // namespace
}  // namespace longshore
