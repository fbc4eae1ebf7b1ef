// The drive tier as a store: the host tier's bytes, durable steps, faults at every operation.
#include "nvme/store/nvme_store.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>

#include "base/quiet_log.h"
#include "nvme/store/nvme_store.h"
#include "nvme/store/state_file.h"
#include "nvme/store/unit_parts.h"
#include "pinned/pinned_store.h"
#include "tests/fakes/specs.h"
#include "tests/nvme/scratch_file.h"
#include "tests/nvme/store_fixture.h"

namespace longshore {
namespace {

struct Case {
  StateOptions state;
  bool parameters_on_drives;
  int drives;
};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const StateOptions& state : all_state_options()) {
    for (const bool on_drives : {false, true}) {
      for (const int drives : {1, 3}) cases.push_back({state, on_drives, drives});
    }
  }
  return cases;
}

// Goal: update and device read the updated bytes in every format, from memory or drives, before and
// after a restart, whatever the drives return.
TEST(NvmeStore, HoldsWhatWasWrittenOverStepsAndRestarts) {
  const QuietLog quiet;
  WorkerPool pool(2);
  SoloAgreement solo;
  for (const int factor : {1, 2}) {
    for (const Case& one : all_cases()) {
      const std::vector<FlatLayout> layouts =
          make_layouts(model_with_frozen(), factor, one.state.compute);
      SimDrives sim;
      sim.injectors = {harmless_faults(1, 0.2), harmless_faults(2, 0.2), harmless_faults(3, 0.2)};
      const NvmeStoreOptions options = small_store(one.state, one.parameters_on_drives, one.drives);
      int64_t step = 0;
      for (int restart = 0; restart < 3; ++restart) {
        NvmeStore store(layouts, options, sim.maker(), &pool);
        const auto& point = store.start(solo, 100 + static_cast<uint64_t>(restart));
        ASSERT_EQ(point.has_value(), restart > 0);
        if (!point) {
          write_step(store, layouts, 0);
          store.commit({0, "start"}, solo);
        }
        ASSERT_EQ(store.committed()->step, step);
        ASSERT_EQ(difference(store, layouts, step), "") << "restart " << restart;
        for (int i = 0; i < 3; ++i) {
          write_step(store, layouts, ++step);
          ASSERT_EQ(difference(store, layouts, step), "");
          store.commit({step, "note " + std::to_string(step)}, solo);
          EXPECT_EQ(store.committed()->note, "note " + std::to_string(step));
        }
        ASSERT_EQ(difference(store, layouts, step), "");
      }
    }
  }
}

// The store owns the planned bytes and moves the planned traffic.
TEST(NvmeStore, OwnsThePlannedBytesAndMovesThePlannedTraffic) {
  WorkerPool pool(1);
  SoloAgreement solo;
  for (const Case& one : all_cases()) {
    const std::vector<FlatLayout> layouts =
        make_layouts(fakes::make_small_model(2, false), 1, one.state.compute);
    Bytes elements = 0;
    for (const FlatLayout& layout : layouts) elements += layout.trainable_elements();
    SimDrives sim;
    const NvmeStoreOptions options = small_store(one.state, one.parameters_on_drives, one.drives);
    NvmeStore store(layouts, options, sim.maker(), &pool);
    EXPECT_EQ(store.host_bytes(), NvmeStore::planned_bytes(layouts, options));
    store.start(solo, 1);
    write_step(store, layouts, 0);
    store.commit({0, ""}, solo);
    const DriveTraffic before = store.traffic();
    write_step(store, layouts, 1);
    store.commit({1, ""}, solo);
    const DriveTraffic planned = planned_update(layouts, options);
    EXPECT_EQ(store.traffic().written - before.written, planned.written);
    // Both formats have a master and two fp32 moments, apart from padding to blocks.
    EXPECT_NEAR(static_cast<double>(planned.written), 12.0 * static_cast<double>(elements),
                8192.0 * static_cast<double>(layouts.size()));
    const bool direct = name_of(one.state.format) == "fp32" ? one.state.compute == DType::kF32
                                                            : one.state.compute == DType::kBF16;
    if (direct && !one.parameters_on_drives) {
      EXPECT_LT(planned.read, planned.written);
    }
  }
}

