// Slots of different kinds cannot be mixed up, and a slot belongs to one unit at a time.
#include "shard/slots.h"

#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>
#include <type_traits>

#include "shard/input_tier.h"
#include "shard/shard_store.h"

namespace longshore {
namespace {

// Whether `Slot` can be made from none of the other types, nor implicitly from a number.
template <typename Slot, typename... Others>
constexpr bool is_apart =
    !std::is_convertible_v<int32_t, Slot> &&
    ((std::is_same_v<Slot, Others> || (!std::is_constructible_v<Slot, Others> &&
                                       !std::is_assignable_v<std::optional<Slot>&, Others>)) &&
     ...);
template <typename... Slots>
constexpr bool are_apart = (is_apart<Slots, Slots..., UnitId> && ...);

template <typename Function, typename Object, typename... Arguments>
constexpr bool takes = std::is_invocable_v<Function, Object&, UnitId, Arguments...>;

// Goal: a slot of another kind, slots in the wrong order, and a bare number are compile errors.
TEST(Slots, OfAnotherKindDoNotCompile) {
  static_assert(are_apart<DeviceSlot, GradientBuffer, InputSlot, HostGradientSlot, StagingSlot,
                          StateSlot, ParameterSlot>);
  using Store = SlottedStore;
  using Pass = decltype(&Store::pass_parameters);
  static_assert(takes<Pass, Store, StateSlot, ParameterSlot>);
  static_assert(!takes<Pass, Store, ParameterSlot, StateSlot>);
  static_assert(!takes<Pass, Store, int32_t, int32_t>);
  static_assert(takes<decltype(&Store::read_state), Store, StateSlot>);
  static_assert(!takes<decltype(&Store::read_state), Store, ParameterSlot>);
  static_assert(!takes<decltype(&Store::parameters_in), Store, StateSlot>);
  static_assert(takes<decltype(&InputTier::write), InputTier, StagingSlot, int32_t>);
  static_assert(!takes<decltype(&InputTier::write), InputTier, InputSlot, int32_t>);
  static_assert(!takes<decltype(&InputTier::places), const InputTier, std::optional<InputSlot>>);
}

// A slot that the plan lacks is an error and not another slot's memory.
TEST(Slots, AVectorHasOneElementForEachSlot) {
  SlotVector<StateSlot, int> values(2, 7);
  values[StateSlot(1)] = 8;
  EXPECT_EQ(values[StateSlot(0)], 7);
  EXPECT_EQ(values[StateSlot(1)], 8);
  EXPECT_THROW(values[StateSlot(2)], std::out_of_range);
  EXPECT_THROW(values[StateSlot(-1)], std::out_of_range);
}

std::string error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const CheckFailure& error) {
    return error.what();
  }
  return "no error";
}

void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

// A slot that a unit holds can be neither taken nor used nor freed by another unit.
TEST(Slots, BelongToOneUnitAtATime) {
  SlotOwners<GradientBuffer> owners("gradient buffer", 2);
  const GradientBuffer first(0), second(1);
  owners.claim(second, UnitId(5));
  expect_contains(error_of([&] { owners.claim(second, UnitId(4)); }),
                  "gradient buffer 1 still has unit 5; unit 4 may not take it");
  expect_contains(error_of([&] { owners.check(second, UnitId(4)); }),
                  "gradient buffer 1 has unit 5, not 4");
  expect_contains(error_of([&] { owners.free(first, UnitId(4)); }),
                  "gradient buffer 0 has unit -1, not 4");
  EXPECT_EQ(owners.slot_of(UnitId(5)), second);
  EXPECT_EQ(owners.claim_any(UnitId(6)), first);
  EXPECT_EQ(owners.claim_any(UnitId(7)), std::nullopt);
  owners.free(second, UnitId(5));
  EXPECT_EQ(owners.slot_of(UnitId(5)), std::nullopt);
  EXPECT_EQ(owners.claim_any(UnitId(7)), second);
}

}  // namespace
}  // namespace longshore
