// Reads of parameters that compute waits for pass the reads of state that wait for the same drive.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <future>
#include <mutex>
#include <span>
#include <utility>

#include "tests/fakes/specs.h"
#include "tests/nvme/store_fixture.h"

namespace longshore {
namespace {

using namespace std::chrono_literals;

// HeldDrive: a drive that runs one operation at a time, records the order, and can be held.
class HeldDrive {
 public:
  MakeDrives maker() {
    return [this](const StripeMap& map, std::span<std::byte>) {
      medium_ = std::make_unique<SimMedium>(map.file_bytes(0));
      SimOptions options{.depth = 1, .in_order = true};
      options.inject = [this](int64_t, const BlockOp& op) -> std::optional<SimFault> {
        pass(op);
        return std::nullopt;
      };
      std::vector<std::unique_ptr<Drive>> drives;
      drives.push_back(std::make_unique<Counting>(
          this,
          [this, options] { return std::make_unique<SimFile>(medium_.get(), "sim", options); },
          map.geometry().chunk_bytes));
      return drives;
    };
  }
  void hold() {
    const std::lock_guard lock(mutex_);
    held_ = true;
    is_at_operation_ = false;
    done_.clear();
    started_ = 0;
  }
  // Releases the drive once `started` transfers were submitted since it was held.
  void release_after(int64_t started) {
    std::unique_lock lock(mutex_);
    // The wait is bounded, so that a store that starts too few transfers fails its test.
    EXPECT_TRUE(changed_.wait_for(lock, 300s, [&] { return started_ >= started; }));
    held_ = false;
    changed_.notify_all();
  }
  // Waits until `started` transfers were submitted and the first of them runs.
  void wait_for_started(int64_t started) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(
        changed_.wait_for(lock, 300s, [&] { return started_ >= started && is_at_operation_; }));
  }
  // Returns the offsets of completed operations since the drive was held.
  std::vector<Bytes> done() {
    const std::lock_guard lock(mutex_);
    return done_;
  }

 private:
  class Counting final : public Drive {
   public:
    Counting(HeldDrive* owner, ThreadDrive::MakeFile make, Bytes chunk_bytes)
        : owner_(owner), inner_(std::move(make), chunk_bytes) {}
    const std::string& path() const override { return inner_.path(); }
    Bytes size_bytes() const override { return inner_.size_bytes(); }
    std::string_view kind() const override { return inner_.kind(); }
    void start(Transfer& transfer) override {
      inner_.start(transfer);
      const std::lock_guard lock(owner_->mutex_);
      ++owner_->started_;
      owner_->changed_.notify_all();
    }
    void wait(Transfer& transfer) override { inner_.wait(transfer); }

   private:
    HeldDrive* owner_;
    ThreadDrive inner_;
  };

  void pass(const BlockOp& op) {
    std::unique_lock lock(mutex_);
    is_at_operation_ = true;
    changed_.notify_all();
    EXPECT_TRUE(changed_.wait_for(lock, 300s, [&] { return !held_; }));
    done_.push_back(op.offset);
  }

  std::unique_ptr<SimMedium> medium_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool held_ = false;
  bool is_at_operation_ = false;
  int64_t started_ = 0;
  std::vector<Bytes> done_;
};

// Goal: reads of parameters pass the reads and writes of state that still wait.
TEST(UrgentReads, OfParametersPassStateThatWaits) {
  WorkerPool pool(1);
  SoloAgreement solo;
  for (const StateOptions& state : all_state_options()) {
    const std::vector<FlatLayout> layouts =
        make_layouts(fakes::make_small_model(4, false), 1, state.compute);
    HeldDrive drive;
    NvmeStore store(layouts, small_store(state, /*parameters_on_drives=*/true, 1), drive.maker(),
                    &pool);
    store.start(solo, 1);
    write_step(store, layouts, 0);
    store.commit({0, ""}, solo);
    drive.hold();
    drive.release_after(0);
    store.parameters(UnitId(5));
    const std::vector<Bytes> alone = drive.done();
    ASSERT_FALSE(alone.empty());
    drive.hold();
    drive.release_after(0);
    store.read_state(UnitId(1), StateSlot(0));
    const auto bulk = static_cast<int64_t>(drive.done().size());
    ASSERT_GT(bulk, 1);
    store.write_state(UnitId(1), StateSlot(0));

    drive.hold();
    auto read = std::async(std::launch::async, [&] { store.read_state(UnitId(1), StateSlot(0)); });
    drive.wait_for_started(bulk);
    auto urgent =
        std::async(std::launch::async, [&] { store.read_parameters(UnitId(5), ParameterSlot(0)); });
    drive.release_after(bulk + static_cast<int64_t>(alone.size()));
    read.get();
    urgent.get();
    const std::vector<Bytes> order = drive.done();
    ASSERT_EQ(order.size(), static_cast<size_t>(bulk) + alone.size());
    // The operation that ran when the drive was held comes first.
    EXPECT_TRUE(std::ranges::equal(std::span(order).subspan(1, alone.size()), alone));
    store.parameters_in(UnitId(5), ParameterSlot(0));
  }
}

}  // namespace
}  // namespace longshore
