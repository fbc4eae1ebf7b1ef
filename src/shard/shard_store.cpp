#include "shard/shard_store.h"

#include <algorithm>
#include <string>

#include "base/errors.h"
#include "base/number_formats.h"

namespace longshore {
namespace {

[[noreturn]] void refuse(const std::string& what, UnitId unit, int32_t slot) {
  throw CheckFailure(what + " of unit " + std::to_string(unit.value) + " pass no slot " +
                     std::to_string(slot) + ": they are in host memory");
}

void check_range(const StateSpans& state, int64_t begin, size_t elements) {
  const size_t held = std::max(state.master.size(), state.high.size());
  LONGSHORE_CHECK(begin >= 0 && static_cast<size_t>(begin) <= held &&
                  elements <= held - static_cast<size_t>(begin))
      << begin << " + " << elements << " of " << held;
}

template <typename T>
std::span<T> part(std::span<T> whole, int64_t begin, size_t elements) {
  return whole.empty() ? whole : whole.subspan(static_cast<size_t>(begin), elements);
}

}  // namespace

void ShardStore::read_state(UnitId unit, StateSlot slot) {
  refuse("the states", unit, slot.value);
}

std::unique_ptr<ShardStore::StateLease> ShardStore::state_in(UnitId unit, StateSlot slot) {
  refuse("the states", unit, slot.value);
}

void ShardStore::write_state(UnitId unit, StateSlot slot) {
  refuse("the states", unit, slot.value);
}

void ShardStore::read_parameters(UnitId unit, ParameterSlot slot) {
  refuse("the parameters", unit, slot.value);
}

void ShardStore::pass_parameters(UnitId unit, StateSlot, ParameterSlot to) {
  refuse("the parameters", unit, to.value);
}

std::unique_ptr<ShardStore::ParameterLease> ShardStore::parameters_in(UnitId unit,
                                                                      ParameterSlot slot) {
  refuse("the parameters", unit, slot.value);
}

std::optional<DurablePoint> ShardStore::start(Agreement&, uint64_t) {
  return std::nullopt;
}

void ShardStore::commit(const DurableStep&, Agreement&) {}

void write_values(const StateSpans& state, int64_t begin, std::span<const float> values) {
  check_range(state, begin, values.size());
  std::ranges::copy(values.first(state.master.empty() ? 0 : values.size()),
                    part(state.master, begin, values.size()).begin());
  const std::span<uint16_t> high = part(state.high, begin, values.size());
  for (size_t i = 0; i < high.size(); ++i) high[i] = master_high(values[i]);
  const std::span<uint16_t> low = part(state.low, begin, values.size());
  for (size_t i = 0; i < low.size(); ++i) low[i] = master_low(values[i]);
}

void read_values(const StateSpans& state, int64_t begin, std::span<float> values) {
  check_range(state, begin, values.size());
  if (!state.master.empty()) {
    std::ranges::copy(part(state.master, begin, values.size()), values.begin());
    return;
  }
  const std::span<const uint16_t> high = part(state.high, begin, values.size());
  const std::span<const uint16_t> low = part(state.low, begin, values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = low.empty() ? bf16_to_float(high[i]) : join_master(high[i], low[i]);
  }
}

}  // namespace longshore
