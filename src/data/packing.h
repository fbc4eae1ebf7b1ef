// Packing: which documents share a sequence of at most max_tokens. A sequence is what a step
// counts; its documents lie end to end and never see each other. Pure functions of lengths and
// seed.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "data/dataset.h"

namespace longshore {

// Document numbers, sequence by sequence.
class SequenceTable {
 public:
  int64_t sequence_count() const { return static_cast<int64_t>(starts_.size()) - 1; }
  std::span<const int64_t> documents_of(int64_t sequence) const;
  void append(std::span<const int64_t> documents);

 private:
  std::vector<int64_t> documents_;
  std::vector<int64_t> starts_ = {0};
};

struct PackingOptions {
  bool packing = true;
  int64_t max_tokens = 1024;
  // Documents are packed once, in an order that depends on the seed alone; nullopt: file order.
  // Epochs permute whole sequences: since documents of a sequence do not see each other, it makes
  // no difference to a document who its neighbours are.
  std::optional<uint64_t> shuffle_seed{};
};

// Best fit: within a window of documents, long ones first, each goes to the sequence that it fills
// best. Documents of a sequence keep their order, and sequences are ordered by their first
// documents. No document may be longer than max_tokens. Without packing every document is a
// sequence, in file order.
SequenceTable make_sequences(const Dataset& dataset, const PackingOptions& options);

}  // namespace longshore
