// The tier of a frozen model in its own files: planned bytes, the values of the host tier, checked
// slots, units that stay in memory, and reads that fail.
#include "pinned/frozen_file_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <future>
#include <set>

#include "base/errors.h"
#include "base/number_formats.h"
#include "pinned/pinned_store.h"
#include "tests/fakes/specs.h"

namespace longshore {
namespace {

// Adapters over two frozen blocks: unit 1 has both kinds of parameters, unit 2 only frozen ones, of
// which one stays fp32.
ModelSpec model_with_base() {
  ModelSpec model = fakes::make_small_model(2, false);
  for (const size_t unit : {1, 2}) {
    for (ParamSpec& parameter : model.units[unit].parameters) parameter.frozen = true;
  }
  model.units[2].parameters[0].stays_fp32 = true;
  model.units[1].parameters.push_back(fakes::make_parameter("adapter", {64, 70}));
  return model;
}

float value_of(const std::string& name, int64_t element) {
  return static_cast<float>(static_cast<int64_t>(name.size()) * 1000 + element) * 1.0009765625f;
}

// MadeUpFiles: frozen values that are a function of name and element.
class MadeUpFiles final : public FrozenSource {
 public:
  Bytes read(const std::string& name, StorageType type, Bytes begin,
             std::span<std::byte> out) const override {
    if (fails) throw DataError(place_of(name) + " cannot be read");
    const DType compute = number_of(type);
    const auto elements = static_cast<int64_t>(out.size()) / width_of(compute);
    for (int64_t i = 0; i < elements; ++i) {
      const float value = value_of(name, begin / width_of(compute) + i);
      const auto at = static_cast<size_t>(i);
      if (compute == DType::kF32) {
        as_span<float>(out)[at] = value;
      } else {
        as_span<uint16_t>(out)[at] = master_high(value);
      }
    }
    return elements * 4;
  }
  void release(const std::string& name) const override { released.insert(name); }
  std::string place_of(const std::string& name) const override { return "file of " + name; }

  bool fails = false;
  mutable std::set<std::string> released = {};
};

// FilesInTurn: values of unit 2 arrive only after a read of unit 1 has begun.
class FilesInTurn final : public FrozenSource {
 public:
  Bytes read(const std::string& name, StorageType type, Bytes begin,
             std::span<std::byte> out) const override {
    if (name.starts_with("block.0")) {
      if (!begun_.exchange(true)) first_.set_value();
    } else if (first_seen_.wait_for(std::chrono::seconds(60)) != std::future_status::ready) {
      throw DataError("no read of unit 1 began");
    }
    return files_.read(name, type, begin, out);
  }
  std::string place_of(const std::string& name) const override { return files_.place_of(name); }

