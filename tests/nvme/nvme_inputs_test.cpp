// Kept inputs on simulated drives: what is loaded is what was saved, whatever the drives do, and
// the bytes that move are the planned ones.
#include "nvme/store/nvme_inputs.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "tests/nvme/store_fixture.h"

namespace longshore {
namespace {

// Inputs of five units, of two sizes; the first unit has none, the fifth stays on the device.
NvmeInputOptions five_units(int drives) {
  NvmeInputOptions options;
  options.unit_bytes = {0, 3 * 9000, 3 * 9000, 3 * 40000, 0, 3 * 9000, 3 * 40000};
  options.micro_batches = 3;
  options.geometry.chunk_bytes = 4 * kBlockBytes;
  options.geometry.weights = {2, 1, 3};
  options.drives = drives;
  return options;
}

constexpr int32_t kSaved[] = {1, 2, 3, 5, 6};

std::byte value_of(int32_t step, int32_t unit, size_t micro_batch, size_t at) {
  return static_cast<std::byte>(static_cast<size_t>(step * 7 + unit * 31) + micro_batch * 57 +
                                at % 251);
}

// Forward and backward of one step; an error ends it. Counts the bytes that came back wrong.
int64_t run_step(NvmeInputs& inputs, int32_t step, int32_t micro_batches) {
  int64_t wrong = 0;
  for (const int32_t unit : kSaved) {
    inputs.save(UnitId(unit), micro_batches, [&](auto places) {
      EXPECT_EQ(places.size(), static_cast<size_t>(micro_batches));
      for (size_t i = 0; i < places.size(); ++i) {
        for (size_t at = 0; at < places[i].size(); ++at) {
          places[i][at] = value_of(step, unit, i, at);
        }
      }
    });
  }
  for (size_t u = std::size(kSaved); u-- > 0;) {
    inputs.load(UnitId(kSaved[u]), micro_batches, [&](auto places) {
      for (size_t i = 0; i < places.size(); ++i) {
        for (size_t at = 0; at < places[i].size(); ++at) {
          wrong += places[i][at] != value_of(step, kSaved[u], i, at);
        }
      }
    });
  }
  return wrong;
}

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
    // Two slots of three inputs of the largest unit, in whole blocks.
    EXPECT_EQ(inputs.host_bytes(), 2 * 3 * 10 * kBlockBytes);
    for (int32_t step = 0; step < 4; ++step) EXPECT_EQ(run_step(inputs, step, 3), 0);
    // Units 1, 2 and 3: the slots still hold 5 and 6.
    const DriveTraffic planned = NvmeInputs::planned_traffic(options);
    EXPECT_EQ(planned.written, 3 * (3 + 3 + 10) * kBlockBytes);
    EXPECT_EQ(inputs.traffic().written, 4 * planned.written);
    EXPECT_EQ(inputs.traffic().read, 4 * planned.read);
    // Steps with fewer micro-batches, or none, move fewer bytes.
    EXPECT_EQ(run_step(inputs, 4, 1), 0);
    EXPECT_EQ(run_step(inputs, 5, 0), 0);
    EXPECT_EQ(run_step(inputs, 6, 3), 0);
    EXPECT_EQ(inputs.traffic().written, 5 * planned.written + planned.written / 3);
  }
}

TEST(NvmeInputs, NeedNoDriveWhereTheSlotsHoldAll) {
  WorkerPool pool(1);
  SimDrives sim;
  sim.injectors = {[](int64_t, const BlockOp&) { return SimFault{.error_number = EIO}; }};
  NvmeInputOptions options = five_units(1);
  options.unit_bytes = {0, 0, 0, 0, 0, 3 * 9000, 3 * 40000};
  NvmeInputs inputs(options, sim.maker(), &pool);
  EXPECT_EQ(NvmeInputs::planned_traffic(options).written, 0);
  for (const int32_t unit : {5, 6}) inputs.save(UnitId(unit), 3, [](auto) {});
  for (const int32_t unit : {6, 5}) inputs.load(UnitId(unit), 3, [](auto) {});
}

// Every operation goes wrong once, in every way: the same bytes or an error, never other bytes.
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

TEST(NvmeInputs, RefuseWhatTheScheduleNeverAsks) {
  WorkerPool pool(1);
  SimDrives sim;
  NvmeInputs inputs(five_units(1), sim.maker(), &pool);
  EXPECT_THROW(inputs.load(UnitId(5), 3, [](auto) {}), CheckFailure) << "never saved";
  inputs.save(UnitId(1), 3, [](auto) {});
  EXPECT_THROW(inputs.save(UnitId(1), 3, [](auto) {}), CheckFailure) << "saved and not loaded";
}

}  // namespace
}  // namespace longshore
