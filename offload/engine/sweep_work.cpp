#include "offload/engine/sweep_work.h"

#include "base/errors.h"

namespace longshore {

void SweepWork::run(const Op& op) {
  switch (op.kind) {
    case OpKind::kReadState:
      return store_->read_state(op.unit, *op.state);
    case OpKind::kUpdate: {
      const auto lease = op.state ? store_->state_in(op.unit, *op.state) : store_->state(op.unit);
      return visit_(op.unit, *lease);
    }
    case OpKind::kWriteState:
      return store_->write_state(op.unit, *op.state);
    default:
      LONGSHORE_CHECK(false) << name_of(op.kind) << " in a state sweep";
  }
}

}  // namespace longshore