// A read-only lease writes nothing.
TEST(NvmeStore, WritesNothingForALeaseThatOnlyReads) {
  WorkerPool pool(1);
  SoloAgreement solo;
  for (const Case& one : all_cases()) {
    const std::vector<FlatLayout> layouts = make_layouts(model_with_frozen(), 1, one.state.compute);
    SimDrives sim;
    NvmeStore store(layouts, small_store(one.state, one.parameters_on_drives, one.drives),
                    sim.maker(), &pool);
    store.start(solo, 1);
    write_step(store, layouts, 0);
    store.commit({0, ""}, solo);
    const Bytes before = store.traffic().written;
    EXPECT_EQ(difference(store, layouts, 0), "");
    store.commit({1, "skipped"}, solo);
    EXPECT_EQ(store.traffic().written, before);
    EXPECT_EQ(store.committed()->version, 0u);
    EXPECT_EQ(store.committed()->sequence, 1u);
  }
}

// Goal: a unit that an update leaves unchanged is part of the new version.
TEST(NvmeStore, CommitsAVersionInWhichSomeUnitsDidNotChange) {
  const QuietLog quiet;
  WorkerPool pool(1);
  SoloAgreement solo;
  for (const Case& one : all_cases()) {
    const std::vector<FlatLayout> layouts = make_layouts(model_with_frozen(), 1, one.state.compute);
    SimDrives sim;
    const NvmeStoreOptions options = small_store(one.state, one.parameters_on_drives, one.drives);
    {
      NvmeStore store(layouts, options, sim.maker(), &pool);
      store.start(solo, 1);
      write_step(store, layouts, 0);
      store.commit({0, ""}, solo);
      for (int i = 0; i < 3; ++i) {
        {
          const auto state = store.state(UnitId(1));
          state->segment(Segment::kFullMoments).regions[0].f32()[0] = static_cast<float>(i + 1);
        }
        store.commit({1 + i, ""}, solo);
      }
    }
    NvmeStore store(layouts, options, sim.maker(), &pool);
    ASSERT_TRUE(store.start(solo, 2));
    EXPECT_EQ(store.committed()->version, 3u);
    {
      const auto state = store.state(UnitId(1));
      EXPECT_EQ(state->segment(Segment::kFullMoments).regions[0].f32()[0], 3.0f);
      state->segment(Segment::kFullMoments).regions[0].f32()[0] = 0.0f;
    }
    EXPECT_EQ(difference(store, layouts, 0), "");
  }
}

// Concurrent leases of one unit are refused.
TEST(NvmeStore, KeepsItsLeasesApart) {
  WorkerPool pool(1);
  SoloAgreement solo;
  const std::vector<FlatLayout> layouts = make_layouts(model_with_frozen(), 1, DType::kBF16);
  for (const bool on_drives : {false, true}) {
    SimDrives sim;
    NvmeStoreOptions options = small_store({}, on_drives, 1);
    options.parameter_slots = 3;
    NvmeStore store(layouts, options, sim.maker(), &pool);
    store.start(solo, 1);
    write_step(store, layouts, 0);
    store.commit({0, ""}, solo);
    {
      const auto first = store.state(UnitId(0));
      const auto second = store.state(UnitId(1));
      EXPECT_THROW(store.state(UnitId(0)), CheckFailure);
      EXPECT_THROW(store.parameters(UnitId(0)), CheckFailure);
    }
    const auto held = store.parameters(UnitId(1));
    const auto again = store.parameters(UnitId(1));
    EXPECT_THROW(store.state(UnitId(1)), CheckFailure);
    const auto other = store.parameters(UnitId(2));
    EXPECT_NE(held->bytes().data(), other->bytes().data());
    EXPECT_THROW(store.parameters(UnitId(77)), CheckFailure);
  }
}

