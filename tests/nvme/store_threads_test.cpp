// The store under several lanes at once, and the order of deferred updates: parameters of a unit
// are read after its update and before the version is committed.
#include <gtest/gtest.h>

#include <condition_variable>
#include <filesystem>
#include <future>
#include <iterator>
#include <mutex>
#include <thread>

#include "base/quiet_log.h"
#include "nvme/store/nvme_store.h"
#include "nvme/store/state_file.h"
#include "tests/fakes/specs.h"
#include "tests/fakes/store_lanes.h"
#include "tests/nvme/scratch_file.h"
#include "tests/nvme/store_fixture.h"

namespace longshore {
namespace {

using namespace std::chrono_literals;

void load(NvmeStore& store, const std::vector<FlatLayout>& layouts) {
  for (size_t u = 0; u < layouts.size(); ++u) {
    fakes::write_unit(store, layouts[u], UnitId(static_cast<int32_t>(u)), 0);
  }
}

// Returns drives with threads of their own on simulated media.
MakeDrives threaded(std::vector<std::unique_ptr<SimMedium>>& media) {
  return [&media](const StripeMap& map, std::span<std::byte>) {
    std::vector<std::unique_ptr<Drive>> drives;
    for (int i = 0; i < map.drives(); ++i) {
      const auto index = static_cast<size_t>(i);
      if (media.size() <= index) media.push_back(std::make_unique<SimMedium>(map.file_bytes(i)));
      SimOptions options{.seed = 1 + index};
      options.inject = harmless_faults(index, 0.02);
      drives.push_back(std::make_unique<ThreadDrive>(
          [medium = media[index].get(), index, options] {
            return std::make_unique<SimFile>(medium, "sim" + std::to_string(index), options);
          },
          map.geometry().chunk_bytes));
    }
    return drives;
  };
}

// Goal: update, fetch and gradient offload run concurrently, the commit beside the backward pass;
// every lane gets the bytes of its step, in memory and on drives, and the last commit is found
// again; also with one version written in place.
TEST(NvmeStoreThreads, ServeThreeLanesAndACommitAtOnce) {
  const QuietLog quiet;
  WorkerPool pool(2);
  SoloAgreement solo;
  constexpr int64_t kSteps = 4;
  for (const StateOptions& state : all_state_options()) {
    const std::vector<FlatLayout> layouts = make_layouts(model_with_frozen(), 1, state.compute);
    for (const bool on_drives : {false, true}) {
      for (const int drives : {1, 3}) {
        std::vector<std::unique_ptr<SimMedium>> media;
        NvmeStoreOptions options = small_store(state, on_drives, drives);
        for (const int versions : {1, 2}) {
          options.versions = versions;
          media.clear();
          NvmeStore store(layouts, options, threaded(media), &pool);
          store.start(solo, 1);
          load(store, layouts);
          store.commit({0, ""}, solo);
          const std::string difference = fakes::run_lanes(
              store, layouts, kSteps, [&](int64_t step) { store.commit({step, ""}, solo); });
          ASSERT_EQ(difference, "") << versions << " versions";
        }
        NvmeStore store(layouts, options, threaded(media), &pool);
        ASSERT_TRUE(store.start(solo, 2));
        ASSERT_EQ(store.committed()->step, kSteps);
        for (size_t u = 0; u < layouts.size(); ++u) {
          const UnitId unit(static_cast<int32_t>(u));
          ASSERT_EQ(fakes::parameter_difference(store, store.parameters(unit)->bytes(), layouts[u],
                                                unit, kSteps),
                    "");
        }
      }
    }
  }
}

// Three lanes run concurrently on a real file.
TEST(NvmeStoreThreads, ServeThreeLanesOnARealFile) {
  WorkerPool pool(2);
  SoloAgreement solo;
  const std::vector<FlatLayout> layouts =
      make_layouts(fakes::make_small_model(3, false), 1, DType::kBF16);
  NvmeStoreOptions options = small_store({}, true, 2);
  for (const auto& [engine, versions] :
       {std::pair(IoEngine::kAuto, 2), {IoEngine::kThreads, 2}, {IoEngine::kAuto, 1}}) {
    const ScratchDirectory directory;
    StateFileOptions files;
    files.engine = engine;
    files.directories = {directory.file("a"), directory.file("b")};
    const auto make = [&](const StripeMap& map, std::span<std::byte> window) {
      return open_state_files(files, map, window);
    };
    options.versions = versions;
    NvmeStore store(layouts, options, make, &pool);
    store.start(solo, 1);
    load(store, layouts);
    store.commit({0, ""}, solo);
    EXPECT_EQ(
        fakes::run_lanes(store, layouts, 4, [&](int64_t step) { store.commit({step, ""}, solo); }),
        "");
  }
}

// Goal: a store with its rings and threads leaves no descriptor open, whether it failed or not.
TEST(NvmeStoreThreads, LeaveNoDescriptorsBehind) {
  const QuietLog quiet;
  const auto descriptors = [] {
    const std::filesystem::directory_iterator all("/proc/self/fd");
    return std::distance(begin(all), end(all));
  };
  WorkerPool pool(2);
  SoloAgreement solo;
  const std::vector<FlatLayout> layouts = make_layouts(tiny_model(), 1, DType::kBF16);
  NvmeStoreOptions options = small_store({}, true, 2);
  const auto at_first = descriptors();
  for (const IoEngine engine : {IoEngine::kAuto, IoEngine::kThreads}) {
    const ScratchDirectory directory;
    StateFileOptions files;
    files.engine = engine;
    files.directories = {directory.file("a"), directory.file("b")};
    const auto make = [&](const StripeMap& map, std::span<std::byte> window) {
      return open_state_files(files, map, window);
    };
    for (const uint64_t run : {uint64_t{5}, uint64_t{5}, uint64_t{77}}) {
      options.run = {{run, 6}};
      NvmeStore store(layouts, options, make, &pool);
      EXPECT_GT(descriptors(), at_first);
      if (run == 77) {
        EXPECT_THROW(store.start(solo, 1), CheckpointError);
        continue;
      }
      store.start(solo, 1);
      load(store, layouts);
      store.commit({0, ""}, solo);
    }
    StateFileOptions missing = files;
    missing.directories = {directory.file("a"), "/proc/no-such-directory"};
    EXPECT_THROW(NvmeStore(
                     layouts, options,
                     [&](const StripeMap& map, std::span<std::byte> window) {
                       return open_state_files(missing, map, window);
                     },
                     &pool),
                 Error);
  }
  EXPECT_EQ(descriptors(), at_first);
}

// ---- No lane waits behind an update ----

// Gate: reads or writes of one file wait at it.
class Gate {
 public:
  void close(BlockOp::Kind kind) {
    const std::lock_guard lock(mutex_);
    closed_ = kind;
  }
  void open() {
    const std::lock_guard lock(mutex_);
    closed_.reset();
    changed_.notify_all();
  }
  void pass(BlockOp::Kind kind) {
    std::unique_lock lock(mutex_);
    waiting_ = waiting_ || closed_ == kind;
    changed_.notify_all();
    // The wait is bounded, so that a store that waits for the wrong event fails its test.
    if (!changed_.wait_for(lock, 300s, [&] { return closed_ != kind; })) timed_out_ = true;
  }
  void wait_for_somebody() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, 300s, [&] { return waiting_; });
  }
  bool timed_out() {
    const std::lock_guard lock(mutex_);
    return timed_out_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<BlockOp::Kind> closed_;
  bool waiting_ = false;
  bool timed_out_ = false;
};

MakeDrives gated(Gate& gate, std::unique_ptr<SimMedium>& medium) {
  return [&](const StripeMap& map, std::span<std::byte>) {
    medium = std::make_unique<SimMedium>(map.file_bytes(0));
    SimOptions options;
    options.inject = [&gate](int64_t, const BlockOp& op) -> std::optional<SimFault> {
      gate.pass(op.kind);
      return std::nullopt;
    };
    std::vector<std::unique_ptr<Drive>> drives;
    drives.push_back(std::make_unique<ThreadDrive>(
        [&medium, options] { return std::make_unique<SimFile>(medium.get(), "sim", options); },
        map.geometry().chunk_bytes));
    return drives;
  };
}

// Goal: while an update waits for the drive, parameters in host memory can be fetched.
TEST(NvmeStoreThreads, AFetchDoesNotWaitForAnUpdatesRead) {
  Gate gate;
  std::unique_ptr<SimMedium> medium;
  WorkerPool pool(2);
  SoloAgreement solo;
  const std::vector<FlatLayout> layouts =
      make_layouts(fakes::make_small_model(3, false), 1, DType::kBF16);
  NvmeStore store(layouts, small_store({}, false, 1), gated(gate, medium), &pool);
  store.start(solo, 1);
  load(store, layouts);
  store.commit({0, ""}, solo);
  gate.close(BlockOp::Kind::kRead);
  std::thread update([&] { fakes::write_unit(store, layouts[3], UnitId(3), 1); });
  gate.wait_for_somebody();
  EXPECT_EQ(fakes::parameter_difference(store, store.parameters(UnitId(1))->bytes(), layouts[1],
                                        UnitId(1), 0),
            "");
  gate.open();
  update.join();
  EXPECT_FALSE(gate.timed_out());
}

// Goal: parameters on drives are read while another unit's state is leased; those that an update
// passed on are the updated ones before their write is done.
TEST(NvmeStoreThreads, ParametersThatAnUpdatePassedOnDoNotWaitForItsWrite) {
  Gate gate;
  std::unique_ptr<SimMedium> medium;
  WorkerPool pool(2);
  SoloAgreement solo;
  for (const StateOptions& state : all_state_options()) {
    const std::vector<FlatLayout> layouts = make_layouts(model_with_frozen(), 1, state.compute);
    NvmeStore store(layouts, small_store(state, true, 1), gated(gate, medium), &pool);
    store.start(solo, 1);
    load(store, layouts);
    store.commit({0, ""}, solo);
    const auto expect_step = [&](const ShardStore::ParameterLease& lease, int32_t unit,
                                 int64_t step) {
      EXPECT_EQ(fakes::parameter_difference(store, lease.bytes(),
                                            layouts[static_cast<size_t>(unit)], UnitId(unit), step),
                "");
    };
    {
      const auto held = store.state(UnitId(2));
      std::async(std::launch::async, [&] {
        expect_step(*store.parameters(UnitId(0)), 0, 0);
      }).get();
    }
    store.read_state(UnitId(1), StateSlot(2));
    fakes::write_values_of(*store.state_in(UnitId(1), StateSlot(2)), layouts[1], UnitId(1), 1);
    store.pass_parameters(UnitId(1), StateSlot(2), ParameterSlot(1));
    gate.close(BlockOp::Kind::kWrite);
    auto write =
        std::async(std::launch::async, [&] { store.write_state(UnitId(1), StateSlot(2)); });
    gate.wait_for_somebody();
    expect_step(*store.parameters_in(UnitId(1), ParameterSlot(1)), 1, 1);
    gate.open();
    write.get();
    for (const int32_t unit : {0, 3})
      fakes::write_unit(store, layouts[static_cast<size_t>(unit)], UnitId(unit), 1);
    store.commit({1, ""}, solo);
    for (const int32_t unit : {0, 1, 3}) expect_step(*store.parameters(UnitId(unit)), unit, 1);
    EXPECT_FALSE(gate.timed_out());
  }
}

// ---- The operations of a schedule ----

// Goal: while a unit is updated in its slot, the next one is read and the one before written, its
// parameters are passed on, and two parameter slots are filled at once: every byte is that of its
// step.
TEST(NvmeStoreThreads, OperationsOnDifferentSlotsRunAtOnce) {
  const QuietLog quiet;
  WorkerPool pool(2);
  SoloAgreement solo;
  for (const StateOptions& state : all_state_options()) {
    const std::vector<FlatLayout> layouts = make_layouts(model_with_frozen(), 1, state.compute);
    const auto units = static_cast<int32_t>(layouts.size());
    std::vector<std::unique_ptr<SimMedium>> media;
    NvmeStore store(layouts, small_store(state, true, 3), threaded(media), &pool);
    store.start(solo, 1);
    load(store, layouts);
    store.commit({0, ""}, solo);
    const auto difference = [&](int32_t unit, int32_t slot, int64_t step) {
      const auto lease = store.parameters_in(UnitId(unit), ParameterSlot(slot));
      return fakes::parameter_difference(store, lease->bytes(), layouts[static_cast<size_t>(unit)],
                                         UnitId(unit), step);
    };
    for (int64_t step = 1; step <= 3; ++step) {
      // Stage i reads unit i, updates unit i - 1, writes unit i - 2.
      for (int32_t i = 0; i < units + 2; ++i) {
        auto read = std::async(std::launch::async, [&, i] {
          if (i < units) store.read_state(UnitId(i), StateSlot(i % 3));
        });
        auto write = std::async(std::launch::async, [&, i] {
          if (i >= 2) store.write_state(UnitId(i - 2), StateSlot((i - 2) % 3));
        });
        if (const int32_t unit = i - 1; unit >= 0 && unit < units) {
          fakes::write_values_of(*store.state_in(UnitId(unit), StateSlot(unit % 3)),
                                 layouts[static_cast<size_t>(unit)], UnitId(unit), step);
          store.pass_parameters(UnitId(unit), StateSlot(unit % 3), ParameterSlot(unit % 2));
          EXPECT_EQ(difference(unit, unit % 2, step), "");
        }
        read.get();
        write.get();
      }
      for (int32_t unit = units - 2; unit >= 0; unit -= 2) {
        auto first = std::async(std::launch::async, [&, unit] {
          store.read_parameters(UnitId(unit + 1), ParameterSlot(0));
        });
        store.read_parameters(UnitId(unit), ParameterSlot(1));
        first.get();
        EXPECT_EQ(difference(unit + 1, 0, step), "");
        EXPECT_EQ(difference(unit, 1, step), "");
      }
      store.commit({step, ""}, solo);
    }
  }
}

// Goal: a slot belongs to its unit until the operation that ends its use.
TEST(NvmeStoreThreads, SlotsBelongToTheirUnits) {
  std::vector<std::unique_ptr<SimMedium>> media;
  WorkerPool pool(1);
  SoloAgreement solo;
  const std::vector<FlatLayout> layouts =
      make_layouts(fakes::make_small_model(3, false), 1, DType::kBF16);
  NvmeStore store(layouts, small_store({}, true, 1), threaded(media), &pool);
  store.start(solo, 1);
  load(store, layouts);
  store.commit({0, ""}, solo);
  EXPECT_THROW(store.state_in(UnitId(1), StateSlot(0)), CheckFailure);  // no operation read it
  EXPECT_THROW(store.write_state(UnitId(1), StateSlot(0)), CheckFailure);
  EXPECT_THROW(store.parameters_in(UnitId(1), ParameterSlot(0)), CheckFailure);
  store.read_state(UnitId(1), StateSlot(0));
  EXPECT_THROW(store.read_state(UnitId(2), StateSlot(0)), CheckFailure);
  EXPECT_THROW(store.pass_parameters(UnitId(2), StateSlot(0), ParameterSlot(0)), CheckFailure);
  EXPECT_THROW(store.write_state(UnitId(2), StateSlot(0)), CheckFailure);
  store.pass_parameters(UnitId(1), StateSlot(0), ParameterSlot(1));
  EXPECT_THROW(store.read_parameters(UnitId(3), ParameterSlot(1)), CheckFailure);
  store.parameters_in(UnitId(1), ParameterSlot(1));  // its end frees the slot
  store.read_parameters(UnitId(3), ParameterSlot(1));
  store.write_state(UnitId(1), StateSlot(0));
  EXPECT_THROW(store.write_state(UnitId(1), StateSlot(0)), CheckFailure);
  store.read_state(UnitId(2), StateSlot(0));
}

// ---- Updates deferred into the forward pass ----

// DeferredSteps: one run of deferred steps; a crash comes between any two of its operations.
class DeferredSteps {
 public:
  DeferredSteps(NvmeStore& store, const std::vector<FlatLayout>& layouts)
      : store_(store), layouts_(layouts) {}

