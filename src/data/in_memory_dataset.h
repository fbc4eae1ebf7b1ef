// InMemoryDataset: documents in two flat arrays, 8 bytes per token. One thread adds documents, then
// any thread may read.
#pragma once

#include <span>
#include <vector>

#include "base/hash.h"
#include "data/dataset.h"

namespace longshore {

class InMemoryDataset : public Dataset {
 public:
  InMemoryDataset() = default;

  // labels[t] is the Hugging Face label of tokens[t]; this function shifts labels to targets.
  // Returns the number of trained positions; a document without any is not added.
  int64_t add(std::span<const TokenId> tokens, std::span<const TokenId> labels);

  int64_t document_count() const override { return static_cast<int64_t>(trained_.size()); }
  int64_t document_tokens(int64_t document) const override;
  int64_t document_trained_tokens(int64_t document) const override;
  void append_document(int64_t document, std::vector<int64_t>& tokens,
                       std::vector<int64_t>& targets) const override;
  uint64_t fingerprint() const override { return hasher_.digest(); }

 private:
  void check_index(int64_t document) const;

  std::vector<TokenId> tokens_;
  std::vector<TokenId> targets_;
  std::vector<int64_t> starts_ = {0};  // one entry more than documents
  std::vector<int32_t> trained_;
  Hasher hasher_;
};

}  // namespace longshore