// ---- Faults ----

// Loads and runs three steps; returns the last acknowledged step, -1 for none.
int64_t run_three_steps(const std::vector<FlatLayout>& layouts, const NvmeStoreOptions& options,
                        SimDrives& sim, WorkerPool& pool) {
  SoloAgreement solo;
  int64_t acknowledged = -1;
  try {
    NvmeStore store(layouts, options, sim.maker(), &pool);
    if (const auto& point = store.start(solo, 1)) acknowledged = point->step;
    while (acknowledged < 3) {
      write_step(store, layouts, acknowledged + 1);
      store.commit({acknowledged + 1, ""}, solo);
      ++acknowledged;
    }
  } catch (const Error&) {
  }
  return acknowledged;
}

struct Injected {
  SimFault fault;
  bool for_good;
};

std::vector<Injected> all_faults() {
  std::vector<Injected> faults;
  for (const int error : {EIO, ENOSPC, EAGAIN, EINTR, ECANCELED}) {
    faults.push_back({{.kind = SimFault::Kind::kError, .error_number = error}, false});
  }
  for (const int error : {EIO, ENOSPC, EAGAIN}) {
    faults.push_back({{.kind = SimFault::Kind::kError, .error_number = error}, true});
  }
  faults.push_back({{.kind = SimFault::Kind::kShort, .bytes = 512}, false});
  faults.push_back({{.kind = SimFault::Kind::kShort, .bytes = 4096}, true});
  faults.push_back({{.kind = SimFault::Kind::kStale}, false});
  faults.push_back({{.kind = SimFault::Kind::kBitFlip}, false});
  faults.push_back({{.kind = SimFault::Kind::kMisdirect, .shift = 4096}, false});
  faults.push_back({{.kind = SimFault::Kind::kLost}, false});
  return faults;
}

// Goal: with any fault at any operation the run ends with its bits or an error, and the next start
// finds an acknowledged step or the one after it, or reports that no version is whole.
TEST(NvmeStoreFaults, AtEveryOperationEndInBitsOrErrors) {
  const QuietLog quiet;
  WorkerPool pool(1);
  const std::vector<FlatLayout> layouts = make_layouts(tiny_model(), 1, DType::kBF16);
  const NvmeStoreOptions options = small_store({}, false, 1);
  int64_t runs = 0;
  for (const Injected& injected : all_faults()) {
    const auto kind = injected.fault.kind;
    // Silent faults may cost acknowledged bytes; then they must be detected.
    const bool silent = kind == SimFault::Kind::kLost || kind == SimFault::Kind::kMisdirect ||
                        kind == SimFault::Kind::kBitFlip;
    for (int64_t n = 0;; ++n) {
      SimDrives sim;
      bool reached = false;
      sim.injectors = {[&](int64_t index, const BlockOp&) -> std::optional<SimFault> {
        if (index < n || (index > n && !injected.for_good)) return std::nullopt;
        reached = true;
        return injected.fault;
      }};
      const int64_t acknowledged = run_three_steps(layouts, options, sim, pool);
      ++runs;
      sim.injectors.clear();
      if (!reached) {
        ASSERT_EQ(acknowledged, 3);
        break;
      }
      SimRandom random(static_cast<uint64_t>(n));
      sim.lose_power(random);
      if (sim.media.empty()) continue;
      NvmeStore store(layouts, options, sim.maker(), &pool);
      SoloAgreement solo;
      try {
        const auto& point = store.start(solo, 2);
        const int64_t found = point ? point->step : -1;
        if (!silent) {
          ASSERT_GE(found, acknowledged) << "fault at " << n;
        }
        ASSERT_LE(found, acknowledged + 1);
        if (point) {
          ASSERT_EQ(difference(store, layouts, found), "") << "fault at " << n;
        }
      } catch (const CheckpointError& error) {
        ASSERT_TRUE(silent) << "fault at " << n << ": " << error.what();
      }
    }
  }
  EXPECT_GT(runs, 400);
}

