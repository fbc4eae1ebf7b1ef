// Access: a piece of memory that an operation reads or writes. An operation declares all of its
// accesses; its waits follow from them (schedule_builder.cpp), and the validator compares them with
// its own rules. Plain values, any thread.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <type_traits>

#include "base/ids.h"
#include "shard/slots.h"

namespace longshore {

enum class Memory : uint8_t {
  // Numbered slots and buffers (shard/slots.h), in the order in which operations name them.
  kDeviceSlot,
  kGradientBuffer,
  kHostGradientSlot,  // where gradients on the host share a ring
  kInputSlot,         // where inputs are offloaded to the host
  kStateSlot,
  kParameterSlot,
  kStagingSlot,
  // Memory of one unit.
  kHostParameters,
  kHostGradient,     // without a ring
  kHostCheckpoint,   // activation checkpoint, without staging slots
  kWaitingGradient,  // on the device, of a unit that owns a tied parameter
  kDriveState,       // with the parameters
  kDriveCheckpoint,
  // The link between ranks, where it carries one collective at a time.
  kLink,
};
inline constexpr size_t kMemoryCount = 14;

constexpr bool is_slot(Memory memory) {
  return memory <= Memory::kStagingSlot;
}

// The types that number slots, in the order of Memory.
using SlotTypes = std::tuple<DeviceSlot, GradientBuffer, HostGradientSlot, InputSlot, StateSlot,
                             ParameterSlot, StagingSlot>;
static_assert(is_slot(static_cast<Memory>(std::tuple_size_v<SlotTypes> - 1)) &&
              !is_slot(static_cast<Memory>(std::tuple_size_v<SlotTypes>)));

template <typename Slot, typename... Slots>
consteval Memory memory_among(const std::tuple<Slots...>*) {
  static_assert((std::is_same_v<Slot, Slots> || ...), "no type of slot");
  size_t place = 0;
  ((std::is_same_v<Slot, Slots> || (++place, false)) || ...);
  return static_cast<Memory>(place);
}
// The memory that a type of slot numbers.
template <typename Slot>
inline constexpr Memory kMemoryOf = memory_among<Slot>(static_cast<SlotTypes*>(nullptr));

// One piece of memory: the slot or buffer of the number, or the memory of the unit.
struct Resource {
  Memory memory = Memory::kLink;
  int32_t number = 0;

  constexpr Resource(Memory memory, UnitId unit) : memory(memory), number(unit.value) {}
  template <typename Slot>
  constexpr Resource(Slot slot) : memory(kMemoryOf<Slot>), number(slot.value) {}
  auto operator<=>(const Resource&) const = default;
};

struct Access {
  Resource resource;
  UnitId unit;          // whose data it is
  bool writes = false;  // replaces or changes the data; may read it too
};

constexpr Access reads(Resource resource, UnitId unit) {
  return {resource, unit, false};
}
constexpr Access writes(Resource resource, UnitId unit) {
  return {resource, unit, true};
}
constexpr Access reads(Memory memory, UnitId unit) {
  return reads(Resource(memory, unit), unit);
}
constexpr Access writes(Memory memory, UnitId unit) {
  return writes(Resource(memory, unit), unit);
}

}  // namespace longshore
