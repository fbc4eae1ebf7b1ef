#include "shard/input_tier.h"

#include "base/errors.h"

namespace longshore {

void InputTier::write(UnitId unit, int32_t slot, int32_t) {
  LONGSHORE_CHECK(false) << "unit " << unit << ": no inputs are written from slots (" << slot
                         << ")";
}

void InputTier::read(UnitId unit, int32_t slot, int32_t) {
  LONGSHORE_CHECK(false) << "unit " << unit << ": no inputs are read to slots (" << slot << ")";
}

}  // namespace longshore