// Goal: no damage goes undetected: a start finds a whole version, or none.
void flip_bits(int in_files, int in_manifests) {
  const QuietLog quiet;
  WorkerPool pool(1);
  SoloAgreement solo;
  const std::vector<FlatLayout> layouts = make_layouts(tiny_model(), 1, DType::kBF16);
  const NvmeStoreOptions options = small_store({}, false, 1);
  SimDrives sim;
  ASSERT_EQ(run_three_steps(layouts, options, sim, pool), 3);
  const std::vector<std::byte> image = sim.media[0]->now();
  SimRandom random(9);
  int older = 0;
  const auto damage_and_start = [&](Bytes offset, int bit) {
    SimDrives damaged;
    damaged.media.push_back(std::make_unique<SimMedium>(image));
    damaged.media[0]->flip_bit(offset, bit);
    NvmeStore store(layouts, options, damaged.maker(), &pool);
    const auto& point = store.start(solo, 2);
    ASSERT_TRUE(point);
    ASSERT_TRUE(point->step == 3 || point->step == 2);
    older += point->step == 2 ? 1 : 0;
    ASSERT_EQ(difference(store, layouts, point->step), "") << "offset " << offset;
  };
  for (int i = 0; i < in_files; ++i) {
    damage_and_start(static_cast<Bytes>(random.below(image.size())),
                     static_cast<int>(random.below(8)));
  }
  EXPECT_GT(older, in_files / 20);
  for (const Bytes manifest : {Bytes{0}, kManifestStride}) {
    for (int i = 0; i < in_manifests / 2; ++i) {
      damage_and_start(manifest + static_cast<Bytes>(random.below(200)),
                       static_cast<int>(random.below(8)));
    }
  }
}

// Flipped bits are found before the bytes are used.
TEST(NvmeStoreFaults, FlippedBitsAreFoundBeforeUse) {
  flip_bits(400, 100);
}

// Ten thousand flipped bits are found before the bytes are used.
TEST(LongNvmeStoreFaults, TenThousandFlippedBitsAreFoundBeforeUse) {
  flip_bits(10'000, 2'000);
}

// Damage is reported with file and offset.
TEST(NvmeStoreFaults, DamageIsNamedWithFileAndOffset) {
  WorkerPool pool(1);
  SoloAgreement solo;
  const std::vector<FlatLayout> layouts =
      make_layouts(fakes::make_small_model(1, true), 1, DType::kBF16);
  const NvmeStoreOptions options = small_store({}, false, 1);
  SimDrives sim;
  ASSERT_EQ(run_three_steps(layouts, options, sim, pool), 3);
  NvmeStore store(layouts, options, sim.maker(), &pool);
  ASSERT_TRUE(store.start(solo, 2));
  const ChunkPlace& chunk = store.map().chunks().back();
  sim.media[0]->flip_bit(chunk.offsets[1] + 5, 3);
  const auto last = static_cast<int32_t>(layouts.size()) - 1;
  try {
    store.state(UnitId(last));
    FAIL() << "damaged bytes were leased";
  } catch (const CorruptStateError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("sim0: "), std::string::npos) << text;
    EXPECT_NE(text.find("at offset " + std::to_string(chunk.offsets[1])), std::string::npos)
        << text;
    EXPECT_NE(text.find("unit " + std::to_string(last) + "'s moments"), std::string::npos) << text;
  }
}

