// Dataset: documents as token ids with the targets to learn, whatever holds them (memory now;
// memory-mapped files the same way). Immutable once built; any thread may read.
#pragma once

#include <cstdint>
#include <vector>

#include "text/tokenizer.h"

namespace longshore {

// The target of a position that is not trained.
inline constexpr TokenId kNotTrained = -100;

class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual int64_t document_count() const = 0;
  // Tokens of a document; at least one.
  virtual int64_t document_tokens(int64_t document) const = 0;
  // Positions of a document that have a target; at least one.
  virtual int64_t document_trained_tokens(int64_t document) const = 0;
  // Appends the document's tokens, and for each of them its target: the token to predict there,
  // that is the next token's label, or kNotTrained. The last position's target is kNotTrained.
  virtual void append_document(int64_t document, std::vector<int64_t>& tokens,
                               std::vector<int64_t>& targets) const = 0;
  // Whether the document is of the same row of the data as the one before: such are held out, and
  // repeated, together.
  virtual bool row_goes_on(int64_t /*document*/) const { return false; }
  // Equal for equal documents in equal order: tells on resume whether the data is still the same.
  virtual uint64_t fingerprint() const = 0;
};

}  // namespace longshore
