// FrozenFileStore: the tier of a frozen model that stays in its own files. Host memory holds the
// trained parameters and their state, as PinnedStore does, the frozen parameters of some units
// (resident), and a few slots. Frozen parameters of resident units are read when the unit is first
// leased, those of other units to a slot each time the device needs them. Nothing is written to a
// drive. The engine owns it; lanes call it as ShardStore and SlottedStore describe.
//
// A slot, or the place of a resident unit, has the unit's shard as the device reads it:
//
//   [ trained parameters, added when the slot is leased | frozen parameters, read from the files ]
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/direct_reader.h"
#include "pinned/pinned_arena.h"
#include "pinned/pinned_store.h"
#include "pinned/worker_pool.h"
#include "shard/frozen_source.h"
#include "shard/shard_store.h"
#include "shard/slots.h"
#include "shard/unit_spec.h"

namespace longshore {

class FrozenFileStore final : public ShardStore, public SlottedStore {
 public:
  // One slot is filled from the files while another is copied to the device.
  static constexpr int32_t kSlots = 2;

  // By unit: whether its frozen parameters stay in host memory. Empty: no unit is resident.
  using Resident = std::vector<bool>;

  // `shard` is the rank in its shard group. `files` and `pool` must outlive the store. Trained
  // state is all zeros until it is loaded.
  FrozenFileStore(const ModelSpec& model, const std::vector<FlatLayout>& layouts,
                  const Resident& resident, const StateOptions& options, Rank shard,
                  bool register_with_gpus, const FrozenSource* files, WorkerPool* pool);
  ~FrozenFileStore() override;

  // Return parts of the bytes that host_bytes() will report: those of all slots, and those of one
  // resident unit. The rest is a PinnedStore of the trained parameters.
  static Bytes planned_slot_bytes(const std::vector<FlatLayout>& layouts, const Resident& resident);
  static Bytes planned_resident_bytes(const FlatLayout& layout);

  const StateOptions& options() const override { return trained_.options(); }
  Bytes host_bytes() const override { return trained_.host_bytes() + arena_.size_bytes(); }
  std::unique_ptr<ParameterLease> parameters(UnitId unit) override;
  // The frozen segment of the lease is empty.
  std::unique_ptr<StateLease> state(UnitId unit) override { return trained_.state(unit); }
  DriveTraffic traffic() const override { return {.files = read_bytes_}; }

  // Returns when the last read of the unit has begun, so that the reads of the next unit follow
  // without a pause; parameters_in waits for the reads and rethrows their first exception.
  void read_parameters(UnitId unit, ParameterSlot slot) override;
  std::unique_ptr<ParameterLease> parameters_in(UnitId unit, ParameterSlot slot) override;
  // State is in host memory, so no schedule has these operations.
  void read_state(UnitId unit, StateSlot slot) override;
  std::unique_ptr<StateLease> state_in(UnitId unit, StateSlot slot) override;
  void write_state(UnitId unit, StateSlot slot) override;
  void pass_parameters(UnitId unit, StateSlot from, ParameterSlot to) override;

 private:
  class Parameters;
  // A part of one parameter that one thread reads.
  struct Chunk {
    std::string name;
    StorageType type = StorageType::kF32;
    Bytes begin = 0;  // in the whole parameter
    Bytes bytes = 0;  // at most kChunkElements of the compute dtype
    Bytes place = 0;  // in the frozen part of the slot
  };
  struct Unit {
    Bytes trained_bytes = 0, frozen_bytes = 0;  // of the shard
    std::span<std::byte> resident = {};         // the unit's place; empty: it needs a slot
    bool resident_read = false;                 // its frozen part is filled
    std::vector<Chunk> chunks = {};             // in the order of the slot
  };

  void make_unit(const UnitSpec& spec, const FlatLayout& layout, Rank shard);
  std::unique_ptr<ParameterLease> resident_parameters(UnitId id);
  std::span<const std::byte> joined(UnitId id, std::span<std::byte> memory);
  std::shared_ptr<ReadingThreads::Reads> begin_filling(const Unit& unit, std::span<std::byte> slot);

  std::vector<FlatLayout> trained_layouts_;
  PinnedStore trained_;
  const FrozenSource* files_;
  PinnedArena arena_;
  std::vector<Unit> units_;
  SlotVector<ParameterSlot, std::span<std::byte>> slots_;
  // The reads that fill each slot.
  SlotVector<ParameterSlot, std::shared_ptr<ReadingThreads::Reads>> reads_;
  SlotOwners<ParameterSlot> owners_;
  SlotOwners<ParameterSlot> places_;  // of resident units: one number for each unit
  std::atomic<Bytes> read_bytes_ = 0;
  ReadingThreads threads_;  // destroyed first, because its threads use the other members
};

}  // namespace longshore
