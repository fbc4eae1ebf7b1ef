// Ledger: bytes moved and seconds spent on each edge between tiers, for metrics. Owned by the run;
// any thread adds.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string_view>

#include "base/bytes.h"

namespace longshore {

enum class Edge : uint8_t { kHostToDevice, kDeviceToHost, kUpdate };
inline constexpr std::array<Edge, 3> kEdges = {Edge::kHostToDevice, Edge::kDeviceToHost,
                                               Edge::kUpdate};
std::string_view name_of(Edge edge);  // "h2d", "d2h", "update"

// What crossed one edge.
struct EdgeTotal {
  Bytes bytes = 0;
  double seconds = 0.0;
};

class Ledger {
 public:
  using Totals = std::array<EdgeTotal, kEdges.size()>;  // by edge

  void add(Edge edge, Bytes bytes, double seconds);
  // The totals since the last take.
  Totals take();

 private:
  std::mutex mutex_;
  Totals totals_{};
};

// Adds the bytes, and the time it lived, to the ledger's edge. A null ledger counts nothing.
class LedgerEntry {
 public:
  LedgerEntry(Ledger* ledger, Edge edge, Bytes bytes)
      : ledger_(ledger), edge_(edge), bytes_(bytes), begin_(std::chrono::steady_clock::now()) {}
  LedgerEntry(const LedgerEntry&) = delete;
  LedgerEntry& operator=(const LedgerEntry&) = delete;
  ~LedgerEntry();

 private:
  Ledger* ledger_;
  Edge edge_;
  Bytes bytes_;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace longshore