  // Runs `count` operations of the steps after step 0: for each unit its update and its fetch, then
  // fetches in reverse, with the commit before fetch `commit_at` of the backward pass.
  void run(int64_t count, size_t commit_at) {
    for (int64_t step = 1; count > 0; ++step) {
      for (size_t u = 0; u < layouts_.size() && count > 0; ++u, --count) {
        const UnitId unit(static_cast<int32_t>(u));
        fakes::write_unit(store_, layouts_[u], unit, step);
        fetch(u, step);
      }
      for (size_t u = layouts_.size() + 1; u-- > 0 && count > 0; --count) {
        if (u == commit_at) {
          SoloAgreement solo;
          store_.commit({step, ""}, solo);
          acknowledged = step;
        }
        if (u > 0) fetch(u - 1, step);
      }
    }
  }
  int64_t acknowledged = 0;

 private:
  void fetch(size_t u, int64_t step) {
    const UnitId unit(static_cast<int32_t>(u));
    ASSERT_EQ(fakes::parameter_difference(store_, store_.parameters(unit)->bytes(), layouts_[u],
                                          unit, step),
              "");
  }

  NvmeStore& store_;
  const std::vector<FlatLayout>& layouts_;
};

// Goal: reads between a unit's update and the commit return the new bytes; power loss at any point
// leaves the last acknowledged step whole, wherever in the backward pass the commit is.
TEST(NvmeStoreDeferred, ReadsAfterUpdatesAndLosesNothingAcknowledged) {
  const QuietLog quiet;
  WorkerPool pool(1);
  const std::vector<FlatLayout> layouts = make_layouts(tiny_model(), 1, DType::kBF16);
  const auto operations = static_cast<int64_t>(3 * (2 * layouts.size() + 1));
  SimRandom random(4);
  for (const bool on_drives : {false, true}) {
    for (const size_t commit_at : {size_t{0}, size_t{1}, layouts.size()}) {
      for (int64_t count = 0; count <= operations; ++count) {
        SimDrives sim;
        sim.seed = static_cast<uint64_t>(count) + 1;
        const NvmeStoreOptions options = small_store({}, on_drives, 3);
        int64_t acknowledged = 0;
        {
          SoloAgreement solo;
          NvmeStore store(layouts, options, sim.maker(), &pool);
          store.start(solo, 1);
          load(store, layouts);
          store.commit({0, ""}, solo);
          DeferredSteps steps(store, layouts);
          steps.run(count, commit_at);
          acknowledged = steps.acknowledged;
        }
        sim.lose_power(random);
        SoloAgreement solo;
        NvmeStore store(layouts, options, sim.maker(), &pool);
        ASSERT_TRUE(store.start(solo, 2));
        ASSERT_EQ(store.committed()->step, acknowledged) << count << " operations";
        for (size_t u = 0; u < layouts.size(); ++u) {
          const UnitId unit(static_cast<int32_t>(u));
          ASSERT_EQ(fakes::parameter_difference(store, store.parameters(unit)->bytes(), layouts[u],
                                                unit, acknowledged),
                    "");
        }
      }
    }
  }
}

}  // namespace
}  // namespace longshore
