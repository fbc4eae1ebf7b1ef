#include "model/mixers/sequence_rows.h"

#include "base/errors.h"

namespace longshore {

std::vector<SequenceRows> sequence_rows(const MicroBatch& batch, int64_t layer) {
  const ContinuedSequences& all = *batch.continued;
  const std::vector<int64_t>& starts = batch.document_starts;
  LONGSHORE_CHECK(all.slots.size() + 1 == starts.size() && all.before.size() == all.slots.size())
      << "each document continues one sequence";
  std::vector<SequenceRows> rows;
  for (size_t d = 0; d < all.slots.size(); ++d) {
    const int64_t count = starts[d + 1] - starts[d];
    LONGSHORE_CHECK(all.before[d] >= 0 && all.before[d] + count <= all.states->longest())
        << "a sequence of " << all.before[d] + count << " positions where " << all.states->longest()
        << " are kept";
    rows.push_back({.begin = starts[d],
                    .count = count,
                    .before = all.before[d],
                    .state = all.states->of(layer, all.slots[d])});
  }
  return rows;
}

std::vector<ContinuedRows> continued_rows(const std::vector<SequenceRows>& sequences) {
  std::vector<ContinuedRows> rows;
  for (const SequenceRows& sequence : sequences) {
    rows.push_back({.begin = sequence.begin,
                    .count = sequence.count,
                    .before = sequence.before,
                    .keys = sequence.state.at(0),
                    .values = sequence.state.at(1)});
  }
  return rows;
}

std::vector<int64_t> text_lengths(const MicroBatch& batch) {
  if (batch.continued != nullptr) return batch.continued->lengths;
  std::vector<int64_t> lengths;
  for (size_t d = 0; d + 1 < batch.document_starts.size(); ++d) {
    lengths.push_back(batch.document_starts[d + 1] - batch.document_starts[d]);
  }
  return lengths;
}

}  // namespace longshore