 private:
  MadeUpFiles files_;
  mutable std::atomic<bool> begun_ = false;
  mutable std::promise<void> first_;
  std::shared_future<void> first_seen_ = first_.get_future().share();
};

std::vector<StateOptions> all_options() {
  std::vector<StateOptions> all;
  for (const StateFormatTraits& traits : kStateFormats) {
    for (const DType compute : {DType::kF32, DType::kBF16}) {
      all.push_back({traits.format, compute, compute});
    }
  }
  return all;
}

Bytes trained_bytes(std::vector<FlatLayout> layouts, const StateOptions& options) {
  std::ranges::transform(layouts, layouts.begin(), &FlatLayout::without_frozen);
  return PinnedStore::planned_bytes(layouts, options);
}

// Writes the made-up values of all parameters that the store holds.
void fill(ShardStore& store, const ModelSpec& model, const std::vector<FlatLayout>& layouts,
          Rank rank) {
  for (const UnitSpec& unit : model.units) {
    const auto state = store.state(unit.id);
    const FlatLayout& layout = layouts[static_cast<size_t>(unit.id.value)];
    const auto values_from = [&](int32_t parameter, int64_t begin, int64_t count) {
      std::vector<float> values;
      const std::string& name = unit.parameters[static_cast<size_t>(parameter)].name;
      for (int64_t i = 0; i < count; ++i) values.push_back(value_of(name, begin + i));
      return values;
    };
    for (const ShardPiece& piece : layout.trained_pieces(rank)) {
      write_values(state->segment(piece.segment), piece.shard_begin,
                   values_from(piece.parameter, piece.parameter_begin, piece.elements));
    }
    const std::span<std::byte> frozen = state->segment(Segment::kFrozen).frozen;
    for (const FrozenPiece& piece : layout.frozen_pieces(rank)) {
      if (frozen.empty()) continue;
      const Bytes width = width_of(number_of(piece.type));
      store_numbers(
          piece.type,
          values_from(piece.parameter, piece.parameter_begin / width, piece.bytes / width),
          frozen.subspan(static_cast<size_t>(piece.shard_begin), static_cast<size_t>(piece.bytes)));
    }
  }
}

// The device gets the bytes that the host tier would give it, from a slot or at once, and the store
// has the planned bytes. Slots hold other units before, so padding is cleared.
TEST(FrozenFileStore, GivesTheBytesOfTheHostTier) {
  const ModelSpec model = model_with_base();
  WorkerPool pool(2);
  const MadeUpFiles files;
  for (const int32_t ranks : {1, 3}) {
    const Rank rank(ranks - 1);
    for (const StateOptions& options : all_options()) {
      const std::vector<FlatLayout> layouts = make_layouts(model, ranks, options.compute);
      PinnedStore host(layouts, options, false, &pool);
      FrozenFileStore store(model, layouts, {}, options, rank, false, &files, &pool);
      EXPECT_EQ(store.host_bytes(),
                trained_bytes(layouts, options) + FrozenFileStore::planned_slot_bytes(layouts, {}));
      fill(host, model, layouts, rank);
      fill(store, model, layouts, rank);
      for (const int32_t unit : {2, 1, 2, 0, 1}) {
        const UnitId id(unit);
        const auto expected = host.parameters(id);
        EXPECT_TRUE(std::ranges::equal(store.parameters(id)->bytes(), expected->bytes())) << unit;
        if (unit == 0) continue;  // nothing of it is frozen
        const ParameterSlot slot(unit % 2);
        store.read_parameters(id, slot);
        EXPECT_TRUE(std::ranges::equal(store.parameters_in(id, slot)->bytes(), expected->bytes()))
            << unit;
      }
    }
  }
}

// A resident unit is read once, has the bytes of the host tier with the trained parameters of the
// lease's time, and takes its planned place; slots are as large as the other units need. It has one
// lease at a time and no slot.
TEST(FrozenFileStore, KeepsResidentUnitsAfterOneRead) {
  const ModelSpec model = model_with_base();
  WorkerPool pool(2);
  for (const size_t kept : {1, 2}) {
    FrozenFileStore::Resident resident(model.units.size(), false);
    resident[kept] = true;
    const UnitId id(static_cast<int32_t>(kept));
    for (const StateOptions& options : all_options()) {
      const std::vector<FlatLayout> layouts = make_layouts(model, 3, options.compute);
      const MadeUpFiles files;
      PinnedStore host(layouts, options, false, &pool);
      FrozenFileStore store(model, layouts, resident, options, Rank(1), false, &files, &pool);
      EXPECT_EQ(store.host_bytes(), trained_bytes(layouts, options) +
                                        FrozenFileStore::planned_slot_bytes(layouts, resident) +
                                        FrozenFileStore::planned_resident_bytes(layouts[kept]));
      fill(host, model, layouts, Rank(1));
      EXPECT_EQ(store.traffic().files, 0);
      store.parameters(id);
      const Bytes read = store.traffic().files;
      EXPECT_GT(read, 0);
      fill(store, model, layouts, Rank(1));  // the update
      {
        const auto lease = store.parameters(id);
        EXPECT_TRUE(std::ranges::equal(lease->bytes(), host.parameters(id)->bytes())) << kept;
        EXPECT_THROW(store.parameters(id), CheckFailure);
      }
      EXPECT_EQ(store.traffic().files, read);
      EXPECT_THROW(store.read_parameters(id, ParameterSlot(0)), CheckFailure);
      const UnitId other(static_cast<int32_t>(3 - kept));
      EXPECT_TRUE(
          std::ranges::equal(store.parameters(other)->bytes(), host.parameters(other)->bytes()));
      EXPECT_GT(store.traffic().files, read);
    }
  }
}

// A unit that became resident releases what the source holds for its next reads; a unit that is
// read again does not.
TEST(FrozenFileStore, ReleasesWhatStaysResident) {
  const ModelSpec model = model_with_base();
  WorkerPool pool(1);
  const std::vector<FlatLayout> layouts = make_layouts(model, 3, all_options().front().compute);
  FrozenFileStore::Resident resident(layouts.size(), false);
  resident[1] = true;
  const MadeUpFiles files;
  FrozenFileStore store(model, layouts, resident, all_options().front(), Rank(1), false, &files,
                        &pool);
  store.parameters(UnitId(2));
  EXPECT_TRUE(files.released.empty());
  store.parameters(UnitId(1));
  std::set<std::string> frozen;
  for (const FrozenPiece& piece : layouts[1].frozen_pieces(Rank(1))) {
    frozen.insert(model.units[1].parameters[static_cast<size_t>(piece.parameter)].name);
  }
  EXPECT_EQ(files.released, frozen);
}

// Host memory has the trained state and two slots of the largest shard, nothing of the rest.
TEST(FrozenFileStore, HoldsOnlyTrainedStateAndSlots) {
  const ModelSpec model = model_with_base();
  const std::vector<FlatLayout> layouts = make_layouts(model, 1, DType::kBF16);
  const StateOptions options = {StateFormat::kSplit, DType::kBF16, DType::kBF16};
  Bytes trained = 0, largest = 0;
  for (const FlatLayout& layout : layouts) {
    // Half masters twice, and two fp32 moments.
    trained += align_up(layout.trainable_elements() * 12, 4096);
    if (layout.shard_bytes(Segment::kFrozen) == 0) continue;
    largest = std::max(largest, align_up(layout.flat_bytes(), 4096));
  }
  WorkerPool pool(1);
  const MadeUpFiles files;
  const FrozenFileStore store(model, layouts, {}, options, Rank(0), false, &files, &pool);
  EXPECT_EQ(store.host_bytes(), trained + 2 * largest);
}

// The trained part is that of the lease's time, not that of the read.
TEST(FrozenFileStore, AddsTheTrainedPartWhenTheSlotIsLeased) {
  const ModelSpec model = model_with_base();
  WorkerPool pool(1);
  const MadeUpFiles files;
  const std::vector<FlatLayout> layouts = make_layouts(model, 1, DType::kF32);
  const StateOptions options = {StateFormat::kFp32, DType::kF32, DType::kF32};
  FrozenFileStore store(model, layouts, {}, options, Rank(0), false, &files, &pool);
  store.read_parameters(UnitId(1), ParameterSlot(0));
  fill(store, model, layouts, Rank(0));  // the update
  const auto lease = store.parameters_in(UnitId(1), ParameterSlot(0));
  EXPECT_EQ(as_span<float>(lease->bytes())[0], value_of("adapter", 0));
}

// Reads of the next unit begin while those of a unit are in flight, and a lease waits for the reads
// of its own unit.
TEST(FrozenFileStore, ReadsTheNextUnitBeforeTheLastReadsHaveEnded) {
  const ModelSpec model = model_with_base();
  WorkerPool pool(1);
  const FilesInTurn files;
  const std::vector<FlatLayout> layouts = make_layouts(model, 1, DType::kF32);
  const StateOptions options = {StateFormat::kFp32, DType::kF32, DType::kF32};
  PinnedStore host(layouts, options, false, &pool);
  FrozenFileStore store(model, layouts, {}, options, Rank(0), false, &files, &pool);
  fill(host, model, layouts, Rank(0));
  store.read_parameters(UnitId(2), ParameterSlot(0));
  store.read_parameters(UnitId(1), ParameterSlot(1));
  EXPECT_TRUE(std::ranges::equal(store.parameters_in(UnitId(2), ParameterSlot(0))->bytes(),
                                 host.parameters(UnitId(2))->bytes()));
  store.parameters_in(UnitId(1), ParameterSlot(1));
}

// A slot has one unit at a time.
TEST(FrozenFileStore, ReportsAWrongSchedule) {
  const ModelSpec model = model_with_base();
  WorkerPool pool(1);
  const MadeUpFiles files;
  const std::vector<FlatLayout> layouts = make_layouts(model, 1, DType::kBF16);
  FrozenFileStore store(model, layouts, {}, {}, Rank(0), false, &files, &pool);
  store.read_parameters(UnitId(1), ParameterSlot(0));
  EXPECT_THROW(store.read_parameters(UnitId(2), ParameterSlot(0)), CheckFailure);
  EXPECT_THROW(store.parameters_in(UnitId(2), ParameterSlot(0)), CheckFailure);
  EXPECT_THROW(store.read_state(UnitId(1), StateSlot(0)), CheckFailure);
  EXPECT_NO_THROW(store.parameters_in(UnitId(1), ParameterSlot(0)));
}

// Bytes count as the source reports them, and as those of files.
TEST(FrozenFileStore, CountsWhatIsReadFromFiles) {
  const ModelSpec model = model_with_base();
  WorkerPool pool(1);
  const MadeUpFiles files;
  const std::vector<FlatLayout> layouts = make_layouts(model, 1, DType::kBF16);
  FrozenFileStore store(model, layouts, {}, {}, Rank(0), false, &files, &pool);
  Bytes expected = 0;
  for (const ParamSpec& parameter : model.units[2].parameters) expected += 4 * parameter.elements();
  EXPECT_EQ(store.traffic().files, 0);
  store.parameters(UnitId(2));
  EXPECT_EQ(store.traffic().files, expected);
  EXPECT_EQ(store.traffic().read, 0);
}

// A slot whose read failed is free again.
TEST(FrozenFileStore, FreesTheSlotOfAFailedRead) {
  const ModelSpec model = model_with_base();
  WorkerPool pool(1);
  MadeUpFiles files;
  const std::vector<FlatLayout> layouts = make_layouts(model, 1, DType::kBF16);
  FrozenFileStore store(model, layouts, {}, {}, Rank(0), false, &files, &pool);
  files.fails = true;
  EXPECT_THROW(store.parameters(UnitId(2)), DataError);
  store.read_parameters(UnitId(2), ParameterSlot(1));
  EXPECT_THROW(store.parameters_in(UnitId(2), ParameterSlot(1)), DataError);
  files.fails = false;
  for (const int32_t slot : {0, 1}) store.read_parameters(UnitId(2), ParameterSlot(slot));
}

}  // namespace
}  // namespace longshore
