#include "data/in_memory_dataset.h"

#include <algorithm>

#include "base/errors.h"
#include "base/file.h"

namespace longshore {

int64_t InMemoryDataset::add(std::span<const TokenId> tokens, std::span<const TokenId> labels) {
  LONGSHORE_CHECK(tokens.size() == labels.size()) << tokens.size() << " " << labels.size();
  if (tokens.empty()) return 0;
  const std::span<const TokenId> targets = labels.subspan(1);
  const int64_t untrained = std::count(targets.begin(), targets.end(), kNotTrained);
  const int64_t trained = static_cast<int64_t>(targets.size()) - untrained;
  if (trained == 0) return 0;

  const size_t start = tokens_.size();
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  targets_.insert(targets_.end(), targets.begin(), targets.end());
  targets_.push_back(kNotTrained);
  starts_.push_back(static_cast<int64_t>(tokens_.size()));
  trained_.push_back(static_cast<int32_t>(trained));

  const std::array<uint64_t, 1> length = {tokens.size()};
  hasher_.update(bytes_of(std::span<const uint64_t>(length)));
  hasher_.update(bytes_of(tokens));
  hasher_.update(bytes_of(std::span<const TokenId>(targets_).subspan(start)));
  return trained;
}

void InMemoryDataset::check_index(int64_t document) const {
  LONGSHORE_CHECK(document >= 0 && document < document_count())
      << document << " of " << document_count();
}

int64_t InMemoryDataset::document_tokens(int64_t document) const {
  check_index(document);
  return starts_[document + 1] - starts_[document];
}

int64_t InMemoryDataset::document_trained_tokens(int64_t document) const {
  check_index(document);
  return trained_[document];
}

void InMemoryDataset::append_document(int64_t document, std::vector<int64_t>& tokens,
                                      std::vector<int64_t>& targets) const {
  check_index(document);
  const int64_t begin = starts_[document], end = starts_[document + 1];
  tokens.insert(tokens.end(), tokens_.begin() + begin, tokens_.begin() + end);
  targets.insert(targets.end(), targets_.begin() + begin, targets_.begin() + end);
}

}  // namespace longshore
