#include "shard/shard_store.h"

#include <string>

#include "base/errors.h"

namespace longshore {
namespace {

[[noreturn]] void refuse(const std::string& what, UnitId unit, int32_t slot) {
  throw CheckFailure(what + " of unit " + std::to_string(unit.value) + " pass no slot " +
                     std::to_string(slot) + ": they are in host memory");
}

}  // namespace

void ShardStore::read_state(UnitId unit, int32_t slot) {
  refuse("the states", unit, slot);
}

std::unique_ptr<ShardStore::StateLease> ShardStore::state_in(UnitId unit, int32_t slot) {
  refuse("the states", unit, slot);
}

void ShardStore::write_state(UnitId unit, int32_t slot) {
  refuse("the states", unit, slot);
}

void ShardStore::read_parameters(UnitId unit, int32_t slot) {
  refuse("the parameters", unit, slot);
}

void ShardStore::pass_parameters(UnitId unit, int32_t /*state_slot*/, int32_t slot) {
  refuse("the parameters", unit, slot);
}

std::unique_ptr<ShardStore::ParameterLease> ShardStore::parameters_in(UnitId unit, int32_t slot) {
  refuse("the parameters", unit, slot);
}

std::optional<DurablePoint> ShardStore::start(Agreement&, uint64_t) {
  return std::nullopt;
}

void ShardStore::commit(const DurableStep&, Agreement&) {}

}  // namespace longshore
