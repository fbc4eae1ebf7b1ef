#include "offload/prefetcher.h"

namespace longshore {

Prefetcher::Prefetcher(ShardStore* store, StageRing* ring, CopyEngine* copies)
    : store_(store), ring_(ring), copies_(copies) {}

void Prefetcher::fetch(UnitId unit) {
  if (ring_->holds(unit, version_)) return;
  const auto home = store_->parameters(unit);
  const std::span<const std::byte> source = home->bytes();
  copies_->to_device(ring_->refill(unit, version_, static_cast<Bytes>(source.size())), source);
}

UnitLease Prefetcher::lease(UnitId unit) {
  fetch(unit);
  return ring_->lease(unit, version_);
}

}  // namespace longshore
