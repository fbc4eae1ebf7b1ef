#include "offload/ledger.h"

#include <utility>

namespace longshore {

std::string_view name_of(Edge edge) {
  switch (edge) {
    case Edge::kHostToDevice:
      return "h2d";
    case Edge::kDeviceToHost:
      return "d2h";
    case Edge::kUpdate:
      return "update";
  }
  return "?";
}

void Ledger::add(Edge edge, Bytes bytes, double seconds) {
  const std::lock_guard lock(mutex_);
  EdgeTotal& total = totals_[static_cast<size_t>(edge)];
  total.bytes += bytes;
  total.seconds += seconds;
}

Ledger::Totals Ledger::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(totals_, Totals{});
}

LedgerEntry::~LedgerEntry() {
  if (ledger_ == nullptr) return;
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin_;
  ledger_->add(edge_, bytes_, seconds.count());
}

}  // namespace longshore
