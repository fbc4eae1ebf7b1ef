// Dataset: documents as token ids with targets, in memory or in memory-mapped files. Immutable once
// built; any thread may read.
#pragma once

#include <cstdint>
#include <vector>

#include "text/tokenizer.h"

namespace longshore {

// The target of an untrained position.
inline constexpr TokenId kNotTrained = -100;

class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual int64_t document_count() const = 0;
  // Returns the tokens of a document, at least 1.
  virtual int64_t document_tokens(int64_t document) const = 0;
  // Returns the positions of a document that have a target, at least 1.
  virtual int64_t document_trained_tokens(int64_t document) const = 0;
  // Appends the document's tokens and one target per token: the label of the next token (the token
  // to predict), or kNotTrained. The last position's target is kNotTrained.
  virtual void append_document(int64_t document, std::vector<int64_t>& tokens,
                               std::vector<int64_t>& targets) const = 0;
  // Returns true if the document and the one before come from the same row of the data. Such
  // documents are held out, and repeated, together.
  virtual bool row_goes_on(int64_t /*document*/) const { return false; }
  // Equal for equal documents in equal order. Resuming compares it to detect changed data.
  virtual uint64_t fingerprint() const = 0;
};

}  // namespace longshore
