// Packing: assigns documents to sequences of at most max_tokens. A step counts sequences. The
// documents of a sequence are adjacent and do not attend to each other. Pure functions of lengths
// and seed.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "data/dataset.h"

namespace longshore {

// SequenceTable: the document numbers of every sequence.
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
  // Documents are packed once, in an order that depends only on the seed; nullopt means file order.
  // Epochs permute whole sequences. A document's neighbors do not matter, because documents of a
  // sequence do not attend to each other.
  std::optional<uint64_t> shuffle_seed{};
};

// Packs by best fit: in a window of documents, longest first, each goes to the sequence with the
// least sufficient space. Documents of a sequence keep their order; sequences are ordered by first
// document. A document must not be longer than max_tokens. Without packing every document is a
// sequence, in file order.
SequenceTable make_sequences(const Dataset& dataset, const PackingOptions& options);

}  // namespace longshore