// Files of another run or layout are refused.
TEST(NvmeStoreFaults, RefusesTheFilesOfAnotherRunOrLayout) {
  const QuietLog quiet;
  WorkerPool pool(1);
  SoloAgreement solo;
  const std::vector<FlatLayout> layouts =
      make_layouts(fakes::make_small_model(1, true), 1, DType::kBF16);
  const NvmeStoreOptions options = small_store({.format = StateFormat::kSplit}, false, 1);
  SimDrives sim;
  ASSERT_EQ(run_three_steps(layouts, options, sim, pool), 3);
  const auto expect_refused = [&](const NvmeStoreOptions& other, const char* why) {
    NvmeStore store(layouts, other, sim.maker(), &pool);
    try {
      store.start(solo, 3);
      FAIL() << why;
    } catch (const CheckpointError& error) {
      EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
    }
  };
  NvmeStoreOptions other = options;
  other.run = {{7, 7}};
  expect_refused(other, "another run");
  other = options;
  other.rank = 1;
  other.ranks = 2;
  expect_refused(other, "of rank 0 of 1");
  other = options;
  other.state.format = StateFormat::kSplitBf16;  // needs fewer bytes, so the files are large enough
  expect_refused(other, "another model, state format");
  other = options;
  other.geometry.chunk_bytes = 2 * kBlockBytes;
  expect_refused(other, "another model, state format");
}

// ---- Real files ----

// Steps survive restarts on real files, with io_uring and with threads.
TEST(NvmeStoreFiles, HoldStepsOverRestartsOnRingAndThreads) {
  WorkerPool pool(2);
  SoloAgreement solo;
  const std::vector<FlatLayout> layouts =
      make_layouts(fakes::make_small_model(3, false), 1, DType::kBF16);
  for (const IoEngine engine : {IoEngine::kAuto, IoEngine::kThreads}) {
    for (const int drives : {1, 3}) {
      const ScratchDirectory directory;
      StateFileOptions files;
      files.engine = engine;
      for (int i = 0; i < drives; ++i) {
        files.directories.push_back(directory.file("drive" + std::to_string(i)));
      }
      const auto make = [&](const StripeMap& map, std::span<std::byte> window) {
        return open_state_files(files, map, window);
      };
      EXPECT_FALSE(read_state_file(files.directories.front(), 0).manifest);
      const NvmeStoreOptions options = small_store({}, true, drives);
      for (int restart = 0; restart < 2; ++restart) {
        NvmeStore store(layouts, options, make, &pool);
        const auto& point = store.start(solo, 5 + static_cast<uint64_t>(restart));
        ASSERT_EQ(point.has_value(), restart == 1);
        const int64_t from = point ? point->step + 1 : 0;
        for (int64_t step = from; step < from + 4; ++step) {
          write_step(store, layouts, step);
          store.commit({step, ""}, solo);
          ASSERT_EQ(difference(store, layouts, step), "");
        }
      }
      const auto manifest = read_state_file(files.directories.front(), 0).manifest;
      ASSERT_TRUE(manifest);
      EXPECT_EQ(manifest->geometry, options.geometry);
      EXPECT_EQ(manifest->point.step, 7);
    }
  }
}

// Goal: drives of a rule that keeps other matrices whole are refused, although all sizes are equal.
TEST(NvmeStore, OtherWholeMatricesAreAnotherLayout) {
  const auto part_with = [](int whole) {
    ModelSpec model;
    UnitSpec& unit = model.units.emplace_back();
    unit.parameters = {fakes::make_parameter("a", {64, 128}),
                       fakes::make_parameter("b", {64, 128})};
    if (whole >= 0) unit.parameters.at(static_cast<size_t>(whole)).whole_matrices = true;
    return part_specs(make_layouts(model, 1, DType::kBF16), {}).front();
  };
  const PartSpec none = part_with(-1), first = part_with(0), second = part_with(1);
  EXPECT_EQ(none.name, "unit 0's parameters, split-bf16 for bf16");
  EXPECT_EQ(first.bytes, second.bytes);
  EXPECT_NE(first.name, second.name);
  EXPECT_NE(first.name.find(", whole matrices "), std::string::npos) << first.name;
}

}  // namespace
}  // namespace longshore
