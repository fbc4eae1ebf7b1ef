// Parameters that compute stands still for. Goal: the store's reads of them are done before the
// reads and writes of state that wait for the same drive.
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "tests/fakes/specs.h"
#include "tests/nvme/store_fixture.h"

namespace longshore {
namespace {

using Operation = std::pair<BlockOp::Kind, Bytes>;  // and its offset

// One drive that does one operation at a time, and says in what order.
class RecordedDrive {
 public:
  MakeDrives maker() {
    return [this](const StripeMap& map, std::span<std::byte>) {
      medium_ = std::make_unique<SimMedium>(map.file_bytes(0));
      SimOptions options{.depth = 1, .in_order = true};
      options.inject = [this](int64_t, const BlockOp& op) -> std::optional<SimFault> {
        done_.emplace_back(op.kind, op.offset);
        return std::nullopt;
      };
      std::vector<std::unique_ptr<Drive>> drives;
      drives.push_back(std::make_unique<InlineDrive>(
          std::make_unique<SimFile>(medium_.get(), "sim", options), map.geometry().chunk_bytes));
      return drives;
    };
  }
  // What was done since the last call.
  std::vector<Operation> take() { return std::exchange(done_, {}); }

 private:
  std::unique_ptr<SimMedium> medium_;
  std::vector<Operation> done_;
};

int64_t writes_in(const std::vector<Operation>& operations) {
  return std::ranges::count(operations, BlockOp::Kind::kWrite, &Operation::first);
}

// An InlineDrive works inside waits alone, so what was started and not waited for still waits.
TEST(UrgentReads, OfParametersPassStateThatWaits) {
  WorkerPool pool(1);
  SoloAgreement solo;
  const std::vector<FlatLayout> layouts = make_layouts(fakes::make_small_model(4, false), 1);
  for (const StateOptions& state : all_state_options()) {
    RecordedDrive drive;
    NvmeStore store(layouts, small_store(state, /*parameters_on_drives=*/true, 1), drive.maker(),
                    &pool);
    store.start(solo, 1);
    write_step(store, layouts, 0);
    store.commit({0, ""}, solo);
    const auto fetch = [&](int32_t unit) {
      drive.take();
      store.parameters(UnitId(unit));
      return drive.take();
    };
    const std::vector<Operation> alone = fetch(5);
    ASSERT_FALSE(alone.empty());
    for (const int32_t other : {2, 3, 4}) fetch(other);  // unit 5 is in memory no more
    write_step(store, layouts, /*unit=*/0, /*step=*/1);
    EXPECT_EQ(writes_in(drive.take()), 0) << "the update's writes wait";
    EXPECT_EQ(fetch(5), alone) << "before everything that waits";
    store.commit({1, ""}, solo);
    EXPECT_GT(writes_in(drive.take()), 0);
  }
}

}  // namespace
}  // namespace longshore
